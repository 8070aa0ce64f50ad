"""The contract of an index, for the one on RocksDB and its doubles alike: in memory, and a simulated machine's disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.index.interface import Index
from replica.index.memory import MemoryIndex
from replica.index.rocks import RocksIndex
from replica.index.summary import summarise
from replica.notary.errors import IndexUnreadable
from replica.notary.granters import Database
from replica.notary.position import POSITION_VERSION, Position
from replica.notary.records import BarrierRecord
from tests.simulation.doubles.disk import Disk
from tests.unit.index.filtering import filtered


def at(offset: int) -> Position:
    barrier = BarrierRecord(3, b"a" * 16, "r1", Database("postgres", "1", 1), 2, 3)
    return Position(POSITION_VERSION, b"L" * 16, "topic", offset, b"d" * 32, barrier, 0, 17, ((0, offset),))


MAKE: dict[str, Callable[[Path], Index]] = {
    "memory": lambda _: MemoryIndex(),
    "disk": lambda _: Disk(),
    "rocks": RocksIndex,
    "filtered": filtered,
}


@pytest.fixture(params=MAKE)
def index(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr("replica.index.filtered.RUN_MIN", 1)
    made = MAKE[request.param](tmp_path / "index")
    yield made
    made.close()


def test_a_new_index_has_no_position_and_no_entries(index: Index) -> None:
    """Goal: a new index is known as such. Method: ask it."""
    assert (index.position(), index.position_before(), index.entry_count) == (None, None, 0)
    assert index.lookup([b"s1", b"t1"]) == [None, None]
    assert index.lookup([]) == []
    assert list(index.entries()) == []


def test_look_ups_come_in_the_order_asked(index: Index) -> None:
    """Goal: a value belongs to its key. Method: ask for present, absent and repeated keys in another order."""
    index.write({b"s1": b"one", b"t1": b"two", b"s2": b"three"}, at(5))
    assert index.lookup([b"t1", b"s9", b"s1", b"t1"]) == [b"two", None, b"one", b"two"]
    assert index.lookup((b"s2",)) == [b"three"]


def test_entries_and_position_move_together(index: Index) -> None:
    """Goal: the position is that of the last write, the one before is known. Method: write with and without entries."""
    index.write({b"s1": b"one"}, at(5))
    assert (index.position(), index.position_before(), index.entry_count) == (at(5), None, 1)
    index.write({}, at(6))
    assert (index.position(), index.position_before(), index.entry_count) == (at(6), at(5), 1)
    assert index.lookup([b"s1"]) == [b"one"]


def test_all_entries_come_in_key_order_without_the_position(index: Index) -> None:
    """Goal: the position is no entry. Method: write in disorder, read all."""
    index.write({b"t2": b"4", b"s9": b"2"}, at(1))
    index.write({b"s1": b"1", b"t1": b"3"}, at(2))
    assert list(index.entries()) == [(b"s1", b"1"), (b"s9", b"2"), (b"t1", b"3"), (b"t2", b"4")]
    assert list(index.entries(b"s")) == [(b"s1", b"1"), (b"s9", b"2")]
    assert list(index.entries(b"t2")) == [(b"t2", b"4")]
    assert list(index.entries(b"u")) == []


def test_a_position_that_cannot_be_stored_leaves_no_entries(index: Index) -> None:
    """Goal: both or neither. Method: a position whose encoding fails."""
    with pytest.raises(OverflowError):
        index.write({b"s1": b"one"}, Position(POSITION_VERSION, b"L" * 16, "topic", 2**70))
    assert index.lookup([b"s1"]) == [None]
    assert index.position() is None


def test_closing_may_be_repeated(index: Index) -> None:
    """Goal: every way out may close. Method: close twice."""
    index.close()
    index.close()


def test_a_closed_index_on_rocksdb_answers_nothing(tmp_path: Path) -> None:
    """Goal: nobody takes a closed index for an empty one. Method: close, then use every method."""
    index = RocksIndex(tmp_path / "index")
    index.write({b"s1": b"one"}, at(1))
    index.close()
    for use in (
        index.position,
        index.position_before,
        lambda: index.lookup([b"s1"]),
        lambda: index.newest([b"p"], [1]),
        lambda: index.write({}, at(2)),
        lambda: list(index.entries()),
        lambda: index.checkpoint(tmp_path / "copy"),
    ):
        with pytest.raises(IndexUnreadable, match="closed"):
            use()


@pytest.mark.parametrize("open_index", [RocksIndex, filtered])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=8)), max_size=20), max_size=8),
    reopen=st.booleans(),
)
def test_rocksdb_and_a_dictionary_agree(
    open_index: Callable[[Path], Index],
    batches: list[list[tuple[bytes, bytes]]],
    reopen: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Goal: the two indexes are one to their users. Method: the same writes of any new keys, then compare all."""
    folder = tmp_path_factory.mktemp("agree") / "index"
    memory, rocks = MemoryIndex(), open_index(folder)
    seen: set[bytes] = set()
    for offset, batch in enumerate(batches):
        entries = {b"s" + key: value for key, value in batch if b"s" + key not in seen}
        seen |= entries.keys()
        for index in (memory, rocks):
            index.write(entries, at(offset))
        if reopen:
            rocks.close()
            rocks = open_index(folder)
    assert (rocks.position(), rocks.position_before()) == (memory.position(), memory.position_before())
    assert rocks.entry_count == memory.entry_count
    assert summarise(rocks.position(), rocks.entries()) == summarise(memory.position(), memory.entries())
    asked = [*sorted(seen), *(b"t" + key[1:] for key in seen)] * 20
    assert rocks.lookup(asked) == memory.lookup(asked)
    rocks.close()


