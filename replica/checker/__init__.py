"""The history checker and the reference judge: would we notice if the notary were wrong?

Pure, and on purpose apart from what it checks: it knows request types, canonical bytes, record formats and receipts,
and has void rule and rules of its own, written from the design's text.
"""
