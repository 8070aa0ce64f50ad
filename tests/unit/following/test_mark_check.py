"""The log is compared with every mark before anything rests on it: on virtual time, over a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from replica.following.follower import Follower
from replica.following.mark_check import MarkCheck
from replica.index.memory import MemoryIndex
from replica.log.memory import MemoryLog, MemoryTopic
from replica.marks.keeper import HEAR_MAX_S, SAY_MAX_S, SYNC_EVERY_S, MarkKeeper
from replica.marks.seen_file import MemorySeenFile, Seen, SeenDisk, SeenState
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable
from replica.notary.marks import ContradictedMark, MarksTold, mark_text
from replica.notary.position import Position, encode_position
from replica.notary.salvage import NO_SALVAGES
from replica.settings import CoreSettings
from replica.store.memory import MemoryDatabase, MemoryMarks
from tests.simulation.virtual import run_virtually
from tests.virtual_time import on_virtual_time
from tests.worlds.beginning import no_demand
from tests.worlds.ha_world import LoopClock
from tests.worlds.marks_world import LOG_ID, log_of, mark, other

SETTINGS = CoreSettings()
CLOCK = LoopClock()


def topic_of(values: list[bytes]) -> MemoryTopic:
    topic = MemoryTopic()
    for value in values:
        topic.store(value)
    return topic


class Reading:
    """A follower over a log, with the marks of a disk and of peers."""

    def __init__(
        self,
        topic: MemoryTopic,
        disk: SeenDisk | None = None,
        peers: tuple[str, ...] = (),
        index: MemoryIndex | None = None,
    ) -> None:
        self.log = MemoryLog(topic)
        self.file = MemorySeenFile(disk)
        self.tables = MemoryDatabase()
        self.shared = MemoryMarks(self.tables, partial(asyncio.sleep, 0.01))
        self.marks = MarkKeeper("R1", self.file, CLOCK, peers, database=True)
        self.follower = Follower(
            *(self.log, index or MemoryIndex(), CLOCK, SETTINGS, lambda a: self.marks.note_applied(a.position)),
            on_opened=self._note_opened,
            require=no_demand,
        )
        self.check = MarkCheck(
            self.log, self.follower, self.marks, NO_SALVAGES, clock=CLOCK, retry_s=SETTINGS.log_retry_s
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def _note_opened(self) -> None:
        self.marks.note_opened()

    async def _share(self) -> None:
        while True:
            await self.marks.exchange(self.shared)
            await asyncio.sleep(0.1)

    def leave(self, left: Position, *, own_disk: bool = True, replica: str = "R2") -> None:
        """What a replica that is gone has left in the database."""
        self.tables.contradicted[replica] = ContradictedMark(replica, encode_position(left), own_disk)

    def tell(self, *, applied: Position | None = None, damaged: Position | None = None, peer: str = "R2") -> None:
        """What a peer tells: how far it has read, or a position of its own that the log contradicts."""
        told = MarksTold(
            applied=mark_text(applied), contradicted=mark_text(damaged), contradicted_own=damaged is not None
        )
        self.marks.note_told(peer, told)

    async def serves_on(self) -> bool:
        """Whether what was told stops nobody. Raises what it ends with."""
        await asyncio.sleep(1.0)
        if self.tasks[1].done():
            self.tasks[1].result()
        return True

    async def __aenter__(self) -> Reading:
        works: list[Coroutine[Any, Any, None]] = [
            *(self.follower.run(), self.check.run(), self.marks.run()),
            self._share(),
        ]
        self.tasks = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def until_checked(self) -> None:
        """Raises what the comparison found."""
        while not self.marks.checked:
            if self.tasks[1].done():
                self.tasks[1].result()
            await asyncio.sleep(0.01)

    async def until_ended(self) -> None:
        """Raises what the comparison found."""
        await asyncio.wait([self.tasks[1]], timeout=10)
        self.tasks[1].result()


async def disk_with(seen: Seen) -> SeenDisk:
    file = MemorySeenFile()
    await file.write(seen)
    return file.disk


def start(values: list[bytes], own: Position | None = None, peers: dict[str, Position] | None = None) -> MarkKeeper:
    """Read a log from its start with these marks on the disk. Raises what the comparison found."""

    async def play() -> MarkKeeper:
        disk = await disk_with(Seen(own, peers or {}))
        async with Reading(topic_of(values), disk) as reading:
            await reading.until_checked()
            assert own is None or own.topic_id != LOG_ID or reading.follower.applied_offset >= own.offset
            return reading.marks

    return run_virtually(play())


def test_a_log_that_has_the_mark_is_read_on() -> None:
    assert start(log_of(10), mark(5)).checked


def test_a_log_that_was_cut_is_refused() -> None:
    with pytest.raises(LogTruncated, match=r"this replica's seen file .* to offset 5, and it ends at 4"):
        start(log_of(4), mark(5))


def test_a_log_that_was_cut_and_grew_again_is_refused() -> None:
    with pytest.raises(LogRefused, match="another record"):
        start(log_of(10, fork=3), mark(5))


def test_the_mark_of_a_peer_on_this_disk_stops_where_its_barrier_is_in_the_log() -> None:
    with pytest.raises(LogTruncated, match="R2 says"):
        start(log_of(4), peers={"R2": mark(5)})


def test_a_cloned_disk_stops_nobody() -> None:
    clone = mark(5, log_of(6, marker=9))
    assert start(log_of(4), peers={"R2": clone}).foreign == {"R2"}
    assert start(log_of(9), peers={"R2": clone}).foreign == {"R2"}


def test_marks_of_another_log_say_nothing() -> None:
    assert start(log_of(2), mark(5, log_id="restored from")).checked


@on_virtual_time
async def test_marks_are_read_before_the_end() -> None:
    """A mark that is told while the end is asked must not count as beyond it: a peer reads on meanwhile."""
    values = log_of(10)
    topic = topic_of(values[:5])
    async with Reading(topic, peers=("R2",)) as reading:
        await asyncio.sleep(0.5)  # the follower reads; the comparison waits for what R2 tells
        real = reading.log.agreed_end_offset

        async def slow() -> int:
            end = await real()
            for value in values[topic.end_offset :]:
                topic.store(value)
            reading.marks.note_told("R2", MarksTold(applied=mark_text(mark(9))))
            return end

        reading.log.agreed_end_offset = slow  # type: ignore[method-assign]
        reading.marks.note_told("R2", MarksTold())
        await reading.until_checked()
        assert not reading.marks.foreign


@on_virtual_time
async def test_a_broker_that_is_cut_off_from_its_peers_refutes_no_mark() -> None:
    """It shows the log as it was: most brokers have more."""
    disk = await disk_with(Seen(mark(5)))
    async with Reading(topic_of(log_of(10)), disk) as reading:
        reading.log.old_end = 3
        await asyncio.sleep(5)
        assert not reading.marks.checked
        assert not reading.tasks[1].done()
        reading.log.old_end = None
        await reading.follower._log.close()  # the follower opens another reader
        await reading.until_checked()


@on_virtual_time
async def test_nothing_of_the_file_is_given_up_before_it_was_compared() -> None:
    disk = await disk_with(Seen(mark(5), {"R2": mark(7)}))
    async with Reading(topic_of(log_of(4)), disk) as reading:
        with pytest.raises(LogTruncated):
            await reading.until_ended()
        await asyncio.sleep(3 * SYNC_EVERY_S)
    seen, _ = MemorySeenFile(disk).read()
    assert (seen.own, seen.peers) == (mark(5), {"R2": mark(7)})
    assert seen.contradicted == mark(5)  # for the next start, and for people


@on_virtual_time
async def test_the_file_follows_what_is_applied_and_what_peers_tell() -> None:
    disk, values = SeenDisk(), log_of(20)
    topic = topic_of(values[:10])
    async with Reading(topic, disk, ("R2",)) as reading:
        reading.marks.note_told("R2", MarksTold(applied=mark_text(mark(3))))
        await reading.until_checked()
        topic.store(values[10])
        reading.marks.note_told("R2", MarksTold(applied=mark_text(mark(12))))
        await asyncio.sleep(1.0)
    assert MemorySeenFile(disk).read() == (Seen(mark(10), {"R2": mark(12)}), SeenState.WHOLE)


@on_virtual_time
async def test_covered_is_what_is_on_this_disk_and_on_a_peers() -> None:
    async with Reading(topic_of(log_of(10)), SeenDisk(), ("R2", "R3")) as reading:
        marks = reading.marks
        marks.note_told("R2", None)
        marks.note_told("R3", None)
        await reading.until_checked()
        await asyncio.sleep(1.0)
        assert marks.covered_offset(-1) == -1  # no peer has anything
        assert marks.covered_offset(4) == 4
        marks.note_told("R2", MarksTold(applied=mark_text(mark(9))))  # read, and on no disk
        assert marks.covered_offset(-1) == -1
        marks.note_told("R2", MarksTold(synced={"R2": mark_text(mark(5))}))
        assert marks.covered_offset(-1) == 5
        marks.note_told("R3", MarksTold(synced={"R1": mark_text(mark(8))}))  # a peer that does not follow the log
        assert marks.covered_offset(-1) == 8
        marks.note_told("R3", MarksTold(synced={"R3": mark_text(mark(30))}))
        assert marks.covered_offset(-1) == 9  # what is on this disk
        marks.note_told("R3", MarksTold(synced={"R3": mark_text(mark(9, log_id="another"))}))
        assert marks.covered_offset(-1) == 5
        marks.note_told("R9", MarksTold(synced={"R9": mark_text(mark(9))}))  # no replica of this notary
        assert marks.covered_offset(-1) == 5


@on_virtual_time
async def test_a_write_that_fails_covers_nothing() -> None:
    async with Reading(topic_of(log_of(10)), SeenDisk(), ("R2",)) as reading:
        reading.file.broken = True
        reading.marks.note_told("R2", MarksTold(synced={"R2": mark_text(mark(9))}))
        await reading.until_checked()
        await asyncio.sleep(1.0)
        assert reading.marks.covered_offset(-1) == -1
        reading.file.broken = False
        await asyncio.sleep(1.0)
        assert reading.marks.covered_offset(-1) == 9


@on_virtual_time
async def test_a_start_hears_its_peers_first_but_waits_for_nobody_that_is_away() -> None:
    loop = asyncio.get_running_loop()
    async with Reading(topic_of(log_of(4)), peers=("R2",)) as reading:
        began_s = loop.time()
        await reading.until_checked()
        assert HEAR_MAX_S <= loop.time() - began_s < HEAR_MAX_S + 1
    async with Reading(topic_of(log_of(4)), peers=("R2",)) as reading:
        reading.marks.note_told("R2", MarksTold(applied=mark_text(mark(5))))
        with pytest.raises(LogTruncated, match="R2 says"):
            await reading.until_ended()


def test_the_report_of_a_peer_is_compared_with_the_log() -> None:
    """True: it stops this replica. Of a cloned disk, or of a log that has the record: it does not."""

    async def play(report: Position, values: list[bytes]) -> Reading:
        async with Reading(topic_of(values), peers=("R2",)) as reading:
            reading.marks.note_told("R2", None)
            await reading.until_checked()
            reading.marks.note_told("R2", MarksTold(contradicted=mark_text(report)))
            await asyncio.sleep(1.0)
            if reading.tasks[1].done():
                reading.tasks[1].result()
            return reading

    with pytest.raises(LogTruncated, match="R2 says"):
        run_virtually(play(mark(9), log_of(6)))
    with pytest.raises(LogRefused, match="R2 says"):
        run_virtually(play(other(mark(4)), log_of(6)))
    assert not run_virtually(play(mark(5), log_of(6))).marks.foreign
    assert run_virtually(play(mark(9, log_of(10, marker=9)), log_of(6))).marks.foreign == {"R2"}


def test_a_damaged_position_stops_only_its_own_replica() -> None:
    """Right barrier, wrong digest. The peer told how far it was; and what it read since, this replica read as well."""

    async def play(damaged: Position) -> None:
        values, disk = log_of(20), SeenDisk()
        topic = topic_of(values[:10])
        async with Reading(topic, disk, ("R2",)) as reading:
            for _ in range(3):
                reading.tell(applied=mark(8))
                await asyncio.sleep(0.5)
            await reading.until_checked()
            for value in values[10:15]:
                topic.store(value)
            await asyncio.sleep(0.5)
            reading.tell(damaged=damaged)
            assert await reading.serves_on()
            assert [problem for problem in reading.marks.problems() if problem.startswith("MARK_FOREIGN: R2")]
        async with Reading(topic, disk, ("R2",)) as reading:  # it knows after a start as well
            reading.tell(damaged=damaged)
            await reading.until_checked()
            assert await reading.serves_on()
            assert reading.marks.refuted == {"R2": damaged}
            reading.tell(applied=mark(14))  # its index was made anew
            assert reading.marks.problems() == []

    run_virtually(play(other(mark(6))))  # it told more than that
    run_virtually(play(other(mark(12))))  # this replica has read that with the reader that it has


@pytest.mark.parametrize("told", [None, 3, 4])
def test_a_witness_of_a_log_that_was_cut_and_grew_again_is_believed(told: int | None) -> None:
    """This replica has read offset 6 after the cut only: that it agrees with the log proves nothing."""

    async def play() -> None:
        disk = SeenDisk() if told is None else await disk_with(Seen(None, {"R2": mark(told)}))
        async with Reading(topic_of(log_of(9, fork=5)), disk, ("R2",)) as reading:
            reading.marks.note_told("R2", None)
            await reading.until_checked()
            assert reading.follower.applied_offset == 8
            reading.tell(damaged=mark(6))
            await reading.serves_on()

    with pytest.raises(LogRefused, match="R2 says"):
        run_virtually(play())


def test_a_word_before_the_log_was_opened_anew_refutes_nothing_that_was_read_since() -> None:
    """Brokers lose power, and the log grows again before this replica, which was behind, reads on."""

    async def play(*, while_asked: bool) -> None:
        values = log_of(9, fork=5)
        topic = topic_of(values[:4])
        async with Reading(topic, peers=("R2",)) as reading:
            for _ in range(3):
                reading.tell(applied=mark(3))
                await asyncio.sleep(0.5)
            await reading.until_checked()
            await reading.follower._log.close()
            await asyncio.sleep(0.5)
            if while_asked:  # the answer was given before the log was opened
                reading.tell(applied=mark(3))
            for value in values[4:]:
                topic.store(value)
            await asyncio.sleep(0.5)
            reading.tell(damaged=mark(6))
            await reading.serves_on()

    for while_asked in (False, True):
        with pytest.raises(LogRefused, match="R2 says"):
            run_virtually(play(while_asked=while_asked))


def test_a_mark_that_a_peer_passes_on_is_not_refuted_by_its_own_words() -> None:
    """Somebody else read it, perhaps before the cut."""

    async def play() -> None:
        async with Reading(topic_of(log_of(9, fork=5)), peers=("R2",)) as reading:
            for _ in range(3):
                reading.tell(applied=mark(8, log_of(9, fork=5)))
                await asyncio.sleep(0.5)
            await reading.until_checked()
            reading.marks.note_told("R2", MarksTold(contradicted=mark_text(mark(6))))
            await reading.serves_on()

    with pytest.raises(LogRefused, match="R2 says"):
        run_virtually(play())


def test_two_peers_whose_positions_the_log_contradicts_are_believed() -> None:
    async def play() -> None:
        async with Reading(topic_of(log_of(9)), peers=("R2", "R3")) as reading:
            for peer in ("R2", "R3"):
                reading.tell(applied=mark(8), peer=peer)
            await reading.until_checked()
            reading.tell(damaged=other(mark(6)))
            assert await reading.serves_on()
            reading.tell(damaged=other(mark(6)), peer="R3")
            await reading.serves_on()

    with pytest.raises(LogRefused, match="R3 says"):
        run_virtually(play())


def test_the_oldest_contradicted_mark_is_told() -> None:
    """The cut may have taken the barriers of newer ones."""
    marks = Reading(topic_of(log_of(4))).marks
    for mark_at, own, told, told_own in ((9, False, 9, False), (5, True, 5, True), (7, False, 5, True)):
        marks.contradict(mark(mark_at), own=own)
        assert (marks.told().contradicted, marks.told().contradicted_own) == (mark_text(mark(told)), told_own)


def test_a_peer_that_ends_is_believed_by_any_of_its_marks() -> None:
    """The barrier of the one that it ends with is lost too."""

    async def play() -> None:
        async with Reading(topic_of(log_of(4)), peers=("R2",)) as reading:
            reading.marks.note_told("R2", None)
            await reading.until_checked()
            lost = mark_text(mark(9, log_of(10, marker=9)))
            reading.marks.note_told("R2", MarksTold(synced={"R2": mark_text(mark(5))}, contradicted=lost))
            await reading.serves_on()

    with pytest.raises(LogTruncated, match="R2 says"):
        run_virtually(play())


def test_two_peers_that_end_are_believed_where_the_cut_took_their_barriers() -> None:
    """One of them may be a clone of elsewhere."""

    async def play() -> None:
        async with Reading(topic_of(log_of(4)), peers=("R2", "R3")) as reading:
            for peer in ("R2", "R3"):
                reading.marks.note_told(peer, None)
            await reading.until_checked()
            lost = mark(9, log_of(10, marker=9))
            reading.tell(damaged=lost)
            assert await reading.serves_on()
            assert reading.marks.foreign == {"R2"}
            seconding = MarksTold(  # it has it in its seen file, too
                synced={"R3": mark_text(lost)}, contradicted=mark_text(lost), contradicted_own=True
            )
            reading.marks.note_told("R3", seconding)
            await reading.serves_on()

    with pytest.raises(LogTruncated, match=r"R\d says"):
        run_virtually(play())


def test_the_mark_of_a_peer_that_comes_after_the_start_is_compared_as_well() -> None:
    """A standby that does not read the log finds nothing itself."""

    async def play() -> None:
        async with Reading(topic_of(log_of(4)), peers=("R2",)) as reading:
            reading.marks.note_told("R2", None)
            await reading.until_checked()
            reading.marks.note_told("R2", MarksTold(synced={"R2": mark_text(mark(5))}))
            await reading.serves_on()

    with pytest.raises(LogTruncated, match="R2 says"):
        run_virtually(play())


@on_virtual_time
async def test_a_peer_that_tells_nonsense_is_not_believed() -> None:
    async with Reading(topic_of(log_of(6)), peers=("R2",)) as reading:
        reading.marks.note_told("R2", MarksTold(applied="zz", contradicted="00"))
        await reading.until_checked()
        await asyncio.sleep(1.0)
        assert not reading.tasks[1].done()


@on_virtual_time
async def test_a_silent_log_is_asked_again() -> None:
    disk = await disk_with(Seen(mark(5)))
    async with Reading(topic_of(log_of(10)), disk) as reading:
        fails = 3
        real = reading.log.agreed_end_offset

        async def silent() -> int:
            nonlocal fails
            fails -= 1
            if fails >= 0:
                raise LogUnavailable("the brokers do not agree")
            return await real()

        reading.log.agreed_end_offset = silent  # type: ignore[method-assign]
        await reading.until_checked()


@pytest.mark.parametrize("replica", ["R2", "R1", "R7"])
@pytest.mark.parametrize("is_early", [True, False])
def test_what_a_replica_left_in_the_database_before_it_was_gone_is_believed(replica: str, *, is_early: bool) -> None:
    """Goal: nobody serves a log that a replica saw cut, though it ended before anybody asked it; not that replica
    either, with another disk. Method: the row before the start, and after it; the log grew again."""

    async def play() -> None:
        async with Reading(topic_of(log_of(9, fork=5))) as reading:
            if is_early:
                reading.leave(mark(6), replica=replica)
            else:
                await reading.until_checked()
                reading.leave(mark(6), replica=replica)
            await reading.until_ended()

    with pytest.raises(LogRefused, match=f"{replica} says"):
        run_virtually(play())


@on_virtual_time
async def test_a_foreign_row_in_the_database_is_alarmed_and_not_obeyed() -> None:
    """Goal: one cloned disk does not stop all. Method: rows of two replicas whose barrier this log never had, one of
    them this replica's own from an earlier start: it goes on, so that one is over."""
    foreign = mark(9, log_of(10, marker=9))
    async with Reading(topic_of(log_of(4))) as reading:
        for replica in ("R1", "R2"):
            reading.leave(foreign, own_disk=False, replica=replica)
        await reading.until_checked()
        assert await reading.serves_on()
        assert reading.marks.foreign == {"R1", "R2"}
        assert list(reading.tables.contradicted) == ["R2"]


