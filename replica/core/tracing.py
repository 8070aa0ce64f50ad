"""Traces across the log, for those who want them: OpenTelemetry spans of a sample of the requests.

A trace is of a transaction, and its id is made of the transaction's id. So nothing is carried along: not over the link,
not in the log's records. Every replica that reads a record knows its trace, a resubmission to the next active falls
into the same one, and so does the span of a client that makes the ids in the same way. Times are by the wall clocks of
the machines that took them.

    notarise  from admission to answer, by the active
      admit   until the record is handed to the log; the record's stamp
      log     until this replica has read it back: one span of each replica
      judge   rules and write batch of the run it was in: one span of each replica
      answer  signature and answers of the batch
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from replica.core.apply import Applied
from replica.core.settings import TracingSettings
from replica.notary.errors import ConfigError
from replica.notary.reading import CountedRequest
from replica.notary.rules import Verdict
from replica.notary.secret_files import check_readable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from replica.core.admission import Waiting  # which is built upon the follower, which tells us

OLD_AFTER_US = 60_000_000  # what is read later than this is caught up with: no trace of it is wanted
EXPORT_MAX_S = 2.0
_RATIO_UNIT = 2**64


class Trace(Protocol):
    """What the core tells of its work. Cheap, must not raise."""

    def judged(self, applied: Applied, began_us: int) -> None:
        """A run of records was read back at `began_us` (microseconds UTC), and is judged and stored."""

    def answered(self, decided: Sequence[tuple[Waiting, CountedRequest, Verdict]], began_us: int) -> None:
        """A batch that was begun to be signed at `began_us` is answered."""


class Untraced:
    """The usual case."""

    def judged(self, applied: Applied, began_us: int) -> None:
        """See Trace."""

    def answered(self, decided: Sequence[tuple[Waiting, CountedRequest, Verdict]], began_us: int) -> None:
        """See Trace."""


UNTRACED = Untraced()


def trace_ids(tx_id: bytes) -> tuple[int, int]:
    """Trace id and id of the root span, of a transaction."""
    digest = sha256(b"notary/trace/1" + tx_id).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


class _Ids:
    """An IdGenerator of OpenTelemetry: the root's ids as they are given, all others by chance."""

    given: tuple[int, int] | None = None

    def __init__(self, by_chance: Any) -> None:
        self._by_chance = by_chance

    def generate_trace_id(self) -> int:
        return self.given[0] if self.given is not None else int(self._by_chance.generate_trace_id())

    def generate_span_id(self) -> int:
        return self.given[1] if self.given is not None else int(self._by_chance.generate_span_id())

    def is_trace_id_random(self) -> bool:
        return False  # the lower half of a hash is as good, but it is not drawn


class OpenTelemetryTrace:
    """See Trace. Sampled by trace id, so all replicas sample the same transactions."""

    def __init__(self, provider: TracerProvider, ratio: float, wall_us: Callable[[], int]) -> None:
        from opentelemetry import trace as api
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        self._api = api
        self._ids = provider.id_generator = _Ids(RandomIdGenerator())
        self._provider = provider
        self._tracer = provider.get_tracer("replica.core")
        self._nowhere = Context()
        self._limit = round(ratio * _RATIO_UNIT)
        self._wall_us = wall_us

    def judged(self, applied: Applied, began_us: int) -> None:
        """See Trace."""
        now_us = self._wall_us()
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                stamp_us = entry.record.stamp_us
                ids = self._sampled(entry.request.tx_id)
                if ids is not None and began_us - stamp_us < OLD_AFTER_US:
                    self._child(ids, "log", stamp_us, began_us, {"notary.log_offset": entry.offset})
                    self._child(ids, "judge", began_us, now_us, {"notary.outcome": verdict.outcome.value})

    def answered(self, decided: Sequence[tuple[Waiting, CountedRequest, Verdict]], began_us: int) -> None:
        """See Trace."""
        now_us = self._wall_us()
        for waiting, entry, verdict in decided:
            ids = self._sampled(waiting.command.tx_id)
            if ids is not None:
                submitted_us, stamp_us = waiting.command.submitted_us, entry.record.stamp_us
                self._root(ids, submitted_us, now_us, waiting.command.tx_id, verdict)
                self._child(ids, "admit", submitted_us, stamp_us, {})
                self._child(ids, "answer", began_us, now_us, {"notary.batch": len(decided)})

    async def close(self) -> None:
        """Send what is left, if the collector takes it in time."""
        await asyncio.to_thread(self._provider.shutdown)

    def _sampled(self, tx_id: bytes) -> tuple[int, int] | None:
        ids = trace_ids(tx_id)
        return ids if ids[0] % _RATIO_UNIT < self._limit else None

    def _root(self, ids: tuple[int, int], from_us: int, to_us: int, tx_id: bytes, verdict: Verdict) -> None:
        self._ids.given = ids
        try:
            server = self._api.SpanKind.SERVER
            span = self._tracer.start_span("notarise", self._nowhere, server, start_time=from_us * 1000)
        finally:
            self._ids.given = None
        span.set_attributes({"notary.tx_id": tx_id.hex(), "notary.outcome": verdict.outcome.value})
        span.end(to_us * 1000)

    def _child(
        self, ids: tuple[int, int], name: str, from_us: int, to_us: int, attributes: dict[str, str | int]
    ) -> None:
        root = self._api.SpanContext(*ids, is_remote=True, trace_flags=self._api.TraceFlags(1))
        parent = self._api.set_span_in_context(self._api.NonRecordingSpan(root), self._nowhere)
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=from_us * 1000)
        span.end(max(from_us, to_us) * 1000)


def check_tracing(settings: TracingSettings) -> None:
    """Raise ConfigError when traces are wanted and cannot be sent: the extra is not installed, a file is missing."""
    if settings.endpoint is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise ConfigError("tracing.endpoint needs OpenTelemetry: pip install 'replicated-notary[tracing]'") from None
    if settings.ca_file is not None:
        check_readable(settings.ca_file)


def open_trace(
    settings: TracingSettings,
    *,
    replica: str,
    version: str,
    wall_us: Callable[[], int],
    exporter: SpanExporter | None = None,
) -> OpenTelemetryTrace | None:
    """What sends traces to the collector, in batches, on a thread of its own; a collector that is slow or away costs
    spans, nothing else. None when none is configured. Raises ConfigError as `check_tracing` does.
    """
    if settings.endpoint is None:
        return None
    check_tracing(settings)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.name": "notary", "service.instance.id": replica, "service.version": version}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    if exporter is None:
        trusted = None if settings.ca_file is None else str(settings.ca_file)
        exporter = OTLPSpanExporter(settings.endpoint, certificate_file=trusted, timeout=EXPORT_MAX_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_MAX_S * 1000))
    return OpenTelemetryTrace(provider, settings.sample_ratio, wall_us)
