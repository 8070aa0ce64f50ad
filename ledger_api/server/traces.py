"""Traces start in the front end. Without a collector, no request passes through this module.

The front end writes the root of a transaction's trace (replica.telemetry.traces), `submit`. If a caller sends the W3C
header `traceparent` with its sampled flag, a span of the call continues the caller's trace. That span and the roots of
the call's transactions are linked with one another. A stream is one call for as long as it lasts, so its transactions
have their own traces only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ledger_api.server.connections import Handle
from ledger_api.server.replies import Reply
from replica.link.change_signal import ChangeSignal
from replica.link.interface import DEFAULT_OPTIONS, CoreLink, LogAnswer, LogQuestion, PeerSeen, Standing, SubmitOptions
from replica.notary.answers import Answer, NotNow, StateStatus
from replica.notary.canonical import tx_id_in
from replica.notary.requests import Submission
from replica.telemetry.traces import TraceIds, Traces

LINKS_MAX = 32  # from a call to the transactions that came with it
_CARRIED = ("traceparent", "tracestate")


@dataclass(slots=True)
class _Call:
    """An HTTP call under way, and the traces of the transactions that came with it."""

    began_us: int
    client: Any  # the caller's SpanContext; None when its trace is not recorded
    began: list[TraceIds] = field(default_factory=list)


_call: ContextVar[_Call | None] = ContextVar("call", default=None)


class FrontEndTraces:
    """Wraps the handler of calls, and the link to the core."""

    def __init__(self, traces: Traces, wall_us: Callable[[], int]) -> None:
        """`wall_us`: microseconds UTC."""
        from opentelemetry import trace as api
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = api
        self._w3c = TraceContextTextMapPropagator()
        self._traces = traces
        self._wall_us = wall_us

    def around(self, handle: Handle) -> Handle:
        """The same handler, with a span of each call whose caller's trace is recorded."""

        async def traced(request: web.BaseRequest) -> web.StreamResponse:
            if "Upgrade" in request.headers:  # a stream: its submissions come and go for as long as it lasts
                return await handle(request)
            call = _Call(self._wall_us(), self._client(request))
            token = _call.set(call)
            try:
                reply = await handle(request)
            finally:
                _call.reset(token)
            if call.client is not None:
                self._write_call(call, request, reply.code if isinstance(reply, Reply) else reply.status)
            return reply

        return traced

    def core(self, core: CoreLink) -> TracedCoreLink:
        """The same link; it also writes the root of each transaction that is traced."""
        return TracedCoreLink(core, self)

    async def close(self) -> None:
        """Send what is left, if the collector takes it in time."""
        await self._traces.close()

    def submitted(self, submissions: Sequence[Submission], answers: Sequence[Answer], began_us: int) -> None:
        """Submissions that went to the core at `began_us` are answered."""
        call, now_us = _call.get(), self._wall_us()
        for submission, answer in zip(submissions, answers, strict=True):
            tx_id = tx_id_in(submission.request)
            ids = self._traces.sampled(tx_id)
            if ids is None:
                continue
            links = []
            if call is not None and call.client is not None:
                links.append(self._api.Link(call.client))
                call.began.append(ids)
            about = {"notary.tx_id": tx_id.hex(), "notary.answer": type(answer).__name__}
            self._traces.root(ids, "submit", began_us if call is None else call.began_us, now_us, about, links=links)

    def now_us(self) -> int:
        """The time by this machine's wall clock."""
        return self._wall_us()

    def _client(self, request: web.BaseRequest) -> Any:
        carried = {name: value for name in _CARRIED if (value := request.headers.get(name)) is not None}
        if not carried:
            return None
        context = self._api.get_current_span(self._w3c.extract(carried)).get_span_context()
        return context if context.is_valid and context.trace_flags.sampled else None

    def _write_call(self, call: _Call, request: web.BaseRequest, status: int) -> None:
        path = request.raw_path.partition("?")[0]
        span = self._traces.tracer.start_span(
            f"{request.method} {path}",
            self._api.set_span_in_context(self._api.NonRecordingSpan(call.client)),
            self._api.SpanKind.SERVER,
            {"http.request.method": request.method, "url.path": path, "http.response.status_code": status},
            [self._api.Link(self._traces.context(ids)) for ids in call.began[:LINKS_MAX]],
            start_time=call.began_us * 1000,
        )
        span.end(max(call.began_us, self._wall_us()) * 1000)


class TracedCoreLink:
    """See CoreLink."""

    def __init__(self, core: CoreLink, traces: FrontEndTraces) -> None:
        self._core = core
        self._traces = traces

    @property
    def standing(self) -> Standing:
        """See CoreLink."""
        return self._core.standing

    @property
    def standing_changes(self) -> ChangeSignal:
        """See CoreLink."""
        return self._core.standing_changes

    @property
    def peers(self) -> Sequence[PeerSeen]:
        """See CoreLink."""
        return self._core.peers

    @property
    def is_silent(self) -> bool:
        """See CoreLink."""
        return self._core.is_silent

    async def submit(
        self,
        submissions: Sequence[Submission],
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        """See CoreLink."""
        began_us = self._traces.now_us()
        answers = await self._core.submit(submissions, options, on_wait)
        self._traces.submitted(submissions, answers, began_us)
        return answers

    async def look_up(self, tx_id: bytes) -> Answer:
        """See CoreLink."""
        return await self._core.look_up(tx_id)

    async def look_up_state(self, state: bytes) -> StateStatus | NotNow:
        """See CoreLink."""
        return await self._core.look_up_state(state)

    async def ask_log(self, question: LogQuestion) -> LogAnswer:
        """See CoreLink."""
        return await self._core.ask_log(question)
