"""What answers have beside the verdict: where the completion is, whose a command is, which window was closed."""

from __future__ import annotations

import asyncio

import pytest

from ledger_api.server.feed_lines import completion_document
from ledger_api.wire.answers import answer_from_document, answer_to_document
from ledger_api.wire.submissions import DeduplicationDocument
from replica.link.interface import SubmitOptions
from replica.notary.answers import (
    Accepted,
    Answer,
    DeduplicationBound,
    Notarised,
    NotNow,
    Refused,
)
from replica.notary.codes import Code
from replica.notary.requests import TimeWindow
from replica.settings import CoreSettings
from replica.store.interface import Completion
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import Replica, World, name_of, state, submission


def refused(answer: Answer, code: Code) -> Refused:
    assert isinstance(answer, Refused)
    assert answer.code == code.name
    return answer


async def completion_at(replica: Replica, offset: int | None) -> Completion:
    """The completion at a ledger offset, once it is published."""
    assert offset is not None
    completions = replica.shared.database.completions
    async with asyncio.timeout(60):
        while len(completions := replica.shared.database.completions) < offset:
            await asyncio.sleep(0.01)
    return completions[offset - 1][1]


async def period_told(replica: Replica, offset: int) -> DeduplicationDocument | None:
    """The deduplication period in the document of a completion."""
    completion = await completion_at(replica, offset)
    return completion_document(offset, completion, completion.act_as).deduplication


@on_virtual_time
async def test_an_answer_tells_where_its_completion_is() -> None:
    """Goal: a caller can read on from where it was answered. Method: successes, conflicts, one transaction under
    another command, a duplicate, a look-up; each against the completion at that offset."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        batch = [submission(n, [state(n // 2 + 50)], submission_id=f"s{n}") for n in range(20)]
        answers = await replica.submit(*batch)
        answers += await replica.submit(submission(0, [state(50)], submission_id="other", command_id="other"))
        for answer, name in zip(answers, [one.submission_id for one in batch] + ["other"], strict=True):
            assert isinstance(answer, Notarised | Refused)
            told = await completion_at(replica, answer.ledger_offset)
            assert (told.submission_id, told.log_offset) == (name, answer.record_offset)
        (again,) = await replica.submit(submission(4, [state(52)], submission_id="again"))
        assert isinstance(again, Notarised)
        assert again.duplicate
        assert again.ledger_offset is None  # the index answers, and does not know completions
        looked_up = await replica.link.look_up(name_of(4))
        assert isinstance(looked_up, Notarised)
        assert looked_up.ledger_offset is None


@pytest.mark.parametrize("linger_ms", [0, 5, 20, 1_000])
@on_virtual_time
async def test_a_successor_publishes_where_the_answer_said(linger_ms: int) -> None:
    """Goal: an offset in an answer is true, whichever replica publishes it. Method: end the active's session right
    after its answers, before it has published, six times; then every answer ever given, against the ledger."""
    told: dict[int, str] = {}
    unpublished = 0
    settings = CoreSettings(publish_linger_s=linger_ms / 1_000)
    async with World(core=settings) as world:
        replicas = [await world.replica(n) for n in (1, 2)]
        for turn in range(6):
            while not (actives := [one for one in replicas if one.participant.standing().active]):
                await asyncio.sleep(0.01)
            names = [f"{turn}-{n}" for n in range(10)]
            batch = [submission(10 * turn + n, [state(n)], submission_id=name) for n, name in enumerate(names)]
            answers = await actives[0].submit(*batch)
            for answer, name in zip(answers, names, strict=True):
                assert isinstance(answer, Notarised | Refused)
                assert answer.ledger_offset is not None
                assert answer.ledger_offset not in told
                told[answer.ledger_offset] = name
                unpublished += answer.ledger_offset > len(world.shared.database.completions)
            world.shared.lock_server.end_all()
            while actives[0].participant.standing().active:
                await asyncio.sleep(0.01)
        for offset, name in told.items():
            assert (await completion_at(replicas[0], offset)).submission_id == name
    assert unpublished == 60 or linger_ms < 20


@on_virtual_time
async def test_a_command_that_is_taken_says_by_whom() -> None:
    """Goal: the owner of a command can find it. Method: in flight, then accepted."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        both = await asyncio.gather(
            replica.submit(submission(1, [state(9)], command_id="c", submission_id="first")),
            replica.submit(submission(2, [state(8)], command_id="c", submission_id="second")),
        )
        assert isinstance(both[1][0], NotNow)  # the first may be refused yet, and then the command is free
        assert both[1][0].code == Code.SUBMISSION_IN_FLIGHT.name
        await asyncio.sleep(1)
        completion = await completion_at(replica, 1)
        assert completion.submission_id == "first"
        log_offset = completion.log_offset
        (later,) = await replica.submit(submission(2, [state(8)], command_id="c", submission_id="third"))
        assert refused(later, Code.COMMAND_ID_REUSED).accepted_offset == log_offset


