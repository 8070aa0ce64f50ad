"""Completeness instead of seeds: along a short story each message and each write is lost, delayed or repeated once.

A story is a plan without weather: one notarised submission, one fail-over, one switchover, one registration. It is run
once as it is, and every message and write within its window is counted, with the ways in which it can go wrong. Then it
is run once for each of them (`singles`), and once for each two of them (`pairs`). The run is the same up to the first,
so its number names it; what comes after it differs, and the second is counted there: no pair is left out.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from random import Random

import msgspec

from tests.simulation.plan import Fault, FaultKind, Operation, Plan, ReplicaPlan, Transaction
from tests.simulation.weather import Skies
from tests.simulation.world import Outcome, World, simulate

Strikes = Mapping[int, str]  # number of a message in the window -> what becomes of it


class Met(msgspec.Struct, frozen=True):
    """A message or a write: when and whose, and what can become of it."""

    at_s: float
    name: str
    ways: tuple[str, ...]


class Story(msgspec.Struct, frozen=True):
    """A plan, and the part of it in which something goes wrong."""

    name: str
    plan: Plan
    from_s: float
    until_s: float


class CountedSkies(Skies):
    """Numbers what can go wrong within the window, and lets go wrong what is planned."""

    def __init__(self, world: CountedWorld, random: Random, views: Random) -> None:
        super().__init__(random, lambda name: world.replica(name).step(), views)
        self._world = world
        self.met: list[Met] = []

    def fate(self, name: str, ways: Sequence[str], *_: object) -> str:
        world, now_s = self._world, self._world.loop.time()
        if world.healed or not world.told.from_s <= now_s < world.told.until_s:
            return ""
        number = len(self.met)
        self.met.append(Met(now_s, name, tuple(ways)))
        what = world.planned.get(number, "")
        if what:
            self.strikes[what, ""] += 1
            world.story.tell("fault", what, target=name, number=number)
        return what

    def machine_lost(self, name: str) -> None:
        """A machine goes in the moment after a write of its index, which it loses."""
        world = self._world
        world.loop.call_soon(partial(world.lose_machine, name), context=world.context.copy())


class CountedWorld(World):
    """The world of a story, in which some messages have a fate."""

    skies: CountedSkies

    def __init__(self, plan: Plan, told: Story, planned: Strikes) -> None:
        self.told = told
        self.planned = planned
        super().__init__(plan)

    def make_skies(self, random: Random, views: Random) -> Skies:
        return CountedSkies(self, random, views)

    def lose_machine(self, name: str) -> None:
        """It starts again, without its newest write."""
        replica = self.replica(name)
        if replica.core is not None:
            replica.kill(heard_s=None)
            replica.disk.tear(1)
            replica.restart_later(after_failure=True)


class Run(msgspec.Struct, frozen=True):
    """A run of a story, and what it met."""

    outcome: Outcome
    met: list[Met]


def run(story: Story, planned: Strikes) -> Run:
    """Run a story with what is to go wrong; the checker has judged it."""
    worlds: list[CountedWorld] = []

    def make(plan: Plan) -> World:
        worlds.append(CountedWorld(plan, story, planned))
        return worlds[0]

    return Run(simulate(story.plan, make), worlds[0].skies.met)


def singles(met: Iterable[Met]) -> Iterator[tuple[int, str]]:
    """All that can go wrong once."""
    for number, one in enumerate(met):
        for way in one.ways:
            yield number, way


# ---- stories ----

_REPLICAS = tuple(ReplicaPlan(name, restart_s=0.3) for name in ("R1", "R2", "R3"))
_ELECTION = {
    "lease_s": 1.0,
    "margin_s": 0.2,
    "heartbeat_s": 0.2,
    "tick_s": 0.1,
    "answer_max_s": 0.3,
    "statement_max_s": 0.2,
    "connect_max_s": 0.5,
    "reconnect_max_s": 0.5,
    "retry_s": 0.2,
    "retry_jitter": 0.5,
    "grace_s": 0.0,
    "hold_down_s": 0.0,
    "lag_wait_max_s": 0.0,
    "catch_up_records_per_s": 5000.0,
    "drain_max_s": 0.6,
    "activation_max_s": 20.0,
    "switchover_wait_s": 1.0,
}
_CORE: dict[str, float | int] = {
    "in_flight_max": 8,
    "admit_batch_max": 8,
    "read_batch_max": 8,
    "publish_batch_max": 8,
    "publish_linger_s": 0.01,
    "read_wait_s": 0.2,
    "log_stall_max_s": 1.0,
    "log_retry_s": 0.05,
    "drain_answers_s": 0.2,
    "retry_after_s": 0.05,
}
_SHOWN_S = 30.0
_SERVED_S = 1.0  # by then one replica leads
_TRANSACTIONS = (Transaction(1, (1, 2)), Transaction(2, (2, 3)))


def _story(name: str, *faults: Fault, lasts_s: float, from_s: float = _SERVED_S, **changes: bool) -> Story:
    """Two clients want one state, 4 ms apart, from `_SERVED_S` on."""
    clients = [(Operation((number,), number, think_s=_SERVED_S + 0.004 * number),) for number in (0, 1)]
    plan = Plan(
        seed=1,
        duration_s=max(from_s + lasts_s, _SERVED_S + 0.1),
        replicas=_REPLICAS,
        election=_ELECTION,
        core=_CORE,
        transactions=(Transaction(1, (1, 2)), Transaction(2, (2, 3))),
        clients=tuple(clients),
        faults=faults,
        **changes,  # type: ignore[arg-type]
    )
    return Story(name, plan, from_s, from_s + lasts_s)


_KILLED = Fault(FaultKind.CRASH, _SERVED_S + 0.004, step="active.logged")  # a record is in the log, its answer not sent
_HANDED_OVER = Fault(FaultKind.SWITCHOVER, _SERVED_S + 0.004, step="active.logged")
STORIES = {
    story.name: story
    for story in (
        _story("submission", lasts_s=0.3),
        _story("fail-over", _KILLED, lasts_s=0.8),
        _story("switchover", _HANDED_OVER, lasts_s=0.5),
        _story("registration", lasts_s=0.2, from_s=0.15, registers=True),
        _story("submission under a lease", lasts_s=0.3, lease=True),
        _story("fail-over under a lease", _KILLED, lasts_s=1.6, lease=True),
        _story("switchover under a lease", _HANDED_OVER, lasts_s=0.5, lease=True),
    )
}


# ---- all of them ----


class Counted(msgspec.Struct):
    """What was run of a story."""

    met: int = 0  # messages and writes in the window, of the story as it is
    runs: int = 0
    strikes: dict[str, int] = {}
    broken: dict[str, str] = {}  # what was planned -> the first violation

    def add(self, other: Counted) -> None:
        """Add another one's runs."""
        self.runs += other.runs
        self.strikes = dict(Counter(self.strikes) + Counter(other.strikes))
        self.broken |= other.broken


