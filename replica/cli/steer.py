"""`notary switchover`, `pause` and `resume`: an operator decides which replica leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from replica.acting.healths import fetch_health, healths_of
from replica.cli.common import ConfigChoice, JsonOption, err, find_config, load, out, print_json, run
from replica.cli.trailed import ConfirmOption, ProposeOption, ReasonOption, acting
from replica.cli.trailed import propose as propose_act
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK
from replica.notary.tasks import cancelled

if TYPE_CHECKING:
    import aiohttp

    from haproxy.render import ReplicaAddress
    from replica.config.model import Config
    from replica.health import ReplicaHealth
    from replica.operators.admin import SwitchoverAnswer

LOOK_EVERY_S = 0.02  # between looks for the new active; the load balancer gets it as soon as it is seen
ACTIVE_WAIT_S = 15.0  # for the new active to finish its activation, once it has the lock
REPORT_MAX_S = 5.0  # once another replica is active, for the former one to report who took the lock
AT_MOST = timedelta(days=7)  # from now, for a switchover at a certain time
CLOCK_LOOK_S = 10.0  # the wall clock may be set while we wait
PAUSE_SEEN_MAX_S = 10.0  # for every replica that answers to see a pause or its end

ToOption = Annotated[str | None, typer.Option("--to", help="The replica that shall take over; else the first to come.")]
IfActiveOption = Annotated[
    str | None,
    typer.Option("--if-active", metavar="NAME", help="Only if this replica is active; else do nothing, with code 0."),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Wait until then, as 2026-05-01T02:00+02:00; Ctrl-C calls it off."),
]
PauseArgument = Annotated[
    str | None, typer.Argument(metavar="REASON", help="Why, for whoever finds it paused; or --reason.")
]
ServiceOption = Annotated[bool, typer.Option("--service", help="Service, where every replica serves; not fail-over.")]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a switchover. `active`: the replica that serves now, None if none was seen to."""

    done: bool
    text: str
    before: str | None
    active: str | None
    took_s: float


