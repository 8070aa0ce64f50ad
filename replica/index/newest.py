"""Which acceptance or registration was the newest below a log offset: of an index, and of a run that is not in it yet.

A run is written once it is judged, but what it has itself counts for its later records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from replica.index.compare import recorded_at
from replica.index.interface import NOTHING, OFFSET_END, Index
from replica.notary.acceptances import first_key, newer
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.parties import (
    OFFICERS_KEY,
    Officers,
    decode_officers_entry,
    in_force_after,
    pairs_of,
    registration_id,
)


def newest_acceptances(index: Index, change_ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
    """The newest acceptance of each command below the log offset in the same place, or None. Errors as Index.

    One exact look-up for all, and a seek only for commands that were accepted before.
    """
    keys = [first_key(change_id) for change_id in change_ids]
    return newest_after_first(index, keys, index.lookup(keys) if keys else [], below)


def newest_after_first(
    index: Index, keys: Sequence[bytes], first: Sequence[bytes | None], below: Sequence[int]
) -> list[bytes | None]:
    """Likewise, where the first acceptance of each was looked up by its key."""
    found = list(first)
    accepted = [at for at, value in enumerate(first) if value is not None]
    newest = index.newest([keys[at] for at in accepted], [below[at] for at in accepted]) if accepted else []
    for at, value in zip(accepted, newest, strict=True):
        found[at] = value
    return found


def newest_registrations(
    index: Index, requests: Sequence[CountedRequest], added: Mapping[bytes, bytes] = NOTHING
) -> list[bytes | None]:
    """The newest registration of each request's party and key below the request's own offset, those of `added`
    included. Errors as Index.

    A pair that several requests have is asked for once, below the last of them. Only where that finds a registration
    among them are the earlier ones asked for by themselves.
    """
    pairs = [(entry.request.party, entry.record.public_key) for entry in requests]
    last = {pair: entry.offset for pair, entry in zip(pairs, requests, strict=True)}
    ids = {pair: registration_id(*pair) for pair in last}
    of_pair = dict(zip(ids, index.newest(list(ids.values()), list(last.values())), strict=True))
    found = [of_pair[pair] for pair in pairs]
    unsure = [at for at, value in enumerate(found) if value is not None and recorded_at(value) >= requests[at].offset]
    exact = index.newest([ids[pairs[at]] for at in unsure], [requests[at].offset for at in unsure]) if unsure else []
    for at, value in zip(unsure, exact, strict=True):
        found[at] = value
    if not added:
        return found
    return newest_with(added, [ids[pair] for pair in pairs], [entry.offset for entry in requests], found)


def newest_with(
    added: Mapping[bytes, bytes], prefixes: Sequence[bytes], below: Sequence[int], known: Sequence[bytes | None]
) -> list[bytes | None]:
    """The newest entry of each prefix below the offset in the same place: of some that were added, and of `known`, what
    is known without these. All prefixes have one length."""
    of_prefix: defaultdict[bytes, list[bytes]] = defaultdict(list)
    length = len(prefixes[0]) if prefixes else 0
    for key, value in sorted(added.items(), key=lambda item: recorded_at(item[1])):
        of_prefix[key[:length]].append(value)
    found = []
    for prefix, bound, before in zip(prefixes, below, known, strict=True):
        values = of_prefix.get(prefix, [])
        at = bisect_left(values, bound, key=recorded_at)
        found.append(newer(before, values[at - 1] if at else None))
    return found


def officers_of(index: Index, below: int = OFFSET_END) -> Officers:
    """The officers in force before the record at a log offset. Errors as Index."""
    (value,) = index.newest([OFFICERS_KEY], [below])
    return Officers() if value is None else decode_officers_entry(value)


def noted(
    index: Index, notes: Sequence[CountedNote], first_offset: int, lost: Mapping[bytes, bytes] = NOTHING
) -> dict[bytes, bytes]:
    """The entries that the notes of a run give the index, and its lost records, whose entries of these kinds are
    `lost`. The index may be newer than the run, which begins at `first_offset`. Errors as Index."""
    if not notes and not lost:
        return {}
    pairs = pairs_of(notes)
    newest = zip(pairs, index.newest(pairs, [first_offset] * len(pairs)), strict=True)
    registered = {pair: value for pair, value in newest if value is not None}
    return in_force_after(officers_of(index, first_offset), notes, registered, lost)[1]
