"""The scrub: a pass through the log finds what an index has wrong, whatever its checksums say, and disturbs nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from replica.following.index_check import (
    MARKS_MAX,
    IndexCheck,
    begin_check,
    check_complete,
    continue_check,
    decode_check,
    encode_check,
    room_of,
)
from replica.following.pace import AHEAD
from replica.following.scrub import Scrubber
from replica.index.memory import MemoryIndex
from replica.index.summary import summarise
from replica.log.memory import MemoryLog
from replica.notary.errors import IndexMismatch, LogRefused, NotaryError
from replica.notary.requests import Submission
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.settings import CoreSettings
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import Replica, World, name_of, state, submission

QUICK = CoreSettings(scrub_records_per_s=1_000.0, scrub_every_s=1.0)


def traffic(count: int = 40) -> list[Submission]:
    """Transactions with fresh states, double spends, ids that are used again, and repeats of what was notarised."""
    fresh = [submission(tx, [state(tx), state(tx, 1)]) for tx in range(1, count)]
    spent = [submission(1_000 + tx, [state(tx), state(2_000 + tx)], command_id=f"d{tx}") for tx in range(1, count, 7)]
    again = [submission(tx, [state(tx), state(tx, 1)], command_id=f"a{tx}") for tx in range(1, count, 5)]
    reused = [submission(tx, [state(3_000 + tx)], command_id=f"r{tx}") for tx in range(1, count, 9)]
    return [*fresh, *spent, *again, *reused]


def scrubber_of(world: World, replica: Replica, bookmark: Path, index: MemoryIndex | None = None) -> Scrubber:
    return Scrubber(
        MemoryLog(world.shared.topic),
        index or replica.index,
        replica.participant.follower,
        world.shared.clock,
        QUICK,
        bookmark=bookmark,
        is_busy=lambda: False,
        distrust_filter=index.distrust_filter if isinstance(index, Deceived) else lambda: False,
    )


async def first_walk(scrubber: Scrubber) -> None:
    """Run until the log was checked once. Raises what ended the scrub."""
    running = asyncio.create_task(scrubber.run())
    while not scrubber.complete_walks and not running.done():
        await asyncio.sleep(0.1)
    if not running.done():
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return
    await running


@on_virtual_time
async def test_a_right_index_is_found_right_and_summed_up(tmp_path: Path) -> None:
    """Goal: no false alarm, and a digest that is the index's. Method: every kind of verdict, two activations, check."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        await replica.stop()
        successor = await world.replica(2)
        await successor.until_active()
        await successor.submit(submission(500, [state(500)]))
        scrubber = scrubber_of(world, successor, tmp_path / "scrub")
        await first_walk(scrubber)
        checked = scrubber.records
        assert checked == world.shared.topic.end_offset
        summary = summarise(None, successor.index.entries())
        check = whole_check(world, successor.index)
        assert (check.entry_count, check.digest) == (summary.entry_count, summary.digest)


def whole_check(world: World, index: MemoryIndex) -> IndexCheck:
    """One check, run by run, without a clock."""
    topic = world.shared.topic
    check = begin_check(topic.topic_id)
    while room := room_of(check, topic.end_offset - 1, 7):
        check = continue_check(index, check, topic.records(check.position.offset + 1, room))
    return check


def _drop(key: bytes) -> Callable[[dict[bytes, bytes]], None]:
    return lambda entries: entries.__delitem__(key) if key in entries else pytest.fail("nothing to drop")


def _put(key: bytes, value: bytes) -> Callable[[dict[bytes, bytes]], None]:
    return lambda entries: entries.__setitem__(key, value)


