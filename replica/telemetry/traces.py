"""What front ends and core share to write traces. Each trace belongs to a transaction; its ids derive from the tx id.

So neither the link nor the log's records carry trace ids. Every process that knows the transaction knows its trace, and
a resubmission to the next active belongs to the same trace. The process that receives the request from the network
begins the trace: the front end's `submit` is the root.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from replica.notary.errors import ConfigError
from replica.notary.secret_files import check_readable
from replica.telemetry.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link

EXPORT_MAX_S = 2.0
_RATIO_UNIT = 2**64

TraceIds = tuple[int, int]
"""Trace id and id of the root span."""


def trace_ids(tx_id: bytes) -> TraceIds:
    """The ids of a transaction's trace. Neither is 0, because 0 means no trace."""
    digest = sha256(b"notary/trace/1" + tx_id).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


class _Ids:
    """An IdGenerator of OpenTelemetry: uses the given ids for the root, and random ids for all other spans."""

    given: TraceIds | None = None

    def __init__(self, by_chance: Any) -> None:
        self._by_chance = by_chance

    def generate_trace_id(self) -> int:
        return self.given[0] if self.given is not None else int(self._by_chance.generate_trace_id())

    def generate_span_id(self) -> int:
        return self.given[1] if self.given is not None else int(self._by_chance.generate_span_id())

    def is_trace_id_random(self) -> bool:
        return False  # the lower half of a hash is as good, but it is not drawn


class Traces:
    """Writes spans of transactions. Sampled by trace id, so all processes sample the same transactions."""

    def __init__(self, provider: TracerProvider, ratio: float, name: str) -> None:
        from opentelemetry import trace as api
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        self._api = api
        self._ids = provider.id_generator = _Ids(RandomIdGenerator())
        self._provider = provider
        self._nowhere = Context()
        self._limit = round(ratio * _RATIO_UNIT)
        self.tracer = provider.get_tracer(name)

    def sampled(self, tx_id: bytes) -> TraceIds | None:
        """The ids of the transaction's trace, if it has one."""
        ids = trace_ids(tx_id)
        return ids if ids[0] % _RATIO_UNIT < self._limit else None

    def root(
        self,
        ids: TraceIds,
        name: str,
        from_us: int,
        to_us: int,
        attributes: Mapping[str, str | int],
        *,
        links: Sequence[Link] = (),
    ) -> None:
        """Write the span that a trace begins with. Times are microseconds UTC."""
        self._ids.given = ids
        try:
            span = self.tracer.start_span(
                name, self._nowhere, self._api.SpanKind.SERVER, attributes, links, start_time=from_us * 1000
            )
        finally:
            self._ids.given = None
        span.end(max(from_us, to_us) * 1000)

    def child(self, ids: TraceIds, name: str, from_us: int, to_us: int, attributes: Mapping[str, str | int]) -> None:
        """Write a span below the root. Another process may write the root."""
        parent = self._api.set_span_in_context(self._api.NonRecordingSpan(self.context(ids)), self._nowhere)
        span = self.tracer.start_span(name, parent, attributes=attributes, start_time=from_us * 1000)
        span.end(max(from_us, to_us) * 1000)

    def context(self, ids: TraceIds) -> Any:
        """The root as others refer to it: a SpanContext."""
        return self._api.SpanContext(*ids, is_remote=True, trace_flags=self._api.TraceFlags(1))

    async def close(self) -> None:
        """Send the remaining spans, if the collector accepts them in time."""
        await asyncio.to_thread(self._provider.shutdown)


def check_tracing(settings: TracingSettings) -> None:
    """Raise ConfigError when traces are configured and cannot be sent: a missing extra, or a missing file."""
    if settings.endpoint is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise ConfigError("tracing.endpoint needs OpenTelemetry: pip install 'replicated-notary[tracing]'") from None
    if settings.ca_file is not None:
        check_readable(settings.ca_file)


def open_traces(
    settings: TracingSettings, *, name: str, instance: str, version: str, exporter: SpanExporter | None = None
) -> Traces | None:
    """The object that sends traces to the collector, in batches, on a thread of its own; None if none is configured.
    `name` is the code's, `instance` the process's. A collector that is slow or away costs only spans.

    Raises ConfigError as `check_tracing` does.
    """
    if settings.endpoint is None:
        return None
    check_tracing(settings)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.name": "notary", "service.instance.id": instance, "service.version": version}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    if exporter is None:
        trusted = None if settings.ca_file is None else str(settings.ca_file)
        exporter = OTLPSpanExporter(str(settings.endpoint), certificate_file=trusted, timeout=EXPORT_MAX_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_MAX_S * 1000))
    return Traces(provider, settings.sample_ratio, name)
