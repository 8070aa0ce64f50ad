"""A small asynchronous client of the ledger API: submit, submit many, look up, and keep on until an answer is final."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
import msgspec

from ledger_api.client.access import OPEN, TOKEN_CODES, Access, Bearer, headers_with
from ledger_api.client.completions import completions_query, follow_completions
from ledger_api.client.errors import AnswerUnreadable, ReceiptInvalid, RequestRejected, success_of
from ledger_api.client.exchange import NO_ANSWER, QUOTE_MAX, decode, read_body, read_lines, told_by
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import certifies, encode_batch, encode_submission
from ledger_api.client.stream import SubmissionStream
from replica.notary.answers import Accepted, Decision, Notarised, NotNow
from replica.notary.documents import (
    ACCEPTED,
    BatchAnswerDocument,
    NotarisedDocument,
    NotaryDocument,
    ProblemDocument,
    answer_from_document,
)
from replica.notary.errors import BadRequest, Code, NotActive, Retry
from replica.notary.feed_documents import CompletionDocument, CompletionsDocument
from replica.notary.requests import Submission

Result = Decision | ProblemDocument
"""An answer of the notary, or the problem for which a request never got as far: it must be changed first."""

OnWait = Callable[[float], None]
"""Is told, while a call waits, within how many seconds the notary expects to have its answer."""

LINES = "application/x-ndjson"  # an answer behind interim estimates
WAIT = "wait"  # the kind of those
_NO_EXCHANGE = 0
PAGE = 500
_HEADERS = {"Content-Type": "application/json", "Accept": f"application/json, {LINES}"}
_notarised = msgspec.json.Decoder(NotarisedDocument)
_problem = msgspec.json.Decoder(ProblemDocument)
_batch = msgspec.json.Decoder(BatchAnswerDocument)
_page = msgspec.json.Decoder(CompletionsDocument)
_notary = msgspec.json.Decoder(NotaryDocument)
_encoder = msgspec.json.Encoder()


class _Head(msgspec.Struct):
    """What tells one answer from another, and an estimate from an answer."""

    status: int = HTTPStatus.OK  # a whole batch has none
    kind: str = ""
    estimate_s: float = 0.0


_head = msgspec.json.Decoder(_Head)
Asked = TypeVar("Asked", Submission, bytes)


def _ignore(estimate_s: float) -> None:
    """For callers that do not want to know how long it may take."""


class NotaryClient:
    """Use it as `async with NotaryClient("http://127.0.0.1:8080") as client`. Connections are kept open and shared.

    Every call keeps on, with the same ids, while the answer is NotNow or the connection fails, until the policy's
    deadline: then a NotNow is returned, and the outcome stays unknown until the same submission is sent again.
    """

    def __init__(
        self,
        endpoint: str,
        policy: RetryPolicy | None = None,
        *,
        access: Access = OPEN,
        connections_max: int = 100,
    ) -> None:
        """Raises ConfigError when the endpoint, or what `access` names, cannot be used."""
        self._endpoint = endpoint.rstrip("/")
        self._policy = policy or RetryPolicy()
        self._access = access
        self._tls = access.tls_for(endpoint)
        self._bearer = Bearer(access.token)
        self._connections_max = connections_max
        self._random = random.Random().random  # noqa: S311 (spreads retries; no secret)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Raises ConfigError or TokenUnavailable when there is no token although there should be one."""
        await self._bearer.token()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def submit(self, submission: Submission, on_wait: OnWait = _ignore) -> Result:
        """Submit one and wait for its answer; `on_wait` is told each estimate of how many seconds that may take."""
        return (await self._until_final([submission], partial(self._submit_one, on_wait=on_wait)))[0]

    async def submit_batch(self, submissions: Sequence[Submission], on_wait: OnWait = _ignore) -> list[Result]:
        """Submit several in one call; results in order. Only those without a final answer are sent again."""
        return await self._until_final(list(submissions), partial(self._submit_batch, on_wait=on_wait))

    async def notarise(self, submission: Submission, notary_key: bytes) -> Notarised:
        """Submit one, and return its success once the notary's signature is verified for exactly what was submitted.

        Raises NotarisationRefused, RequestRejected, OutcomeUnknown (keep the submission!), ReceiptInvalid.
        """
        answer = success_of(await self.submit(submission))
        if not certifies(answer, submission, notary_key):
            raise ReceiptInvalid(answer)
        return answer

    async def submit_all(self, submissions: Sequence[Submission]) -> list[Result]:
        """Submit any number over one stream, many under way at a time; results in order. For bulk work."""
        async with SubmissionStream(self._endpoint, self._policy, access=self._access) as stream:
            return list(await asyncio.gather(*map(stream.decide, submissions)))

    def completions(
        self, after: int = 0, *, user_id: str | None = None, parties: Sequence[str] = ()
    ) -> AsyncIterator[CompletionDocument]:
        """Completions behind a ledger offset, without a gap or a duplicate, for ever; see `follow_completions`."""
        return follow_completions(
            self._open(),
            self._endpoint,
            self._policy,
            self._random,
            self._bearer,
            after=after,
            user_id=user_id,
            parties=parties,
        )

    async def published(
        self, after: int = 0, *, user_id: str | None = None, parties: Sequence[str] = ()
    ) -> AsyncIterator[bytes]:
        """The JSON of the completions that are published by now, page by page.

        Raises NotActive without an answer, RequestRejected when they may not be read, AnswerUnreadable.
        """
        while True:
            query = completions_query(after, user_id, parties)
            status, body = await self._call("GET", f"/v1/completions?{query}&limit={PAGE}")
            if status != HTTPStatus.OK:
                raise _why_not(status, body, "no replica serves completions")
            page = decode(_page, body)
            for raw in page.completions:
                yield bytes(raw)
            if page.next_after <= after or page.next_after >= page.ledger_end:
                return
            after = page.next_after

    async def look_up(self, tx_id: bytes) -> Result:
        """Whether a transaction was notarised: Notarised with a fresh receipt, or Refused with TX_NOT_FOUND."""
        return (await self._until_final([tx_id], self._look_up))[0]

    async def describe(self) -> NotaryDocument:
        """The notary's key and limits, asked once. Raises NotActive when no replica says, AnswerUnreadable."""
        status, body = await self._call("GET", "/v1/notary")
        if status != HTTPStatus.OK:
            raise _why_not(status, body, "no replica describes the notary")
        return decode(_notary, body)

    async def _until_final(
        self, asked: list[Asked], ask: Callable[[list[Asked]], Awaitable[list[Result]]]
    ) -> list[Result]:
        """Ask again for what has no final answer yet, until the deadline."""
        policy, loop = self._policy, asyncio.get_running_loop()
        deadline_s = loop.time() + policy.deadline_s
        results: dict[int, Result] = {}
        missing = list(range(len(asked)))
        for attempt in itertools.count():
            for place, result in zip(missing, await ask([asked[place] for place in missing]), strict=True):
                # a token that is refused now says nothing of an attempt before, whose outcome is not known
                if not (attempt and isinstance(result, ProblemDocument) and result.code in TOKEN_CODES):
                    results[place] = result
            open_answers = {place: answer for place in missing if isinstance(answer := results[place], NotNow)}
            missing = list(open_answers)
            told_s = max((answer.retry_after_s for answer in open_answers.values()), default=0.0)
            delay_s = policy.delay_s(attempt, told_s, self._random())
            if not missing or loop.time() + delay_s > deadline_s:
                break
            await asyncio.sleep(delay_s)
        return [results[place] for place in range(len(asked))]

    async def _submit_one(self, submissions: list[Submission], on_wait: OnWait) -> list[Result]:
        (submission,) = submissions
        return [_read(*await self._call("POST", "/v1/submissions", encode_submission(submission), on_wait))]

    async def _submit_batch(self, submissions: list[Submission], on_wait: OnWait) -> list[Result]:
        if not submissions:
            return []
        status, body = await self._call("POST", "/v1/submissions/batch", encode_batch(submissions), on_wait)
        if status != HTTPStatus.OK:
            return [_read(status, body)] * len(submissions)
        try:
            answers = map(bytes, decode(_batch, body).results)
            results = [_read(decode(_head, raw).status, raw) for raw in answers]
        except AnswerUnreadable as error:
            return [_unknown(error.detail)] * len(submissions)
        if len(results) != len(submissions):
            return [_unknown(f"{len(results)} results for {len(submissions)} submissions")] * len(submissions)
        return results

    async def _look_up(self, tx_ids: list[bytes]) -> list[Result]:
        (tx_id,) = tx_ids
        return [_read(*await self._call("GET", f"/v1/transactions/{tx_id.hex()}"))]

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the client in an `async with` block")
        return self._session

    async def _call(
        self, method: str, path: str, body: bytes | None = None, on_wait: OnWait = _ignore
    ) -> tuple[int, bytes]:
        """Status and body of an answer; status 0 and a reason when there was none.

        A token that is refused is asked for anew, once.
        """
        token = await self._bearer.token()
        status, answer = await self._exchange(method, path, body, token, on_wait)
        if status == HTTPStatus.UNAUTHORIZED and token is not None and _code(answer) in TOKEN_CODES:
            if await self._bearer.renew(token):
                return await self._exchange(method, path, body, await self._bearer.token(), on_wait)
            answer = _encoder.encode(self._bearer.explain(decode(_problem, answer)))
        return status, answer

    async def _exchange(
        self, method: str, path: str, body: bytes | None, token: str | None, on_wait: OnWait
    ) -> tuple[int, bytes]:
        """One HTTP exchange. It may take `attempt_max_s`, and longer only while the server says that it will."""
        session, headers = self._open(), headers_with(token, _HEADERS)
        try:
            async with (
                asyncio.timeout(self._policy.attempt_max_s) as limit,
                session.request(
                    method, self._endpoint + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if response.content_type != LINES:
                    return response.status, await read_body(response.content)
                return await self._last_line(response.content, limit, on_wait)
        except NO_ANSWER as error:
            return _NO_EXCHANGE, told_by(error).encode()

    async def _last_line(
        self, content: aiohttp.StreamReader, limit: asyncio.Timeout, on_wait: OnWait
    ) -> tuple[int, bytes]:
        """The answer behind the estimates, each of which moves the limit."""
        loop, policy = asyncio.get_running_loop(), self._policy
        last_s = loop.time() + policy.estimate_max_s
        async for line in read_lines(content):
            head = decode(_head, line)
            if head.kind != WAIT:
                return head.status, line
            estimate_s = policy.believed_s(head.estimate_s)
            on_wait(estimate_s)
            wait_s = max(estimate_s, policy.attempt_max_s)
            limit.reschedule(min(loop.time() + wait_s, last_s))
        return _NO_EXCHANGE, b"no answer behind the estimates"


def _read(status: int, body: bytes) -> Result:
    """The result in an answer's body; whatever does not come from the notary leaves the outcome unknown."""
    try:
        document = decode(_notarised, body) if status == HTTPStatus.OK else decode(_problem, body)
        if isinstance(document, ProblemDocument) and document.code not in Code.__members__:  # of a newer release
            return document if document.retry is Retry.NO else _unknown(f"{document.code}: {document.detail}")
        answer = answer_from_document(document)
    except (AnswerUnreadable, BadRequest):
        return _unknown(f"no answer: {status} {body[:QUOTE_MAX]!r}")
    return (
        NotNow(ACCEPTED, "recorded; the outcome is a completion", answer.estimate_s)
        if isinstance(answer, Accepted)
        else answer
    )


def _unknown(detail: str) -> NotNow:
    return NotNow(Code.OUTCOME_UNKNOWN.name, detail, 0.0)


def _code(body: bytes) -> str:
    """The code of a problem; nothing when it is none."""
    try:
        return decode(_problem, body).code
    except AnswerUnreadable:
        return ""


def _why_not(status: int, body: bytes, otherwise: str) -> NotActive | RequestRejected:
    """The error of an answer that is not the document that was asked for."""
    result = _read(status, body)
    if isinstance(result, ProblemDocument):
        return RequestRejected(result)
    return NotActive(f"{otherwise}: {body[:QUOTE_MAX]!r}")
