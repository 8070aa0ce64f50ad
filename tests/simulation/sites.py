"""Two sites and a witness on virtual time: the product's guards and takers, over a witness and a network of ours.

Drawn for each seed: rates of clocks, delays, lost questions and answers, power cuts, frozen processes, operators who
take the term when they like, and an empty witness in place of the one that was. A signature counts when it is let out.
Checked: the witness had no term then but that of the signer's site and log; a log that was superseded has no term
again; and a site that nothing happens to serves all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from ha.errors import SiteLogSuperseded, SiteServes, WitnessUnavailable
from ha.site import guard
from ha.site.core import Term
from tests.simulation.virtual import run_virtually

LEASE_S = 10.0
RUN_S = 240.0
REPLICAS_MAX = 2
RATE_OFF_MAX = 0.05  # of a clock; two may differ by twice that
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RateClock:
    """A clock that runs at a rate of its own."""

    rate: float
    offset_s: float

    def boottime_s(self) -> float:
        return self.offset_s + self.rate * asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        return round(1e6 * self.boottime_s())

    async def sleep_s(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / self.rate)


@dataclass(slots=True)
class Register:
    """What Postgres keeps: each change is judged by the row that the last one left."""

    term: Term | None = None
    taken: list[Term] = field(default_factory=list)

    def forget(self) -> None:
        """Somebody puts an empty one in its place."""
        self.term = None
        self.taken.clear()

    def renew(self, site: str, log_id: str) -> tuple[Term | None, bool]:
        if self.term is None or (self.term.site, self.term.log_id) != (site, log_id):
            return self.term, False
        self.term = replace(self.term, beat=self.term.beat + 1)
        return self.term, True

    def take(self, seen: Term | None, following: Term) -> bool:
        if (self.term is None) != (seen is None):
            return False
        if seen and self.term and (self.term.number, self.term.beat) != (seen.number, seen.beat):
            return False
        self.term = following
        self.taken.append(following)
        return True


@dataclass(slots=True)
class Machine:
    """Whose questions these are: it may be frozen, and its answers wait until it runs on."""

    frozen_until_s: float = 0.0
    has_power: bool = True
    cut_off_until_s: float = 0.0  # from the witness; it runs on

    async def runs(self) -> None:
        """Return once it is not frozen. The time-outs of a frozen process come too late, so it believes the answer."""
        while (left_s := self.frozen_until_s - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left_s)
            except asyncio.CancelledError:
                if not self.has_power:
                    raise


@dataclass(slots=True)
class World:
    """One run. `calm`: nothing happens to the first site. `duel`: replicas have slow clocks and are cut off from
    the witness again and again. Then the other site's operator, who has a fast clock, begins to take the term."""

    random: Random
    calm: bool
    duel: bool
    register: Register = field(default_factory=Register)
    signed: int = 0
    unserved: int = 0
    wrong: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=lambda: {"a": "log-a", "b": "copy-1"})
    copies: int = 1

    def clock(self, *, takes: bool = False) -> RateClock:
        off = RATE_OFF_MAX
        drawn = (off if takes else -off) if self.duel else self.random.choice([-off, 0.0, off])
        return RateClock(1 + drawn, self.random.uniform(0, 1e5))


@dataclass(frozen=True, slots=True)
class FarWitness:
    """The register, behind a network that delays and loses."""

    world: World
    machine: Machine

    async def see(self) -> Term | None:
        return await self._ask(lambda: self.world.register.term)

    async def renew(self, site: str, log_id: str) -> tuple[Term | None, bool]:
        return await self._ask(lambda: self.world.register.renew(site, log_id))

    async def take(self, seen: Term | None, following: Term) -> bool:
        return await self._ask(lambda: self.world.register.take(seen, following))

    async def _ask(self, act: Callable[[], _T]) -> _T:
        random, calm = self.world.random, self.world.calm
        for lost in (random.random() < 0.05, random.random() < 0.05):
            await asyncio.sleep(random.choice([0.01, 0.05] if calm else [0.01, 0.1, 0.5, 0.9]))
            if (lost and not calm) or asyncio.get_running_loop().time() < self.machine.cut_off_until_s:
                raise WitnessUnavailable("lost")
            if act is not _done:
                answer, act = act(), _done  # type: ignore[assignment]
        await self.machine.runs()
        return answer


def _done() -> None:
    """The register was asked."""


def simulate(seed: int, *, calm: bool = False, duel: bool = False) -> World:
    """Run a world to its end."""
    world = World(Random(seed), calm or duel, duel)
    if duel:  # one log, which no term supersedes
        world.logs = dict.fromkeys(world.logs, "log")
    run_virtually(_run(world))
    return world


