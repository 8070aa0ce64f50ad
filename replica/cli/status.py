"""`notary status`: which replica is active, which could take over, and the position of each part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, make_table, out, print_json, run
from replica.failure import in_a_line
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ha.lock.interface import ServerLease
    from replica.config.model import Config
    from replica.health import ReplicaHealth
    from replica.store.bulletin import Pause
    from replica.store.facts import StoreStatus

NOBODY = "nobody"
FOLLOW_EVERY_S = 1.0

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Look again every second, until Ctrl-C.")]


@dataclass(frozen=True, slots=True)
class Status:
    """The state of each part. A part that did not answer is None and named in `problems`."""

    replicas: dict[str, ReplicaHealth | None]
    lock_owner: str | None  # "nobody" if it is free
    lock_owner_is_foreign: str | None  # the holder of the lock, if it is none of the replicas
    lock_lease: ServerLease | None  # as a session that was opened just now found it
    database: dict[str, Any] | None
    log_end: int | None
    pause: dict[str, Any] | None  # set while fail-over is paused; or service, then its keeper is "*"
    problems: list[str]


def show(config: ConfigChoice = None, follow: FollowOption = False, as_json: JsonOption = False) -> None:
    """Show replicas, roles, epoch, who holds the lock, how old its heartbeat is, positions and lag.

    Exit code 0 when a replica serves, else 1. With --follow it goes on until Ctrl-C: a line of JSON each time with
    --json, else a table that is renewed.
    """
    path = find_config(config)
    settings = load(path)
    if follow:
        run(_follow(path, settings, as_json))
    status = run(_find_out(settings))
    if as_json:
        print_json(_document(path, settings, status))
    else:
        out.print(_render(path, settings, status))
    active = any(health is not None and health.active for health in status.replicas.values())
    raise typer.Exit(EXIT_OK if active else EXIT_FAILED)


async def _follow(path: Path, config: Config, as_json: bool) -> None:
    """Print the status again and again, until cancelled."""
    from rich.live import Live

    if as_json:
        while True:
            typer.echo(json.dumps(_document(path, config, await _find_out(config)), sort_keys=True, default=str))
            await asyncio.sleep(FOLLOW_EVERY_S)
    with Live(console=out, auto_refresh=False) as live:
        while True:
            live.update(_render(path, config, await _find_out(config)), refresh=True)
            await asyncio.sleep(FOLLOW_EVERY_S)


async def _find_out(config: Config) -> Status:
    import aiohttp
    import msgspec

    from replica.acting.healths import fetch_health
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        async with aiohttp.ClientSession() as session:
            # the replicas first: they have a second to answer, and to load the other parts' libraries may take as long
            asking = asyncio.gather(*(fetch_health(session, address) for address in config.replicas))
            (healths,) = await asyncio.gather(asking, return_exceptions=True)
            nothing: list[ReplicaHealth | None] = [None] * len(config.replicas)
            found = nothing if isinstance(healths, BaseException) else healths
            by_name = dict(zip((address.name for address in config.replicas), found, strict=True))
            lock, store, end, pause = await asyncio.gather(
                _lease(config, by_name) if config.election.kind == "lease" else _lock(config),
                _store(config),
                log.end_offset(),
                _pause(config),
                return_exceptions=True,
            )
    finally:
        await log.close()
    asked = {"replicas": (healths,), "database": (store, lock, pause), "request log": (end,)}
    failures = {part: [one for one in answers if isinstance(one, BaseException)] for part, answers in asked.items()}
    problems = [f"{part}: {in_a_line(failed[0])}" for part, failed in failures.items() if failed]
    return Status(
        by_name,
        None if isinstance(lock, BaseException) else lock[0],
        None if isinstance(lock, BaseException) else lock[1],
        None if isinstance(lock, BaseException) else lock[2],
        None if isinstance(store, BaseException) else msgspec.to_builtins(store),
        None if isinstance(end, BaseException) else end,
        None if isinstance(pause, BaseException) else msgspec.to_builtins(pause),
        problems,
    )


async def _store(config: Config) -> StoreStatus:
    return await config.ledgers().status()


async def _pause(config: Config) -> Pause | None:
    async with config.ledgers().board("notary-status") as board:
        return await board.paused()


async def _lease(config: Config, healths: Mapping[str, ReplicaHealth | None]) -> tuple[str, str | None, ServerLease]:
    """The same where the log is the lock's server: the replica that is active has it."""
    from ha.lock.lease import counted_lease

    holders = (name for name, health in healths.items() if health is not None and health.leads)
    return next(holders, NOBODY), None, counted_lease(config.election)


