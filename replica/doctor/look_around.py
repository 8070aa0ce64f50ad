"""Looks at what stands around the replicas: keepalived, the archiver, what Prometheus asks. Never raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from haproxy.nodes import Node
from haproxy.render import Endpoint, HaproxySettings, KeepalivedSettings, render_keepalived
from replica.config.model import Config
from replica.doctor.facts import ArchiverFacts, AroundFacts, KeepalivedFacts
from replica.local.haproxy import find_keepalived

METRICS_MAX_S = 2.0
EVERY_ADDRESS = "*"
LOOPBACK = "127.0.0.1"


async def look_around(config: Config, session: aiohttp.ClientSession) -> AroundFacts:
    """All of it, at the same time."""
    settings = config.haproxy_settings()
    exporters = list(exporter_addresses(settings))
    archiver, found = await asyncio.gather(
        _look_at_archiver(config.archive.metrics, session),
        asyncio.gather(*(_metrics(session, address) for address in exporters)),
    )
    return AroundFacts(
        keepalived=look_at_keepalived(settings),
        archiver=archiver,
        exporters={address: text is not None for address, text in zip(exporters, found, strict=True)},
    )


def exporter_addresses(settings: HaproxySettings) -> Iterator[str]:
    """Where each HAProxy's exporter is asked; of one that listens on every address, those that keepalived knows."""
    exporter, pair = settings.exporter, settings.keepalived
    if exporter is None:
        return
    hosts = [exporter.host]
    if exporter.host == EVERY_ADDRESS:
        hosts = [LOOPBACK] if pair is None else [pair.primary_address, pair.backup_address]
    for host in hosts:
        yield f"{host}:{exporter.port}"


def look_at_keepalived(settings: HaproxySettings) -> KeepalivedFacts | None:
    """The file that is installed here; None where no pair is configured."""
    pair = settings.keepalived
    if pair is None:
        return None
    program = find_keepalived() is not None
    return KeepalivedFacts(program=program, path=str(pair.config_file), as_rendered=_is_rendered(pair, settings))


def _is_rendered(pair: KeepalivedSettings, settings: HaproxySettings) -> bool | None:
    try:
        installed = Path(pair.config_file).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return installed in [render_keepalived(settings, node) for node in Node]


async def _look_at_archiver(where: Endpoint | None, session: aiohttp.ClientSession) -> ArchiverFacts | None:
    if where is None:
        return None
    here = where.host == EVERY_ADDRESS
    address = f"{LOOPBACK if here else where.host}:{where.port}"
    values = _values(await _metrics(session, address) or "")
    return ArchiverFacts(
        address=address,
        here=here,
        age_s=values.get("notary_archive_age_seconds"),
        lag_records=values.get("notary_archive_lag_records"),
    )


async def _metrics(session: aiohttp.ClientSession, address: str) -> str | None:
    """What Prometheus would get; None for no answer, or another one."""
    try:
        async with (
            asyncio.timeout(METRICS_MAX_S),
            session.get(f"http://{address}/metrics") as answer,
        ):
            return await answer.text() if answer.ok else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _values(text: str) -> dict[str, float]:
    """The samples without labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found
