"""The calls that read what is published: streams and pages of completions and updates, and the ledger's end."""

from __future__ import annotations

import msgspec

from ledger_api.server.capacity import Capacity
from ledger_api.server.feed import LINE_MAX_BYTES, Feed, FeedRefused, Page
from ledger_api.server.feed_lines import Wanted
from ledger_api.server.query_string import QueryString
from ledger_api.server.rendering import Renderer, feed_problem
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Parameter, Right, Route
from ledger_api.server.settings import ApiSettings
from ledger_api.server.streams import EVENTS, StreamReply
from ledger_api.wire.feed import CompletionsDocument, LedgerEndDocument, StreamDocument, UpdatesDocument
from replica.notary.codes import Code
from replica.notary.errors import BadRequest

COMPLETIONS, UPDATES, LEDGER_END = "/v1/completions", "/v1/updates", "/v1/ledger-end"
PAGE_DEFAULT = 100
_encoder = msgspec.json.Encoder()

_OFFSET = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_PAGED = (
    Parameter("after", "The offset after which to start; left out: 0, the ledger's begin.", _OFFSET),
    Parameter("follow", "Stream, live at the end, until the client leaves.", {"type": "boolean", "default": False}),
    Parameter(
        "limit",
        "Most rows of a page; not with follow=true. A page also ends before a row that would make its rows larger than "
        "`page_max_bytes` (a setting, 4 MiB by default), but for its first: go on after `next_after`.",
        {"type": "integer", "minimum": 1},
    ),
    Parameter(
        "party",
        "Only what concerns this party, or one of these. One that the token may not read matches nothing.",
        {"type": "string"},
        repeated=True,
    ),
)
_FEED = (
    Code.QUERY_INVALID,
    Code.OFFSET_PRUNED,
    Code.OFFSET_AFTER_END,
    Code.TOO_MANY_STREAMS,
    Code.FEED_UNAVAILABLE,
    Code.NOT_ACTIVE,
    Code.SERVICE_PAUSED,
    Code.OVERLOADED,
)
_COMPLETIONS = About(
    summary="Completions of submissions after an offset: a page, or a stream with follow=true",
    answers={200: CompletionsDocument},
    right=Right.READ,
    codes=_FEED,
    parameters=(*_PAGED, Parameter("user_id", "Only submissions of this user.", {"type": "string"})),
    lines=StreamDocument,
)
_UPDATES = About(
    summary="Notarised transactions after an offset, each once: a page, or a stream with follow=true",
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
    codes=(Code.QUERY_INVALID, Code.NOT_ACTIVE, Code.SERVICE_PAUSED),
)


class LedgerRoutes:
    """Answers these calls. `authorisation` decides what a caller may see."""

    def __init__(self, feed: Feed, capacity: Capacity, settings: ApiSettings, renderer: Renderer) -> None:
        self._feed = feed
        self._capacity = capacity
        self._settings = settings
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """The calls."""
        return [
            Route("GET", COMPLETIONS, self._completions, _COMPLETIONS),
            Route("GET", UPDATES, self._updates, _UPDATES),
            Route("GET", LEDGER_END, self._ledger_end, _LEDGER_END),
        ]

    async def _completions(self, call: Call) -> Reply:
        query = QueryString(call.query, _names(_COMPLETIONS))
        return await self._answer(call, query, self._wanted(call, query, updates=False))

    async def _updates(self, call: Call) -> Reply:
        query = QueryString(call.query, _names(_UPDATES))
        return await self._answer(call, query, self._wanted(call, query, updates=True))

    async def _ledger_end(self, call: Call) -> Reply:
        QueryString(call.query, ())
        try:
            standing = self._feed.check_active()
        except FeedRefused as refused:
            return self._refusal(refused, call)
        document = LedgerEndDocument(ledger_end=standing.ledger_end, pruned_to=standing.pruned_to)
        return Reply(200, _encoder.encode(document), call.request_id)

    def _refusal(self, refused: FeedRefused, call: Call) -> Reply:
        return self._renderer.reply(feed_problem(refused, call.request_id), call.request_id)

    def _wanted(self, call: Call, query: QueryString, *, updates: bool) -> Wanted:
        parties = query.texts("party")
        return Wanted(
            updates=updates,
            user_id=None if updates else query.text("user_id"),
            parties=frozenset(parties) if parties else None,
            caller=call.caller,
            holder=call.holder,
        )

    async def _answer(self, call: Call, query: QueryString, wanted: Wanted) -> Reply:
        after = self._start(call, query)
        try:
            if query.flag("follow"):
                return self._stream(call, query, wanted, after)
            return await self._page(call, query, wanted, after)
        except FeedRefused as refused:
            return self._refusal(refused, call)

    def _start(self, call: Call, query: QueryString) -> int:
        """The offset to start after. A browser that lost a stream of events names the last one that it had."""
        last = call.request.headers.get("Last-Event-ID")
        if last is None or not query.flag("follow"):
            return query.number("after", 0)
        return QueryString(f"after={last}", ("after",)).number("after", 0)

    def _stream(self, call: Call, query: QueryString, wanted: Wanted, after: int) -> Reply:
        if query.text("limit") is not None:
            raise BadRequest("limit is for pages, not with follow=true", Code.QUERY_INVALID)
        standing = self._feed.check(after)
        use = self._capacity.reading_stream(call.holder)
        if isinstance(use, str):
            raise FeedRefused(Code.TOO_MANY_STREAMS, use, standing)
        return StreamReply(
            self._feed.follow(wanted, after),
            after,
            call.request_id,
            events=EVENTS.decode() in call.request.headers.get("Accept", ""),
            read_max_s=self._settings.stream_read_max_s,
            explain=lambda refused: feed_problem(refused, call.request_id),
            use=use,
        )

    async def _page(self, call: Call, query: QueryString, wanted: Wanted, after: int) -> Reply:
        limit = query.number("limit", min(PAGE_DEFAULT, self._settings.page_max), 1, self._settings.page_max)
        bytes_max = self._settings.page_max_bytes
        with self._feed.hold(max(bytes_max, LINE_MAX_BYTES), call.holder) as reservation:
            page = await self._feed.page(wanted, after, limit, self._settings.scan_max, bytes_max)
            return self._render(call, page, wanted).holding(reservation)

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