async def _run(world: World) -> None:
    tasks = [asyncio.create_task(_site(world, site)) for site in ("a", "b")]
    tasks.append(asyncio.create_task(_operators(world)))
    await asyncio.sleep(RUN_S)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _site(world: World, site: str) -> None:
    """Replicas that run while the site has power. A cut ends them with all that they knew, and their clocks."""
    random = world.random
    while True:
        machines = [Machine() for _ in range(random.randint(1, REPLICAS_MAX))]
        tasks = [task for machine in machines for task in _replica(world, site, machine)]
        if world.duel or not world.calm:
            tasks.append(asyncio.create_task(_cuts(machines) if world.duel else _strikes(world, machines)))
        try:
            await asyncio.sleep(RUN_S if world.calm else random.choice([5.0, 30.0, 90.0]))
        finally:
            for machine in machines:
                machine.has_power = False
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result
        await asyncio.sleep(random.choice([0.1, 5.0, 20.0, 60.0]))


def _replica(world: World, site: str, machine: Machine) -> list[asyncio.Task[None]]:
    log_id, clock = world.logs[site], world.clock()

    async def identity() -> str:
        return log_id

    one = guard.SiteGuard(FarWitness(world, machine), site, identity, clock=clock, lease_s=LEASE_S)
    return [
        asyncio.create_task(one.run(lambda _: None)),
        asyncio.create_task(_signs(world, site, log_id, one, machine)),
    ]


async def _signs(world: World, site: str, log_id: str, one: guard.SiteGuard, machine: Machine) -> None:
    """Sign all the time, as the receipt signer does: look, sign, look again, let out."""
    loop, random = asyncio.get_running_loop(), world.random
    while True:
        await asyncio.sleep(0.2)
        await machine.runs()
        has_term = world.register.term is not None and world.register.term.site == site and loop.time() > 2 * LEASE_S
        if not one.in_term():
            world.unserved += has_term
            continue
        await asyncio.sleep(random.choice([0.0, 0.05, 0.5]))
        await machine.runs()
        term = world.register.term
        if not lets_out(one):
            continue
        world.signed += 1
        if term is not None and (term.site, term.log_id) != (site, log_id):
            world.wrong.append(f"{loop.time():.2f} s: site {site} signs by {log_id}, and the witness has {term}")


def lets_out(one: guard.SiteGuard) -> bool:
    """Whether a signature that was made goes out."""
    return one.in_term()


async def _strikes(world: World, machines: Sequence[Machine]) -> None:
    """Now and then one machine is frozen or cut off from the witness, or the whole site."""
    random = world.random
    while True:
        await asyncio.sleep(random.uniform(5, 40))
        until_s = asyncio.get_running_loop().time() + random.choice([0.5, 3.0, 15.0, 25.0])
        freezes = random.random() < 0.5
        for machine in random.choice([machines, machines[:1]]):
            if freezes:
                machine.frozen_until_s = until_s
            else:
                machine.cut_off_until_s = until_s


async def _cuts(machines: Sequence[Machine]) -> None:
    """Each lease another cut, of two leases."""
    while True:
        await asyncio.sleep(LEASE_S)
        until_s = asyncio.get_running_loop().time() + 2 * LEASE_S
        for machine in machines:
            machine.cut_off_until_s = until_s
        await asyncio.sleep(2 * LEASE_S)


async def _operators(world: World) -> None:
    """Somebody takes the first term. Later one site or the other is given the next, with its log or with a new copy."""
    random = world.random
    await _take(world, "a")
    while not world.calm or world.duel:
        await asyncio.sleep(0.0 if world.duel else random.choice([0.0, 0.5, 2.0, 20.0]))
        if not world.duel and random.random() < 0.1:
            world.register.forget()
        site = _other(world) if world.duel else random.choice("ab")
        if not world.duel and random.random() < 0.4:
            world.copies += 1
            world.logs[site] = f"copy-{world.copies}"
        await _take(world, site)


def _other(world: World) -> str:
    """The site that has not the term."""
    return "b" if world.register.term is None or world.register.term.site == "a" else "a"


async def _take(world: World, site: str) -> None:
    log_id, taken = world.logs[site], world.register.taken
    with suppress(SiteServes, SiteLogSuperseded, WitnessUnavailable):
        await guard.take(FarWitness(world, Machine()), site, log_id, world.clock(takes=True), lease_s=LEASE_S)
    *before, last = [term.log_id for term in taken] or [""]
    if last in before and before[-1] != last:
        world.wrong.append(f"{last} has a term again: {before}")
