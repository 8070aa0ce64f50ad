"""The records that count: the void rule (reading.py) passes them to the rules (rules.py)."""

from __future__ import annotations

import msgspec

from replica.notary.genesis import GenesisRecord
from replica.notary.records import NoteRecord, RequestRecord
from replica.notary.requests import Request
from replica.notary.terms import Terms


class CountedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request record that counts. `judged_us` is the highest stamp so far, its own included. `ledger_offset` is
    that of its completion. `change_id` identifies its command, which is among its terms."""

    offset: int
    ledger_offset: int
    record: RequestRecord
    request: Request
    content_digest: bytes
    terms: Terms
    change_id: bytes
    judged_us: int
    rules_version: int


class CountedNote(msgspec.Struct, frozen=True):
    """The genesis, or an act, a registration or a salvage that counts. `judged_us` is the highest stamp before it."""

    offset: int
    record: GenesisRecord | NoteRecord
    judged_us: int


Counted = CountedRequest | CountedNote
"""Signs of life count as well; but that is all, so nobody is handed them."""