def play(name: str, firsts: Sequence[tuple[int, str]], *, with_second: bool) -> Counted:
    """Run a story once for each of these, or with each second misfortune after it."""
    story, counted = STORIES[name], Counted()
    for first, way in firsts:
        planned: dict[int, str] = {first: way}
        met = _count(story, planned, counted)
        for second, other in singles(met) if with_second else ():
            if second > first:
                _count(story, planned | {second: other}, counted)
        if with_second:
            gc.collect()
    return counted


def _count(story: Story, planned: Strikes, counted: Counted) -> list[Met]:
    """Run and note the verdict; what was met."""
    key, met = f"{story.name} {dict(planned)}", []
    try:
        done = run(story, planned)
        met, violations = done.met, done.outcome.violations
    except Exception as error:
        violations = [f"broke the simulator: {error!r}"]
    counted.runs += 1
    for way in planned.values():
        counted.strikes[way] = counted.strikes.get(way, 0) + 1
    if violations:
        counted.broken[key] = violations[0]
    return met


def enumerate_story(name: str, *, pairs: bool = False, workers: int = 2) -> Iterator[Counted]:
    """All singles of a story, or all pairs with their singles, on several processes; the count after each chunk."""
    met = run(STORIES[name], {}).met
    firsts = list(singles(met))
    total = Counted(met=len(met))
    chunk = 1 if pairs else max(1, len(firsts) // (4 * workers))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [
            pool.submit(play, name, firsts[at : at + chunk], with_second=pairs) for at in range(0, len(firsts), chunk)
        ]
        try:
            for done in as_completed(running):
                total.add(done.result())
                yield total
        finally:
            pool.shutdown(cancel_futures=True)


def line_of(name: str, counted: Counted, what: str) -> str:
    """For people."""
    return (
        f"{name}: {counted.met} messages and writes, {counted.runs:,} runs ({what}),"
        f" {len(counted.broken)} broke a promise"
    )


def main() -> int:
    """1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.enumerated", description=__doc__)
    parser.add_argument("--story", choices=STORIES, action="append", help="instead of all")
    parser.add_argument("--pairs", action="store_true", help="each two, not only each one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    broken: dict[str, str] = {}
    runs = 0
    for name in arguments.story or STORIES:
        began_s = shown_s = time.monotonic()
        counted = Counted()
        for counted in enumerate_story(name, pairs=arguments.pairs, workers=arguments.workers):
            if time.monotonic() - shown_s > _SHOWN_S:
                shown_s = time.monotonic()
                print(f"... {name}: {counted.runs:,} runs, {len(counted.broken)} broke a promise", flush=True)
        what = "all pairs and singles" if arguments.pairs else "all singles"
        print(f"{line_of(name, counted, what)}, {time.monotonic() - began_s:.0f} s", flush=True)
        broken |= counted.broken
        runs += counted.runs
    for planned, violation in broken.items():
        print(f"BROKEN by {planned}: {violation}")
    print(f"{runs:,} runs, each judged by the checker; {len(broken)} broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
