"""The newest acceptance, registration and officers below a log offset, on RocksDB and in memory alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.index.interface import Index
from replica.index.memory import MemoryIndex
from replica.index.newest import newest_acceptances, newest_registrations, newest_with, noted, officers_of
from replica.index.rocks import RocksIndex
from replica.notary.acceptances import Acceptance, decode_acceptance, encode_acceptance, first_key, later_key
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.parties import Officers, decode_registration, encode_officers, registration_id
from replica.notary.position import POSITION_VERSION, Position, begin
from replica.notary.reading import read_records
from tests.worlds.notary_logs import CLIENT_KEY, PARTY, TOPIC, Log, LogMaker, request_of, run_product
from tests.worlds.party_logs import OFFICER_KEYS, logs_with_parties

LAST = 2**63 - 1
FIRST, SECOND, _ = OFFICER_KEYS
PAIR = registration_id(PARTY, CLIENT_KEY)
Make = Callable[[], Index]


def at(offset: int) -> Position:
    return Position(POSITION_VERSION, b"L" * 16, "topic", offset, b"d" * 32)


def change(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def accepted(offset: int, tx: int = 0) -> bytes:
    return encode_acceptance(bytes([tx]) * 32, b"d" * 32, 1_000 + offset, offset, offset)


@pytest.fixture(params=["memory", "rocks"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same index each time."""
    memory = MemoryIndex()
    opened: list[RocksIndex] = []

    def open_it() -> Index:
        if request.param == "memory":
            return memory
        for one in opened:
            one.close()
        opened.append(RocksIndex(tmp_path / "index"))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


def write_notes(index: Index, maker: LogMaker, first: int = 0) -> None:
    """Add what the notes of a log record from an offset on."""
    before = read_records(begin(TOPIC), maker.log[:first]).position
    reading = read_records(before, maker.log[first:])
    notes = [note for note in reading.counted if isinstance(note, CountedNote)]
    index.write(noted(index, notes, first), reading.position)


def begun() -> LogMaker:
    """A log of three records: barrier, officers, a registration."""
    maker = LogMaker()
    maker.genesis(FIRST)
    maker.barrier(1)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, 9))
    return maker


def offsets(found: list[bytes | None]) -> list[int | None]:
    return [value and int.from_bytes(value[-8:], "big") for value in found]


def test_an_acceptance_is_read_as_it_was_written() -> None:
    """Goal: nothing is lost in the bytes. Method: there and back, with the largest numbers."""
    acceptance = Acceptance(b"t" * 32, b"d" * 32, LAST, LAST, LAST)
    assert decode_acceptance(encode_acceptance(*acceptance)) == acceptance
    assert encode_acceptance(*acceptance)[-8:] == LAST.to_bytes(8, "big")


