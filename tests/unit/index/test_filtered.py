"""The index with a filter in front: the filter answers once it knows every entry, and never again once it is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from replica.following.filter_filling import fill_filter
from replica.index import filtered as module
from replica.index.filter import Filter
from replica.index.filtered import FILTER, FilteredIndex
from replica.index.memory import MemoryIndex
from replica.index.rocks import RocksIndex
from replica.notary.errors import IndexUnreadable
from tests.unit.index.filtering import filtered
from tests.unit.index.test_contract import at
from tests.virtual_time import on_virtual_time
from tests.worlds.ha_world import LoopClock


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs ask the filter as well, it is filled in short slices, and it grows soon."""
    for name, value in (("RUN_MIN", 1), ("SLICE_KEYS", 7), ("PENDING_MAX", 3), ("KEYS_MIN", 16)):
        monkeypatch.setattr(module, name, value)


def fresh(count: int) -> list[bytes]:
    return [b"s" + os.urandom(36) for _ in range(count)]


def entries_of(keys: Sequence[bytes]) -> dict[bytes, bytes]:
    return {key: b"v" + key for key in keys}


def made(folder: Path, keys: Sequence[bytes]) -> None:
    """An index that has some entries, and no filter yet."""
    index = RocksIndex(folder)
    index.write(entries_of(keys), at(1))
    index.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every key that RocksDB is asked for."""
    keys: list[bytes] = []
    lookup = RocksIndex.lookup

    def note(self: RocksIndex, wanted: Sequence[bytes]) -> list[bytes | None]:
        keys.extend(wanted)
        return lookup(self, wanted)

    monkeypatch.setattr(RocksIndex, "lookup", note)
    return keys


def test_rocksdb_is_asked_for_what_may_be_there(tmp_path: Path, asked: list[bytes]) -> None:
    """Goal: absent keys cost no look-up, once the filter was filled. Method: before, after, what came since."""
    keys, absent, later = fresh(40), fresh(40), fresh(5)
    made(tmp_path / "index", keys)
    index = FilteredIndex(tmp_path / "index")
    assert index.lookup(absent) == [None] * 40 and len(asked) == 40 and not index.filter_answers
    assert all(True for _ in index.fill_filter()) and index.filter_answers
    asked.clear()
    index.write(entries_of(later), at(2))
    assert index.lookup([*absent, *keys, *later]) == [*[None] * 40, *(b"v" + key for key in keys + later)]
    assert set(asked) >= set(keys + later) and len(asked) < 55
    assert index.sizes()["filter_bytes"] > 0 and index.sizes()["filter_answers"] == 1
    index.close()


@settings(max_examples=25, deadline=None)
@given(
    runs=st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=30), min_size=1, max_size=8),
    steps=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    ends=st.lists(st.sampled_from(["", "stop", "kill"]), min_size=8, max_size=8),
)
def test_what_it_answers_is_what_a_dictionary_answers(
    runs: list[list[int]], steps: list[int], ends: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Goal: no answer changes, whenever the filter is filled, and however the process ends. Method: random runs, a few
    steps of the filling between two of them, stops with and without a file; all keys are asked for after each run."""
    folder = tmp_path_factory.mktemp("filtered") / "index"
    every = [b"s" + number.to_bytes(36, "big") for number in range(401)]
    index, memory = FilteredIndex(folder), MemoryIndex()
    filling, written = index.fill_filter(), set[int]()
    for number, (run, count, end) in enumerate(zip(runs, steps, ends, strict=False)):
        entries = entries_of([every[key] for key in {*run} - written])
        written |= {*run}
        for one in (index, memory):
            one.write(entries, at(number))
        list(islice(filling, count))
        assert index.lookup(every) == memory.lookup(every)
        if end:
            index.close()
            if end == "kill":
                (folder / FILTER).unlink(missing_ok=True)
            index = FilteredIndex(folder)
            filling = index.fill_filter()
    list(filling)
    assert index.filter_answers and index.false_absences == 0
    assert index.lookup(every) == memory.lookup(every)
    index.close()


def forgetful(monkeypatch: pytest.MonkeyPatch, key: bytes) -> None:
    """From now on a filter loses this key's bits, and is so large that no other key sets them."""
    add = Filter.add
    monkeypatch.setattr(module, "KEYS_MIN", 1 << 20)
    monkeypatch.setattr(Filter, "add", lambda self, keys: add(self, [one for one in keys if one != key]))


def test_bits_that_are_lost_while_it_is_filled_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a filter that lacks an entry never answers. Method: one of forty is lost; the event, the count, RocksDB."""
    keys = fresh(40)
    made(tmp_path / "index", keys)
    forgetful(monkeypatch, keys[23])
    index = FilteredIndex(tmp_path / "index")
    with capture_logs() as told:
        list(index.fill_filter())
    assert [line["event"] for line in told] == ["index_filter_disarmed"] and "called 1 of " in told[0]["detail"]
    answers_without(index, keys, 1)


def test_bits_of_a_run_that_are_lost_are_found_before_any_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: likewise for what is written later. Method: a key of a run is lost; the first question is for that key."""
    keys, later = fresh(40), fresh(2)
    made(tmp_path / "index", keys)
    forgetful(monkeypatch, later[1])
    index = filtered(tmp_path / "index")
    index.write(entries_of(later), at(2))
    with capture_logs() as told:
        assert index.lookup([later[1]]) == [b"v" + later[1]]
    assert [line["event"] for line in told] == ["index_filter_disarmed"]
    answers_without(index, keys + later, 1)


