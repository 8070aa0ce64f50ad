"""Asynchronous submissions, deduplication periods, users in turns, and announced waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from ha.ending import Cause, Ending
from ha.lock.memory import Network
from replica.active.waiting import Waiting
from replica.link.interface import SubmitOptions
from replica.notary.answers import Accepted, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.requests import Submission
from replica.settings import CoreSettings
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import Replica, World, name_of, state, submission

ASYNCHRONOUS = SubmitOptions(asynchronous=True)


async def outcomes(replica: Replica) -> list[tuple[str, str]]:
    """Command and outcome of every completion so far."""
    await asyncio.sleep(1)
    return [(c.command_id, c.outcome) for _, c in replica.shared.database.completions]


@on_virtual_time
async def test_an_asynchronous_submission_is_accepted_and_completes_once() -> None:
    """Goal: 202 now, the outcome as a completion. Method: one good, one conflict, one repeated; read completions."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        answers = await replica.submit(
            submission(1, [state(9)]), submission(2, [state(9)], submission_id="mine"), options=ASYNCHRONOUS
        )
        assert [type(answer) for answer in answers] == [Accepted, Accepted]
        assert [a.submission_id for a in answers if isinstance(a, Accepted)] == ["s", "mine"]
        assert all(a.estimate_s > 0 for a in answers if isinstance(a, Accepted))
        assert await outcomes(replica) == [("c1", "NOTARISED"), ("c2", Code.STATE_CONFLICT.name)]
        (again, other) = await replica.submit(
            submission(1, [state(9)]), submission(3, [state(8)], command_id="c1"), options=ASYNCHRONOUS
        )
        assert isinstance(again, Notarised)
        assert again.duplicate
        assert isinstance(other, Accepted)  # refusals are the log's
        assert (await outcomes(replica))[2:] == [("c1", Code.COMMAND_ID_REUSED.name)]


@on_virtual_time
async def test_what_was_accepted_completes_also_when_the_active_ends() -> None:
    """Goal: exactly one completion each. Method: end the active's session in the moment after it has accepted."""
    async with World() as world:
        first = await world.replica(1)
        await first.until_active()
        second = await world.replica(2)
        asked: list[Submission] = [submission(n, [state(100 + n)]) for n in range(1, 40)]
        accepted: list[str] = []
        for one in asked:
            active = first if first.participant.standing().active else second
            (answer,) = await active.submit(one, options=ASYNCHRONOUS)
            if isinstance(answer, Accepted):
                accepted.append(one.command_id)
            if len(accepted) in (5, 11):
                first.election.step_down(Ending(Cause.LOG_STALLED, "a test"))
        await second.until_active() if not first.participant.standing().active else None
        done = Counter(command for command, _ in await outcomes(first))
        assert set(accepted) <= set(done)
        assert set(done.values()) == {1}


@on_virtual_time
async def test_an_acceptance_blocks_for_the_period_that_is_asked_for() -> None:
    """Goal: deduplication by duration and by offset. Method: one acceptance, asked for again under several periods."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)], command_id="c"))
        await asyncio.sleep(10)

        async def ask(options: SubmitOptions) -> Notarised:
            (answer,) = await replica.submit(submission(1, [state(9)], command_id="c"), options=options)
            assert isinstance(answer, Notarised)
            await asyncio.sleep(0.1)
            return answer

        assert (await ask(SubmitOptions(deduplication_s=60.0))).duplicate
        assert (await ask(SubmitOptions(deduplication_after=0))).duplicate
        assert not (await ask(SubmitOptions(deduplication_after=1))).duplicate  # accepted at offset 1; now at 2 as well
        assert (await ask(SubmitOptions(deduplication_after=1))).duplicate
        assert not (await ask(SubmitOptions(deduplication_after=2))).duplicate
        await asyncio.sleep(10)
        assert not (await ask(SubmitOptions(deduplication_s=5.0))).duplicate
        (reused,) = await replica.submit(
            submission(2, [state(8)], command_id="c"), options=SubmitOptions(deduplication_s=60.0)
        )
        assert isinstance(reused, Refused)
        assert reused.code == Code.COMMAND_ID_REUSED.name


class SlowNetwork(Network):
    """Some milliseconds each way, so that there are statements in flight."""

    async def request(self, session: str, statement: str) -> None:
        await asyncio.sleep(0.002)

    async def answer(self, session: str, statement: str) -> None:
        await asyncio.sleep(0.002)


@on_virtual_time
async def test_periods_that_differ_within_a_batch_keep_duplicates_apart() -> None:
    """Goal: one command in one batch runs once. Method: the same command at once under two periods."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        one = submission(1, [state(9)])
        calls = [replica.submit(one, options=SubmitOptions(deduplication_s=period)) for period in (None, 5.0, 60.0)]
        answers = [answer for (answer,) in await asyncio.gather(*calls)]
        assert [type(a) for a in answers].count(Notarised) == 1
        assert [a.code for a in answers if isinstance(a, NotNow)] == [Code.SUBMISSION_IN_FLIGHT.name] * 2
        assert await outcomes(replica) == [("c1", "NOTARISED")]


