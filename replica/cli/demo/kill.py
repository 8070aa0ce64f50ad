"""Kill the active replica under load, and measure the outage."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic_ns

from ledger_api.client import Party, Result
from replica.cli.demo.phases import EXAMPLES_MAX, fresh_state
from replica.local.cluster import LocalCluster
from replica.local.kept import Say
from replica.local.process import ServerFailed
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, NotNow
from replica.notary.requests import TX_ID_BYTES

WORKERS = 32
BEFORE_S = 1.5
AFTER_S = 1.5


@dataclass(slots=True)
class KillResult:
    """What the kill did. Times in seconds; an attempt without a definite answer is counted by its code."""

    killed: str
    successor: str = ""
    epoch_before: int = 0
    epoch_after: int = 0
    outage_s: float = 0.0  # between two successes: the last one before, the first one after
    kill_to_success_s: float = 0.0
    submitted: int = 0
    notarised: int = 0
    attempts_unanswered: dict[str, int] = field(default_factory=dict)
    activation_steps_s: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every request was notarised in the end."""
        return self.notarised == self.submitted


class Load:
    """Requests that each consume a state of their own, from WORKERS at a time, until stopped.

    `acknowledged`: the offset that each notarised transaction was answered with.
    """

    def __init__(self, client: RecordingClient, parties: Sequence[Party], result: KillResult) -> None:
        self._client = client
        self._parties = parties
        self._result = result
        self._stopping = False
        self._unanswered: Counter[str] = Counter()
        self.success_ns: list[int] = []
        self.acknowledged: dict[bytes, int] = {}

    async def run(self) -> None:
        """Submit until `stop`."""
        self._client.on_answer = self._note
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(self._parties[number % len(self._parties)]))
        self._client.on_answer = lambda answer, at_ns: None
        self._result.attempts_unanswered = dict(self._unanswered)

    def stop(self) -> None:
        """Let what was submitted be answered, and submit no more."""
        self._stopping = True

    async def _work(self, party: Party) -> None:
        result = self._result
        while not self._stopping:
            tx_id = os.urandom(TX_ID_BYTES)
            submission = party.sign(tx_id, [fresh_state()])
            result.submitted += 1
            answer = await self._client.submit(submission)
            if isinstance(answer, Notarised):
                result.notarised += 1
                self.acknowledged[tx_id] = answer.log_offset
            elif len(result.wrong) < EXAMPLES_MAX:
                result.wrong.append(f"{submission.command_id}: {answer!r:.500}")

    def _note(self, answer: Result, at_ns: int) -> None:
        if isinstance(answer, Notarised):
            self.success_ns.append(at_ns)
        elif isinstance(answer, NotNow):
            self._unanswered[answer.code] += 1


async def kill_the_active(
    cluster: LocalCluster, client: RecordingClient, parties: Sequence[Party], say: Say
) -> KillResult:
    """SIGKILL for core and front ends of the active replica under load; returns once another one has served a while.

    Raises ServerFailed when there is no active replica, or none comes.
    """
    active = await cluster.active()
    if active is None:
        raise ServerFailed("no replica is active")
    result = KillResult(active.name, epoch_before=await _epoch_of(cluster, active.name))
    load = Load(client, parties, result)
    running = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(BEFORE_S)
        beside = ", and the log node beside it" if cluster.log_nodes else ""
        say("kill", f"SIGKILL for {active.name}: its core and its front ends{beside}, while {WORKERS} clients submit")
        killed_ns = monotonic_ns()
        cluster.kill(active.name)
        successor = await cluster.wait_for_active(other_than=active.name)
        result.successor = successor.name
        await asyncio.sleep(AFTER_S)
    finally:
        load.stop()
        await running
    health = (await cluster.healths())[successor.name]
    if health is not None:
        result.epoch_after, result.activation_steps_s = health.epoch, health.activation_steps_s
    result.outage_s, result.kill_to_success_s = outage(load.success_ns, killed_ns)
    say("kill", f"{successor.name} took over; outage {result.outage_s:.3f} s, from the last success to the first one")
    return result


def outage(success_ns: Iterable[int], fault_ns: int) -> tuple[float, float]:
    """The longest pause between two successes that ended after the fault, and the time from the fault to its end.

    Answers may still come in for a moment after the fault, so the pause need not begin with it. Raises ServerFailed
    when no success came after the fault, or none before.
    """
    pauses = [(after - before, after) for before, after in pairwise(sorted(success_ns)) if after > fault_ns]
    if not pauses:
        raise ServerFailed("no request was notarised before the fault, or none after it")
    longest_ns, ended_ns = max(pauses)
    return longest_ns / 1e9, (ended_ns - fault_ns) / 1e9


async def _epoch_of(cluster: LocalCluster, name: str) -> int:
    health = (await cluster.healths())[name]
    return 0 if health is None else health.epoch
