"""`notary failover`: an operator forces a fail-over when the active is gone and nobody takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from replica.acting.healths import healths_of
from replica.cli.common import ConfigChoice, JsonOption, err, find_config, load, out, print_json, run
from replica.cli.steer import ACTIVE_WAIT_S, LOOK_EVERY_S
from replica.cli.trailed import ReasonOption, acting
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from ha.lock.interface import LockOwner
    from replica.config.model import Config
    from replica.health import ReplicaHealth
    from replica.store.bulletin import Pause

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before anything is done.")]


@dataclass(frozen=True, slots=True)
class Plan:
    """What keeps the others from leading, and is to be ended. `steps`: the same for people."""

    steps: tuple[str, ...]
    end_session: LockOwner | None = None
    end_pause: bool = False

    @property
    def text(self) -> str:
        """All steps in one line, as the operators' trail keeps them."""
        return " and ".join(self.steps)


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is to be done, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Forced:
    """The end of a forced fail-over. `active`: the replica that leads now, None if none was seen to."""

    done: bool
    text: str
    active: str | None = None


def failover(
    config: ConfigChoice = None, yes: YesOption = False, reason: ReasonOption = None, as_json: JsonOption = False
) -> None:
    """Force a fail-over when the active is gone and nobody takes over; else `notary switchover` is the command.

    It ends what stands in the way: a pause whose replica is down, and the session of a replica that is down and still
    holds the lock. It asks before. No two replicas can lead by it: late records of a deposed replica are void. Exit
    code 0 when a replica is active afterwards, 1 when none is, or when nothing was to be done.
    """
    from replica.store.trail import DETAIL_MAX

    settings = load(find_config(config))
    plan = run(_find_out(settings))
    if isinstance(plan, Refused):
        forced = Forced(False, f"{plan.text}; nothing was done")
    else:
        if not yes:
            err.print("No replica that answers is active. So that another one leads, this will:")
            for step in plan.steps:
                err.print(f"- {step}", markup=False, soft_wrap=False)  # lines end between words
            typer.confirm("Go on?", abort=True, err=True)
        with acting(settings, "failover", {"plan": plan.text[:DETAIL_MAX]}, reason) as act:
            forced = run(_carry_out(settings, plan))
            act.outcome, act.failed = forced.text, not forced.done
    if as_json:
        print_json(asdict(forced))
    else:
        (out if forced.done else err).print(forced.text, markup=False)
    raise typer.Exit(EXIT_OK if forced.done else EXIT_FAILED)


def plan_failover(
    healths: Mapping[str, ReplicaHealth | None], owner: LockOwner | None, pause: Pause | None
) -> Plan | Refused:
    """What to end so that another replica leads. `healths`: of every configured replica, None if it does not answer."""
    for refusal in _refusals(healths, owner, pause):
        return Refused(refusal)
    steps = []
    if pause is not None:
        steps.append(f"end the pause ({pause.reason}), whose replica {pause.keeper} does not answer")
    if owner is not None:
        steps.append(f"end the session of {owner}, which does not answer and holds the lock")
    return Plan(tuple(steps), end_session=owner, end_pause=pause is not None)


def _refusals(
    healths: Mapping[str, ReplicaHealth | None], owner: LockOwner | None, pause: Pause | None
) -> Iterator[str]:
    """Why a fail-over is not forced, the most important reason first; nothing if it may be."""
    answering = {name: health for name, health in healths.items() if health is not None}
    for name in (name for name, health in answering.items() if health.leads):
        first = "" if pause is None else f"notary resume, as fail-over is paused ({pause.reason}), then "
        yield f"{name} is active: to hand over, run {first}notary switchover"
    if owner is not None and owner.is_foreign(healths):
        yield f"{owner} holds the lock and is no replica: runbooks/failover.md, A stranger holds the lock"
    if owner is not None and owner.name in answering:
        yield f"{owner.name} holds the lock and answers, so it is about to lead; if it does not, stop it on its machine"
    if pause is not None and pause.keeper in answering:
        yield f"fail-over is paused for {pause.keeper}, which answers and will lead: else run notary resume"
    if not any(health.reaches_log and health.may_lead for health in answering.values()):
        yield "no replica that answers and may lead reaches the log, so none could lead: runbooks/broker-loss.md"
    if owner is None and pause is None:
        yield "the lock is free and nothing keeps the replicas from it: their logs show why none leads"


async def _find_out(config: Config) -> Plan | Refused:
    import aiohttp

    owner = None if config.election.kind == "lease" else await _lock_owner(config)
    async with config.ledgers().board("notary-failover") as board, aiohttp.ClientSession() as session:
        note = await board.paused()
        pause = None if note is None or note.of_service else note  # who takes the lock keeps service paused
        return plan_failover(await healths_of(session, config.replicas), owner, pause)


async def _lock_owner(config: Config) -> LockOwner | None:
    """Whose session holds the database's lock. A lease has none: it runs out by itself when its holder is silent."""
    from ha.clock import SystemClock

    database = config.shared_database()
    lock = database.lock_session(name="notary-failover", settings=config.election, clock=SystemClock())
    try:
        await lock.open()
        return (await lock.look()).owner
    finally:
        await lock.close()


async def _carry_out(config: Config, plan: Plan) -> Forced:
    import aiohttp

    if plan.end_pause:
        async with config.ledgers().board("notary-failover") as board:
            await board.resume()
    if plan.end_session is not None:
        await config.shared_database().end_holder(plan.end_session, config.election)
    deadline_s = monotonic() + config.election.lease_s + ACTIVE_WAIT_S
    async with aiohttp.ClientSession() as session:
        while monotonic() < deadline_s:
            for name, health in (await healths_of(session, config.replicas)).items():
                if health is not None and health.leads:
                    return Forced(True, f"{name} is active", name)
            await asyncio.sleep(LOOK_EVERY_S)
    return Forced(False, "done, and no replica is active yet: see notary status, and the logs of the replicas")
