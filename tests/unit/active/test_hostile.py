"""What one party, one deposed replica or one clock may not do to all others: floods, huge answers, jumps in time."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from ha.errors import HaError, LockLost, ScopeMismatch, TransitionFailed
from replica.active import publisher as publish
from replica.failure import error_document, exit_code
from replica.following.void_lines import BETWEEN_LINES_S
from replica.log.kafka.librdkafka import TopicMissing
from replica.log.memory import MemoryLog
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, IndexUnreadable, LogRefused, LogTruncated, NotaryError, StoreMismatch
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED
from replica.notary.records import RequestRecord, decode_record
from replica.notary.requests import TimeWindow
from replica.settings import CoreSettings
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import BEGUN, World, name_of, state, submission
from tests.worlds.ha_world import LoopClock


class JumpyClock(LoopClock):
    """A wall clock that somebody sets."""

    ahead_us = 0

    def wall_us(self) -> int:
        return super().wall_us() + self.ahead_us


@on_virtual_time
async def test_a_clock_that_jumps_between_two_heartbeats_stamps_nothing() -> None:
    """Goal: one hour's jump must not close time windows for everybody. Method: jump, submit at once, read the log."""
    clock = JumpyClock()
    async with World(clock=clock) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]))
        clock.ahead_us = 3_600_000_000
        (refused,) = await replica.submit(submission(2, [state(8)]))
        assert isinstance(refused, NotNow)
        assert refused.code == Code.NOT_ACTIVE.name
        clock.ahead_us = 0
        await replica.until_active()
        window = TimeWindow(until_us=clock.wall_us() + 60_000_000)
        (in_time,) = await replica.submit(submission(3, [state(7)], window=window))
        assert isinstance(in_time, Notarised)
        (again,) = await replica.submit(submission(2, [state(8)]))
        assert isinstance(again, Notarised)
        records = [decode_record(value, 2) for _, value in world.shared.topic.records(BEGUN, 100)]
        assert max(r.stamp_us for r in records if isinstance(r, RequestRecord)) <= clock.wall_us()


@on_virtual_time
async def test_a_flood_of_void_records_is_told_in_few_lines() -> None:
    """Goal: a deposed active's late records do not flood the log file. Method: 2,000 of them."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        writer = await MemoryLog(world.shared.topic).open_writer()
        with capture_logs() as lines:
            for _ in range(2_000):
                writer.append(b"no record")
            (answer,) = await replica.submit(submission(1, [state(9)]))
            assert isinstance(answer, Notarised)
            await asyncio.sleep(BETWEEN_LINES_S)
            await replica.submit(submission(2, [state(8)]))
        told = [line for line in lines if line["event"] == "records_void"]
        assert 1 <= len(told) <= 10
        assert sum(line["reasons"]["undecodable"] for line in told) == 2_000
        assert replica.participant.counters.voids["undecodable"] == 2_000


@on_virtual_time
async def test_no_transaction_grows_with_what_is_told_of_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: huge conflicts cannot hold a statement up until it costs the lock. Method: a bound of one, ten at once."""
    async with World(core=CoreSettings(read_batch_max=1)) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]))
        activation = replica.participant.activation
        assert activation is not None
        await activation.publisher.flush()
        sizes: list[int] = []
        database = world.shared.database
        publish_for_real = database.publish

        def note(completions: list[object], *where: object) -> int:
            sizes.append(len(completions))
            return publish_for_real(completions, *where)  # type: ignore[arg-type]

        monkeypatch.setattr(database, "publish", note)
        monkeypatch.setattr(publish, "DETAIL_BYTES_MAX", 1)
        answers = await asyncio.gather(*[replica.submit(submission(n, [state(9)])) for n in range(2, 12)])
        assert all(isinstance(answer, Refused) for (answer,) in answers)
        await activation.publisher.flush()
        assert sum(sizes) == 10
        assert len(sizes) > 1


@on_virtual_time
async def test_look_ups_that_arrive_together_share_a_question_to_the_lock() -> None:
    """Goal: a flood of look-ups does not crowd the lock session. Method: 200 at a time, one by one; count questions."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]))
        activation = replica.participant.activation
        assert activation is not None
        questions = 0
        confirm = activation.confirm_lock

        async def count() -> None:
            nonlocal questions
            questions += 1
            await asyncio.sleep(0.001)
            await confirm()

        activation.confirm_lock = count  # type: ignore[method-assign]
        answers = await asyncio.gather(*[replica.link.look_up(name_of(1 + n % 2)) for n in range(200)])
        assert [type(answer) for answer in answers] == [Notarised, Refused] * 100
        assert questions <= 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransitionFailed("the step-down took too long"), EXIT_FAILED),
        (LockLost("x"), EXIT_FAILED),
        (ScopeMismatch("x"), EXIT_CONFIGURATION),
        (ConfigError("x"), EXIT_CONFIGURATION),
        (StoreMismatch("x"), EXIT_CONFIGURATION),
        (LogRefused("x"), EXIT_CONFIGURATION),
        (TopicMissing("brokers that have just started may not know it yet"), EXIT_FAILED),
        (IndexUnreadable("x"), EXIT_FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_supervisor_is_told_whether_to_start_again(error: Exception, expected: int) -> None:
    """Goal: no crash loop on a setting, no replica left down by a passing failure. Method: bare and as a cause."""
    assert exit_code(error) == expected
    failed = TransitionFailed("activation")
    failed.__cause__ = error
    assert exit_code(failed) == expected


@pytest.mark.parametrize("error", [LogTruncated("offset 7"), ScopeMismatch("x"), LockLost("x")], ids=repr)
def test_a_failed_transition_tells_the_code_of_its_cause(error: HaError | NotaryError) -> None:
    """Goal: the code leads to the runbook, whichever part finds it. Method: bare, and found by an activation."""
    told = error_document(error)
    assert told["code"] in {Code.LOG_TRUNCATED.name, ScopeMismatch.code, LockLost.code}
    assert told["remedy"]
    failed = TransitionFailed("activation")
    assert error_document(failed)["code"] == TransitionFailed.code
    failed.__cause__ = error
    assert error_document(failed) == told
