"""Client processes under a fault: started, watched through the history they write, stopped."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns

import msgspec

from replica.local.cluster import LocalCluster
from replica.local.process import until
from replica.local.replica import ReplicaProcess
from tests.faults.client import ATTEMPT_MAX_S, ClientOrder, given_up_path
from tests.promises import PromiseBroken

BEGIN_MAX_S = 60.0
STOP_MAX_S = 60.0
_OK = b'{"type":"ok"'


class LoadBroken(PromiseBroken):
    """A client was not served at all, ended by itself, or did not end when its time was over.

    Each bound is a minute or more, far above the delays of a busy machine, so the scenario is not tried again.
    """


@dataclass(frozen=True, slots=True)
class Outage:
    """From the last success that was answered before the service stopped to the first one after; seconds."""

    outage_s: float
    fault_to_success_s: float


class ClientLoad:
    """One client process. `stop` returns once every attempt under way has ended, in the history as well."""

    def __init__(self, order: ClientOrder) -> None:
        self.name = order.process
        self.history = Path(order.history)
        self._order = order
        self._successes_ns: list[int] = []
        self._read_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to submit."""
        argv = [sys.executable, "-m", "tests.faults.client"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._order) + b"\n")
        self._process.stdin.flush()

    async def stop(self) -> None:
        """Close its input, and wait for the end. Raises LoadBroken when the client failed. May be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            code = await asyncio.to_thread(process.wait, self._order.give_up_s + ATTEMPT_MAX_S + STOP_MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise LoadBroken(f"{self._order.process} did not stop") from None
        if code != 0:
            raise LoadBroken(f"{self._order.process} ended with code {code}")

    def given_up(self) -> int:
        """Submissions that had no final answer when their client's patience was over; known once it has stopped."""
        return int(given_up_path(self.history).read_text())

    def successes_ns(self) -> list[int]:
        """When each success was answered, so far, in order."""
        if self.history.exists():
            with self.history.open("rb") as file:
                file.seek(self._read_bytes)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # the client is writing it
                    self._read_bytes += len(line)
                    if line.startswith(_OK):
                        self._successes_ns.append(int(json.loads(line)["at_ns"]))
            self._successes_ns.sort()
        return self._successes_ns

    async def begun(self) -> None:
        """Return once a first submission has succeeded. Raises LoadBroken."""

        async def success() -> bool:
            return bool(self.successes_ns())

        try:
            async with asyncio.timeout(BEGIN_MAX_S):
                await until(success)
        except TimeoutError:
            raise LoadBroken(f"{self._order.process} had no success within {BEGIN_MAX_S:g} s") from None


def client_load(
    cluster: LocalCluster, process: str, behind: ReplicaProcess | None = None, **changes: int
) -> ClientLoad:
    """A client of the endpoint or, past HAProxy, of one replica; `process` is its name in the history."""
    endpoint = cluster.endpoint
    if behind is not None:
        endpoint = f"http://{behind.address.host}:{behind.address.api_port}"
    order = ClientOrder(
        endpoint=endpoint,
        process=process,
        history=str(cluster.folder / f"history-{process}.jsonl"),
        parties=[(party.name, bytes(party.key)) for party in cluster.parties],
        ledger_id=cluster.ledger_id,
        seed=monotonic_ns(),  # a cluster may have a log already: nothing is to occur twice
        replica=None if behind is None else behind.name,
    )
    return ClientLoad(msgspec.structs.replace(order, **changes))


def outage_around(successes_ns: list[int], fault_ns: int, until_ns: int | None = None) -> Outage:
    """The longest pause between successes that ended after the fault and, if that is given, before `until_ns`.

    Answers may still come in for a moment after the fault, so the pause need not begin with it. Raises LoadBroken when
    there was no success before, or none after.
    """
    seen = [at_ns for at_ns in successes_ns if until_ns is None or at_ns <= until_ns]
    pauses = [(after - before, after) for before, after in pairwise(seen) if after > fault_ns]
    if not pauses:
        raise LoadBroken("no success before the fault, or none after it")
    longest_ns, ended_ns = max(pauses)
    return Outage(longest_ns / 1e9, (ended_ns - fault_ns) / 1e9)
