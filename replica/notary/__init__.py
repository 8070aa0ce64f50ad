"""The notary's own knowledge, pure: requests, canonical bytes, records, the void rule, the rules, receipts, errors.

This room imports nothing else of the project and does no I/O, so that every reader of the log (replica, pipeline,
tools, tests) applies the very same rules.
"""
