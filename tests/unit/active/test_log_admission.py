"""Rules 2 in one whole core: commands are decided by the log, by the index and by what is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.link.interface import SubmitOptions
from replica.notary.acceptances import decode_acceptance, first_key
from replica.notary.answers import Accepted, Answer, Notarised, NotNow, Refused
from replica.notary.canonical import change_id
from replica.notary.errors import Code
from replica.notary.formats import Formats
from replica.notary.outcomes import DEDUPLICATED, NOTARISED
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import RequestRecordV2
from replica.notary.requests import TIME_MAX_US
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import PARTY, Replica, World, name_of, state, submission

RULES_2 = Formats(2, 2)
ASYNCHRONOUS = SubmitOptions(asynchronous=True)
Story = Callable[[World, Replica], Awaitable[None]]


def play(story: Story, **settings: object) -> None:
    """A story with one active, under rules 2."""

    async def run() -> None:
        async with World(core=CoreSettings(**settings)) as world:  # type: ignore[arg-type]
            world.shared.database.formats = RULES_2
            replica = await world.replica()
            await replica.until_active()
            await story(world, replica)

    run_virtually(run())


async def completions(replica: Replica) -> list[tuple[str, str]]:
    await asyncio.sleep(1)
    return [(c.command_id, c.outcome) for _, c in replica.shared.database.completions]


def logged(world: World) -> list[RequestRecordV2]:
    """The requests in the log."""
    topic = world.shared.topic
    reading = read_records(begin(topic.topic_id), topic.records(0, topic.end_offset))
    return [one.record for one in reading.counted if isinstance(one.record, RequestRecordV2)]


def code(answer: Answer) -> str:
    return answer.code if isinstance(answer, Refused | NotNow) else type(answer).__name__


def test_the_database_is_not_asked_and_remembers_no_command() -> None:
    """Goal: the database is off the answer's path. Method: submit, look at its statements and tables."""

    async def story(world: World, replica: Replica) -> None:
        (answer,) = await replica.submit(submission(1, [state(1)]))
        assert isinstance(answer, Notarised)
        assert await completions(replica) == [("c1", NOTARISED)]
        database = world.shared.database
        assert (database.accepted, database.in_flight) == ({}, {})

    play(story)


def test_a_resubmission_is_answered_from_the_index_and_not_logged() -> None:
    """Goal: retries cost no record. Method: again, and the command for another transaction; count records."""

    async def story(world: World, replica: Replica) -> None:
        (first,) = await replica.submit(submission(1, [state(1)]))
        (again,) = await replica.submit(submission(1, [state(1)], submission_id="second"))
        (other,) = await replica.submit(submission(2, [state(2)], command_id="c1"))
        assert isinstance(first, Notarised)
        assert isinstance(again, Notarised)
        assert (again.duplicate, again.log_offset, again.record_offset) == (True, first.log_offset, None)
        assert code(other) == Code.COMMAND_ID_REUSED.name
        assert len(logged(world)) == 1
        assert await completions(replica) == [("c1", NOTARISED)]

    play(story)


def test_a_successor_knows_commands_from_the_log_alone() -> None:
    """Goal: nothing is forgotten with the active. Method: another replica, with an empty database of commands."""

    async def story(world: World, replica: Replica) -> None:
        await replica.submit(submission(1, [state(1)]))
        await replica.stop()
        second = await world.replica(2)
        await second.until_active()
        (again,) = await second.submit(submission(1, [state(1)]))
        (other,) = await second.submit(submission(2, [state(2)], command_id="c1"))
        assert isinstance(again, Notarised)
        assert (again.duplicate, code(other)) == (True, Code.COMMAND_ID_REUSED.name)
        assert len(logged(world)) == 1

    play(story)