def test_entries_that_were_not_read_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a filter of a part never answers. Method: the first slice lacks a key; other entries come meanwhile."""
    keys = sorted(fresh(40))
    made(tmp_path / "index", keys)
    keys_after = RocksIndex.keys_after
    monkeypatch.setattr(
        RocksIndex, "keys_after", lambda self, *of: [key for key in keys_after(self, *of) if key != keys[3]]
    )
    index = FilteredIndex(tmp_path / "index")
    filling = index.fill_filter()
    next(filling)
    index.write(entries_of([b"s" + bytes(36), b"s" + b"\xff" * 36]), at(2))
    with capture_logs() as told:
        list(filling)
    assert [line["detail"] for line in told] == ["41 of 42 entries were read"]
    answers_without(index, keys, 0)


def answers_without(index: FilteredIndex, keys: Sequence[bytes], false_absences: int) -> None:
    """RocksDB answers on, writes go on, the filter is not begun again, and a stop leaves no file."""
    absent = fresh(20)
    index.write(entries_of([b"s" + b"1" * 36]), at(3))
    assert not index.filter_answers and list(index.fill_filter()) == []
    assert index.lookup([*keys, *absent]) == [*(b"v" + key for key in keys), *[None] * 20]
    assert index.sizes()["filter_answers"] == index.sizes()["filter_bytes"] == 0
    assert index.false_absences == index.sizes()["filter_false_absences"] == false_absences
    index.close()
    assert not list(index._file.parent.glob("filter*"))


def test_an_orderly_stop_leaves_a_filter_that_answers_at_once(tmp_path: Path, asked: list[bytes]) -> None:
    """Goal: no filling at a start. Method: stop with a run that the filter has not got yet, and start; once only."""
    keys, last, absent = fresh(40), fresh(2), fresh(200)
    made(tmp_path / "index", keys)
    index = filtered(tmp_path / "index")
    index.write(entries_of(last), at(2))
    index.close()
    index = FilteredIndex(tmp_path / "index")
    assert index.filter_answers and not (tmp_path / "index" / FILTER).exists()
    assert index.lookup([*keys, *last, *absent]) == [*(b"v" + key for key in keys + last), *[None] * 200]
    assert len(asked) < 60
    index.close()


def more_entries(folder: Path) -> None:
    """Another process, of a release without a filter, or that was killed."""
    index = RocksIndex(folder)
    index.write(entries_of(fresh(1)), at(9))
    index.close()


def more_entries_at_the_same_position(folder: Path) -> None:
    index = RocksIndex(folder)
    index.write(entries_of(fresh(1)), at(1))
    index.close()


def another_topic(folder: Path) -> None:
    index = RocksIndex(folder)
    index.adopt("another")
    index.close()


def another_filter(folder: Path) -> None:
    """Of an index that has as many entries, at another position."""
    other = RocksIndex(folder.with_name("other"))
    other.write(entries_of(fresh(40)), at(2))
    other.close()
    filtered(folder.with_name("other")).close()
    (folder.with_name("other") / FILTER).replace(folder / FILTER)


def a_bit(folder: Path) -> None:
    raw = bytearray((folder / FILTER).read_bytes())
    raw[-3] ^= 4
    (folder / FILTER).write_bytes(raw)


def a_long_chain(folder: Path) -> None:
    """One that grew twice: it makes more mistakes than a filter that is made at once."""
    index = FilteredIndex(folder)
    for run in range(30):
        index.write(entries_of(fresh(10)), at(2 + run))
    index.close()
    assert (folder / FILTER).exists()


@pytest.mark.parametrize(
    "change",
    [more_entries, more_entries_at_the_same_position, another_topic, another_filter, a_bit, a_long_chain],
    ids=lambda change: change.__name__,
)
def test_a_file_that_does_not_match_is_thrown_away(change: Callable[[Path], None], tmp_path: Path) -> None:
    """Goal: a file is of this index, as it is now. Method: change either; the filter is filled anew, and answers."""
    folder = tmp_path / "index"
    made(folder, fresh(40))
    filtered(folder).close()
    change(folder)
    index = FilteredIndex(folder)
    assert not index.filter_answers and not (folder / FILTER).exists()
    assert len(list(index.fill_filter())) > 5 and index.filter_answers
    index.close()


def test_a_closed_or_failed_index_answers_nothing_from_its_filter(tmp_path: Path) -> None:
    """Goal: "absent" is an answer of the index. Method: close it, then ask for absent keys, and go on filling."""
    index = filtered(tmp_path / "index")
    index.close()
    with pytest.raises(IndexUnreadable, match="closed"):
        index.lookup(fresh(40))
    made(tmp_path / "other", fresh(20))
    index = FilteredIndex(tmp_path / "other")
    filling: Iterator[None] = index.fill_filter()
    next(filling)
    index.close()
    with pytest.raises(IndexUnreadable, match="closed"):
        next(filling)


@on_virtual_time
async def test_filling_leaves_room_and_says_when_it_is_done(tmp_path: Path) -> None:
    """Goal: others run between two slices; an event with the time. Method: six slices on a clock that stands still."""
    made(tmp_path / "index", fresh(40))
    index, clock = FilteredIndex(tmp_path / "index"), LoopClock()
    began_s = clock.boottime_s()
    with capture_logs() as told:
        await fill_filter(index, clock)
    assert clock.boottime_s() - began_s >= 6 * 0.001
    assert [(line["event"], line["entries"]) for line in told] == [("index_filter_answers", 40)]
    index.close()
