"""Which counting requests are refused because of the key that signed them: by the log alone, whatever was judged.

A registration depends on no verdict. So the plan has all of them, and each slice decides for itself. A request whose
key is not in force records nothing: it makes no claim on any state or id. It may still be the retry of a command that
was accepted before, which is a success. So its command is looked at, as that of a request outside its time window is.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

import numpy as np

from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array
from pipeline.judging.plan import Counted, Plan
from pipeline.judging.reasons import EXCEPTION, KEY_CLOSED, NO_KEY
from replica.notary.parties import PARTY_KEY, Registration, decode_registration, registration_id
from replica.notary.requests import PUBLIC_KEY_BYTES

_AT_BYTES = 8  # a key of the table ends in the log offset
_offset = attrgetter("offset")


def barred(columns: Columns, found: Counted, plan: Plan) -> Array:
    """For each counting request of a slice: NO_KEY, KEY_CLOSED, or 0 if its key is in force."""
    pick = found.requests
    reasons = np.zeros(len(pick), np.uint8)
    if not len(pick):
        return reasons
    offsets = (columns.first_offset + columns.rows[pick]).tolist()
    registered = _by_id(plan.parties)
    data = columns.raw.tobytes()
    starts, sizes = (edge.tolist() for edge in columns.parties(pick))
    keys = columns.at(columns.public_key_at[pick], PUBLIC_KEY_BYTES).tolist()
    of_pair: dict[tuple[bytes, bytes], list[Registration]] = {}
    for place, (start, size, key, offset, time_us) in enumerate(
        zip(starts, sizes, keys, offsets, found.judged_us.tolist(), strict=True)
    ):
        pair = (data[start : start + size], key)
        if pair not in of_pair:
            of_pair[pair] = registered.get(registration_id(pair[0].decode(), key), [])
        reasons[place] = _against(of_pair[pair], offset, time_us)
    return reasons


def exceptions_of(columns: Columns, found: Counted, reasons: Array) -> Array:
    """What stands against the requests that are barred, as rows of EXCEPTION."""
    places = np.flatnonzero(reasons)
    made = np.zeros(len(places), EXCEPTION)
    made["offset"] = columns.first_offset + columns.rows[found.requests[places]]
    made["reason"] = reasons[places]
    return made


def _by_id(parties: dict[bytes, bytes]) -> dict[bytes, list[Registration]]:
    """The registrations of each pair, by ascending offset, as the table's entries came."""
    found: dict[bytes, list[Registration]] = {}
    for key, value in parties.items():
        if key[:1] == PARTY_KEY:
            found.setdefault(key[:-_AT_BYTES], []).append(decode_registration(value))
    return found


def _against(registrations: list[Registration], offset: int, time_us: int) -> int:
    number = bisect_left(registrations, offset, key=_offset)
    if not number:
        return NO_KEY
    newest = registrations[number - 1]
    return 0 if newest.from_us <= time_us < newest.until_us else KEY_CLOSED