def test_a_disk_that_lost_batches_is_the_index_before_them() -> None:
    """Goal: a simulated crash loses whole batches, and nothing else. Method: acceptances and states, torn at each place
    and written on, against an index that never had the rest."""
    batches = [
        {b"s%d" % n: recorded(n), b"c" + bytes(32) + (at_offset(n) if n else b""): recorded(n)} for n in range(5)
    ]
    for kept in range(5):
        disk, whole = Disk(), MemoryIndex()
        for number, entries in enumerate(batches):
            disk.write(entries, at(number))
        assert disk.tear(5 - kept) == 5 - kept
        for number, entries in enumerate(batches[: kept + 1]):
            if number == kept:
                assert contents(disk) == contents(whole)
                disk.write(entries, at(number))
            whole.write(entries, at(number))
        assert contents(disk) == contents(whole)
    assert disk.tear(9) == 5


def recorded(offset: int) -> bytes:
    return bytes(72) + at_offset(offset)


def at_offset(offset: int) -> bytes:
    return offset.to_bytes(8, "big")


def contents(index: Index) -> tuple[object, ...]:
    """All that an index tells."""
    newest = index.newest([b"c" + bytes(32)] * 6, list(range(6)))
    return index.position(), index.position_before(), index.entry_count, list(index.entries()), newest


def test_a_summary_does_not_depend_on_the_order_but_on_every_entry() -> None:
    """Goal: equal digests mean equal entries. Method: shuffle, change, drop and add one entry."""
    entries = [(b"s%d" % n, b"v%d" % n) for n in range(50)]
    whole = summarise(at(1), entries)
    assert whole.entry_count == 50
    assert summarise(at(1), reversed(entries)) == whole
    changed = [*entries[:-1], (b"s49", b"other")]
    for other in (changed, entries[:-1], [*entries, (b"s50", b"v50")], [(b"t0", b"v0"), *entries[1:]]):
        assert summarise(at(1), other).digest != whole.digest


def test_the_digest_of_a_summary_is_fixed() -> None:
    """Goal: another program can compute the same digest. Method: the sum of two hashes, computed by `sha256sum`."""
    of_s1 = 0xE8BC163C82EEE18733288C7D4AC636DB3A6DEB013EF2D37B68322BE20EDC45CC
    of_t2 = 0xC44474038D459E40E4714AFEFA7BF8DAE9F9834B22F5E8EC1DD434ECB62B512E
    digest = summarise(None, [(b"s", b"1"), (b"t", b"2")]).digest
    assert int.from_bytes(digest, "big") == (of_s1 + of_t2) % 2**256
