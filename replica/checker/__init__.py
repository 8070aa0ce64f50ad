"""The history checker and the reference judge: they find out whether the notary ever gave a wrong answer.

Pure, and deliberately independent of what it checks. It shares the request types, canonical bytes, record formats and
receipts with the notary. It has a void rule and rules of its own, written from the text of the design.
"""