@on_virtual_time
async def test_a_row_that_this_replica_refutes_is_taken_away() -> None:
    """Goal: a damaged disk in the database does not stop a replica that comes later and cannot judge it. Method: as
    where the peer tells it by itself."""
    topic = topic_of(log_of(15))
    async with Reading(topic, peers=("R2",)) as reading:
        reading.tell(applied=mark(8))
        await reading.until_checked()
        reading.leave(other(mark(6)))
        assert await reading.serves_on()
        assert reading.marks.refuted.keys() == {"R2"}
        assert reading.tables.contradicted == {}


def test_the_database_has_the_mark_before_the_lock_is_given_up() -> None:
    """Goal: whoever gets the lock next reads it. Method: a mark that the log contradicts on this disk; the comparison
    of an activation; then a database that is away, which holds up nobody beyond a bound."""

    async def play(*, is_away: bool) -> float:
        disk = await disk_with(Seen(mark(5)))
        async with Reading(topic_of(log_of(4)), disk) as reading:
            if is_away:
                reading.tasks[-1].cancel()
            began_s = CLOCK.boottime_s()
            with pytest.raises(LogTruncated):
                await reading.check.compare(None)
            await reading.marks.say()
            left = [] if is_away else [ContradictedMark("R1", encode_position(mark(5)), True)]
            assert reading.tables.contradicted_marks() == left
            return CLOCK.boottime_s() - began_s

    assert run_virtually(play(is_away=False)) < 1.0
    assert run_virtually(play(is_away=True)) == pytest.approx(SAY_MAX_S, abs=0.5)


@on_virtual_time
async def test_a_row_that_no_replica_writes_is_passed_over() -> None:
    async with Reading(topic_of(log_of(4))) as reading:
        reading.tables.contradicted["R2"] = ContradictedMark("R2", b"\xff" * 9, True)
        await reading.until_checked()
        assert await reading.serves_on()
