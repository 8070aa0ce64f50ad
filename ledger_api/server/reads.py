"""The calls that read what is published: streams and pages of completions and updates, and the ledger's end."""

from __future__ import annotations

import msgspec

from ledger_api.server.feed import LINE_MAX_BYTES, Feed, FeedRefused, Page, Wanted
from ledger_api.server.http import PROBLEM, Reply, retry_after_header
from ledger_api.server.query import Query
from ledger_api.server.routes import About, Call, Parameter, Right, Route
from ledger_api.server.settings import ApiSettings
from ledger_api.server.streams import EVENTS, StreamReply
from ledger_api.wire.answers import answer_to_document
from ledger_api.wire.feed import CompletionsDocument, LedgerEndDocument, StreamDocument, UpdatesDocument
from ledger_api.wire.problems import ProblemDocument, problem_document
from replica.link.counts import ApiCounts
from replica.notary.answers import Answer
from replica.notary.errors import BadRequest, Code, Retry

COMPLETIONS, UPDATES, LEDGER_END = "/v1/completions", "/v1/updates", "/v1/ledger-end"
PAGE_DEFAULT = 100
_encoder = msgspec.json.Encoder()

_OFFSET = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_PAGED = (
    Parameter("after", "The offset behind which to start; left out: 0, the ledger's begin.", _OFFSET),
    Parameter("follow", "Stream, live at the end, until the client leaves.", {"type": "boolean", "default": False}),
    Parameter(
        "limit",
        "Most rows of a page; not with follow=true. A page also ends before a row that would make its rows larger than "
        "`page_max_bytes` (a setting, 4 MiB by default), but for its first: go on behind `next_after`.",
        {"type": "integer", "minimum": 1},
    ),
    Parameter("party", "Only what concerns this party, or one of these.", {"type": "string"}, repeated=True),
)
_FEED = (
    Code.QUERY_INVALID,
    Code.OFFSET_PRUNED,
    Code.OFFSET_AFTER_END,
    Code.TOO_MANY_STREAMS,
    Code.FEED_UNAVAILABLE,
    Code.NOT_ACTIVE,
    Code.OVERLOADED,
)
_COMPLETIONS = About(
    summary="Completions of submissions behind an offset: a page, or a stream with follow=true",
    answers={200: CompletionsDocument},
    right=Right.READ,
    codes=_FEED,
    parameters=(*_PAGED, Parameter("user_id", "Only submissions of this user.", {"type": "string"})),
    lines=StreamDocument,
)
_UPDATES = About(
    summary="Notarised transactions behind an offset, each once: a page, or a stream with follow=true",
    answers={200: UpdatesDocument},
    right=Right.READ,
    codes=_FEED,
    parameters=_PAGED,
    lines=StreamDocument,
)
_LEDGER_END = About(
    summary="The newest published offset, and the offset up to which completions may be gone",
    answers={200: LedgerEndDocument},
    right=Right.READ,
    codes=(Code.QUERY_INVALID, Code.NOT_ACTIVE),
)


class Explainer:
    """Problem documents of calls that read, counted by their code."""

    def __init__(self, counts: ApiCounts) -> None:
        self._counts = counts

    def feed(self, refused: FeedRefused, request_id: str) -> Reply:
        """The answer to a call that the feed refuses."""
        return self._reply(self.document(refused, request_id))

    def answer(self, answer: Answer, request_id: str) -> Reply:
        """The core's answer, when it is no success."""
        document = answer_to_document(answer, request_id)
        assert isinstance(document, ProblemDocument)
        return self._reply(document)

    def document(self, refused: FeedRefused, request_id: str) -> ProblemDocument:
        """The problem, with the bounds that a reader needs in order to go on."""
        standing = refused.standing
        retry_after_s = standing.retry_after_s if refused.code.retry is Retry.SAME else None
        document = problem_document(refused.code, refused.detail, request_id, retry_after_s=retry_after_s)
        if refused.code in (Code.OFFSET_PRUNED, Code.OFFSET_AFTER_END):
            return msgspec.structs.replace(document, ledger_end=standing.ledger_end, pruned_to=standing.pruned_to)
        return document

    def _reply(self, document: ProblemDocument) -> Reply:
        self._counts.answers[document.code] = self._counts.answers.get(document.code, 0) + 1
        more = retry_after_header(document.retry_after_s)
        return Reply(document.status, _encoder.encode(document), document.request_id, kind=PROBLEM, more=more)