def test_a_storm_of_retries_is_logged_once() -> None:
    """Goal: what is on its way is known. Method: twenty at once, and another transaction under the same command."""

    async def story(world: World, replica: Replica) -> None:
        storm = [submission(1, [state(1)], submission_id=f"s{n}") for n in range(20)]
        answers = await replica.submit(*storm, submission(2, [state(2)], command_id="c1"))
        codes = [code(answer) for answer in answers]
        assert codes == ["Notarised", *[Code.SUBMISSION_IN_FLIGHT.name] * 19, Code.COMMAND_ID_REUSED.name]
        assert len(logged(world)) == 1
        assert replica.participant.activation is not None
        budget = replica.participant.activation.intake.budget
        assert (budget.submissions, budget.states) == (0, 0)
        assert replica.participant.activation.appender.commands == {}

    play(story)


def test_a_command_named_after_its_transaction_leaves_the_verdict_to_the_log() -> None:
    """Goal: no caller chose that id. Method: other content under one id, with the default command id."""

    async def story(world: World, replica: Replica) -> None:
        default = name_of(1).hex()
        await replica.submit(submission(1, [state(1)], command_id=default))
        (answer,) = await replica.submit(submission(1, [state(2)], command_id=default))
        assert code(answer) == Code.TX_ID_REUSED.name
        assert len(logged(world)) == 2

    play(story)


@pytest.mark.parametrize(("period_s", "expected"), [(5.0, Code.COMMAND_ID_REUSED.name), (1.0, "Notarised")])
def test_a_period_is_honoured_by_the_index_and_by_the_log(period_s: float, expected: str) -> None:
    """Goal: expired means free. Method: three seconds later, the command for another transaction."""

    async def story(world: World, replica: Replica) -> None:
        await replica.submit(submission(1, [state(1)]))
        await asyncio.sleep(3)
        options = SubmitOptions(deduplication_s=period_s)
        (answer,) = await replica.submit(submission(2, [state(2)], command_id="c1"), options=options)
        assert code(answer) == expected

    play(story)


def test_terms_are_in_the_record() -> None:
    """Goal: every reader judges by what was asked. Method: none, a period, and ledger offsets: pruned, kept, queued."""

    async def story(world: World, replica: Replica) -> None:
        for number, options in enumerate(
            (
                SubmitOptions(),
                SubmitOptions(deduplication_s=2.5),
                SubmitOptions(deduplication_after=0),
                SubmitOptions(deduplication_after=2),
            ),
            1,
        ):
            await replica.submit(submission(number, [state(number)]), options=options)
            await asyncio.sleep(1)
        terms = [(record.deduplication_us, record.after_offset) for record in logged(world)]
        second = world.shared.database.completions[1][1].log_offset
        assert terms == [(60_000_000, -1), (2_500_000, -1), (TIME_MAX_US, -1), (TIME_MAX_US, second)]
        (queued,) = await replica.submit(submission(9, [state(9)]))
        assert isinstance(queued, Notarised)
        assert queued.ledger_offset is not None
        options = SubmitOptions(deduplication_after=queued.ledger_offset)  # answered, and not published yet
        await replica.submit(submission(10, [state(10)]), options=options)
        assert logged(world)[-1].after_offset == queued.log_offset
        late = SubmitOptions(deduplication_after=1_000)
        (refused,) = await replica.submit(submission(11, [state(11)]), options=late)
        assert code(refused) == Code.OFFSET_AFTER_END.name
        long = SubmitOptions(deduplication_s=61.0)
        (too_long,) = await replica.submit(submission(12, [state(12)]), options=long)
        assert code(too_long) == Code.DEDUPLICATION_PERIOD_TOO_LONG.name
        published = [c.deduplication_us for _, c in world.shared.database.completions]
        assert published[:2] == [60_000_000, 2_500_000]

    play(story, deduplication_max_s=60.0)


def test_an_asynchronous_submission_is_accepted_once_it_is_in_the_log() -> None:
    """Goal: accepted means read back. Method: hold the log; then let it go on."""

    async def story(world: World, replica: Replica) -> None:
        (answer,) = await replica.submit(submission(1, [state(1)]), options=ASYNCHRONOUS)
        assert isinstance(answer, Accepted)
        assert answer.log_offset is not None
        topic = world.shared.topic
        assert topic.records(answer.log_offset, 1)[0][0] == answer.log_offset
        assert await completions(replica) == [("c1", NOTARISED)]

    play(story)


