"""HTTP calls: one exchange with its token, its limits, and the estimates that may precede its answer."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import ssl
from collections.abc import Callable
from http import HTTPStatus

import aiohttp
import msgspec

from ledger_api.client.access import TOKEN_CODES, Access, Bearer, headers_with
from ledger_api.client.answers import problem_in, why_not
from ledger_api.client.errors import RequestRejected
from ledger_api.client.exchange import (
    NO_ANSWER,
    Decoder,
    Document,
    decode,
    describe_failure,
    read_answer_body,
    read_lines,
)
from ledger_api.client.retry import RetryPolicy
from replica.notary.errors import Retry

OnWait = Callable[[float], None]
"""Gets, while a call waits, each estimate of how many seconds its answer may take."""

LINES = "application/x-ndjson"  # an answer after interim estimates
WAIT = "wait"  # the `kind` of an interim estimate
_NO_EXCHANGE = 0
_TLS_FAREWELL_S = 0.1
_AT_ONCE_MAX_BYTES = 2**18  # a larger body is sent in pieces, and other tasks run in between
_HEADERS = {"Content-Type": "application/json", "Accept": f"application/json, {LINES}"}
_encoder = msgspec.json.Encoder()


class Head(msgspec.Struct):
    """The fields that distinguish answers from one another, and estimates from answers."""

    status: int = HTTPStatus.OK  # a whole batch has none
    kind: str = ""
    estimate_s: float = 0.0


head_decoder = msgspec.json.Decoder(Head)


def ignore(estimate_s: float) -> None:
    """The `on_wait` of callers that need no estimates."""


class Connection:
    """An endpoint, and the state that its calls share. TCP connections are kept open."""

    def __init__(self, endpoint: str, policy: RetryPolicy, access: Access, connections_max: int) -> None:
        """Raises ConfigError when the endpoint, or what `access` names, cannot be used."""
        self.endpoint = endpoint.rstrip("/")
        self.policy = policy
        self.access = access
        self.bearer = Bearer(access.token)
        self.random = random.Random().random  # noqa: S311 (spreads retries; no secret)
        self._tls = access.tls_for(endpoint)
        self._connections_max = connections_max
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Raises ConfigError or TokenUnavailable when a token is configured and none is available."""
        await self.bearer.token()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        """Calls that are under way fail."""
        if self._session is not None:
            await self._session.close()
            if isinstance(
                self._tls, ssl.SSLContext
            ):  # the library does not wait for the farewell of a WebSocket over TLS
                await asyncio.sleep(_TLS_FAREWELL_S)

    @property
    def session(self) -> aiohttp.ClientSession:
        """Raises RuntimeError before it is open."""
        if self._session is None:
            raise RuntimeError("use the client in an `async with` block")
        return self._session

    async def call(
        self, method: str, path: str, body: bytes | None = None, on_wait: OnWait = ignore
    ) -> tuple[int, bytes]:
        """Status and body of an answer; status 0 and a reason when there was none.

        A refused token is renewed once.
        """
        token = await self.bearer.token()
        status, answer = await self._exchange(method, path, body, token, on_wait)
        problem = problem_in(answer) if status == HTTPStatus.UNAUTHORIZED and token is not None else None
        if problem is not None and problem.code in TOKEN_CODES:
            if await self.bearer.renew(token):
                return await self._exchange(method, path, body, await self.bearer.token(), on_wait)
            answer = _encoder.encode(self.bearer.explain(problem))
        return status, answer

    async def fetch(self, path: str, decoder: Decoder[Document]) -> Document:
        """The document at a path. Retries until a replica serves it.

        Raises RequestRejected when no replica ever will, NotActive after the policy's deadline, AnswerUnreadable.
        """
        loop, policy = asyncio.get_running_loop(), self.policy
        deadline_s = loop.time() + policy.deadline_s
        for attempt in itertools.count():
            status, body = await self.call("GET", path)
            if status == HTTPStatus.OK:
                return decode(decoder, body)
            error, problem = why_not(body), problem_in(body)
            retry_after_s = 0.0 if problem is None else problem.retry_after_s or 0.0
            delay_s = policy.delay_s(attempt, retry_after_s, self.random())
            is_final = isinstance(error, RequestRejected) and error.problem.retry is Retry.NO
            if is_final or loop.time() + delay_s > deadline_s:
                raise error
            await asyncio.sleep(delay_s)
        raise AssertionError("attempts go on until the deadline")

    async def _exchange(
        self, method: str, path: str, body: bytes | None, token: str | None, on_wait: OnWait
    ) -> tuple[int, bytes]:
        """One HTTP exchange. It may take `attempt_max_s`, or longer if the server's estimates are longer."""
        session, headers = self.session, headers_with(token, _HEADERS)
        data = io.BytesIO(body) if body is not None and len(body) > _AT_ONCE_MAX_BYTES else body
        try:
            async with (
                asyncio.timeout(self.policy.attempt_max_s) as limit,
                session.request(
                    method, self.endpoint + path, data=data, headers=headers, allow_redirects=False
                ) as response,
            ):
                if response.content_type != LINES:
                    return response.status, await read_answer_body(response)
                return await self._last_line(response.content, limit, on_wait)
        except NO_ANSWER as error:
            return _NO_EXCHANGE, describe_failure(error).encode()

    async def _last_line(
        self, content: aiohttp.StreamReader, limit: asyncio.Timeout, on_wait: OnWait
    ) -> tuple[int, bytes]:
        """The answer after the estimates. Each estimate extends the time limit."""
        loop, policy = asyncio.get_running_loop(), self.policy
        last_s = loop.time() + policy.estimate_max_s
        async for line in read_lines(content):
            head = decode(head_decoder, line)
            if head.kind != WAIT:
                return head.status, line
            estimate_s = policy.believed_s(head.estimate_s)
            on_wait(estimate_s)
            wait_s = max(estimate_s, policy.attempt_max_s)
            limit.reschedule(min(loop.time() + wait_s, last_s))
        return _NO_EXCHANGE, b"no answer after the estimates"
