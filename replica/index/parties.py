"""The table of officers and registrations: how it follows the log's notes.

It is written up to the end of a run of records before the run is judged, because no registration depends on a verdict.
So after a crash it is ahead of the states and never lags, unless a release that does not know it has led the index on.
Then it is completed from the log, before anything is judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replica.index.commands import offset_of
from replica.index.interface import Parties
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.parties import in_force_after, registration_id, signed_keys_of
from replica.notary.position import Position


def write_notes(parties: Parties, notes: Iterable[CountedNote], before: Position | None, after: Position) -> None:
    """Write the notes of a run from position `before` to `after`, as far as they follow on what is there.

    Nothing happens where the table lags, and is completed separately, or is past the run already. Raises
    IndexUnreadable.
    """
    written = offset_of(parties.position())
    if not offset_of(before) <= written < after.offset:
        return
    new = [note for note in notes if note.offset > written]
    if not new:
        parties.write({}, after)
        return
    signed = signed_keys_of(new)
    known = {key: value for key, value in zip(signed, parties.lookup(signed), strict=True) if value is not None}
    _, added = in_force_after(parties.officers(), new, known)
    parties.write(added, after)


def knows_parties(parties: Parties, offset: int) -> bool:
    """Whether the table has all registrations of records up to `offset`."""
    return offset_of(parties.position()) >= offset


def newest_of(parties: Parties, requests: Sequence[CountedRequest]) -> list[bytes | None]:
    """The newest registration of each request's party and key below the request's own offset. Errors as Index."""
    ids = [registration_id(entry.request.party, entry.record.submission.public_key) for entry in requests]
    return parties.newest(ids, [entry.offset for entry in requests])
