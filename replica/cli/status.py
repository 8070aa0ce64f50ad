"""`notary status`: who is active, who could take over, and how far everything is."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from replica.cli.common import (
    EXIT_FAILED,
    EXIT_OK,
    ConfigChoice,
    JsonOption,
    find_config,
    load,
    make_table,
    out,
    print_json,
    run,
)

if TYPE_CHECKING:
    from replica.config import Config
    from replica.local.health import ReplicaHealth

NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Status:
    """What could be found out; a part that did not answer is None and named in `problems`."""

    replicas: dict[str, ReplicaHealth | None]
    lock_owner: str | None  # "nobody" if it is free
    database: dict[str, Any] | None
    log_end: int | None
    problems: list[str]


def show(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Show replicas, roles, epoch, positions and who holds the lock.

    Exit code 0 when a replica is active, else 1.
    """
    path = find_config(config)
    settings = load(path)
    status = run(_find_out(settings))
    if as_json:
        print_json(_document(path, settings, status))
    else:
        _print(path, settings, status)
    active = any(health is not None and health.active for health in status.replicas.values())
    raise typer.Exit(EXIT_OK if active else EXIT_FAILED)


async def _find_out(config: Config) -> Status:
    import aiohttp
    import msgspec

    from replica.local.health import fetch_health
    from replica.log.kafka import KafkaLog

    log = KafkaLog(config.kafka)
    try:
        async with aiohttp.ClientSession() as session:
            healths, owner, store, end = await asyncio.gather(
                asyncio.gather(*(fetch_health(session, address) for address in config.replicas)),
                _lock_owner(config),
                config.shared_database().status(),
                log.end_offset(),
                return_exceptions=True,
            )
    finally:
        await log.close()
    problems = [str(part) for part in (healths, owner, store, end) if isinstance(part, BaseException)]
    found = [None] * len(config.replicas) if isinstance(healths, BaseException) else healths
    return Status(
        dict(zip((address.name for address in config.replicas), found, strict=True)),
        None if isinstance(owner, BaseException) else owner,
        None if isinstance(store, BaseException) else msgspec.to_builtins(store),
        None if isinstance(end, BaseException) else end,
        problems,
    )


async def _lock_owner(config: Config) -> str:
    """Who holds the lock at this moment, as the database says."""
    from ha.clock import SystemClock

    database = config.shared_database()
    session = database.lock_session(name="notary-status", settings=config.election, clock=SystemClock())
    try:
        await session.open()
        owner = (await session.look()).owner
    finally:
        await session.close()
    return NOBODY if owner is None else owner.name


def _document(path: Path, config: Config, status: Status) -> dict[str, Any]:
    import msgspec

    document = asdict(status)
    document["replicas"] = {name: msgspec.to_builtins(health) for name, health in status.replicas.items()}
    endpoint = f"http://{config.endpoint.host}:{config.endpoint.port}"
    return {"config": str(path), "endpoint": endpoint, **document}


def _print(path: Path, config: Config, status: Status) -> None:
    from replica.local.watch import describe

    table = make_table("replica", "state", ">epoch", ">applied", ">behind", ">front ends", "health port")
    for address in config.replicas:
        health = status.replicas[address.name]
        where = f"{address.host}:{address.health_port}"
        if health is None:
            table.add_row(address.name, f"[red]{describe(health)}[/]", "", "", "", "", where)
            continue
        style = "bold green" if health.active else "white" if health.ready else "yellow"
        numbers = (health.epoch, health.applied_offset, health.lag_records, health.front_ends)
        table.add_row(address.name, f"[{style}]{describe(health)}[/]", *map(str, numbers), where)
    out.print(table)
    out.print()
    facts = make_table("", "")
    facts.show_header = False
    facts.add_row("endpoint", f"http://{config.endpoint.host}:{config.endpoint.port}")
    facts.add_row("lock held by", status.lock_owner or "?")
    if status.database is not None:
        store = status.database
        facts.add_row("epoch", f"{store['epoch']}, granted to {store['replica'] or 'nobody'}")
        facts.add_row("published", f"log offset {store['published_offset']}, ledger end {store['ledger_end']}")
        facts.add_row("in flight", f"{store['in_flight']} commands")
    if status.log_end is not None:
        facts.add_row("request log", f"{config.kafka.topic}, {status.log_end} records")
    facts.add_row("configuration", str(path))
    out.print(facts)
    for problem in status.problems:
        out.print(f"[red]{problem}[/]")
