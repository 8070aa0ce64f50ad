"""The notary's domain, pure: requests, canonical bytes, records, the void rule, the rules, receipts, errors.

This package imports nothing else of the project and does no I/O. So every reader of the log (replica, pipeline, tools,
tests) applies the same rules.
"""
