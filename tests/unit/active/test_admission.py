"""Admission where commands are decided in the log: what is answered at once, what is logged, and who waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ledger_api.client import Party
from replica.active.terms import Terms, terms_of
from replica.link.interface import SubmitOptions
from replica.log.memory import Delivery, MemoryTopic
from replica.notary.answers import Accepted, DeduplicationBound, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.beginning import LEDGER
from tests.worlds.core_world import BEGUN, KEY, PARTY, Replica, World, name_of, state, submission
from tests.worlds.ha_world import LoopClock


def play(story: Callable[[World, Replica], Awaitable[None]], **core: float) -> None:
    async def scenario() -> None:
        async with World(core=CoreSettings(**core)) as world:  # type: ignore[arg-type]
            replica = await world.replica()
            await replica.until_active()
            await story(world, replica)
            await asyncio.sleep(2.0)
            if replica.participant.activation is not None:
                budget = replica.participant.activation.budget
                assert (budget.submissions, budget.states, budget.unpublished) == (0, 0, 0)
                assert not replica.server.appender.commands

    run_virtually(scenario())


async def answer_after_stop(replica: Replica, waiting: asyncio.Task[Any]) -> str:
    """The code of the one answer of a submission that waits while its replica is stopped."""
    await asyncio.sleep(0.1)
    await replica.stop()
    (answer,) = await waiting
    assert isinstance(answer, NotNow)
    return answer.code


def test_a_success_is_repeated_from_the_index_and_a_refusal_is_logged() -> None:
    """Goal: what could be out of date is decided by the log. Method: the same command again, and for another one."""

    async def story(_: World, replica: Replica) -> None:
        (first,) = await replica.submit(submission(1, [state(1)], command_id="c"))
        (again,) = await replica.submit(submission(1, [state(1)], command_id="c"))
        (other,) = await replica.submit(submission(2, [state(2)], command_id="c"))
        assert isinstance(first, Notarised)
        assert isinstance(again, Notarised)
        assert (again.duplicate, again.record_offset, again.log_offset) == (True, None, first.log_offset)
        assert isinstance(other, Refused)
        assert (other.code, other.record_offset) == (Code.COMMAND_ID_REUSED.name, first.log_offset + 1)

    play(story)


@pytest.mark.parametrize("second", [1, 2], ids=["same", "other transaction"])
def test_a_command_on_its_way_is_answered_by_nobody_but_the_log(second: int) -> None:
    """Goal: no final answer rests on a record that may be refused. Method: two of one command in one batch; the first
    is refused, then the second is sent again."""

    async def story(_: World, replica: Replica) -> None:
        await replica.submit(submission(9, [state(1)]))
        one, two = submission(1, [state(1)], command_id="c"), submission(second, [state(2)], command_id="c")
        refused, early = await replica.submit(one, two)
        assert isinstance(refused, Refused)
        assert refused.code == Code.STATE_CONFLICT.name
        assert isinstance(early, NotNow)
        assert early.code == Code.SUBMISSION_IN_FLIGHT.name
        (answer,) = await replica.submit(two)
        assert isinstance(answer, Notarised)

    play(story)


def test_an_asynchronous_submission_is_answered_once_with_its_place_in_the_log() -> None:
    """Goal: Accepted means read back. Method: one accepted, one refused by the log, one repeated."""

    async def story(_: World, replica: Replica) -> None:
        options = SubmitOptions(asynchronous=True)
        (first,) = await replica.submit(submission(1, [state(1)]), options=options)
        (conflict,) = await replica.submit(submission(2, [state(1)]), options=options)
        (again,) = await replica.submit(submission(1, [state(1)]), options=options)
        assert isinstance(first, Accepted)
        assert isinstance(conflict, Accepted)
        assert (first.log_offset, conflict.log_offset) == (BEGUN + 1, BEGUN + 2)
        assert isinstance(again, Notarised)
        assert again.duplicate

    play(story)


class Unacknowledged(Delivery):
    """Records never arrive."""

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        return


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_on_its_way_at_the_end_is_answered_as_unknown(asynchronous: bool) -> None:
    """Goal: every submission is answered once, asynchronous ones as well. Method: records stop arriving; stop."""

    async def story(_: World, replica: Replica) -> None:
        replica.server.appender._writer._delivery = Unacknowledged()  # type: ignore[attr-defined]
        waiting = asyncio.create_task(
            replica.submit(submission(1, [state(1)]), options=SubmitOptions(asynchronous=asynchronous))
        )
        assert await answer_after_stop(replica, waiting) == Code.OUTCOME_UNKNOWN.name

    play(story)


def test_a_database_that_hangs_costs_no_request_until_too_many_completions_wait() -> None:
    """Goal: the database is off the answer's path, within a bound. Method: publishing hangs; requests are answered;
    then as many completions wait as may."""

    async def story(_: World, replica: Replica) -> None:
        activation = replica.participant.activation
        assert activation is not None
        store, publish = activation.publisher._store, activation.publisher._store.publish
        goes_on = asyncio.Event()

        async def late(*parts: Any) -> int:
            await goes_on.wait()
            return await publish(*parts)

        store.publish = late  # type: ignore[method-assign]
        for number in range(1, 40):
            (answer,) = await replica.submit(submission(number, [state(number)]))
            assert isinstance(answer, Notarised)
        budget = activation.budget
        assert (budget.submissions, budget.unpublished) == (0, 39)
        budget.note_unpublished(replica.shared.core.publish_backlog_max)
        (refused,) = await replica.submit(submission(50, [state(50)]))
        assert isinstance(refused, NotNow)
        assert refused.code == Code.OVERLOADED.name
        assert "completions wait for the database" in refused.detail
        goes_on.set()
        await asyncio.sleep(1.0)
        (answer,) = await replica.submit(submission(50, [state(50)]))
        assert isinstance(answer, Notarised)

    play(story)


def test_an_active_with_a_slow_clock_repeats_no_success_that_the_log_would_judge_again() -> None:
    """Goal: a period ends by the log's time at the latest. Method: the log is five seconds on, the active's clock has
    stood still since the acceptance, whose period is one second."""

    async def story(world: World, replica: Replica) -> None:
        (first,) = await replica.submit(submission(1, [state(1)]))
        at_us = world.shared.clock.wall_us()
        await asyncio.sleep(5.0)
        await replica.submit(submission(2, [state(2)]))
        slow = LoopClock()
        slow.wall_us = lambda: at_us  # type: ignore[method-assign]
        replica.server.admission._clock = slow
        (again,) = await replica.submit(submission(1, [state(1)]), options=SubmitOptions(deduplication_s=1.0))
        assert isinstance(first, Notarised)
        assert isinstance(again, Notarised)
        assert again.record_offset == first.log_offset + 2

    play(story)


def test_what_was_signed_is_logged_whatever_it_is_submitted_under() -> None:
    """Goal: should a front end let another command through, the signed one is accepted, and the other one is free.
    Method: a signature for another command goes straight to the core; then both commands with other content."""

    async def story(_: World, replica: Replica) -> None:
        signed = Party(PARTY, LEDGER).sign(name_of(1), [state(1)], command_id="c", user_id="u")
        (first,) = await replica.submit(replace(signed, command_id="d", public_key=KEY))
        assert isinstance(first, Notarised)
        (reused,) = await replica.submit(submission(2, [state(2)], command_id="c", user_id="u"))
        assert isinstance(reused, Refused)
        assert reused.code == Code.COMMAND_ID_REUSED.name
        (free,) = await replica.submit(submission(3, [state(3)], command_id="d", user_id="u"))
        assert isinstance(free, Notarised)

    play(story)


@pytest.mark.parametrize(
    ("period_s", "honoured_us"),
    [(604_800.0, 604_800_000_000), (604_800.000001, None), (0.0, 0), (604_799.9999994, 604_799_999_999)],
    ids=["the maximum", "a microsecond more", "none at all", "rounded"],
)
def test_a_period_is_honoured_to_the_microsecond_or_refused(period_s: float, honoured_us: int | None) -> None:
    """Goal: no period is shortened. Method: at the maximum, and one microsecond past it."""
    found = terms_of(SubmitOptions(deduplication_s=period_s), 604_800.0)
    assert found == (DeduplicationBound(604_800.0, 0) if honoured_us is None else Terms(honoured_us))


_REUSED, _BEYOND = Code.COMMAND_ID_REUSED.name, Code.OFFSET_AFTER_END.name


@pytest.mark.parametrize(
    ("after", "codes"),
    [
        (0, [_REUSED, _REUSED]),
        (1, [_REUSED, _REUSED]),
        (2, ["NOTARISED", _REUSED]),  # the first is accepted, and that counts for the second
        (3, [_BEYOND, _BEYOND]),
        (2**63 - 1, [_BEYOND, _BEYOND]),
    ],
)
def test_a_ledger_offset_counts_from_its_completion_on(after: int, codes: list[str | None]) -> None:
    """Goal: an offset counts exactly, whether its completion is published or not. Method: a command accepted at
    ledger offset 2, asked for at once and after it is published; each offset around it, and the highest there is."""

    async def story(_: World, replica: Replica) -> None:
        for number, command in ((1, "b"), (2, "c")):
            await replica.submit(submission(number, [state(number)], command_id=command))
        found: list[str | None] = []
        for number in (10, 11):
            options = SubmitOptions(deduplication_after=after)
            (answer,) = await replica.submit(submission(number, [state(number)], command_id="c"), options=options)
            found.append(answer.code)
            await asyncio.sleep(1.0)
        assert found == codes

    play(story)
