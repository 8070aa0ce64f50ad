"""The calls about the request log's own entries: what became of one, and what is committed. For log.kind = raft."""

from __future__ import annotations

import re
from typing import cast

import msgspec

from ledger_api.server.feed import Feed, FeedRefused
from ledger_api.server.query_string import QueryString
from ledger_api.server.rendering import Renderer
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Parameter, Right, Route
from ledger_api.wire.answers import CommitDocument, LogTransactionDocument, TxStatusName
from replica.link.interface import CommitQuestion, CoreLink, TxQuestion
from replica.notary.answers import CommitUnderstood, NotNow, TxUnderstood
from replica.notary.codes import Code
from replica.notary.errors import BadRequest

LOG, COMMIT = "/v1/log/", "/v1/commit"
_TRANSACTION = re.compile(r"([1-9][0-9]{0,14})\.([1-9][0-9]{0,14})")
_VIEW_MAX = 10**15 - 1
_encoder = msgspec.json.Encoder()

_CODES = (Code.QUERY_INVALID, Code.NO_LOG_NODES, Code.LOG_NODES_SILENT, Code.OVERLOADED, Code.OUTCOME_UNKNOWN)
_TX = About(
    summary="What became of an entry of the request log: Unknown, Pending, Committed or Invalid",
    answers={200: LogTransactionDocument},
    right=Right.READ,
    codes=(Code.MALFORMED_REQUEST, *_CODES),
    argument=Parameter(
        "transaction_id",
        "The entry's place, `view.seqno`, as an early answer names it.",
        {"type": "string", "pattern": "^[1-9][0-9]{0,14}\\.[1-9][0-9]{0,14}$"},
    ),
)
_COMMIT = About(
    summary="The newest committed entry of the request log, and where its views begin",
    answers={200: CommitDocument},
    right=Right.READ,
    codes=_CODES,
    parameters=(
        Parameter("view_history", "Add where each view began.", {"type": "boolean", "default": False}),
        Parameter(
            "view_history_since",
            "The same, from this view on; an answer has at most 1,000 views.",
            {"type": "integer", "minimum": 1, "maximum": _VIEW_MAX},
        ),
    ),
)


class LogRoutes:
    """Answers these calls, on active and passive replicas, from the log node beside them."""

    def __init__(self, core: CoreLink, feed: Feed, renderer: Renderer, *, log_nodes: bool) -> None:
        """`log_nodes`: see `Api`."""
        self._core = core
        self._feed = feed
        self._renderer = renderer
        self._log_nodes = log_nodes

    def routes(self) -> list[Route]:
        """The calls."""
        return [
            Route("GET", LOG + "{transaction_id}", self._transaction, _TX),
            Route("GET", COMMIT, self._commit, _COMMIT),
        ]

    async def _transaction(self, call: Call) -> Reply:
        QueryString(call.query, ())
        found = _TRANSACTION.fullmatch(call.argument)
        if found is None:
            raise BadRequest("a place in the log is VIEW.SEQNO, two numbers from 1 on", Code.MALFORMED_REQUEST)
        self._require_nodes()
        answer = await self._core.ask_log(TxQuestion(int(found[1]), int(found[2])))
        if not isinstance(answer, TxUnderstood):
            return self._renderer.reply(_problem(answer), call.request_id)
        document = LogTransactionDocument(
            transaction_id=answer.transaction_id,
            status=cast(TxStatusName, answer.status),
            committed=answer.committed,
            log_offset=answer.offset,
            ledger_offset=None if answer.offset is None else await self._published_at(answer.offset, call),
        )
        return Reply(200, _encoder.encode(document), call.request_id)

    async def _commit(self, call: Call) -> Reply:
        query = QueryString(call.query, ("view_history", "view_history_since"))
        since: int | None = query.number("view_history_since", 0, 0, _VIEW_MAX)
        if not since:
            if query.text("view_history_since") is not None:
                raise BadRequest("views begin with 1", Code.QUERY_INVALID)
            since = 1 if query.flag("view_history") else None
        self._require_nodes()
        answer = await self._core.ask_log(CommitQuestion(since))
        if not isinstance(answer, CommitUnderstood):
            return self._renderer.reply(_problem(answer), call.request_id)
        views = answer.view_history
        document = CommitDocument(
            transaction_id=answer.transaction_id,
            view_history=None if views is None else list(views),
            view_history_since=since,
        )
        return Reply(200, _encoder.encode(document), call.request_id)

    def _require_nodes(self) -> None:
        if not self._log_nodes:
            raise BadRequest("the request log of this notary is not on log nodes", Code.NO_LOG_NODES)

    async def _published_at(self, log_offset: int, call: Call) -> int | None:
        """The ledger offset of a record's completion; None also where this replica cannot know it."""
        try:
            row = await self._feed.find(log_offset, call.holder)
        except FeedRefused:
            return None
        return None if row is None else row[0]


def _problem(answer: TxUnderstood | CommitUnderstood | NotNow) -> NotNow:
    """The problem; an answer to another question is a failure of the core's."""
    return answer if isinstance(answer, NotNow) else NotNow(Code.OUTCOME_UNKNOWN.name, "the core is confused", 1.0)