def switchover(
    config: ConfigChoice = None,
    *,
    to: ToOption = None,
    if_active: IfActiveOption = None,
    at: AtOption = None,
    reason: ReasonOption = None,
    propose: ProposeOption = False,
    confirm: ConfirmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand over to another replica, drained, and say who took over; undone when nobody can.

    Run it on the active's machine: its admin listener is a socket there. Exit code 0 when the wanted replica
    is active, 1 when it is not: then the old one is active again, or the text says what to do.
    """
    from replica.store.four_eyes import switchover_details

    settings = load(find_config(config))
    if to is not None:
        settings.candidate(to)  # now, and not when the time has come
    if if_active is not None:
        settings.replica(if_active)
    asked = switchover_details(to)
    if propose:
        propose_act(settings, "switchover", asked, reason)
        return
    if at is not None:
        run(_wait_until(read_time(at, datetime.now(UTC)), settings, to))
    with acting(settings, "switchover", asked, reason, confirm=confirm, by_replica=True) as act:
        outcome = run(_switch_over(settings, to, if_active, act.entry))
        act.outcome, act.failed = outcome.text, not outcome.done
    if as_json:
        print_json(asdict(outcome))
    else:
        (out if outcome.done else err).print(outcome.text, markup=False)
    raise typer.Exit(EXIT_OK if outcome.done else EXIT_FAILED)


def pause(
    because: PauseArgument = None,
    config: ConfigChoice = None,
    *,
    service: ServiceOption = False,
    reason: ReasonOption = None,
) -> None:
    """Pause fail-over: only the replica that is active now may lead, until `notary resume`.

    It goes on serving. If it fails, nobody takes over. Kept in the database, or in the log where there is none, so
    restarts change nothing. Without a database, run it on the machine of a replica that runs.

    With --service, every replica refuses requests instead, until `notary resume --service`. Exit code 1: the pause is
    noted, and not every replica was seen to keep it yet.
    """
    why = because or reason
    if why is None or (because and reason):
        raise ConfigError("say once why: notary pause REASON, or --reason")
    settings = load(find_config(config))
    if service:
        with acting(settings, "pause", {"service": True}, why) as act:
            unpaused = run(_pause_service(settings, why))
            act.outcome = (
                "service is paused" if not unpaused else f"service is to pause; not yet: {', '.join(unpaused)}"
            )
            act.failed = bool(unpaused)
        _tell_service(unpaused, "service is paused until: notary resume --service", "pause")
        return
    with acting(settings, "pause", {}, why) as act:
        paused, unheard = run(_pause(settings, why))
        act.outcome = f"only {paused} may lead"
    out.print(f"fail-over is paused; only {paused} may lead until: notary resume", markup=False)
    _tell_unheard(unheard)


def resume(config: ConfigChoice = None, *, service: ServiceOption = False, reason: ReasonOption = None) -> None:
    """End a pause of fail-over: every replica may take over again. With --service, one of service."""
    settings = load(find_config(config))
    if service:
        with acting(settings, "resume", {"service": True}, reason) as act:
            was_paused, unresumed = run(_resume_service(settings))
            text = "service goes on" if was_paused else "service was not paused"
            act.outcome = text if not unresumed else f"{text}; not yet: {', '.join(unresumed)}"
            act.failed = bool(unresumed)
        _tell_service(unresumed, text, "resume")
        return
    with acting(settings, "resume", {}, reason) as act:
        was_paused, unheard = run(_resume(settings))
        act.outcome = "fail-over goes on" if was_paused else "fail-over was not paused"
    out.print(act.outcome)
    _tell_unheard(unheard)


# ---- switchover ----


async def _switch_over(config: Config, to: str | None, if_active: str | None, entry: int | None) -> Outcome:
    import aiohttp

    from replica.acting.admin_calls import ask_admin
    from replica.operators.admin import SWITCHOVER_PATH, SwitchoverAnswer, SwitchoverCall

    async with aiohttp.ClientSession() as session:
        before = await healths_of(session, config.replicas)
        active = next((name for name, health in before.items() if health is not None and health.leads), None)
        if if_active is not None and active != if_active:
            return Outcome(True, f"{if_active} is not active: nothing to do", active, active, 0.0)
        refusal = why_not(before, active, to)
        if active is None or refusal is not None:
            return Outcome(False, f"{refusal}; nothing was done", active, active, 0.0)
        asked_at_s = monotonic()
        watching = asyncio.create_task(_watch_for_active(session, config, active))
        call = SwitchoverCall(active, to, entry)
        asking = asyncio.create_task(ask_admin(config, active, call, SwitchoverAnswer, path=SWITCHOVER_PATH))
        try:
            answer = await _told_or_seen(asking, watching, active)
            now_active = await watching if answer.took_over_by is not None else active
        finally:
            await cancelled(watching, asking)
        return judge(answer, active, to, now_active, round(monotonic() - asked_at_s, 3))


async def _told_or_seen(
    asking: asyncio.Task[SwitchoverAnswer], watching: asyncio.Task[str | None], before: str
) -> SwitchoverAnswer:
    """What `before` reports, or, if it does not see who took the lock, who is seen to be active.

    It does not see it when the database lets it in no more: its password was changed, and it is restarted last.
    """
    from replica.operators.admin import SwitchoverAnswer

    await asyncio.wait((asking, watching), return_when=asyncio.FIRST_COMPLETED)
    if not asking.done() and (seen := watching.result()) not in (None, before):
        await asyncio.wait((asking,), timeout=REPORT_MAX_S)
        if not asking.done():
            return SwitchoverAnswer("taken over", seen, 0.0)
    return await asking


def read_time(text: str, now: datetime) -> datetime:
    """When a switchover is to begin. Raises ConfigError unless it is within a week, with its offset."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--at {text}: give a time such as 2026-05-01T02:00+02:00, or with Z for UTC") from None
    if at.tzinfo is None:
        raise ConfigError(f"--at {text}: which time zone? End it with Z for UTC, or with +02:00")
    if not now < at <= now + AT_MOST:
        raise ConfigError(f"--at {text}: it is {now:%Y-%m-%dT%H:%MZ} now, and the time must be within the next 7 days")
    return at


async def _wait_until(at: datetime, config: Config, to: str | None) -> None:
    """Wait, by the wall clock. What would be refused now is named at once, while somebody is there to read it."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        healths = await healths_of(session, config.replicas)
    active = next((name for name, health in healths.items() if health is not None and health.leads), None)
    refusal = why_not(healths, active, to) or why_paused(healths)
    left_out = "" if refusal is None else f"; as things are now it would not be done: {refusal}"
    begin = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    err.print(f"a switchover at {begin}; Ctrl-C calls it off{left_out}", markup=False)
    while True:
        left_s = (at - datetime.now(UTC)).total_seconds()
        if left_s <= 0:
            return
        await asyncio.sleep(min(left_s, CLOCK_LOOK_S))


def why_not(healths: Mapping[str, ReplicaHealth | None], active: str | None, to: str | None) -> str | None:
    """Why a switchover is not even tried; None if it may be."""
    if active is None:
        return "no replica is active (if none takes over soon: notary failover)"
    if to == active:
        return f"{to} is active already"
    able = [name for name, health in healths.items() if name != active and health is not None and health.ready]
    if not able:
        return "no other replica is ready to take over"
    if to is not None and to not in able:
        return f"{to} is not ready to take over; ready are: {', '.join(able)}"
    return None


def why_paused(healths: Mapping[str, ReplicaHealth | None]) -> str | None:
    """What the active would say to a switchover during a pause of fail-over; None if no replica knows of one."""
    paused = any(health is not None and health.failover_paused for health in healths.values())
    return "fail-over is paused: notary resume" if paused else None


def judge(answer: SwitchoverAnswer, before: str, to: str | None, active: str | None, took_s: float) -> Outcome:
    """The outcome in a sentence. `active`: the replica that was seen active at the end."""
    taker = answer.took_over_by
    if taker is None:
        undone = answer.outcome == "undone"
        text = (
            f"undone: nobody took over, {before} is active again" if undone else f"it {answer.outcome}: notary status"
        )
        return Outcome(False, text, before, before if undone else None, took_s)
    if active is None:
        text = f"{taker} took the lock and is not active after {ACTIVE_WAIT_S:g} s: see its log, and notary status"
        return Outcome(False, text, before, None, took_s)
    if active == before:
        return Outcome(False, f"undone: {taker} could not activate, {before} is active again", before, active, took_s)
    if to is not None and active != to:
        return Outcome(False, f"{active} took over instead of {to}", before, active, took_s)
    return Outcome(
        True, f"{active} took over from {before}, {took_s:.2f} s after it was asked to", before, active, took_s
    )


async def _watch_for_active(session: aiohttp.ClientSession, config: Config, before: str) -> str | None:
    """The active after `before` has ended, or `before` again. This machine's load balancer gets it at once."""
    wait_max_s = config.election.drain_max_s + config.election.switchover_wait_s + ACTIVE_WAIT_S
    watchers = [asyncio.create_task(_becomes_active(session, address, before)) for address in config.replicas]
    try:
        done, _ = await asyncio.wait(watchers, timeout=wait_max_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*watchers)
    active = next((watcher.result() for watcher in done), None)
    if active is not None:
        await _point_at(config, active)
    return active