SPENT, TX = STATE_KEY + state(5), TX_KEY + name_of(5)
DAMAGE: dict[str, Callable[[dict[bytes, bytes]], None]] = {
    "a spent state is forgotten": _drop(SPENT),
    "a transaction is forgotten": _drop(TX),
    "spent by somebody else": _put(SPENT, name_of(6) + (6).to_bytes(8, "big")),
    "spent earlier than it was": _put(SPENT, name_of(5) + (1).to_bytes(8, "big")),
    "other content": _put(TX, bytes(32) + (5).to_bytes(8, "big")),
    "a state that nobody spent": _put(STATE_KEY + state(77_777), name_of(5) + (5).to_bytes(8, "big")),
    "a fresh state spent before": _put(STATE_KEY + state(9), name_of(1) + (1).to_bytes(8, "big")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@on_virtual_time
async def test_whatever_is_wrong_in_an_index_is_found(damage: str, tmp_path: Path) -> None:
    """Goal: missing, changed and made-up entries. Method: one of them in an index whose storage has no complaint."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        entries = dict(replica.index.entries())
        DAMAGE[damage](entries)
        position = replica.index.position()
        assert position is not None
        wrong = MemoryIndex()
        wrong.write(entries, position)
        with pytest.raises(IndexMismatch) as caught:
            await first_walk(scrubber_of(world, replica, tmp_path / "scrub", wrong))
        assert caught.value.code.name == "INDEX_MISMATCH"


class Deceived(MemoryIndex):
    """An index whose filter calls an entry absent, until it is no longer trusted."""

    def __init__(self, key: bytes | None) -> None:
        super().__init__()
        self.key = key
        self.is_trusted = True

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        hidden = self.key if self.is_trusted else None
        return [None if key == hidden else value for key, value in zip(keys, super().lookup(keys), strict=True)]

    def distrust_filter(self) -> bool:
        was, self.is_trusted = self.is_trusted, False
        return was


@pytest.mark.parametrize("is_damaged", [False, True])
@on_virtual_time
async def test_an_entry_that_the_filter_calls_absent_ends_the_filter(is_damaged: bool, tmp_path: Path) -> None:
    """Goal: a replica with a right index goes on without its filter. Method: a spent state that the filter denies, in
    an index that is right, and in one that lacks a transaction as well."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        entries, position = dict(replica.index.entries()), replica.index.position()
        assert position is not None
        if is_damaged:
            entries.pop(TX)
        index = Deceived(SPENT)
        index.write(entries, position)
        scrubber = scrubber_of(world, replica, tmp_path / "scrub", index)
        if is_damaged:
            with pytest.raises(IndexMismatch):
                await first_walk(scrubber)
        else:
            await first_walk(scrubber)
            assert scrubber.complete_walks == 1
        assert not index.is_trusted


@on_virtual_time
async def test_a_log_that_was_changed_since_the_walk_before_is_refused(tmp_path: Path) -> None:
    """Goal: history cannot be rewritten unseen. Method: check past a mark; other records of the same effect; again."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        topic = world.shared.topic
        check = begin_check(topic.topic_id)
        records = topic.records(0, topic.end_offset)
        check = continue_check(replica.index, IndexCheck(1, check.position, 0, bytes(32), len(records)), records)
        ((at, digest),) = check.marks
        assert (at, digest) == (len(records), check.digest)
        assert continue_check(replica.index, begin_check(topic.topic_id, check), records).marks == check.marks
        other = IndexCheck(1, check.position, 0, bytes(32), len(records), ((at, b"x" * 32),))
        with pytest.raises(LogRefused, match="are not what they were"):
            continue_check(replica.index, begin_check(topic.topic_id, other), records)


@on_virtual_time
async def test_marks_stay_few_and_common(tmp_path: Path) -> None:
    """Goal: bounded, and two replicas at different places share marks. Method: a log of many spacings, by steps."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        topic = world.shared.topic
        for _ in range(600):
            topic.store(b"noise")
        begun = begin_check(topic.topic_id)
        check = IndexCheck(1, begun.position, 0, bytes(32), 4)
        seen = []
        index = replica.index
        while room := room_of(check, 511, 100):
            check = continue_check(index, check, topic.records(check.position.offset + 1, room))
            seen.append(set(dict(check.marks)))
            assert len(check.marks) <= MARKS_MAX
        assert check.spacing == 32
        assert all(one & seen[-1] for one in seen[20:])


@on_virtual_time
async def test_it_goes_on_where_it_was_and_starts_anew_when_it_must(tmp_path: Path) -> None:
    """Goal: a restart costs little, a stale bookmark nothing. Method: check, keep, read; damage; another log."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        topic, bookmark = world.shared.topic, tmp_path / "scrub"
        half = topic.end_offset // 2
        check = continue_check(replica.index, begin_check(topic.topic_id), topic.records(0, half))
        bookmark.write_bytes(encode_check(check))
        assert decode_check(encode_check(check)) == check
        scrubber = scrubber_of(world, replica, bookmark)
        await first_walk(scrubber)
        assert scrubber.records == topic.end_offset - half
        for stale in (b"", b"\xc1", encode_check(check)[:-3], encode_check(begin_check("another log"))):
            bookmark.write_bytes(stale)
            scrubber = scrubber_of(world, replica, bookmark)
            await first_walk(scrubber)
            assert scrubber.records == topic.end_offset


@on_virtual_time
async def test_a_flipped_bit_in_the_bookmark_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Goal: what protects does not harm: damage to the bookmark means "begin again". Method: every single bit of a
    bookmark in the middle of a log is flipped, and decoded; some of them are what a healthy replica starts from."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        topic, bookmark = world.shared.topic, tmp_path / "scrub"
        half = topic.end_offset // 2
        check = begin_check(topic.topic_id)
        raw = encode_check(
            continue_check(replica.index, IndexCheck(1, check.position, 0, bytes(32), half), topic.records(0, half))
        )
        for number in range(8 * len(raw)):
            damaged = bytearray(raw)
            damaged[number // 8] ^= 1 << number % 8
            assert decode_check(bytes(damaged)) is None, f"bit {number}"
            if number % 61 == 0:
                bookmark.write_bytes(damaged)
                scrubber = scrubber_of(world, replica, bookmark)
                await first_walk(scrubber)
                assert scrubber.records == topic.end_offset


@on_virtual_time
async def test_a_pass_has_a_time_to_end_in_which_a_restart_does_not_prolong(tmp_path: Path) -> None:
    """Goal: as fast as needed, and it reports how far it is. Method: 3,000 records in 60 s, where the least rate
    would take 50 minutes; a second scrubber goes on from the bookmark, with the first one's beginning."""
    async with World(core=CoreSettings(scrub_records_per_s=1.0, scrub_within_s=60.0)) as world:
        replica = await world.replica()
        await replica.until_active()
        for _ in range(3_000):
            world.shared.topic.store(b"noise")
        await asyncio.sleep(2.0)

        def made() -> Scrubber:
            scrubber = scrubber_of(world, replica, tmp_path / "scrub")
            scrubber._settings = world.shared.core
            return scrubber

        began_s = world.shared.clock.boottime_s()
        first = made()
        running = asyncio.create_task(first.run())
        await asyncio.sleep(20.0)
        assert first.check is not None
        first._keep(first.check, now=True)
        told = first.progress()
        assert 0 < told["records"] < told["of_records"] == world.shared.topic.end_offset
        assert told["age_s"] == pytest.approx(20.0, abs=2.0)
        assert told["wanted_per_s"] == pytest.approx(AHEAD * first.left_records / 31.0, rel=0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        second = made()
        await first_walk(second)
        assert second.records < told["of_records"]
        assert world.shared.clock.boottime_s() - began_s < 61.0
        assert (second.age_s, second.pace.wanted_per_s) == (0.0, 0.0)


@on_virtual_time
async def test_it_stands_back_while_an_active_is_busy_and_off_means_off(tmp_path: Path) -> None:
    """Goal: nothing on the hot path. Method: a busy active for a minute, then an idle one; and a rate of zero."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        busy = True
        scrubber = scrubber_of(world, replica, tmp_path / "scrub")
        scrubber._is_busy = lambda: busy
        running = asyncio.create_task(scrubber.run())
        await asyncio.sleep(60.0)
        assert scrubber.records == 0
        busy = False
        await asyncio.sleep(5.0)
        assert scrubber.records >= world.shared.topic.end_offset
        running.cancel()
        off = Scrubber(
            MemoryLog(world.shared.topic),
            replica.index,
            replica.participant.follower,
            world.shared.clock,
            CoreSettings(scrub_records_per_s=0),
            bookmark=tmp_path / "off",
            is_busy=lambda: False,
        )
        await asyncio.wait_for(off.run(), 1.0)


@on_virtual_time
async def test_a_log_that_lost_its_start_is_refused(tmp_path: Path) -> None:
    """Goal: a whole index does not hide a lost log. Method: cut the start off while the replica runs."""
    async with World(core=QUICK) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*traffic())
        world.shared.topic.cut_off(5)
        with pytest.raises(NotaryError) as caught:
            await first_walk(scrubber_of(world, replica, tmp_path / "scrub"))
        assert caught.value.code.name == "LOG_TRUNCATED"


def test_the_count_is_compared_where_walk_and_index_meet() -> None:
    """Goal: an entry that no record touches is found too. Method: one too many, one too few."""
    check = IndexCheck(1, begin_check("t").position, 3, bytes(32))
    check_complete(check, 3)
    for count in (2, 4):
        with pytest.raises(IndexMismatch):
            check_complete(check, count)
