"""Noted: what officers signed about parties is verified, logged and waited for.

No verdict depends on the signatures, so they are verified here, before the log has the record (docs/decisions/0018).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from replica.active.holder import Holder
from replica.active.parts import Parts
from replica.following.apply import Applied, notes_in
from replica.index.interface import OFFSET_END
from replica.index.newest import officers_of
from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.note_signatures import note_signature_holds
from replica.notary.parties import PartyNote, entry_key_of, registration_id, why_no_effect, why_not_together
from replica.notary.position import ledger_of
from replica.notary.records import RegistrationRecord

NOTE_MAX_S = 10.0  # until all notes of a call are read back


class NoteRefused(NotaryError):
    """Nothing was logged; the text says why."""

    default_code = Code.NOT_POSSIBLE_NOW


class NoteUnknown(NotaryError):
    """It is not known whether the notes are in the log: look at the list of parties."""

    default_code = Code.OUTCOME_UNKNOWN


class Noted(msgspec.Struct, frozen=True):
    """Where a note is in the log, and whether it had an effect: another one may have come before it."""

    offset: int
    effective: bool


class Noting:
    """The notes of one activation. `take` gets every run that the follower applies."""

    def __init__(self, parts: Parts, holder: Holder) -> None:
        self._parts = parts
        self._holder = holder
        self.waiting: dict[int, asyncio.Future[int]] = {}  # by sequence number, the oldest first
        self._turn = asyncio.Lock()
        self._closed = False

    async def note(self, notes: Sequence[PartyNote]) -> list[Noted]:
        """Log notes, in this order; returns where they are. Raises NoteRefused, NoteUnknown, and errors of the
        index.

        One call at a time: a note is checked against what those before it changed. Else an honest note of one officer
        could follow on another's act, have no effect, and be the audit's finding for ever.
        """
        async with self._turn:
            return await self._note(notes)

    async def _note(self, notes: Sequence[PartyNote]) -> list[Noted]:
        if self.waiting:
            raise NoteRefused("earlier notes are not read back yet: try again, and look: notary party list")
        if (reason := why_not_together(notes)) is not None:
            raise NoteRefused(reason)
        for note in notes:
            self._check(note)
        futures = [self._append(note) for note in notes]
        try:
            async with asyncio.timeout(NOTE_MAX_S):
                offsets = [await future for future in futures]
        except TimeoutError:
            raise NoteUnknown(f"not read back within {NOTE_MAX_S:g} s; look: notary party list") from None
        return [Noted(at, self._had_effect(note, at)) for note, at in zip(notes, offsets, strict=True)]

    def take(self, applied: Applied) -> None:
        """Tell those who wait where their notes are."""
        if not self.waiting:
            return
        for entry in notes_in(applied.reading):
            if self._holder.wrote(entry.record.activation_id):
                future = self.waiting.pop(entry.record.sequence, None)
                if future is not None and not future.done():
                    future.set_result(entry.offset)

    def close(self) -> None:
        """Log no more, and tell those who wait that the outcome is unknown."""
        self._closed = True
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(NoteUnknown("the replica stepped down; look: notary party list"))
        self.waiting.clear()

    def _check(self, note: PartyNote) -> None:
        """Raises NoteRefused for a note that cannot be logged, or would change nothing."""
        index = self._parts.index
        if self._closed:
            raise NoteRefused("the replica steps down", Code.NOT_ACTIVE)
        if not note_signature_holds(note, ledger_of(index.position())):
            raise NoteRefused("the signature is not of its key over this note", Code.SIGNATURE_INVALID)
        newest = None
        if isinstance(note, RegistrationRecord):
            (newest,) = index.newest([registration_id(note.party, note.party_key)], [OFFSET_END])
        if (reason := why_no_effect(note, officers_of(index), newest)) is not None:
            raise NoteRefused(reason)

    def _append(self, note: PartyNote) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)
        self.waiting[self._holder.append_note(note)] = future
        return future

    def _had_effect(self, note: PartyNote, offset: int) -> bool:
        (value,) = self._parts.index.lookup([entry_key_of(note, offset)])
        return value is not None


def _seen(future: asyncio.Future[int]) -> None:
    """Nobody may wait any more: an error that is not looked at is no defect."""
    if not future.cancelled():
        future.exception()
