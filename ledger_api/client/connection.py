"""HTTP calls: the endpoints one after another, the token, the limits, and the estimates that may precede an answer."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import aiohttp
import msgspec

from ledger_api.client.access import TOKEN_CODES, Access, Bearer, headers_with
from ledger_api.client.answers import problem_in, why_not
from ledger_api.client.endpoints import Endpoints, Given, turns
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
from ledger_api.client.lookout import WAIT_MAX_S, Lookout, Waiting
from ledger_api.client.retry import RetryPolicy
from replica.notary.codes import Retry

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


def end_now(limit: asyncio.Timeout) -> None:
    """Have what runs within the limit end as if its time were over. May be repeated."""
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


def ignore(estimate_s: float) -> None:
    """The `on_wait` of callers that need no estimates."""


class Connection:
    """The endpoints of a notary, and the state that calls share. TCP connections are kept open."""

    def __init__(self, endpoint: Given, policy: RetryPolicy, access: Access, connections_max: int) -> None:
        """Raises ConfigError when an endpoint, or what `access` names, cannot be used."""
        self.endpoints = Endpoints(endpoint)
        self.policy = policy
        self.access = access
        self.bearer = Bearer(access.token)
        self.random = random.Random().random  # noqa: S311 (spreads retries; no secret)
        self.on_exchange: Callable[[], None] = lambda: None
        self._tls = access.tls_for_all(self.endpoints.configured)
        self._connections_max = connections_max
        self._session: aiohttp.ClientSession | None = None
        self._lookout: Lookout | None = None
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises ConfigError or TokenUnavailable when a token is configured and none is available."""
        await self.bearer.token()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        if self.endpoints.several:
            self._lookout = Lookout(self.endpoints, self.bearer, self._tls)
            self._looking = asyncio.create_task(self._lookout.run(), name="client lookout")

    async def close(self) -> None:
        """Calls that are under way fail."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
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

        Asks the endpoint in use, and turns to the next one where `turns` says so, each endpoint once at most. What is
        sent is the same, its ids too, so an endpoint that is asked second answers as the first one did or would have.
        """
        asked: set[str] = set()
        unknown: tuple[int, bytes] | None = None  # something may have been done, and nobody said what
        while True:
            endpoint = self.endpoints.current
            status, answer = await self._call(endpoint, method, path, body, on_wait)
            if not turns(status, answer):
                # a token refused now does not settle an earlier attempt, whose outcome stays unknown
                return unknown if unknown is not None and status == HTTPStatus.UNAUTHORIZED else (status, answer)
            if problem_in(answer) is None:
                unknown = status, answer
            if not self.endpoints.next_of_round(endpoint, asked):
                return (status, answer) if unknown is None else unknown

    async def _call(
        self, endpoint: str, method: str, path: str, body: bytes | None, on_wait: OnWait
    ) -> tuple[int, bytes]:
        """One endpoint's answer. A refused token is renewed once."""
        token = await self.bearer.token()
        status, answer = await self._exchange(endpoint, method, path, body, token=token, on_wait=on_wait)
        problem = problem_in(answer) if status == HTTPStatus.UNAUTHORIZED and token is not None else None
        if problem is not None and problem.code in TOKEN_CODES:
            if await self.bearer.renew(token):
                token = await self.bearer.token()
                return await self._exchange(endpoint, method, path, body, token=token, on_wait=on_wait)
            answer = _encoder.encode(self.bearer.explain(problem))
        return status, answer

    @contextmanager
    def watched(
        self, endpoint: str, give_up: Callable[[], None], usual_s: float = WAIT_MAX_S
    ) -> Iterator[Waiting | None]:
        """Something that waits for an endpoint. `give_up` is called when another replica turns out to be active."""
        if self._lookout is None:
            yield None
            return
        waiting = Waiting(endpoint, asyncio.get_running_loop().time(), give_up, usual_s)
        self._lookout.add(waiting)
        try:
            yield waiting
        finally:
            self._lookout.remove(waiting)

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
        self, endpoint: str, method: str, path: str, body: bytes | None, *, token: str | None, on_wait: OnWait
    ) -> tuple[int, bytes]:
        """One HTTP exchange. It may take `attempt_max_s`, or longer if the server's estimates are longer."""
        session, headers = self.session, headers_with(token, _HEADERS)
        self.on_exchange()
        data = io.BytesIO(body) if body is not None and len(body) > _AT_ONCE_MAX_BYTES else body
        try:
            async with asyncio.timeout(self.policy.attempt_max_s) as limit:
                with self.watched(endpoint, lambda: end_now(limit)):
                    async with session.request(
                        method, endpoint + path, data=data, headers=headers, allow_redirects=False
                    ) as response:
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
