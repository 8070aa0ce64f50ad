"""What the doctor sees of keepalived, of HAProxy's exporters and of the archiver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from haproxy.nodes import Node
from haproxy.render import Endpoint, HaproxySettings, KeepalivedSettings, ReplicaAddress, render_keepalived
from replica.doctor.facts import ArchiverFacts
from replica.doctor.look_around import _look_at_archiver, _metrics, exporter_addresses, look_at_keepalived

METRICS = (
    'notary_archive_age_seconds 12.5\nnotary_archive_failures_total{code="A"} 1.0\nnotary_archive_lag_records 7.0\n'
)


def settings(folder: Path, **further: Any) -> HaproxySettings:
    pair = KeepalivedSettings(
        virtual_address="10.0.0.10/24",
        interface="eth0",
        primary_address="10.0.0.11",
        backup_address="10.0.0.12",
        config_file=str(folder / "keepalived.conf"),
    )
    given = {"exporter": Endpoint(host="*", port=9101), "keepalived": pair, **further}
    replica = ReplicaAddress(name="r1", host="127.0.0.1", api_port=2, health_port=3)
    return HaproxySettings(bind=Endpoint(port=1), replicas=(replica,), **given)


@asynccontextmanager
async def answering(text: str, status: int = 200) -> AsyncIterator[int]:
    """A port that answers /metrics."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    application = web.Application()
    application.router.add_get("/metrics", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("node", Node)
def test_the_file_of_either_node_is_the_rendered_one(tmp_path: Path, node: Node) -> None:
    """Goal: a file that was edited, or is of older settings, is seen. Method: none, as rendered, one character more."""
    found = look_at_keepalived(settings(tmp_path))
    assert found is not None and found.as_rendered is None
    path = tmp_path / "keepalived.conf"
    text = render_keepalived(settings(tmp_path), node)
    for content, as_rendered in ((text, True), (text + "#", False)):
        path.write_text(content)
        found = look_at_keepalived(settings(tmp_path))
        assert found is not None and found.as_rendered is as_rendered
    path.write_bytes(b"\xff")
    found = look_at_keepalived(settings(tmp_path))
    assert found is not None and found.as_rendered is None
    assert look_at_keepalived(settings(tmp_path, keepalived=None)) is None


def test_where_exporters_are_asked(tmp_path: Path) -> None:
    """Goal: each HAProxy machine is asked. Method: on every address with and without a pair; on one; none."""
    assert list(exporter_addresses(settings(tmp_path))) == ["10.0.0.11:9101", "10.0.0.12:9101"]
    assert list(exporter_addresses(settings(tmp_path, keepalived=None))) == ["127.0.0.1:9101"]
    one = Endpoint(host="haproxy.example", port=9101)
    assert list(exporter_addresses(settings(tmp_path, exporter=one))) == ["haproxy.example:9101"]
    assert list(exporter_addresses(settings(tmp_path, exporter=None, keepalived=None))) == []


async def test_the_archiver_by_its_metrics() -> None:
    """Goal: age and lag as Prometheus gets them. Method: metrics, another program's error, nobody; not configured."""
    async with aiohttp.ClientSession() as session:
        async with answering(METRICS) as port:
            found = await _look_at_archiver(Endpoint(host="*", port=port), session)
            assert found == ArchiverFacts(address=f"127.0.0.1:{port}", here=True, age_s=12.5, lag_records=7.0)
        found = await _look_at_archiver(Endpoint(host="127.0.0.1", port=port), session)
        assert found == ArchiverFacts(address=f"127.0.0.1:{port}", here=False, age_s=None)
        async with answering("no", 500) as port:
            assert await _metrics(session, f"127.0.0.1:{port}") is None
        assert await _look_at_archiver(None, session) is None
