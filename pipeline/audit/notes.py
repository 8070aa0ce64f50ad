"""Verifies every act and registration that counts: who signed it, and whether that was an officer.

No verdict depends on these signatures. So a record that was written past the active has its effect, and this finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.audit.findings import Finding, FindingCode
from replica.notary.counted import CountedNote
from replica.notary.genesis import NO_LEDGER, GenesisRecord
from replica.notary.note_signatures import note_signature_holds
from replica.notary.parties import Officers, PartyNote, in_force_after, may_sign


def bad_notes(notes: Iterable[CountedNote], *, after: int) -> Iterator[Finding]:
    """Findings on notes after offset `after`. `notes`: all of the log that count, in its order: what ledger it is and
    who is an officer follows from those before."""
    officers, ledger_id = Officers(), NO_LEDGER
    for note in notes:
        record = note.record
        if isinstance(record, GenesisRecord):
            ledger_id = record.ledger_id
        if note.offset > after and isinstance(record, PartyNote):
            yield from _wrong(note.offset, record, officers, ledger_id)
        officers, _ = in_force_after(officers, [note], {})


def _wrong(offset: int, record: PartyNote, officers: Officers, ledger_id: bytes) -> Iterator[Finding]:
    if not note_signature_holds(record, ledger_id):
        message = f"the signature under the name {record.operator!r} is not that of the key in the record"
        yield Finding(FindingCode.NOTE_SIGNATURE_INVALID, offset, message)
    if not may_sign(record, officers):
        message = f"the key {record.public_key.hex()}, under the name {record.operator!r}, was no officer's"
        yield Finding(FindingCode.NOT_AN_OFFICER, offset, message)
