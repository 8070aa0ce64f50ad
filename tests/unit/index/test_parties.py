"""The table of officers and registrations, on RocksDB and in memory: it follows the notes, however runs are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.index.interface import Parties
from replica.index.memory import MemoryParties
from replica.index.parties import knows_parties, write_notes
from replica.index.rocks import RocksParties
from replica.notary.counted import CountedNote
from replica.notary.parties import Officers, decode_registration, encode_officers, registration_id
from replica.notary.position import Position, begin
from replica.notary.reading import read_records
from tests.worlds.notary_logs import PARTY, TOPIC, Log, LogMaker
from tests.worlds.party_logs import CLIENT_KEY, OFFICER_KEYS, logs_with_parties, run_with_parties

FIRST, SECOND, _ = OFFICER_KEYS
PAIR = registration_id(PARTY, CLIENT_KEY)
Make = Callable[[], Parties]


@pytest.fixture(params=["memory", "rocks"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same table each time."""
    memory = MemoryParties()
    opened: list[RocksParties] = []

    def open_it() -> Parties:
        if request.param == "memory":
            return memory
        for one in opened:
            one.close()
        opened.append(RocksParties(tmp_path / "parties"))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


def noted(maker: LogMaker, first: int = 0) -> tuple[list[CountedNote], Position, Position]:
    """The notes of a log from an offset on, and the positions before and after them."""
    before = read_records(begin(TOPIC), maker.log[:first]).position
    reading = read_records(before, maker.log[first:])
    return [note for note in reading.counted if isinstance(note, CountedNote)], before, reading.position


def begun() -> LogMaker:
    """A log of three records: barrier, officers, a registration."""
    maker = LogMaker(format=2)
    maker.barrier(1)
    maker.act("officers", body=encode_officers([FIRST]), by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, 9))
    return maker


def test_a_new_table_knows_nobody(make: Make) -> None:
    """Goal: a new table is known as such."""
    parties = make()
    assert (parties.position(), parties.officers(), parties.entry_count) == (None, Officers(), 0)
    assert parties.newest([PAIR], [2**63]) == [None]
    assert not knows_parties(parties, 0)


def test_the_newest_registration_below_an_offset_is_found(make: Make) -> None:
    """Goal: a request is judged by what was registered before it. Method: one pair, three times and another pair."""
    maker = begun()
    maker.register("O=Other,L=Rome,C=IT", key=CLIENT_KEY, by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(3, 8))
    parties = make()
    write_notes(parties, *noted(maker))
    found = parties.newest([PAIR] * 5, [0, 2, 3, 4, 5])
    assert [value and decode_registration(value).offset for value in found] == [None, None, 2, 2, 4]
    assert parties.newest([registration_id("nobody", CLIENT_KEY)], [9]) == [None]


def test_officers_and_position_are_there_when_it_is_opened_again(make: Make) -> None:
    """Goal: nothing is only in memory. Method: open again, and go on where it ended."""
    maker = begun()
    notes, before, after = noted(maker)
    write_notes(make(), notes, before, after)
    parties = make()
    assert (parties.officers(), parties.position()) == (Officers(1, frozenset([FIRST])), after)
    maker.act("officers", body=encode_officers([SECOND]), replaces=1, by=FIRST)
    write_notes(parties, *noted(maker, 3))
    assert make().officers() == Officers(2, frozenset([SECOND]))


def test_what_it_has_is_not_written_twice(make: Make) -> None:
    """Goal: a crash after it was written, and before the states were, does no harm. Method: runs that overlap."""
    maker = begun()
    parties = make()
    write_notes(parties, *noted(maker))
    once = list(parties.entries())
    write_notes(parties, *noted(maker))
    assert list(parties.entries()) == once
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(4, 4))
    write_notes(parties, *noted(maker))  # from the start again, one more at the end
    assert parties.entry_count == len(once) + 2
    assert parties.position() == noted(maker)[2]


def test_a_table_that_lags_is_left_alone(make: Make) -> None:
    """Goal: no registration is missed for ever. Method: a run that does not follow on what is there."""
    maker = begun()
    parties = make()
    write_notes(parties, *noted(maker, 2))
    assert parties.position() is None
    assert not knows_parties(parties, 2)
    write_notes(parties, *noted(maker))
    assert knows_parties(parties, 2)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(logs_with_parties(), st.lists(st.integers(0, 40), max_size=4))
def test_the_table_on_a_disk_is_that_in_memory(
    tmp_path_factory: pytest.TempPathFactory, log: Log, cuts: list[int]
) -> None:
    """Goal: cuts and kinds of table change nothing. Method: random logs into both, and in one run into a third."""
    rocks = RocksParties(tmp_path_factory.mktemp("table") / "parties")
    on_disk = run_with_parties(log, cuts, parties=rocks)
    in_memory = run_with_parties(log)
    assert list(on_disk.parties.entries()) == list(in_memory.parties.entries())
    assert (on_disk.officers, on_disk.verdicts) == (in_memory.officers, in_memory.verdicts)
    rocks.close()