async def _becomes_active(session: aiohttp.ClientSession, address: ReplicaAddress, before: str) -> str:

    gave_up = address.name != before
    while True:
        health = await fetch_health(session, address)
        if health is not None:
            if health.leads and gave_up:
                return address.name
            gave_up = gave_up or not health.leads
        await asyncio.sleep(LOOK_EVERY_S)


async def _point_at(config: Config, name: str) -> None:
    """Point HAProxy at the active, where it alone serves. Optional: each HAProxy also finds it by its next check."""
    if config.serving == "all":
        return
    from haproxy.runtime import HaproxyRuntime, RuntimeRefused

    with suppress(OSError, TimeoutError, RuntimeRefused):
        await HaproxyRuntime(config.haproxy_settings().stats_socket).point_at(name)


# ---- pause and resume ----


async def _pause(config: Config, reason: str) -> tuple[str, list[str]]:
    async with config.ledgers().board("notary-pause") as board:
        paused = await board.pause(reason)
        note = await board.paused() if paused is None else None
    if note is not None:
        raise ConfigError("service is paused: notary resume --service, then pause fail-over", Code.NOT_POSSIBLE_NOW)
    if paused is None:
        raise ConfigError("no replica was ever active: there is nothing to keep as it is", Code.NOT_POSSIBLE_NOW)
    return paused.keeper, await _heard(config, lambda health: health.failover_paused)


async def _resume(config: Config) -> tuple[bool, list[str]]:
    async with config.ledgers().board("notary-resume") as board:
        ended = await board.resume()
        note = await board.paused() if ended is None else None
    if note is not None and note.of_service:
        raise ConfigError("fail-over is not paused, and service is: notary resume --service", Code.NOT_POSSIBLE_NOW)
    return ended is not None, await _heard(config, lambda health: not health.failover_paused)


async def _pause_service(config: Config, reason: str) -> list[str]:
    """Note the pause, and wait until it is in force. Returns the replicas that were not seen to keep it. Raises
    ConfigError where service cannot be paused."""
    from replica.store.bulletin import NO_PAUSE_OF_SERVICE

    if config.serving != "all":
        raise ConfigError(NO_PAUSE_OF_SERVICE, Code.NOT_POSSIBLE_NOW)
    async with config.ledgers().board("notary-pause") as board:
        if await board.pause_service(reason) is None:
            raise ConfigError("fail-over is paused: notary resume, then pause service", Code.NOT_POSSIBLE_NOW)
    return await _heard(config, lambda health: health.service_paused and not health.active)


async def _resume_service(config: Config) -> tuple[bool, list[str]]:
    async with config.ledgers().board("notary-resume") as board:
        ended = await board.resume_service()
    return ended is not None, await _heard(config, lambda health: not health.service_paused)


async def _heard(config: Config, heeds: Callable[[ReplicaHealth], bool]) -> list[str]:
    """Wait until every replica that answers has seen it. Returns the names of those that have not, or do not answer."""
    import aiohttp

    deadline_s = monotonic() + PAUSE_SEEN_MAX_S
    async with aiohttp.ClientSession() as session:
        while True:
            healths = await healths_of(session, config.replicas)
            late = [name for name, health in healths.items() if health is None or not heeds(health)]
            waiting = [name for name in late if healths[name] is not None]
            if not waiting or monotonic() >= deadline_s:
                return late
            await asyncio.sleep(10 * LOOK_EVERY_S)


def _tell_service(unheard: list[str], done: str, act: str) -> None:
    if not unheard:
        out.print(done)
        return
    err.print(
        f"noted, and not seen to {act} yet, down or cut off: {', '.join(unheard)}; look at notary status", markup=False
    )
    raise typer.Exit(EXIT_FAILED)


def _tell_unheard(names: list[str]) -> None:
    if names:
        out.print(f"not seen to know of it yet, down or cut off: {', '.join(names)}", markup=False)
