"""The ledger API's calls: what happens between a read HTTP request and its answer. docs/api.md describes them."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Iterable
from functools import partial

import msgspec
import structlog
from aiohttp import web

from ledger_api.server.contract import Contract
from ledger_api.server.doorkeeper import Doorkeeper, OpenDoor, RateExceeded, Rates
from ledger_api.server.entitlement import EVERYBODY, Caller, holder_of
from ledger_api.server.gate import Gate
from ledger_api.server.http import JSON, PROBLEM, Reply, body_size, read_body, retry_after_header
from ledger_api.server.interim import Estimates
from ledger_api.server.logs import LogLimits
from ledger_api.server.room import ANSWER_BYTES, ANSWER_FACTOR, Room, answers_max_bytes
from ledger_api.server.routes import About, Call, Parameter, Right, Route, RouteTable
from ledger_api.server.settings import ApiSettings
from ledger_api.server.submit_stream import SubmitStreams
from ledger_api.server.together import SignatureDesk
from ledger_api.wire.answers import (
    AcceptedDocument,
    AnswerDocument,
    BatchAnswerDocument,
    NotarisedDocument,
    NotaryDocument,
    answer_to_document,
)
from ledger_api.wire.problems import ProblemDocument, problem_document
from ledger_api.wire.stream_frames import VERSION, Welcome
from ledger_api.wire.submissions import BatchDocument, SubmissionDocument
from replica.link.counts import ApiCounts, Latency
from replica.link.interface import CoreLink, Terms, refuse_as_overloaded, refuse_as_passive
from replica.notary.answers import Answer, NotNow
from replica.notary.errors import BadRequest, Code
from replica.notary.requests import Submission, parse_tx_id

CHUNK = 32  # submissions of a batch that are checked together: at most 2 ms, then others get their turn
SUBMISSIONS, BATCH = "/v1/submissions", "/v1/submissions/batch"
ASYNCHRONOUS, ASYNCHRONOUS_BATCH = "/v1/submissions/async", "/v1/submissions/batch/async"
STREAM = "/v1/submissions/stream"
TRANSACTIONS, NOTARY = "/v1/transactions/{tx_id}", "/v1/notary"
_JSON_TYPE = re.compile(r'application/json(\s*;\s*charset="?utf-8"?)?\s*', re.IGNORECASE)
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,64}")
_RETRY_ERROR_S = 1.0
_CHALLENGES = {  # RFC 6750: how to get in
    Code.TOKEN_MISSING: b'WWW-Authenticate: Bearer realm="notary"\r\n',
    Code.TOKEN_INVALID: b'WWW-Authenticate: Bearer realm="notary", error="invalid_token"\r\n',
}
_log = structlog.get_logger(__name__)
_encoder = msgspec.json.Encoder()


_SUBMITTING = (
    Code.SIGNATURE_INVALID,
    Code.PARTY_UNKNOWN,
    Code.KEY_NOT_VALID,
    Code.OVERLOADED,
    Code.USER_OVERLOADED,
    Code.OUTCOME_UNKNOWN,
)
_SUBMIT_ONE = About(
    summary="Notarise one transaction and wait for the answer",
    body=SubmissionDocument,
    answers={200: NotarisedDocument},
    right=Right.ACT,
    interim=True,
    codes=(
        *_SUBMITTING,
        Code.MALFORMED_REQUEST,
        Code.TOO_MANY_STATES,
        Code.STATE_CONFLICT,
        Code.TX_ID_REUSED,
        Code.TIME_WINDOW_CLOSED,
        Code.COMMAND_ID_REUSED,
        Code.DEDUPLICATION_PERIOD_TOO_LONG,
        Code.SUBMISSION_IN_FLIGHT,
        Code.SUBMISSION_NOT_SEQUENCED,
    ),
)
_SUBMIT_ASYNCHRONOUSLY = About(
    summary="Submit one transaction without waiting: its outcome is a completion",
    body=SubmissionDocument,
    answers={200: NotarisedDocument, 202: AcceptedDocument},
    right=Right.ACT,
    codes=_SUBMIT_ONE.codes,
)
_OPEN_STREAM = About(
    summary="Open a WebSocket that carries many submissions a frame; docs/api.md describes the frames",
    answers={101: None},
    right=Right.ACT,
    codes=(Code.UPGRADE_REQUIRED, Code.NOT_ACTIVE, Code.OVERLOADED),
)
_SUBMIT_BATCH = About(
    summary="Notarise up to batch_max transactions; one result each, in order. The answer has at most "
    f"{ANSWER_FACTOR} times the body's bytes, and {ANSWER_BYTES} for each submission",
    body=BatchDocument,
    answers={200: BatchAnswerDocument},
    right=Right.ACT,
    interim=True,
    codes=(Code.EMPTY_BATCH, Code.BATCH_TOO_LARGE, Code.OVERLOADED),
)
_SUBMIT_BATCH_ASYNCHRONOUSLY = About(
    summary="Submit up to batch_max transactions without waiting; one result each, in order",
    body=BatchDocument,
    answers={202: BatchAnswerDocument},
    right=Right.ACT,
    codes=_SUBMIT_BATCH.codes,
)
_LOOK_UP = About(
    summary="Whether a transaction was notarised, with a fresh receipt",
    answers={200: NotarisedDocument},
    right=Right.READ,
    codes=(Code.MALFORMED_REQUEST, Code.TX_NOT_FOUND, Code.NOT_ACTIVE, Code.OVERLOADED, Code.OUTCOME_UNKNOWN),
    argument=Parameter("tx_id", "The transaction's id.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
)
_DESCRIBE = About(
    summary="The notary's public key, limits and release, and this replica's role; passives answer as well",
    answers={200: NotaryDocument},
    right=Right.NONE,
)


class Api:
    """Answers every request that comes in. Nothing gets to the participant that the gate has not let through."""

    def __init__(
        self,
        participant: CoreLink,
        gate: Gate,
        counts: ApiCounts,
        settings: ApiSettings,
        *,
        about: NotaryDocument,
        reads: Iterable[Route],
        queries: Iterable[Route],
        door: Doorkeeper | None = None,
        room: Room | None = None,
    ) -> None:
        """`room`: for answers, of all calls together; shared with those of what is read."""
        self._room = room or Room(settings.answers_max_bytes)
        self._door = door or OpenDoor()
        self._rates = Rates(settings, asyncio.get_running_loop().time)
        self._participant = participant
        self._gate = gate
        self._desk = SignatureDesk(gate)
        self._counts = counts
        self._settings = settings
        self._about = about
        self._loop = asyncio.get_running_loop()
        self._log_limits = LogLimits(settings.problem_logs_per_s)
        self._bodies = Room(settings.bodies_max_bytes)
        self._id_prefix = os.urandom(4).hex()
        self._id_numbers = itertools.count(1)
        key = bytes.fromhex(about.notary_key)
        welcome = Welcome(VERSION, settings.stream_window, settings.batch_max, about.replica, key)
        self._streams = SubmitStreams(
            participant,
            gate,
            counts,
            settings,
            welcome=welcome,
            refusal=self._refusal,
            room=self._room,
            limits=self._log_limits,
        )
        contract = Contract(about.version, asks_for_tokens=settings.tokens is not None)
        self.routes = RouteTable([*self._own_routes(), *reads, *queries, *contract.routes()])
        contract.describe(self.routes)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one HTTP request, whatever happens on the way."""
        started_s = self._loop.time()
        request_id = self._request_id(request)
        route, argument, query = self.routes.find(request.raw_path)
        label = "other" if route is None else route.path
        estimates = Estimates(request, request_id)
        try:
            if route is None:
                raise BadRequest(f"there is no {argument[:100]!r}", Code.ROUTE_NOT_FOUND)
            if request.method != route.method:
                raise BadRequest(f"{route.path} takes {route.method}", Code.METHOD_NOT_ALLOWED)
            caller = EVERYBODY
            if route.about.right is not Right.NONE:
                caller = self._door.remembered(request) or await self._door.identify(request)
                self._rates.charge(caller, request, 1)
            if route.method == "POST":
                reply = await self._answer_body(request, route, request_id, caller, estimates)
            else:
                reply = await route.answer(Call(request_id, argument, query, b"", request, caller, estimates))
        except RateExceeded as error:
            self._refuse(error, request_id)
            reply = self._reply(NotNow(error.code.name, error.detail, error.retry_after_s), request_id)
        except BadRequest as error:
            more = b"Allow: %b\r\n" % route.method.encode() if route and request.method != route.method else b""
            reply = self._reply(self._refuse(error, request_id), request_id, more + _CHALLENGES.get(error.code, b""))
        except ConnectionError:
            raise  # the client is gone: nobody reads an answer
        except Exception as error:
            write = self._log_limits.failed.write
            write(_log.error, "request_failed", request_id=request_id, route=label, exc_info=error)
            detail = "an error of the replica's own; whether anything was decided is not known"
            reply = self._reply(NotNow(Code.INTERNAL.name, detail, _RETRY_ERROR_S), request_id)
        reply = estimates.before(reply)  # here, where all answers come by, a failure's as well
        self._count(label, reply.code, self._loop.time() - started_s)
        return reply

    # ---- calls ----

    def _own_routes(self) -> list[Route]:
        return [
            Route("POST", SUBMISSIONS, self._submit_one, _SUBMIT_ONE),
            Route("POST", ASYNCHRONOUS, partial(self._submit_one, asynchronous=True), _SUBMIT_ASYNCHRONOUSLY),
            Route("GET", STREAM, self._open_stream, _OPEN_STREAM),
            Route("POST", BATCH, self._submit_batch, _SUBMIT_BATCH),
            Route(
                "POST",
                ASYNCHRONOUS_BATCH,
                partial(self._submit_batch, asynchronous=True),
                _SUBMIT_BATCH_ASYNCHRONOUSLY,
            ),
            Route("GET", TRANSACTIONS, self._look_up, _LOOK_UP),
            Route("GET", NOTARY, self._describe, _DESCRIBE),
        ]

    async def _answer_body(
        self, request: web.BaseRequest, route: Route, request_id: str, caller: Caller, estimates: Estimates
    ) -> Reply:
        """Read the body and answer it; bodies under way are bounded together, because they are held in memory."""
        size = body_size(request, self._settings)
        refusal = self._refusal(0)
        if refusal is not None:
            return self._reply(refusal, request_id)
        if not _JSON_TYPE.fullmatch(request.headers.get("Content-Type", "")) or "Content-Encoding" in request.headers:
            raise BadRequest("the body is not plain application/json in UTF-8", Code.MEDIA_TYPE_UNSUPPORTED)
        holding = self._bodies.take(size, holder_of(caller, request.protocol))
        if holding is None:
            return self._reply(self._no_room(self._bodies, "bodies"), request_id)
        try:
            body = await read_body(request, self._settings)
            return await route.answer(Call(request_id, "", "", body, request, caller, estimates))
        finally:
            holding.give_back()

    async def _submit_one(self, call: Call, *, asynchronous: bool = False) -> Reply:
        """Asynchronously: 202 as soon as it is recorded, and the outcome is a completion."""
        refusal = self._refusal(1)
        if refusal is not None:
            return self._reply(refusal, call.request_id)
        submission, terms = self._gate.read(call.body, call.caller)
        if asynchronous:
            terms = msgspec.structs.replace(terms, asynchronous=True)
        held = self._room.take(answers_max_bytes(len(call.body), 1), call.holder)
        if held is None:
            return self._reply(self._no_room(self._room, "answers"), call.request_id)
        self._counts.in_flight += 1
        try:
            await self._desk.check(submission)
            (answer,) = await self._participant.submit([submission], terms, call.estimates.tell)
            return self._reply(answer, call.request_id).holding(held)
        except BaseException:
            held.give_back()
            raise
        finally:
            self._counts.in_flight -= 1

    async def _open_stream(self, call: Call) -> Reply:
        if call.request.headers.get("Upgrade", "").strip().lower() != "websocket":
            raise BadRequest("a stream of submissions is a WebSocket: see docs/api.md", Code.UPGRADE_REQUIRED)
        refusal = self._refusal(1)
        if refusal is None and self._counts.streams >= self._settings.streams_max:
            detail = f"this front end has {self._counts.streams} streams open"
            refusal = refuse_as_overloaded(self._participant.standing, detail)
        if refusal is not None:
            return self._reply(refusal, call.request_id)
        return await self._streams.serve(
            call.request, call.request_id, call.caller, partial(self._rates.charge, call.caller, call.request)
        )

    async def _submit_batch(self, call: Call, *, asynchronous: bool = False) -> Reply:
        documents = self._gate.split(call.body)
        self._rates.charge(call.caller, call.request, len(documents) - 1)  # one was charged with the call
        refusal = self._refusal(len(documents))
        if refusal is not None:
            return self._reply(refusal, call.request_id)
        held = self._room.take(answers_max_bytes(len(call.body), len(documents)), call.holder)
        if held is None:
            return self._reply(self._no_room(self._room, "answers"), call.request_id)
        self._counts.in_flight += len(documents)
        try:
            results = await self._submit_each(documents, call, asynchronous)
            rendered = [msgspec.Raw(_encoder.encode(self._note(result, call.request_id))) for result in results]
            body = _encoder.encode(BatchAnswerDocument(rendered))
            return Reply(202 if asynchronous else 200, body, call.request_id).holding(held)
        except BaseException:
            held.give_back()
            raise
        finally:
            self._counts.in_flight -= len(documents)

    async def _submit_each(
        self, documents: list[msgspec.Raw], call: Call, asynchronous: bool
    ) -> list[Answer | ProblemDocument]:
        """Results in order. What is checked goes to the core at once, while the rest is still being checked."""
        results: dict[int, Answer | ProblemDocument] = {}
        under_way: list[tuple[list[int], asyncio.Task[list[Answer]]]] = []
        for start in range(0, len(documents), CHUNK):
            good: dict[Terms, tuple[list[int], list[Submission]]] = {}
            for place, result in enumerate(self._checked(documents[start : start + CHUNK], call.caller), start):
                if isinstance(result, BadRequest):
                    results[place] = self._refuse(result, call.request_id)
                    continue
                submission, terms = result
                if asynchronous:
                    terms = msgspec.structs.replace(terms, asynchronous=True)
                places, submissions = good.setdefault(terms, ([], []))
                places.append(place)
                submissions.append(submission)
            for terms, (places, submissions) in good.items():
                submitting = self._participant.submit(submissions, terms, call.estimates.tell)
                under_way.append((places, asyncio.create_task(submitting)))
            await asyncio.sleep(0)
        for places, task in under_way:
            results.update(zip(places, await task, strict=True))
        return [results[place] for place in range(len(documents))]

    def _checked(self, documents: list[msgspec.Raw], caller: Caller) -> list[tuple[Submission, Terms] | BadRequest]:
        """Each submission that is right, signature included; else what is wrong with it."""
        read: list[tuple[Submission, Terms] | BadRequest] = []
        for raw in documents:
            try:
                read.append(self._gate.read(raw, caller))
            except BadRequest as error:
                read.append(error)
        forgeries = iter(self._gate.forgeries([good[0] for good in read if not isinstance(good, BadRequest)]))
        return [one if isinstance(one, BadRequest) else next(forgeries) or one for one in read]

    async def _look_up(self, call: Call) -> Reply:
        tx_id = parse_tx_id(call.argument)
        refusal = self._refusal(1)
        if refusal is not None:
            return self._reply(refusal, call.request_id)
        self._counts.in_flight += 1
        try:
            answer = await self._participant.look_up(tx_id)
        finally:
            self._counts.in_flight -= 1
        return self._reply(answer, call.request_id)

    async def _describe(self, call: Call) -> Reply:
        standing = self._participant.standing
        document = msgspec.structs.replace(self._about, active=standing.active, epoch=standing.epoch)
        return Reply(200, _encoder.encode(document), call.request_id)

    # ---- parts of them ----

    def _request_id(self, request: web.BaseRequest) -> str:
        given = request.headers.get("X-Request-Id")
        if given is not None and _SANE_ID.fullmatch(given):
            return given
        return f"{self._id_prefix}-{next(self._id_numbers):x}"

    def _refusal(self, count: int) -> NotNow | None:
        """Why so much more cannot be taken now; None when it can."""
        standing = self._participant.standing
        if not standing.active:
            return refuse_as_passive(standing)
        settings = self._settings
        if self._counts.in_flight + count <= settings.in_flight_max:
            return None
        return refuse_as_overloaded(standing, f"this front end has {self._counts.in_flight} submissions under way")

    def _no_room(self, room: Room, of_what: str) -> NotNow:
        detail = f"this front end has {room.held_bytes} bytes of {of_what} under way, as much as it has for this caller"
        return refuse_as_overloaded(self._participant.standing, detail)

    def _refuse(self, error: BadRequest, request_id: str) -> ProblemDocument:
        problem = problem_document(error.code, error.detail, request_id)
        write = self._log_limits.refused.write
        write(_log.info, "request_refused", request_id=request_id, code=problem.code, detail=problem.detail)
        return problem

    def _reply(self, result: Answer | ProblemDocument, request_id: str, more: bytes = b"") -> Reply:
        document = self._note(result, request_id)
        body = _encoder.encode(document)
        if not isinstance(document, ProblemDocument):
            return Reply(document.status, body, request_id, kind=JSON)
        more += retry_after_header(document.retry_after_s)
        return Reply(document.status, body, request_id, kind=PROBLEM, more=more)

    def _note(self, result: Answer | ProblemDocument, request_id: str) -> AnswerDocument:
        """The document of a result, which is counted."""
        document = result if isinstance(result, ProblemDocument) else self._document_of(result, request_id)
        answers = self._counts.answers
        answers[document.code] = answers.get(document.code, 0) + 1
        return document

    def _document_of(self, answer: Answer, request_id: str) -> AnswerDocument:
        """An answer that cannot be told is one submission's trouble, and no refusal: it may be decided."""
        try:
            return answer_to_document(answer, request_id)
        except Exception as error:
            self._log_limits.failed.write(_log.error, "answer_untold", request_id=request_id, exc_info=error)
            detail = "the core has answered, but its answer cannot be told"
            unknown = NotNow(Code.OUTCOME_UNKNOWN.name, detail, self._participant.standing.retry_after_s)
            return answer_to_document(unknown, request_id)

    def _count(self, label: str, status: int, duration_s: float) -> None:
        key = f"{label} {status}"
        self._counts.requests[key] = self._counts.requests.get(key, 0) + 1
        latency = self._counts.latency.get(label)
        if latency is None:
            latency = self._counts.latency[label] = Latency()
        latency.observe(duration_s)
