"""Questions to the log's nodes: what is final stays so, equal questions are asked once, and all is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from replica.active import log_questions
from replica.active.log_questions import LogQuestions
from replica.link.interface import CommitQuestion, TicketedAnswer, TxQuestion
from replica.log.interface import ConsensusLog
from replica.notary.answers import CommitUnderstood, NotNow, TxUnderstood
from replica.notary.errors import LogUnavailable

AT = TxQuestion(2, 17)


class Nodes:
    """A log whose nodes answer as they are set."""

    def __init__(self, *answers: TxUnderstood | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.gate: asyncio.Event | None = None

    async def consensus(self) -> Mapping[str, object]:
        return {}

    async def transaction(self, view: int, seqno: int) -> TxUnderstood:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def commit(self, since_view: int | None = None) -> CommitUnderstood:
        return CommitUnderstood("3.20", None if since_view is None else (since_view,))


class Answers:
    """A front end."""

    def __init__(self) -> None:
        self.sent: list[TicketedAnswer] = []

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        self.sent += answers

    def wait(self, tickets: Sequence[int], wait_s: float) -> None:
        raise AssertionError("nobody waits")


def tx(status: str, offset: int | None = None) -> TxUnderstood:
    return TxUnderstood("2.17", status, "3.20", offset)


async def ask(questions: LogQuestions, times: int = 1, question: Any = AT) -> list[Any]:
    front_end = Answers()
    for ticket in range(times):
        questions.ask(front_end, ticket, question)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [ticket for ticket, _ in front_end.sent] == list(range(times))
    return [answer for _, answer in front_end.sent]


async def test_what_is_final_stays_so_whoever_answers_next() -> None:
    """Goal: no Pending after Committed. Method: a node that knows, one that lags, one that is silent, one with all."""
    nodes = Nodes(tx("Pending"), tx("Committed"), tx("Pending"), LogUnavailable("x"), tx("Committed", 7), tx("Unknown"))
    assert isinstance(nodes, ConsensusLog)
    found = await ask(LogQuestions(nodes, 0.25), 7)  # type: ignore[arg-type]
    assert found == [tx("Pending"), *[tx("Committed")] * 3, *[tx("Committed", 7)] * 3]
    assert nodes.asked == 5  # once all is known, nobody is asked


async def test_equal_questions_are_asked_once_and_others_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_questions, "UNDER_WAY_MAX", 1)
    nodes = Nodes(tx("Pending"))
    nodes.gate = asyncio.Event()
    questions, front_end = LogQuestions(nodes, 0.25), Answers()  # type: ignore[arg-type]
    for ticket in range(3):
        questions.ask(front_end, ticket, AT)
    questions.ask(front_end, 3, CommitQuestion(1))
    ((ticket, refused),) = front_end.sent
    assert isinstance(refused, NotNow)
    assert (ticket, refused.code) == (3, "OVERLOADED")
    nodes.gate.set()
    await asyncio.sleep(0.01)
    assert sorted(ticket for ticket, _ in front_end.sent) == [0, 1, 2, 3]
    assert nodes.asked == 1
    assert await ask(questions, 1, CommitQuestion(1)) == [CommitUnderstood("3.20", (1,))]


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_questions, "KEPT_MAX", 2)
    questions = LogQuestions(Nodes(tx("Invalid")), 0.25)  # type: ignore[arg-type]
    for seqno in range(1, 10):
        await ask(questions, 1, TxQuestion(2, seqno))
    assert len(questions._kept) == 2


@pytest.mark.parametrize("error", [LogUnavailable("nobody"), ValueError("a bug")])
async def test_every_ticket_gets_an_answer(error: Exception) -> None:
    (answer,) = await ask(LogQuestions(Nodes(error), 0.25))  # type: ignore[arg-type]
    assert isinstance(answer, NotNow)
    assert answer.code == ("INTERNAL" if isinstance(error, ValueError) else "LOG_NODES_SILENT")
    (answer,) = await ask(LogQuestions(object(), 0.25))  # type: ignore[arg-type]
    assert answer.code == "LOG_NODES_SILENT"