async def _lock(config: Config) -> tuple[str, str | None, ServerLease]:
    """The lock's holder as the database reports it; the holder if it is no replica; and the server's lease."""
    from ha.clock import SystemClock

    database = config.shared_database()
    session = database.lock_session(name="notary-status", settings=config.election, clock=SystemClock())
    try:
        await session.open()
        owner = (await session.look()).owner
        if owner is None:
            return NOBODY, None, session.server_lease
        foreign = owner.is_foreign([address.name for address in config.replicas])
        return owner.name, str(owner) if foreign else None, session.server_lease
    finally:
        await session.close()


def _document(path: Path, config: Config, status: Status) -> dict[str, Any]:
    import msgspec

    document = asdict(status)
    document["replicas"] = {name: msgspec.to_builtins(health) for name, health in status.replicas.items()}
    return {"config": str(path), "endpoint": config.endpoint_url, **document}


def _render(path: Path, config: Config, status: Status) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    problems = [Text(problem, style="red") for problem in status.problems]
    return Group(_replicas(config, status), Text(), _facts(path, config, status), *problems)


def _replicas(config: Config, status: Status) -> Table:
    from replica.local.watch import describe

    names = (
        "replica",
        "state",
        ">epoch",
        ">heartbeat",
        ">applied",
        ">lag",
        ">scrubbed",
        ">front ends",
    )
    table = make_table(*names)
    for address in config.replicas:
        health = status.replicas[address.name]
        if health is None:
            table.add_row(address.name, f"[red]{describe(health)}[/]", *[""] * 6)
            continue
        style = "bold green" if health.active else "white" if health.ready else "yellow"
        age = "" if health.lock_answer_age_s is None else f"{health.lock_answer_age_s:.2f} s"
        scrubbed = "" if health.scrub is None else health.scrub
        numbers = (health.applied_offset, health.lag_records, scrubbed, health.front_ends)
        state = f"[{style}]{describe(health)}[/]"
        table.add_row(address.name, state, str(health.epoch), age, *map(str, numbers))
    return table


def _facts(path: Path, config: Config, status: Status) -> Table:
    from replica.store.bulletin import NOBODY as OF_SERVICE

    facts = make_table("", "")
    facts.show_header = False
    facts.add_row("notary", config.cluster)
    facts.add_row("endpoint", config.endpoint_url)
    facts.add_row("ledger explorer", f"{config.endpoint_url}/v1/explorer")
    facts.add_row("lock held by", status.lock_owner or "?")
    if status.lock_owner_is_foreign is not None:
        facts.add_row("[red]no replica[/]", f"[red]{status.lock_owner_is_foreign}[/]: runbooks/failover.md")
    if status.lock_lease is not None:
        frees_after = "?" if status.lock_lease.frees_after_s is None else f"{status.lock_lease.frees_after_s:g} s"
        facts.add_row("freed if silent for", f"{frees_after} ({status.lock_lease.detail})")
    if status.database is not None:
        store = status.database
        facts.add_row("epoch", f"{store['epoch']}, granted to {store['replica'] or 'nobody'}")
        facts.add_row("published", f"log offset {store['published_offset']}, ledger end {store['ledger_end']}")
    if status.log_end is not None:
        facts.add_row("request log", f"{config.log.settings.label}, {status.log_end} records")
    for name, health in status.replicas.items():
        if health is not None:
            for what, text in _troubles(name, health):
                facts.add_row(what, text)
    if status.pause is not None:
        of_service, because = status.pause["keeper"] == OF_SERVICE, status.pause["reason"]
        what, whose = ("service", "") if of_service else ("fail-over", f" for {status.pause['keeper']}")
        facts.add_row(f"[yellow]{what}[/]", f"[yellow]paused[/]{whose}: {escape(because)}")
    facts.add_row("health ports", ", ".join(f"{one.name} {one.host}:{one.health_port}" for one in config.replicas))
    facts.add_row("configuration", str(path))
    return facts


def _troubles(name: str, health: ReplicaHealth) -> Iterator[tuple[str, str]]:
    """What a person should know of a replica, each with its heading."""
    if health.front_ends_silent:
        yield f"[red]front ends of {name}[/]", f"{health.front_ends_silent} do not answer; they are started anew"
    if health.site_detail:
        yield f"[red]site of {name}[/]", f"may not serve: {escape(health.site_detail)}"
    for problem in health.marks_problems:
        yield f"[yellow]marks of {name}[/]", escape(problem)
