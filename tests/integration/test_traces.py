"""One trace from the HTTP request through the core and across the log, by real processes into a real collector."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ledger_api.wire.submissions import submission_to_document
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.requests import state_ref
from replica.telemetry.traces import trace_ids
from tests.ends import guarded

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.asyncio]

CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
ARRIVE_MAX_S = 60.0  # exporters send every five seconds, on a quiet machine
Arrived = set[tuple[str, str, str]]  # process, trace id, name


@asynccontextmanager
async def collecting(arrived: Arrived) -> AsyncIterator[str]:
    """A collector that speaks OTLP over HTTP; its URL."""

    async def take(request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            about = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    arrived.add((about["service.instance.id"], span.trace_id.hex(), span.name))
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    finally:
        await runner.cleanup()


async def test_a_trace_goes_from_the_caller_to_every_replica(servers_folder: Path) -> None:
    """Goal: see where the time went, hop by hop. Method: one call with a `traceparent`; what a collector was sent."""
    arrived: Arrived = set()
    async with collecting(arrived) as url:
        tracing = {"endpoint": url, "sample_ratio": 1.0}
        settings = ClusterSettings(
            folder=servers_folder / "traces", parties=1, replicas=2, api_workers=1, further={"tracing": tracing}
        )
        async with guarded(LocalCluster(settings)) as cluster:
            await cluster.wait_until_ready(list(cluster.replicas))
            active = (await cluster.wait_for_active()).name
            (passive,) = set(cluster.replicas) - {active}
            tx_id = os.urandom(32)
            submission = cluster.parties[0].sign(tx_id, [state_ref(os.urandom(32), 0)])
            document = msgspec.to_builtins(submission_to_document(submission))
            headers = {"traceparent": f"00-{CALLER}-00f067aa0ba902b7-01"}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{cluster.endpoint}/v1/submissions", json=document, headers=headers) as answer,
            ):
                assert answer.status == 200
            trace = f"{trace_ids(tx_id)[0]:032x}"
            expected = {(f"{active}/api-1", CALLER, "POST /v1/submissions"), (f"{active}/api-1", trace, "submit")}
            expected |= {(active, trace, name) for name in ("notarise", "admit", "log", "judge", "answer")}
            expected |= {(passive, trace, name) for name in ("log", "judge")}
            async with asyncio.timeout(ARRIVE_MAX_S):
                while not expected <= arrived:
                    await asyncio.sleep(0.2)
    assert arrived == expected
