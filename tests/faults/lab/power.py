"""The lab on disks that lose at a power cut what was not synced: one for each machine that keeps anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Any

from replica.local.cluster import LOG_FOLDER, POSTGRES_FOLDER, STANDBY_FOLDER, LogKind
from replica.local.kafka import KafkaBroker
from replica.local.log_nodes import FOLDER as NODES_FOLDER
from replica.local.postgres import PostgresServer
from tests.faults.lab.brokers import START_MAX_S
from tests.faults.lab.lab import BALANCER, BROKERS, DATABASES, REPLICAS, Lab, machines_of
from tests.faults.lab.namespaces import Namespaces
from tests.lossy_disk import LossyDisks, freeze

_DATABASE_FOLDERS = dict(zip((POSTGRES_FOLDER, STANDBY_FOLDER), DATABASES, strict=True))


def machines_with_disks(log: LogKind, embedded: bool) -> tuple[str, ...]:
    """All machines but the balancer's, which keeps nothing."""
    return tuple(name for name in machines_of(log, embedded) if name != BALANCER)


class LabOnDisks(Lab):
    """A lab whose machines can lose power, all together or some."""

    def __init__(
        self,
        disks: LossyDisks,
        folder: Path,
        network: Namespaces,
        log: LogKind,
        embedded: bool,
        further: Mapping[str, Any],
    ) -> None:
        super().__init__(folder, network, log, embedded, further)
        self.disks = disks

    async def start(self) -> None:
        """As every cluster. What its servers keep lies on their machines' disks; what they print does not."""
        for name in REPLICAS:
            place = self._on_disk(name, "replica")
            (place / "replica.log").symlink_to(self.folder / f"{name}.log")
            _link(self.folder / "replicas" / name, place)
        if self.settings.log == "kafka":
            for number, name in enumerate(BROKERS, start=1):
                _link(self.folder / LOG_FOLDER / f"broker-{number}" / "data", self._on_disk(name, "data"))
        if not self.settings.embedded:
            for folder, name in _DATABASE_FOLDERS.items():
                _link(self.folder / folder / "data", self._on_disk(name, "postgres") / "data")  # the server makes it
        await super().start()

    def _make_log_nodes(self) -> None:
        super()._make_log_nodes()
        for name in REPLICAS:  # not earlier: a node that has a folder is taken for one that has its log
            _link(self.folder / NODES_FOLDER / name, self._on_disk(name, "log"))

    def _on_disk(self, machine: str, name: str) -> Path:
        """A new folder on a machine's disk."""
        place = self.disks[machine].folder / name
        place.mkdir()
        return place

    # ---- power ----

    async def lose_power(self, *machines: str) -> None:
        """These machines lose power at this moment, and the disks that were armed lose what was not synced.

        First all their processes stand still, so that nothing is answered between the cut of one disk and another's.
        """
        freeze([pid for name in machines for pid in self._pids(name)])
        self.disks.cut()
        await asyncio.gather(*(end for name in machines for end in self._ends(name)))

    async def power_on(self, *machines: str) -> int:
        """All parts of these machines start, as a service manager starts them; their disks are attached again.

        Returns the moment, monotonic ns, from which on they started.
        """
        moment_ns = monotonic_ns()
        await asyncio.gather(*(start for name in machines for start in self._starts(name)))
        return moment_ns

    def _pids(self, machine: str) -> list[int]:
        if machine in REPLICAS:
            found = [self.replicas[machine], *self._node(machine)]
            return [one.pid for one in found if one.running]
        process = self.haproxy.process if machine == BALANCER else self._server(machine).process
        return [process.pid] if process.running else []

    def _ends(self, machine: str) -> list[Awaitable[None]]:
        if machine in REPLICAS:
            return [self.replicas[machine].kill(), *(node.kill() for node in self._node(machine))]
        return [(self.haproxy if machine == BALANCER else self._server(machine)).process.kill()]

    def _starts(self, machine: str) -> list[Awaitable[None]]:
        if machine in REPLICAS:
            return [_begin(one) for one in (*self._node(machine), self.replicas[machine])]
        if machine == BALANCER:
            return [self.haproxy.start()]
        server = self._server(machine)
        return [server.start() if isinstance(server, PostgresServer) else _start_broker(server)]

    def _node(self, machine: str) -> list[Any]:
        return [self.log_nodes[machine]] if machine in self.log_nodes else []

    def _server(self, machine: str) -> PostgresServer | KafkaBroker:
        if machine in BROKERS:
            return self.kafka.brokers[BROKERS.index(machine)]
        servers = (self.postgres, self._standby())
        return next(server for server in servers if self.machine_of(server) == machine)


def _link(path: Path, place: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(place)


async def _begin(part: Any) -> None:
    part.start()


async def _start_broker(broker: KafkaBroker) -> None:
    broker.process.start()
    await broker.process.wait_ready(broker.listens, START_MAX_S)
