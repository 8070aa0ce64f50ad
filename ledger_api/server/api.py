"""The ledger API: identifies callers, finds routes, turns errors into answers. docs/api.md describes the calls."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Sequence

import msgspec
from aiohttp import web

from ledger_api.server.authentication import Authentication, NoAuthentication
from ledger_api.server.authorisation import EVERYBODY, Caller, holder_of
from ledger_api.server.bodies import body_size, read_body
from ledger_api.server.browsers import Browsers
from ledger_api.server.capacity import Capacity
from ledger_api.server.contract import Contract
from ledger_api.server.endpoint_routes import EndpointRoutes
from ledger_api.server.explorer import explorer_routes
from ledger_api.server.feed import Feed
from ledger_api.server.ledger_routes import LedgerRoutes
from ledger_api.server.log_routes import LogRoutes
from ledger_api.server.logs import LogLimits
from ledger_api.server.lookups import Lookups
from ledger_api.server.progress import Progress
from ledger_api.server.rate import RateExceeded, Rates
from ledger_api.server.rendering import Renderer
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Found, Right, Route, RouteTable
from ledger_api.server.settings import UNLISTED, ApiSettings, Listing
from ledger_api.server.submission_routes import SubmissionRoutes
from ledger_api.server.submission_session import Shared
from ledger_api.server.submission_stream import SubmissionStreams
from ledger_api.server.validation import Validator
from ledger_api.wire.answers import NotaryDocument
from ledger_api.wire.stream_frames import VERSION, Welcome
from replica.link.interface import CoreLink, serving
from replica.notary.answers import NotNow
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.genesis import NO_LEDGER
from replica.telemetry.counts import ApiCounts, Latency

NOTARY = "/v1/notary"
_OTHER = "other"  # requests without a route, in the metrics
_JSON_TYPE = re.compile(r'application/json(\s*;\s*charset="?utf-8"?)?\s*', re.IGNORECASE)
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,64}")
_CHALLENGES = {  # RFC 6750: how to get in
    Code.TOKEN_MISSING: b'WWW-Authenticate: Bearer realm="notary"\r\n',
    Code.TOKEN_INVALID: b'WWW-Authenticate: Bearer realm="notary", error="invalid_token"\r\n',
}
_encoder = msgspec.json.Encoder()
_DESCRIBE = About(
    summary="The notary's public key, limits and release, and this replica's role; passives answer as well",
    answers={200: NotaryDocument},
    right=Right.NONE,
)


class Api:
    """Answers every request that comes in."""

    def __init__(
        self,
        core: CoreLink,
        feed: Feed,
        validator: Validator,
        counts: ApiCounts,
        settings: ApiSettings,
        *,
        about: NotaryDocument,
        authentication: Authentication | None = None,
        log_nodes: bool = False,
        listing: Listing = UNLISTED,
        hosts: Sequence[str] = (),
    ) -> None:
        """The byte budget of `feed` is for all answers, those to submissions as well.

        `log_nodes`: the request log is on nodes of the participant's own. `listing`: where applications reach it.
        `hosts`: the names by which browsers may ask for it.
        """
        self._browsers = Browsers(settings, hosts)
        self._log_nodes = log_nodes
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._counts = counts
        self._settings = settings
        self._about = about
        self._authentication = authentication or NoAuthentication()
        self._rates = Rates(settings, self._loop.time, lambda: serving(core.peers))
        self.capacity = Capacity(core, counts, settings, feed.budget)
        limits = LogLimits(settings.problem_logs_per_s)
        self._renderer = Renderer(counts, limits, lambda: core.standing)
        self._id_prefix = os.urandom(4).hex()
        self._id_numbers = itertools.count(1)
        contract = Contract(about.version, asks_for_tokens=settings.tokens is not None)
        self.routes = RouteTable(
            [
                *self._submissions(validator, limits).routes(),
                Route("GET", NOTARY, self._describe, _DESCRIBE),
                *LedgerRoutes(feed, self.capacity, settings, self._renderer).routes(),
                *Lookups(core, feed, settings, capacity=self.capacity, renderer=self._renderer).routes(),
                *LogRoutes(core, feed, self._renderer, log_nodes=log_nodes).routes(),
                *EndpointRoutes(core, about.replica, listing).routes(),
                *contract.routes(),
                *explorer_routes(),
            ]
        )
        contract.describe(self.routes)

    def _submissions(self, validator: Validator, limits: LogLimits) -> SubmissionRoutes:
        settings, about = self._settings, self._about
        key = bytes.fromhex(about.notary_key)
        shared = Shared(
            core=self._core,
            validator=validator,
            counts=self._counts,
            settings=settings,
            welcome=Welcome(VERSION, settings.stream_window, settings.batch_max, about.replica, key),
            capacity=self.capacity,
            limits=limits,
        )
        return SubmissionRoutes(
            self._core,
            validator,
            self._counts,
            capacity=self.capacity,
            rates=self._rates,
            renderer=self._renderer,
            streams=SubmissionStreams(shared),
            log_nodes=self._log_nodes,
        )

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one HTTP request. Raises ConnectionError when the client is gone, and nothing else."""
        started_s = self._loop.time()
        request_id = self._request_id(request)
        progress = Progress(request, request_id)
        found: Found | None = None
        try:
            found = await self.routes.find(request)
            reply = await self._answer(request, found, request_id, progress)
        except ConnectionError:
            raise
        except Exception as error:
            reply = self._problem(error, request, found, request_id)
        reply = progress.finish(reply)  # all answers pass here, a failure after an estimate as well
        self._count(_OTHER if found is None else found.route.path, reply.code, self._loop.time() - started_s)
        return reply

    async def _answer(
        self, request: web.BaseRequest, found: Found | None, request_id: str, progress: Progress
    ) -> Reply:
        """The answer of the route. Raises BadRequest when there is none, or the caller may not use it."""
        self._browsers.check(request)
        path, _, query = request.raw_path.partition("?")
        if found is None:
            raise BadRequest(f"there is no {path[:100]!r}", Code.ROUTE_NOT_FOUND)
        route, argument = found
        if request.method != route.method:
            raise BadRequest(f"{route.path} takes {route.method}", Code.METHOD_NOT_ALLOWED)
        caller = EVERYBODY
        if route.about.right is not Right.NONE:
            caller = self._authentication.remembered(request) or await self._authentication.identify(request)
            self._rates.charge(caller, request, 1)
        if route.method == "POST":
            return await self._answer_body(request, route, request_id, caller, progress)
        return await route.answer(Call(request_id, argument, query, b"", request, caller, progress))

    async def _answer_body(
        self,
        request: web.BaseRequest,
        route: Route,
        request_id: str,
        caller: Caller,
        progress: Progress,
    ) -> Reply:
        """Read the body and answer it. Bodies are held in memory, so those under way have a budget."""
        size = body_size(request, self._settings)
        holder = holder_of(caller, request.protocol)
        refusal = self.capacity.refusal(0, holder)
        if refusal is not None:
            return self._renderer.reply(refusal, request_id)
        if not _JSON_TYPE.fullmatch(request.headers.get("Content-Type", "")) or "Content-Encoding" in request.headers:
            raise BadRequest("the body is not plain application/json in UTF-8", Code.MEDIA_TYPE_UNSUPPORTED)
        reservation = self.capacity.bodies.take(size, holder)
        if reservation is None:
            return self._renderer.reply(self.capacity.no_bodies(), request_id)
        try:
            body = await read_body(request, self._settings)
            query = request.raw_path.partition("?")[2]
            return await route.answer(Call(request_id, "", query, body, request, caller, progress))
        finally:
            reservation.release()

    def _problem(self, error: Exception, request: web.BaseRequest, found: Found | None, request_id: str) -> Reply:
        """The answer to a call that raised."""
        if not isinstance(error, BadRequest):
            label = _OTHER if found is None else found.route.path
            return self._renderer.reply(self._renderer.failed(error, request_id, label), request_id)
        problem = self._renderer.refused(error, request_id)
        if isinstance(error, RateExceeded):
            return self._renderer.reply(NotNow(error.code.name, error.detail, error.retry_after_s), request_id)
        more = _CHALLENGES.get(error.code, b"")
        if found is not None and request.method != found.route.method:
            more = b"Allow: %b\r\n" % found.route.method.encode() + more
        return self._renderer.reply(problem, request_id, more)

    async def _describe(self, call: Call) -> Reply:
        standing = self._core.standing
        ledger_id = None if standing.ledger_id == NO_LEDGER else standing.ledger_id.hex()
        now = {"ledger_id": ledger_id, "active": standing.active, "epoch": standing.epoch}
        document = msgspec.structs.replace(self._about, **now)
        return Reply(200, _encoder.encode(document), call.request_id)

    def _request_id(self, request: web.BaseRequest) -> str:
        given = request.headers.get("X-Request-Id")
        if given is not None and _SANE_ID.fullmatch(given):
            return given
        return f"{self._id_prefix}-{next(self._id_numbers):x}"

    def _count(self, label: str, status: int, duration_s: float) -> None:
        key = f"{label} {status}"
        self._counts.requests[key] = self._counts.requests.get(key, 0) + 1
        latency = self._counts.latency.get(label)
        if latency is None:
            latency = self._counts.latency[label] = Latency()
        latency.observe(duration_s)
