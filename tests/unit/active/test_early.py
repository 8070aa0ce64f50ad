"""Early acceptance in the core: one answer for each submission, whichever comes first, the place or the read-back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from replica.link.interface import SubmitOptions, TicketedAnswer
from replica.log.interface import EarlyLogWriter
from replica.log.memory import MemoryWriter
from replica.log.raft.writer import RaftWriter
from replica.notary.answers import Accepted, AcceptedEarly, Answer, NotNow
from replica.notary.codes import Code
from tests.unit.active.test_admission import Unacknowledged
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import Replica, World, state, submission

EARLY = SubmitOptions(asynchronous=True, early=True)
Appended = Callable[[Mapping[int, str]], None]


class FrontEnd:
    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.count: Counter[int] = Counter()

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        self.answers.update(answers)  # type: ignore[arg-type]
        self.count.update(ticket for ticket, _ in answers)

    def wait(self, tickets: Sequence[int], wait_s: float) -> None:
        pass


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[bytes], Appended]]:
    """Whoever asks for places: the log has the records, and the test reports where."""
    asked: list[tuple[Sequence[bytes], Appended]] = []

    def append_early(self: MemoryWriter, values: Sequence[bytes], appended: Appended) -> None:
        asked.append((values, appended))
        self.append_all(values)

    monkeypatch.setattr(MemoryWriter, "append_early", append_early, raising=False)
    return asked


def offer(replica: Replica, *txs: int) -> FrontEnd:
    front_end = FrontEnd()
    batch = [(tx, submission(tx, [state(tx)])) for tx in txs]
    replica.participant.submit(front_end, batch, EARLY)
    return front_end


async def completed(replica: Replica) -> list[str]:
    await asyncio.sleep(1)
    return [c.command_id for _, c in replica.shared.database.completions]


def test_only_writers_that_know_places_are_asked_for_them() -> None:
    assert issubclass(RaftWriter, EarlyLogWriter)
    assert not issubclass(MemoryWriter, EarlyLogWriter)


@on_virtual_time
async def test_the_first_place_is_the_one_answer(places: list[tuple[Sequence[bytes], Appended]]) -> None:
    """Goal: one answer, one completion. Method: report places before the read-back, in parts, and others again."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        front_end = offer(replica, 1, 2)
        while not places:
            await asyncio.sleep(0)
        ((values, appended),) = places
        assert len(values) == 2
        appended({1: "2.8"})
        assert front_end.answers == {2: AcceptedEarly("s", "2.8", front_end.answers[2].estimate_s)}  # type: ignore[union-attr]
        appended({0: "2.7", 1: "2.8"})
        appended({0: "3.7", 1: "3.8"})
        assert [answer.transaction_id for answer in front_end.answers.values()] == ["2.8", "2.7"]  # type: ignore[union-attr]
        assert await completed(replica) == ["c1", "c2"]
        assert front_end.count == {1: 1, 2: 1}


@pytest.mark.parametrize("asked", [False, True], ids=["another log", "a node of an older release"])
@on_virtual_time
async def test_what_is_read_back_first_is_accepted(asked: bool, request: pytest.FixtureRequest) -> None:
    """Goal: a place that never comes, or late, leaves nobody without an answer. Method: read back; then the place."""
    found: list[tuple[Sequence[bytes], Appended]] = request.getfixturevalue("places") if asked else []
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        front_end = offer(replica, 1)
        assert await completed(replica) == ["c1"]
        (answer,) = front_end.answers.values()
        assert isinstance(answer, Accepted)
        assert answer.log_offset is not None
        for _, appended in found:
            appended({0: "2.7"})
        assert front_end.count == {1: 1}


@on_virtual_time
async def test_at_the_end_of_an_activation_only_the_unanswered_are_unknown(
    places: list[tuple[Sequence[bytes], Appended]],
) -> None:
    """Goal: exactly one answer. Method: nothing is read back; one has its place, one has none; stop."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        replica.server.appender._writer._delivery = Unacknowledged()  # type: ignore[attr-defined]
        front_end = offer(replica, 1, 2)
        while not places:
            await asyncio.sleep(0.01)
        places[0][1]({0: "2.7"})
        await replica.stop()
        assert isinstance(front_end.answers[1], AcceptedEarly)
        unknown = front_end.answers[2]
        assert isinstance(unknown, NotNow)
        assert unknown.code == Code.OUTCOME_UNKNOWN.name
        assert front_end.count == {1: 1, 2: 1}
