"""The table of officers and registrations: how it follows the log's notes.

It is written up to the end of a run of records before the run is judged, because no registration depends on a verdict.
So after a crash it is ahead of the states and never lags, unless a release that does not know it has led the index on.
Then it is completed from the log, before anything is judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replica.index.commands import offset_of
from replica.index.compare import recorded_at
from replica.index.interface import NOTHING, Parties
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.parties import in_force_through, registration_id, signed_keys_of
from replica.notary.position import Position
from replica.notary.rules import REGISTERED_FROM


def write_notes(
    parties: Parties,
    notes: Iterable[CountedNote],
    before: Position | None,
    after: Position,
    lost: Mapping[bytes, bytes] = NOTHING,
) -> None:
    """Write the notes of a run from position `before` to `after`, as far as they follow on what is there. `lost`: the
    entries of its lost records.

    Nothing happens where the table lags, and is completed separately, or is past the run already. Raises
    IndexUnreadable.
    """
    written = offset_of(parties.position())
    if not offset_of(before) <= written < after.offset:
        return
    new = [note for note in notes if note.offset > written]
    of_lost = {key: value for key, value in lost.items() if recorded_at(value) > written}
    if not new and not of_lost:
        parties.write({}, after)
        return
    signed = signed_keys_of(new)
    known = {key: value for key, value in zip(signed, parties.lookup(signed), strict=True) if value is not None}
    _, added = in_force_through(parties.officers(), new, of_lost, known)
    parties.write(added, after)


def knows_parties(parties: Parties, offset: int) -> bool:
    """Whether the table has all registrations of records up to `offset`."""
    return offset_of(parties.position()) >= offset


def knows_parties_where_judged(parties: Parties, position: Position) -> bool:
    """Whether the table reaches the position, or the rules in force there do not ask for it."""
    barrier = position.barrier
    judged = barrier is not None and barrier.rules_version >= REGISTERED_FROM
    return not judged or knows_parties(parties, position.offset)


def newest_of(parties: Parties, requests: Sequence[CountedRequest]) -> list[bytes | None]:
    """The newest registration of each request's party and key below the request's own offset. Errors as Index.

    A pair that several requests have is asked for once, below the last of them. Only where that finds a registration
    among them are the earlier ones asked for by themselves.
    """
    pairs = [(entry.request.party, entry.record.submission.public_key) for entry in requests]
    last = {pair: entry.offset for pair, entry in zip(pairs, requests, strict=True)}
    ids = {pair: registration_id(*pair) for pair in last}
    of_pair = dict(zip(ids, parties.newest(list(ids.values()), list(last.values())), strict=True))
    found = [of_pair[pair] for pair in pairs]
    unsure = [at for at, value in enumerate(found) if value is not None and recorded_at(value) >= requests[at].offset]
    exact = parties.newest([ids[pairs[at]] for at in unsure], [requests[at].offset for at in unsure])
    for at, value in zip(unsure, exact, strict=True):
        found[at] = value
    return found