def test_the_newest_acceptance_below_an_offset_is_found(make: Make) -> None:
    """Goal: filter first, then the newest. Method: three of one command, one of a neighbour; every bound."""
    index = make()
    first, second = change(1), change(2)
    index.write({first_key(first): accepted(3)}, at(3))
    index.write({first_key(second): accepted(4), later_key(first, 7): accepted(7)}, at(8))
    index.write({later_key(first, 9): accepted(9)}, at(9))
    found = newest_acceptances(index, [first] * 12, list(range(12)))
    assert offsets(found) == [*[None] * 4, *[3] * 4, *[7] * 2, *[9] * 2]
    assert newest_acceptances(index, [second, change(3), first], [LAST, LAST, 8]) == [accepted(4), None, accepted(7)]
    assert newest_acceptances(index, [], []) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rocksdb_and_the_double_find_the_same(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Goal: the double stands for the real one. Method: random acceptances of few commands, all bounds."""
    memory, rocks = MemoryIndex(), RocksIndex(tmp_path_factory.mktemp("agree") / "index")
    seen: set[int] = set()
    commands = data.draw(st.lists(st.integers(0, 3), max_size=25))
    for offset, number in enumerate(commands):
        key = later_key(change(number), offset) if number in seen else first_key(change(number))
        seen.add(number)
        for index in (memory, rocks):
            index.write({key: accepted(offset), b"s" + change(offset): accepted(offset)}, at(offset))
    asked = [(first_key(change(number)), below) for number in range(5) for below in range(len(commands) + 2)]
    prefixes, bounds = [one for one, _ in asked], [below for _, below in asked]
    assert rocks.newest(prefixes, bounds) == memory.newest(prefixes, bounds)
    rocks.close()


def test_what_a_run_adds_counts_with_what_is_there() -> None:
    """Goal: the newer of both, below the bound. Method: entries of two commands around what is known."""
    one, other = first_key(change(1)), first_key(change(2))
    added = {later_key(change(1), 5): accepted(5), later_key(change(1), 7): accepted(7), other: accepted(6)}
    known = [*[accepted(4)] * 3, accepted(8), None, None]
    found = newest_with(added, [one] * 4 + [other] * 2, [5, 6, 8, 9, 6, 7], known)
    assert offsets(found) == [4, 5, 7, 8, None, 6]


def test_a_new_index_knows_nobody(make: Make) -> None:
    """Goal: a new index is known as such."""
    assert officers_of(make()) == Officers()
    assert make().newest([PAIR], [2**63]) == [None]


def test_the_newest_registration_below_an_offset_is_found(make: Make) -> None:
    """Goal: a request is judged by what was registered before it. Method: one pair, three times and another pair."""
    maker = begun()
    maker.register("O=Other,L=Rome,C=IT", key=CLIENT_KEY, by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(3, 8))
    index = make()
    write_notes(index, maker)
    found = index.newest([PAIR] * 5, [0, 2, 3, 4, 5])
    assert [value and decode_registration(value).offset for value in found] == [None, None, 2, 2, 4]
    assert index.newest([registration_id("nobody", CLIENT_KEY)], [9]) == [None]


@pytest.mark.parametrize("written", [False, True])
def test_the_registrations_of_a_run_count_for_its_later_requests(make: Make, written: bool) -> None:
    """Goal: each request is judged by what is before it, whether its run is in the index or not. Method: a key is
    registered, revoked, and used before, between and after, in one run."""
    maker = LogMaker()
    maker.genesis(FIRST)
    maker.barrier(1)
    maker.submit(request_of(1, (1,)), command="c1")
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.submit(request_of(2, (2,)), command="c2")
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(7, 7))
    maker.submit(request_of(3, (3,)), command="c3")
    reading, index = read_records(begin(TOPIC), maker.log), make()
    if written:
        write_notes(index, maker)
    added = noted(index, [note for note in reading.counted if isinstance(note, CountedNote)], 0)
    requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
    assert offsets(newest_registrations(index, requests, added)) == [None, 3, 5]


def test_officers_are_there_when_it_is_opened_again(make: Make) -> None:
    """Goal: nothing is only in memory. Method: open again, and go on where it ended; ask for those before an act."""
    maker = begun()
    write_notes(make(), maker)
    assert officers_of(make()) == Officers(1, frozenset([FIRST]))
    maker.act("officers", body=encode_officers([SECOND]), replaces=1, by=FIRST)
    write_notes(make(), maker, 3)
    assert officers_of(make()) == Officers(2, frozenset([SECOND]))
    assert officers_of(make(), 3) == Officers(1, frozenset([FIRST]))


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(logs_with_parties(), st.lists(st.integers(0, 40), max_size=4))
def test_the_index_on_a_disk_is_that_in_memory(
    tmp_path_factory: pytest.TempPathFactory, log: Log, cuts: list[int]
) -> None:
    """Goal: cuts and kinds of index change nothing. Method: random logs into both, in one run into the second."""
    rocks = RocksIndex(tmp_path_factory.mktemp("index") / "index")
    on_disk = run_product(log, cuts, parties=rocks)
    in_memory = run_product(log)
    assert list(on_disk.parties.entries()) == list(in_memory.parties.entries())
    assert (on_disk.officers, on_disk.verdicts) == (in_memory.officers, in_memory.verdicts)
    rocks.close()