def test_a_duplicate_that_the_log_decides_is_answered_and_completed_as_one() -> None:
    """Goal: two writers cannot accept twice. Method: forget what is known here, so that the log must decide."""

    async def story(world: World, replica: Replica) -> None:
        (first,) = await replica.submit(submission(1, [state(1)]))
        activation = replica.participant.activation
        assert activation is not None
        activation.admission.find = lambda batch: [None] * len(batch)  # type: ignore[method-assign,union-attr]
        (again,) = await replica.submit(submission(1, [state(1)]))
        (other,) = await replica.submit(submission(2, [state(2)], command_id="c1"))
        assert isinstance(first, Notarised)
        assert isinstance(again, Notarised)
        assert (again.duplicate, again.log_offset) == (True, first.log_offset)
        assert again.record_offset == first.log_offset + 1
        assert code(other) == Code.COMMAND_ID_REUSED.name
        expected = [("c1", NOTARISED), ("c1", DEDUPLICATED), ("c1", Code.COMMAND_ID_REUSED.name)]
        assert await completions(replica) == expected
        key = first_key(change_id("user", "c1", (PARTY,)))
        entries = dict(replica.index.commands.entries())
        assert list(entries) == [key]  # a deduplicated one prolongs nothing
        assert decode_acceptance(entries[key]).offset == first.log_offset

    play(story)


def test_completions_that_the_database_does_not_take_are_bounded() -> None:
    """Goal: memory does not grow with a database that hangs. Method: a backlog at its bound, submit, let it go."""

    async def story(world: World, replica: Replica) -> None:
        activation = replica.participant.activation
        assert activation is not None
        activation.intake.budget.note_unpublished(100_000)
        (answer,) = await replica.submit(submission(1, [state(1)]))
        assert code(answer) == Code.OVERLOADED.name
        activation.intake.budget.note_unpublished(99_999)
        (answer,) = await replica.submit(submission(1, [state(1)]))
        assert isinstance(answer, Notarised)

    play(story)


def test_nobody_begins_to_write_rules_2_with_an_index_that_does_not_know_all_commands() -> None:
    """Goal: no command is forgotten by a raise. Method: an index whose table of commands is empty, rules 2 raised."""

    async def run() -> None:
        async with World() as world:
            first = await world.replica()
            await first.until_active()
            await first.submit(submission(1, [state(1)]))
            await first.stop()
            world.shared.database.formats = RULES_2
            topic = world.shared.topic
            led = MemoryIndex()
            Applier(led, topic.topic_id).apply(topic.records(0, topic.end_offset))
            older = MemoryIndex()
            older._entries, older._position = led._entries, led._position  # as an older release leaves it
            second = await world.replica(2, index=older)
            await second.until_active()
            assert second.index.commands.position() is not None
            (again,) = await second.submit(submission(2, [state(2)], command_id="c1"))
            assert code(again) == Code.COMMAND_ID_REUSED.name

    run_virtually(run())


def test_records_of_rules_2_wait_for_the_table_of_commands() -> None:
    """Goal: nothing is judged by half of the commands. Method: an index that lags in commands, past the barrier."""

    async def run() -> None:
        async with World() as world:
            world.shared.database.formats = RULES_2
            first = await world.replica()
            await first.until_active()
            await first.submit(*[submission(n, [state(n)]) for n in range(1, 9)])
            topic = world.shared.topic
            half = MemoryIndex()
            Applier(half, topic.topic_id).apply(topic.records(0, topic.end_offset - 3))
            torn = MemoryIndex()
            torn._entries, torn._position = half._entries, half._position
            second = await world.replica(2, index=torn)
            while second.participant.follower.applied_offset < topic.end_offset - 1:
                await asyncio.sleep(0.1)
            assert list(torn.commands.entries()) == list(first.index.commands.entries())
            assert torn.commands.position() == torn.position()

    run_virtually(run())
