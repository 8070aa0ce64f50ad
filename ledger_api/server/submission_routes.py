"""The calls that submit: one transaction, a batch, or a stream of them, waiting for the outcome or not."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from ledger_api.server.byte_budget import ANSWER_BYTES, ANSWER_FACTOR, answers_max_bytes
from ledger_api.server.capacity import Capacity
from ledger_api.server.query_string import QueryString
from ledger_api.server.rate import Rates
from ledger_api.server.rendering import Renderer
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Parameter, Right, Route
from ledger_api.server.signature_batch import SignatureBatcher
from ledger_api.server.submission_stream import SubmissionStreams
from ledger_api.server.validation import Validator
from ledger_api.wire.answers import AcceptedDocument, BatchAnswerDocument, NotarisedDocument
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.submissions import BatchDocument, SubmissionDocument
from replica.link.interface import CoreLink, SubmitOptions
from replica.notary.answers import Answer, NotNow
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission
from replica.telemetry.counts import ApiCounts

CHUNK = 32  # submissions of a batch that are validated together: at most 2 ms, then other calls get their turn
SUBMISSIONS, BATCH = "/v1/submissions", "/v1/submissions/batch"
ASYNCHRONOUS, ASYNCHRONOUS_BATCH = "/v1/submissions/async", "/v1/submissions/batch/async"
STREAM = "/v1/submissions/stream"
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
    progress=True,
    codes=(
        *_SUBMITTING,
        Code.QUERY_INVALID,
        Code.MALFORMED_REQUEST,
        Code.TOO_MANY_STATES,
        Code.WRONG_LEDGER,
        Code.STATE_CONFLICT,
        Code.TX_ID_REUSED,
        Code.TIME_WINDOW_CLOSED,
        Code.COMMAND_ID_REUSED,
        Code.DEDUPLICATION_PERIOD_TOO_LONG,
        Code.OFFSET_AFTER_END,
        Code.SUBMISSION_IN_FLIGHT,
    ),
)
_ACCEPT = Parameter(
    "accept",
    "`early`: answer as soon as the log's leader has the record, with its place and before it is committed (log.kind = "
    "raft only). Such a record may still be lost.",
    {"type": "string", "enum": ["early"]},
)
_SUBMIT_ASYNCHRONOUSLY = About(
    summary="Submit one transaction without waiting: its outcome is a completion",
    body=SubmissionDocument,
    answers={200: NotarisedDocument, 202: AcceptedDocument},
    right=Right.ACT,
    codes=(*_SUBMIT_ONE.codes, Code.EARLY_NOT_OFFERED),
    parameters=(_ACCEPT,),
)
_OPEN_STREAM = About(
    summary="Open a WebSocket that carries many submissions a frame; docs/api.md describes the frames",
    answers={101: None},
    right=Right.ACT,
    codes=(Code.UPGRADE_REQUIRED, Code.NOT_ACTIVE, Code.SERVICE_PAUSED, Code.OVERLOADED),
)
_SUBMIT_BATCH = About(
    summary="Notarise up to batch_max transactions; one result each, in order. The answer has at most "
    f"{ANSWER_FACTOR} times the body's bytes, and {ANSWER_BYTES} for each submission",
    body=BatchDocument,
    answers={200: BatchAnswerDocument},
    right=Right.ACT,
    progress=True,
    codes=(Code.EMPTY_BATCH, Code.BATCH_TOO_LARGE, Code.QUERY_INVALID, Code.OVERLOADED),
)
_SUBMIT_BATCH_ASYNCHRONOUSLY = About(
    summary="Submit up to batch_max transactions without waiting; one result each, in order",
    body=BatchDocument,
    answers={202: BatchAnswerDocument},
    right=Right.ACT,
    codes=_SUBMIT_BATCH.codes,
)

Result = Answer | ProblemDocument
Group = tuple[list[int], list[Submission]]
"""Submissions of a batch that share their options, each with its place in the batch."""


class SubmissionRoutes:
    """Answers the calls that submit. Only what the validator has let through goes to the core."""

    def __init__(
        self,
        core: CoreLink,
        validator: Validator,
        counts: ApiCounts,
        *,
        capacity: Capacity,
        rates: Rates,
        renderer: Renderer,
        streams: SubmissionStreams,
        log_nodes: bool = False,
    ) -> None:
        """`log_nodes`: see `Api`."""
        self._log_nodes = log_nodes
        self._core = core
        self._validator = validator
        self._signatures = SignatureBatcher(validator)
        self._counts = counts
        self._capacity = capacity
        self._rates = rates
        self._renderer = renderer
        self._streams = streams

    def routes(self) -> list[Route]:
        """The calls."""
        one, batch = self._submit_one, self._submit_batch
        return [
            Route("POST", SUBMISSIONS, one, _SUBMIT_ONE),
            Route("POST", ASYNCHRONOUS, partial(one, asynchronous=True), _SUBMIT_ASYNCHRONOUSLY),
            Route("GET", STREAM, self._open_stream, _OPEN_STREAM),
            Route("POST", BATCH, batch, _SUBMIT_BATCH),
            Route("POST", ASYNCHRONOUS_BATCH, partial(batch, asynchronous=True), _SUBMIT_BATCH_ASYNCHRONOUSLY),
        ]

    async def _submit_one(self, call: Call, *, asynchronous: bool = False) -> Reply:
        """Asynchronously: 202 as soon as it is recorded, and the outcome is a completion."""
        holder = call.holder
        refusal = self._capacity.refusal(1, holder)
        if refusal is not None:
            return self._renderer.reply(refusal, call.request_id)
        early = self._asks_early(call, ("accept",) if asynchronous else ())
        submission, options = self._validator.read(call.body, call.caller)
        if asynchronous:
            options = msgspec.structs.replace(options, asynchronous=True, early=early)
        reservation = self._capacity.answers.take(answers_max_bytes(len(call.body), 1), holder)
        if reservation is None:
            return self._renderer.reply(self._capacity.no_answers(), call.request_id)
        with self._capacity.submit(1, holder), reservation:
            await self._signatures.check(submission)
            (answer,) = await self._core.submit([submission], options, call.progress.report)
            return self._renderer.reply(answer, call.request_id).holding(reservation)

    def _asks_early(self, call: Call, known: tuple[str, ...]) -> bool:
        """Whether the caller takes a place in the log for an answer. Raises BadRequest where there is none."""
        asked = QueryString(call.query, known).text("accept")
        if asked not in (None, "early"):
            raise BadRequest("accept is early, or left out", Code.QUERY_INVALID)
        if asked and not self._log_nodes:
            raise BadRequest("the request log of this notary is not on log nodes", Code.EARLY_NOT_OFFERED)
        return asked is not None

    async def _open_stream(self, call: Call) -> Reply:
        if call.request.headers.get("Upgrade", "").strip().lower() != "websocket":
            raise BadRequest("a stream of submissions is a WebSocket: see docs/api.md", Code.UPGRADE_REQUIRED)
        use = self._capacity.submission_stream(call.holder)
        if isinstance(use, NotNow):
            return self._renderer.reply(use, call.request_id)
        with use:
            return await self._streams.serve(
                call.request, call.request_id, call.caller, partial(self._rates.charge, call.caller, call.request)
            )

    async def _submit_batch(self, call: Call, *, asynchronous: bool = False) -> Reply:
        QueryString(call.query, ())
        documents = self._validator.split(call.body)
        count = len(documents)
        self._rates.charge(call.caller, call.request, count - 1)  # one was charged with the call
        refusal = self._capacity.refusal(count, call.holder)
        if refusal is not None:
            return self._renderer.reply(refusal, call.request_id)
        reservation = self._capacity.answers.take(answers_max_bytes(len(call.body), count), call.holder)
        if reservation is None:
            return self._renderer.reply(self._capacity.no_answers(), call.request_id)
        with self._capacity.submit(count, call.holder), reservation:
            results = await self._submit_each(documents, call, asynchronous)
            reply = Reply(202 if asynchronous else 200, self._render(results, call), call.request_id)
            return reply.holding(reservation)

    async def _submit_each(self, documents: list[msgspec.Raw], call: Call, asynchronous: bool) -> list[Result]:
        """Results in order. Valid submissions go to the core at once, while the rest is still being validated."""
        results: dict[int, Result] = {}
        under_way: list[tuple[list[int], asyncio.Task[list[Answer]]]] = []
        for start in range(0, len(documents), CHUNK):
            groups = self._validate(documents[start : start + CHUNK], start, call, results)
            for options, (places, submissions) in groups.items():
                chosen = msgspec.structs.replace(options, asynchronous=True) if asynchronous else options
                submitting = self._core.submit(submissions, chosen, call.progress.report)
                under_way.append((places, asyncio.create_task(submitting)))
            await asyncio.sleep(0)
        for places, task in under_way:
            results.update(zip(places, await task, strict=True))
        return [results[place] for place in range(len(documents))]

    def _validate(
        self, documents: list[msgspec.Raw], start: int, call: Call, results: dict[int, Result]
    ) -> dict[SubmitOptions, Group]:
        """The valid ones of a chunk that begins at place `start`, by their options. Problems go into `results`."""
        groups: dict[SubmitOptions, Group] = {}
        for place, result in enumerate(self._read(documents, call), start):
            if isinstance(result, BadRequest):
                results[place] = self._renderer.refused(result, call.request_id)
                continue
            submission, options = result
            places, submissions = groups.setdefault(options, ([], []))
            places.append(place)
            submissions.append(submission)
        return groups

    def _read(self, documents: list[msgspec.Raw], call: Call) -> list[tuple[Submission, SubmitOptions] | BadRequest]:
        """Each submission if it is valid, signature included; otherwise its error."""
        read: list[tuple[Submission, SubmitOptions] | BadRequest] = []
        for raw in documents:
            try:
                read.append(self._validator.read(raw, call.caller))
            except BadRequest as error:
                read.append(error)
        well_formed = [one[0] for one in read if not isinstance(one, BadRequest)]
        errors = iter(self._validator.signature_errors(well_formed))
        return [one if isinstance(one, BadRequest) else next(errors) or one for one in read]

    def _render(self, results: list[Result], call: Call) -> bytes:
        document = self._renderer.document
        raws = [msgspec.Raw(_encoder.encode(document(result, call.request_id))) for result in results]
        return _encoder.encode(BatchAnswerDocument(raws))
