"""Questions of front ends to the log's own nodes: what became of an entry, and what is committed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import structlog

from replica.link.interface import LogAnswer, LogQuestion, Replies, TxQuestion
from replica.log.interface import ConsensusLog, RequestLog
from replica.notary.answers import NotNow, TxUnderstood
from replica.notary.codes import Code
from replica.notary.errors import NotaryError

INVALID = "Invalid"
FINAL = frozenset({"Committed", INVALID})
UNDER_WAY_MAX = 256
KEPT_MAX = 10_000  # answers that never change
_log = structlog.get_logger(__name__)


class LogQuestions:
    """Answers them, on active and passive replicas. Equal questions at a time are asked once.

    What is final stays so, also where the next answer would come from a node that lags: it is kept, within a bound.
    """

    def __init__(self, request_log: RequestLog, retry_after_s: float) -> None:
        self._log = request_log if isinstance(request_log, ConsensusLog) else None
        self._retry_after_s = retry_after_s
        self._kept: OrderedDict[LogQuestion, TxUnderstood] = OrderedDict()
        self._asking: dict[LogQuestion, list[tuple[Replies, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, replies: Replies, ticket: int, question: LogQuestion) -> None:
        """Take a question; its ticket gets one answer."""
        kept = self._kept.get(question)
        if kept is not None and (kept.status == INVALID or kept.offset is not None):
            replies.send([(ticket, kept)])
        elif question in self._asking:
            self._asking[question].append((replies, ticket))
        elif self._log is None:
            replies.send([(ticket, self._not_now(Code.LOG_NODES_SILENT, "log.kind is not raft"))])
        elif len(self._asking) >= UNDER_WAY_MAX:
            replies.send([(ticket, self._not_now(Code.OVERLOADED, f"{UNDER_WAY_MAX} questions to the log under way"))])
        else:
            self._asking[question] = [(replies, ticket)]
            task = asyncio.create_task(self._answer(self._log, question), name="log question")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, log: ConsensusLog, question: LogQuestion) -> None:
        answer: LogAnswer = self._not_now(Code.INTERNAL, "an error of the replica's own")
        try:
            if isinstance(question, TxQuestion):
                answer = await log.transaction(question.view, question.seqno)
            else:
                answer = await log.commit(question.since_view)
        except NotaryError as error:
            answer = self._not_now(Code.LOG_NODES_SILENT, error.detail)
        except Exception as error:
            _log.error("log_question_failed", exc_info=error)
        finally:
            known = self._known(question, answer)
            for replies, ticket in self._asking.pop(question):
                replies.send([(ticket, known)])

    def _known(self, question: LogQuestion, answer: LogAnswer) -> LogAnswer:
        """The answer, or what is final already. A committed record's offset may be known later than its status."""
        if isinstance(answer, TxUnderstood) and answer.status in FINAL:
            self._kept[question] = answer
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return self._kept.get(question, answer)

    def _not_now(self, code: Code, detail: str) -> NotNow:
        return NotNow(code.name, detail, self._retry_after_s)