class Reads:
    """Answers them. What a caller may see is decided by `entitlement`."""

    def __init__(self, feed: Feed, counts: ApiCounts, settings: ApiSettings, explain: Explainer) -> None:
        self._feed = feed
        self._counts = counts
        self._settings = settings
        self._explain = explain

    def routes(self) -> list[Route]:
        """The calls."""
        return [
            Route("GET", COMPLETIONS, self._completions, _COMPLETIONS),
            Route("GET", UPDATES, self._updates, _UPDATES),
            Route("GET", LEDGER_END, self._ledger_end, _LEDGER_END),
        ]

    async def _completions(self, call: Call) -> Reply:
        query = Query(call.query, _names(_COMPLETIONS))
        return await self._answer(call, query, self._wanted(call, query, updates=False))

    async def _updates(self, call: Call) -> Reply:
        query = Query(call.query, _names(_UPDATES))
        return await self._answer(call, query, self._wanted(call, query, updates=True))

    async def _ledger_end(self, call: Call) -> Reply:
        Query(call.query, ())
        try:
            standing = self._feed.check_active()
        except FeedRefused as refused:
            return self._explain.feed(refused, call.request_id)
        document = LedgerEndDocument(ledger_end=standing.ledger_end, pruned_to=standing.pruned_to)
        return Reply(200, _encoder.encode(document), call.request_id)

    def _wanted(self, call: Call, query: Query, *, updates: bool) -> Wanted:
        parties = query.texts("party")
        return Wanted(
            updates=updates,
            user_id=None if updates else query.text("user_id"),
            parties=frozenset(parties) if parties else None,
            caller=call.caller,
            holder=call.holder,
        )

    async def _answer(self, call: Call, query: Query, wanted: Wanted) -> Reply:
        after = self._start(call, query)
        try:
            if query.flag("follow"):
                return self._stream(call, query, wanted, after)
            return await self._page(call, query, wanted, after)
        except FeedRefused as refused:
            return self._explain.feed(refused, call.request_id)

    def _start(self, call: Call, query: Query) -> int:
        """A browser that lost a stream of events names the last one that it had."""
        last = call.request.headers.get("Last-Event-ID")
        if last is None or not query.flag("follow"):
            return query.number("after", 0)
        return Query(f"after={last}", ("after",)).number("after", 0)

    def _stream(self, call: Call, query: Query, wanted: Wanted, after: int) -> Reply:
        if query.text("limit") is not None:
            raise BadRequest("limit is for pages, not with follow=true", Code.QUERY_INVALID)
        standing = self._feed.check(after)
        if self._counts.streams >= self._settings.streams_max:
            raise FeedRefused(Code.TOO_MANY_STREAMS, f"{self._counts.streams} streams are open", standing)
        return StreamReply(
            self._feed.follow(wanted, after),
            after,
            call.request_id,
            events=EVENTS.decode() in call.request.headers.get("Accept", ""),
            read_max_s=self._settings.stream_read_max_s,
            explain=lambda refused: self._explain.document(refused, call.request_id),
            counts=self._counts,
        )

    async def _page(self, call: Call, query: Query, wanted: Wanted, after: int) -> Reply:
        limit = query.number("limit", min(PAGE_DEFAULT, self._settings.page_max), 1, self._settings.page_max)
        bytes_max = self._settings.page_max_bytes
        held = self._feed.hold(max(bytes_max, LINE_MAX_BYTES), call.holder)
        try:
            page = await self._feed.page(wanted, after, limit, self._settings.scan_max, bytes_max)
            return self._render(call, page, wanted).holding(held)
        except BaseException:
            held.give_back()
            raise

    def _render(self, call: Call, page: Page, wanted: Wanted) -> Reply:
        lines = [msgspec.Raw(line.json) for line in page.lines]
        ends = {
            "next_after": page.next_after,
            "ledger_end": page.standing.ledger_end,
            "pruned_to": page.standing.pruned_to,
        }
        document = (
            UpdatesDocument(updates=lines, **ends) if wanted.updates else CompletionsDocument(completions=lines, **ends)
        )
        return Reply(200, _encoder.encode(document), call.request_id)


def _names(about: About) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in about.parameters)
