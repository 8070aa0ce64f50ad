"""What client and server of the ledger API share: the documents and frames that travel between them.

docs/api.md describes them. Nothing here does I/O.
"""