@on_virtual_time
async def test_a_closed_window_is_told() -> None:
    """Goal: a client sees both times. Method: a window that is over, over the link and as JSON."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        window = TimeWindow(1_000_000, 2_000_000)
        (answer,) = await replica.submit(submission(1, [state(9)], window=window))
        closed = refused(answer, Code.TIME_WINDOW_CLOSED)
        assert closed.window == window
        assert answer_from_document(answer_to_document(closed)) == closed


@on_virtual_time
async def test_a_transaction_id_used_again_under_its_default_command_is_told_so() -> None:
    """Goal: TX_ID_REUSED, as README promises, not a command id that nobody chose. Method: other content under a command
    named after its transaction, while the first is under way, and once it is notarised; then under a chosen command."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        name = name_of(1).hex()
        first, other = submission(1, [state(9)], command_id=name), submission(1, [state(8)], command_id=name)
        (_,), (waits,) = await asyncio.gather(replica.submit(first), replica.submit(other))
        assert isinstance(waits, NotNow)
        assert waits.code == Code.SUBMISSION_IN_FLIGHT.name
        await asyncio.sleep(1)
        (reused,) = await replica.submit(other)
        assert refused(reused, Code.TX_ID_REUSED).record_offset is not None
        (good,) = await replica.submit(first)
        assert isinstance(good, Notarised)
        assert good.duplicate
        await replica.submit(submission(2, [state(7)], command_id="chosen"))
        await asyncio.sleep(1)
        (taken,) = await replica.submit(submission(2, [state(6)], command_id="chosen"))
        refused(taken, Code.COMMAND_ID_REUSED)


@on_virtual_time
async def test_a_completion_tells_the_period_that_was_honoured() -> None:
    """Goal: an application can see what its command was compared with. Method: the default, a duration, an offset; and
    what a successor publishes, which knows it only from the record."""
    async with World(core=CoreSettings(deduplication_max_s=60.0, publish_linger_s=1.0)) as world:
        replica = await world.replica()
        await replica.until_active()
        for n, options in enumerate(
            (
                SubmitOptions(),
                SubmitOptions(deduplication_s=1.5),
                SubmitOptions(deduplication_after=0),
                SubmitOptions(True, 2.5),
            ),
            1,
        ):
            await replica.submit(submission(n, [state(n)]), options=options)
        assert [await period_told(replica, n) for n in range(1, 5)] == [
            DeduplicationDocument(60.0),
            DeduplicationDocument(1.5),
            DeduplicationDocument(None, 0),
            DeduplicationDocument(2.5),
        ]
        await replica.submit(submission(5, [state(5)]))
        world.shared.lock_server.end_all()
        assert await period_told(replica, 5) == DeduplicationDocument(60.0)  # it is in the record


@pytest.mark.parametrize(
    "answer",
    [
        Refused("COMMAND_ID_REUSED", name_of(1), accepted_offset=41),
        Accepted("s", 0.5, 41),
        Accepted("s", 0.5),
        Refused("DEDUPLICATION_PERIOD_TOO_LONG", name_of(1), bound=DeduplicationBound(12.5, 3)),
        Refused("TX_ID_REUSED", name_of(1), 4, ledger_offset=5),
    ],
)
def test_json_tells_as_much(answer: Refused | Accepted) -> None:
    """Goal: both protocols give the same answer. Method: there and back."""
    assert answer_from_document(answer_to_document(answer)) == answer


@pytest.mark.thorough
@on_virtual_time
async def test_of_one_command_at_once_only_the_first_period_counts() -> None:
    """Goal: nobody is answered by another submission's period. Method: an accepted command twice at once, with a period
    that it is in and one that it is not; a caller that comes too early asks again."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        one = submission(1, [state(1)])
        await replica.submit(one)
        await asyncio.sleep(3_600)
        near, far = SubmitOptions(deduplication_s=60.0), SubmitOptions(deduplication_s=7_200.0)
        told = await asyncio.gather(
            replica.submit(submission(2, [state(2)])),
            replica.submit(one, options=far),
            replica.submit(one, options=near),
        )
        ((_,), (first,), (second,)) = told
        assert isinstance(first, Notarised)
        assert first.ledger_offset is None
        assert isinstance(second, Notarised | NotNow)
        if isinstance(second, NotNow):
            assert second.code == Code.SUBMISSION_IN_FLIGHT.name
            ((second,),) = (await replica.submit(one, options=near),)
        assert isinstance(second, Notarised)
        assert second.ledger_offset == 3
