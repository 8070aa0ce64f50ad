"""The front-end process: HTTP, parsing, canonical bytes, signature checks, rendering.

It decides nothing about the ledger: every answer is the core's, passed on over the link.
"""
