"""The parties' keys as the log has them: the newest registration of each, and the officers.

The index has no names, so the records are read where it says that they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec

from replica.index.interface import Index
from replica.index.newest import officers_of
from replica.log.interface import RequestLog
from replica.log.reading_on import open_reading_on
from replica.notary.errors import IndexMismatch, LogUnavailable
from replica.notary.parties import PARTY_KEY, Registration, decode_registration
from replica.notary.position import ledger_of, offset_of
from replica.notary.records import RegistrationRecord, Undecodable, decode_record, format_named

PAGE_KEYS = 200
READ_ON_MAX = 1_000  # records between two registrations that one reader passes over
READ_WAIT_S = 5.0


class PartyKey(msgspec.Struct, frozen=True):
    """The newest registration of a key: in force in [from_us, until_us), by which officer, at which log offset.
    `number`: how many of this key had an effect, this one included; the next one names it."""

    party: str
    key: str
    from_us: int
    until_us: int
    operator: str
    officer: str
    number: int
    offset: int


class PartyPage(msgspec.Struct, frozen=True):
    """Registrations by log offset, after the one that was asked for. `more`: there are others after them.

    `ledger_id`: in hexadecimal; `officers`: their keys, by the newest act; `acts`: how many there were; `known_to`: the
    log offset up to which this replica knows registrations.
    """

    ledger_id: str
    officers: list[str]
    acts: int
    known_to: int
    keys: list[PartyKey]
    more: bool


class PartyBook:
    """Reads pages of it."""

    def __init__(self, index: Index, request_log: RequestLog) -> None:
        self._index = index
        self._log = request_log

    async def page(self, after: int = -1) -> PartyPage:
        """The first registrations after a log offset. Raises LogUnavailable, LogRefused, IndexUnreadable, and
        IndexMismatch where log and index disagree."""
        newest = [one for one in newest_of_all(self._index) if one.offset > after]
        wanted, officers = newest[:PAGE_KEYS], officers_of(self._index)
        position = self._index.position()
        found = await self._read([one.offset for one in wanted])
        keys = [_shown(one, found.get(one.offset)) for one in wanted]
        return PartyPage(
            ledger_of(position).hex(),
            sorted(key.hex() for key in officers.keys),
            officers.acts,
            offset_of(position),
            keys,
            len(newest) > len(wanted),
        )

    async def _read(self, offsets: Sequence[int]) -> dict[int, bytes]:
        """The records at these offsets, ascending. One reader passes over what lies between, where that is little."""
        found: dict[int, bytes] = {}
        for group in near_each_other(offsets):
            reader = await open_reading_on(self._log, group[0])
            try:
                at, wanted = group[0], set(group)
                while at <= group[-1]:
                    records = await reader.read(min(READ_ON_MAX, group[-1] - at + 1), READ_WAIT_S)
                    if not records:
                        raise LogUnavailable(f"no record at offset {at} within {READ_WAIT_S:g} s")
                    found |= {offset: value for offset, value in records if offset in wanted}
                    at = records[-1][0] + 1
            finally:
                await reader.close()
        return found


def newest_of_all(index: Index) -> list[Registration]:
    """The newest registration of each key, by log offset."""
    newest: dict[bytes, bytes] = {}
    for key, value in index.entries(PARTY_KEY):  # in key order: of one key, the newest comes last
        newest[key[:-8]] = value
    return sorted(map(decode_registration, newest.values()), key=attrgetter("offset"))


def near_each_other(offsets: Sequence[int]) -> list[list[int]]:
    """The offsets, ascending, in groups whose gaps are below READ_ON_MAX."""
    groups: list[list[int]] = []
    for offset in offsets:
        if groups and offset - groups[-1][-1] < READ_ON_MAX:
            groups[-1].append(offset)
        else:
            groups.append([offset])
    return groups


def _shown(known: Registration, value: bytes | None) -> PartyKey:
    try:
        record = None if value is None else decode_record(value, format_named(value))
    except Undecodable:
        record = None
    if not isinstance(record, RegistrationRecord):
        raise IndexMismatch(f"the index has a registration at log offset {known.offset}, and the log has none there")
    return PartyKey(
        record.party,
        record.party_key.hex(),
        record.from_us,
        record.until_us,
        record.operator,
        record.public_key.hex(),
        known.number,
        known.offset,
    )
