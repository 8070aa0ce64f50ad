"""The table of commands beside that of states: the newest acceptance, and two positions that may come apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.index.commands import due, knows_commands
from replica.index.interface import Index
from replica.index.memory import MemoryIndex
from replica.index.rocks import COMMANDS_NAME, RocksIndex, RocksTable
from replica.notary.acceptances import Acceptance, decode_acceptance, encode_acceptance, first_key, later_key
from replica.notary.position import Position
from replica.notary.records import BarrierRecord

LAST = 2**63 - 1


def at(offset: int) -> Position:
    barrier = BarrierRecord(3, b"a" * 16, "r1", "postgres:1:1", 1, 1)
    return Position(1, "topic", offset, b"d" * 32, barrier, 0, 17, ((0, offset),))


def change(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def accepted(offset: int, tx: int = 0) -> bytes:
    return encode_acceptance(bytes([tx]) * 32, b"d" * 32, 1_000 + offset, offset)


def spent(number: int, offset: int) -> dict[bytes, bytes]:
    return {b"s" + change(number) + bytes(4): bytes(32) + offset.to_bytes(8, "big")}


@pytest.fixture(params=["memory", "rocks"])
def make_index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Index]]:
    """Opens the same index each time."""
    memory = MemoryIndex()
    opened: list[RocksIndex] = []

    def make() -> Index:
        if request.param == "memory":
            return memory
        for one in opened:
            one.close()
        opened.append(RocksIndex(tmp_path / "index"))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_an_acceptance_is_read_as_it_was_written() -> None:
    """Goal: nothing is lost in the bytes. Method: there and back, with the largest numbers."""
    acceptance = Acceptance(b"t" * 32, b"d" * 32, LAST, LAST)
    assert decode_acceptance(encode_acceptance(*acceptance)) == acceptance
    assert encode_acceptance(*acceptance)[-8:] == LAST.to_bytes(8, "big")


def test_the_newest_acceptance_below_an_offset_is_found(make_index: Callable[[], Index]) -> None:
    """Goal: filter first, then the newest. Method: three of one command, one of a neighbour; every bound."""
    index = make_index()
    first, second = change(1), change(2)
    index.write({}, at(3), {first_key(first): accepted(3)})
    index.write({}, at(8), {first_key(second): accepted(4), later_key(first, 7): accepted(7)})
    index.write({}, at(9), {later_key(first, 9): accepted(9)})
    found = [index.commands.newest([first], [below])[0] for below in range(12)]
    assert [None if value is None else decode_acceptance(value).offset for value in found] == [
        *[None] * 4,
        *[3] * 4,
        *[7] * 2,
        *[9] * 2,
    ]
    assert index.commands.newest([second, change(3), first], [LAST, LAST, 8]) == [accepted(4), None, accepted(7)]
    assert list(index.entries()) == []
    assert [key for key, _ in index.commands.entries()] == sorted(
        [first_key(first), later_key(first, 7), later_key(first, 9), first_key(second)]
    )


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
            index.write({}, at(offset), {key: accepted(offset)})
    asked = [(change(number), below) for number in range(5) for below in range(len(commands) + 2)]
    ids, bounds = [one for one, _ in asked], [below for _, below in asked]
    assert rocks.commands.newest(ids, bounds) == memory.commands.newest(ids, bounds)
    rocks.close()


def test_the_two_tables_move_together(make_index: Callable[[], Index]) -> None:
    """Goal: what is written is known to be complete. Method: write both kinds and none, open again."""
    index = make_index()
    assert knows_commands(index, -1)
    index.write(spent(1, 5), at(5), {first_key(change(1)): accepted(5)})
    index.write({}, at(6))
    index = make_index()
    assert (index.position(), index.commands.position()) == (at(6), at(6))
    assert knows_commands(index, 6)
    assert not knows_commands(index, 7)


def test_a_release_that_knows_no_commands_leaves_their_table_where_it_was(tmp_path: Path) -> None:
    """Goal: a way back and forth. Method: the table of states led on as 0.2 does, opened by this release, completed."""
    folder = tmp_path / "index"
    index = RocksIndex(folder)
    index.write(spent(1, 5), at(5), {first_key(change(1)): accepted(5)})
    index.close()
    older = RocksTable(folder)  # what an older release opens: no table inside its own
    older.write(spent(2, 6), at(6))
    assert older.entry_count == 2  # its scrub counts states and transactions only
    older.close()
    index = RocksIndex(folder)
    assert not knows_commands(index, 6)
    index.write(spent(3, 7), at(7), {first_key(change(3)): accepted(7)})  # follows on nothing: not written
    assert index.commands.position() == at(5)
    assert index.commands.lookup([first_key(change(3))]) == [None]
    index.commands.write({first_key(change(2)): accepted(6), first_key(change(3)): accepted(7)}, at(7))  # completed
    index.write({}, at(8), {first_key(change(4)): accepted(8)})
    assert knows_commands(index, 8)
    assert index.commands.entry_count == 4
    index.close()
    RocksIndex(folder).close()  # the number of entries is checked at each opening


def test_after_a_crash_between_the_two_writes_nothing_is_written_twice(tmp_path: Path) -> None:
    """Goal: acceptances may be ahead, and count once. Method: the table of commands written alone; other runs after."""
    folder = tmp_path / "index"
    index = RocksIndex(folder)
    index.write({}, at(2))
    entries = {first_key(change(offset)): accepted(offset) for offset in (3, 4, 5)}
    index.commands.write(entries, at(5))  # killed here
    index.close()
    index = RocksIndex(folder)
    index.write(spent(3, 3), at(3), {first_key(change(3)): accepted(3)})  # within what is there
    assert index.commands.position() == at(5)
    rest = {first_key(change(offset)): accepted(offset) for offset in (4, 5, 6)}
    index.write({}, at(6), rest)
    assert (index.commands.position(), index.commands.entry_count) == (at(6), 4)
    index.close()
    RocksIndex(folder).close()


def test_what_is_due_follows_on_what_is_there() -> None:
    """Goal: no gap and no repetition. Method: every order of the three positions."""
    entries = {first_key(change(n)): accepted(n) for n in (5, 6, 7)}
    whole, tail = set(entries), {first_key(change(7))}
    cases = [
        (None, None, set(entries)),  # both new
        (at(4), at(4), whole),
        (at(6), at(4), tail),  # ahead by a crash
        (at(7), at(4), set()),  # equal after the run: the position only, for a renamed topic
        (at(8), at(4), None),  # past the run
        (at(3), at(4), None),  # lags
        (None, at(4), None),
    ]
    for commands, before, expected in cases:
        found = due(entries, commands, before, at(7))
        assert (None if found is None else set(found)) == expected, (commands, before)


def test_a_checkpoint_has_both_tables(tmp_path: Path) -> None:
    """Goal: a copy needs no log to answer. Method: copy, open, ask."""
    index = RocksIndex(tmp_path / "index")
    index.write(spent(1, 5), at(5), {first_key(change(1)): accepted(5)})
    index.checkpoint(tmp_path / "copy")
    index.close()
    assert (tmp_path / "copy" / COMMANDS_NAME).is_dir()
    copy = RocksIndex(tmp_path / "copy")
    assert (copy.position(), copy.commands.position()) == (at(5), at(5))
    assert copy.commands.newest([change(1)], [LAST]) == [accepted(5)]
    copy.close()
