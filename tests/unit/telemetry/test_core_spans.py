"""Traces of whole replicas on virtual time, with OpenTelemetry's own exporter in memory."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from replica.notary.answers import Refused
from replica.notary.errors import ConfigError
from replica.telemetry.core_spans import OLD_AFTER_US, CoreTrace
from replica.telemetry.settings import TracingSettings
from replica.telemetry.traces import Traces, open_traces, trace_ids
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import World, name_of, state, submission

OF_ONE_REQUEST = ["admit", "answer", "judge", "judge", "log", "log", "notarise"]  # an active and a passive


class Collector:
    """One exporter for all replicas."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def trace(self, world: World, ratio: float) -> CoreTrace:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        return CoreTrace(Traces(provider, ratio, "core"), world.shared.clock.wall_us)

    def of(self, tx: int) -> list[Any]:
        """The spans of a transaction's trace."""
        trace_id, _ = trace_ids(name_of(tx))
        return [span for span in self.exporter.get_finished_spans() if span.context.trace_id == trace_id]


def names(spans: list[Any]) -> list[str]:
    return sorted(span.name for span in spans)


def test_a_request_is_one_trace_across_the_log_and_all_replicas() -> None:
    """Goal: one look shows where the time went, on every replica. Method: one notarised, one refused; ids and order."""
    collector = Collector()

    async def story() -> None:
        async with World() as world:
            active = await world.replica(1, trace=collector.trace(world, 1.0))
            await active.until_active()
            await world.replica(2, trace=collector.trace(world, 1.0))
            await active.submit(submission(1, [state(9)]))
            (refused,) = await active.submit(submission(2, [state(9)]))
            assert isinstance(refused, Refused)
            await asyncio.sleep(2.0)

    run_virtually(story())
    for tx, outcome in ((1, "notarised"), (2, "conflict")):
        spans = collector.of(tx)
        assert names(spans) == OF_ONE_REQUEST
        assert {span.parent.span_id for span in spans} == {trace_ids(name_of(tx))[1]}  # the front end's, not here
        (whole,) = [span for span in spans if span.name == "notarise"]
        assert whole.attributes == {"notary.tx_id": name_of(tx).hex(), "notary.outcome": outcome}
        children = [span for span in spans if span is not whole]
        assert len({span.context.span_id for span in spans}) == len(spans)
        assert {span.attributes["notary.outcome"] for span in children if span.name == "judge"} == {outcome}
        first = {span.name: span for span in sorted(children, key=lambda span: -span.end_time)}  # the active's own
        assert whole.start_time == first["admit"].start_time
        assert first["admit"].end_time == first["log"].start_time <= first["log"].end_time == first["judge"].start_time
        assert first["judge"].end_time <= whole.end_time == first["answer"].end_time


def test_every_replica_samples_the_same_transactions() -> None:
    """Goal: a trace is whole or not there. Method: forty transactions, a half of them sampled."""
    collector = Collector()

    async def story() -> None:
        async with World() as world:
            active = await world.replica(1, trace=collector.trace(world, 0.5))
            await active.until_active()
            await world.replica(2, trace=collector.trace(world, 0.5))
            await active.submit(*[submission(tx, [state(tx)]) for tx in range(40)])
            await asyncio.sleep(2.0)

    run_virtually(story())
    found = [names(collector.of(tx)) for tx in range(40)]
    assert 10 < sum(map(bool, found)) < 30
    assert all(spans in ([], OF_ONE_REQUEST) for spans in found)


def test_catching_up_is_not_traced() -> None:
    """Goal: a replica that reads an old log floods nobody. Method: one that starts long after the request."""
    collector = Collector()

    async def story() -> None:
        async with World() as world:
            active = await world.replica(1)
            await active.until_active()
            await active.submit(submission(1, [state(1)]))
            await asyncio.sleep(OLD_AFTER_US / 1e6 + 1)
            await world.replica(2, trace=collector.trace(world, 1.0))
            await asyncio.sleep(2.0)

    run_virtually(story())
    assert collector.of(1) == []


def test_it_is_off_unless_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no cost and no dependency by default. Method: default settings with the package out of reach."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert open_traces(TracingSettings(), name="core", instance="r1", version="1") is None
    named = TracingSettings.model_validate({"endpoint": "https://collector.example/v1/traces"})
    with pytest.raises(ConfigError, match="tracing"):
        open_traces(named, name="core", instance="r1", version="1")


async def test_a_collector_that_is_away_costs_spans_and_nothing_else() -> None:
    """Goal: no request waits for a collector. Method: a port that nobody listens on; close within its bounds."""
    settings = TracingSettings.model_validate({"endpoint": "http://127.0.0.1:1/v1/traces", "sample_ratio": 1.0})
    trace = open_traces(settings, name="core", instance="r1", version="1")
    assert trace is not None
    trace.child(trace_ids(b"x" * 32), "log", 1, 2, {})
    async with asyncio.timeout(30):
        await trace.close()