@on_virtual_time
async def test_a_user_s_flood_holds_nobody_else_up() -> None:
    """Goal: users are served in turns. Method: 2,000 of one, then one of another; who is decided before it."""
    settings = CoreSettings(admit_batch_max=50, pipeline_max=100)
    async with World(core=settings) as world:
        replica = await world.replica()
        await replica.until_active()
        flood = [submission(n, [state(n)], user_id="flood") for n in range(1, 2_001)]
        flooding = asyncio.create_task(replica.submit(*flood))
        await asyncio.sleep(0)
        (answer,) = await replica.submit(submission(3_000, [state(3_000)], user_id="other"))
        assert isinstance(answer, Notarised)
        assert answer.log_offset < 400
        assert all(isinstance(answer, Notarised) for answer in await flooding)


@on_virtual_time
async def test_what_comes_later_waits_in_the_log_no_longer_than_the_pipeline_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a flood does not hold the holder's signs of life up. Method: a flood; the most that is ever appended and
    not read back, with and without the bound in time."""
    monkeypatch.setattr("replica.active.intake.PIPELINE_STATES_MIN", 100)

    async def most_under_way(pipeline_max_s: float) -> int:
        async with World(core=CoreSettings(pipeline_max_s=pipeline_max_s)) as world:
            replica = await world.replica()
            await replica.until_active()
            appender, append, most = replica.server.appender, replica.server.appender.append, [0]

            def counted(admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
                failed = append(admitted)
                most.append(len(appender.own.sent))
                return failed

            monkeypatch.setattr(appender, "append", counted)
            flood = [submission(n, [state(n)]) for n in range(1, 1_001)]
            assert all(isinstance(answer, Notarised) for answer in await replica.submit(*flood))
            return max(most)

    assert await most_under_way(0.0) > 4 * await most_under_way(0.000_001)


@on_virtual_time
async def test_who_waits_long_is_told_and_still_gets_the_answer() -> None:
    """Goal: an answer that follows an interim estimate reaches the caller, also past the usual wait. Method: a slow
    log, a threshold of nearly nothing, a usual wait that is too short."""
    async with World(core=CoreSettings(interim_from_s=0.001, admit_batch_max=5, pipeline_max=10)) as world:
        replica = await world.replica()
        await replica.until_active()
        flood = asyncio.create_task(replica.submit(*[submission(n, [state(n)]) for n in range(1, 500)]))
        await asyncio.sleep(0.02)
        told: list[float] = []
        last = await replica.link.submit([submission(900, [state(900)])], on_wait=told.append)
        assert isinstance(last[0], Notarised)
        assert last[0].tx_id == name_of(900)
        assert len(told) == 1
        assert told[0] > 0.001
        assert all(isinstance(answer, Notarised) for answer in await flood)


@on_virtual_time
async def test_answers_of_a_second_question_go_to_those_who_asked_it() -> None:
    """Goal: nobody gets what another submission was answered. Method: a command that is decided and not published, sent
    twice in one batch: by its owner, and for another transaction with another period."""
    async with World(core=CoreSettings(publish_linger_s=0.5)) as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(1)], command_id="c"))
        (again,), (other,) = await asyncio.gather(
            replica.submit(submission(1, [state(1)], command_id="c"), options=SubmitOptions(deduplication_s=60.0)),
            replica.submit(submission(2, [state(2)], command_id="c"), options=SubmitOptions(deduplication_after=0)),
        )
        assert not isinstance(again, Refused)  # it was accepted with just this transaction
        assert isinstance(other, NotNow | Refused)
