"""What machines a load needs, from what the bench measured of the parts: arithmetic over figures, and no others.

Costs are taken to grow in step with the rate. They were measured at full load: a slower stream makes smaller batches,
and each submission costs more, but then there is room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite

UTILISATION = 0.6  # of processors and of memory, at the target
FREE_SHARE = 1 / 3  # of every volume
FRONT_ENDS_MIN = 2
DAY_S = 86_400
ACTIVE_CORE, ACTIVE_FRONT_ENDS = "active core", "active front ends"
PASSIVE_CORE, PASSIVE_FRONT_ENDS = "passive core", "passive front ends"
LEADING_BROKER, FOLLOWING_BROKER = "leading broker", "following broker"
PRIMARY, STANDBY, HAPROXY = "Postgres", "Postgres standby", "HAProxy"
REQUEST_LOG, INDEX = "request log, a broker", "index, a replica"
COMPLETIONS = "completions, a database"
CLIENTS_IN, CLIENTS_OUT = "clients to HAProxy", "HAProxy to clients"
WAL = "Postgres primary to standby"
WAYS = (CLIENTS_IN, CLIENTS_OUT, WAL)
PLACES = (REQUEST_LOG, INDEX, COMPLETIONS)


class SizingError(ValueError):
    """The figures or the target allow no answer; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Each:
    """One figure for single requests and one for batches."""

    single: float
    batch: float

    def __post_init__(self) -> None:
        if not all(isfinite(value) and value >= 0 for value in (self.single, self.batch)):
            raise SizingError(f"neither nought nor more: {self}")

    def times(self, other: Each | float) -> Each:
        """Each figure by the other's, or both by one number."""
        by = other if isinstance(other, Each) else Each(other, other)
        return Each(self.single * by.single, self.batch * by.batch)


@dataclass(frozen=True, slots=True)
class Part:
    """What the processes of one part use on one machine."""

    processes: int
    cpu_us: Each  # processor time per submission
    memory_mib: float  # the most at once; what processes share counts once


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run found, on a cluster like the reference deployment. Raises SizingError unless it is complete."""

    tps: Each  # submissions a second, at which the rest was measured
    parts: Mapping[str, Part]
    core_thread_us: Each  # of the busiest thread of the active core, per submission
    disk_bytes: Mapping[str, float]  # a transaction, in each place that keeps it
    network_bytes: Mapping[str, Each]  # a submission, on each way

    def __post_init__(self) -> None:
        needed = {part for role in ROLES for part in role.parts}
        missing = (
            (needed - set(self.parts)) | (set(PLACES) - set(self.disk_bytes)) | (set(WAYS) - set(self.network_bytes))
        )
        if missing:
            raise SizingError(f"not measured: {', '.join(sorted(missing))}")
        sizes = [*(part.memory_mib for part in self.parts.values()), *self.disk_bytes.values()]
        if not all(isfinite(size) and size >= 0 for size in sizes):
            raise SizingError(f"sizes that are neither nought nor more: {sizes}")
        if any(part.processes < 1 for part in self.parts.values()):
            raise SizingError("a part without a process")
        if not (self.core_thread_us.single and self.core_thread_us.batch):
            raise SizingError("the busiest thread of the active core used nothing")


@dataclass(frozen=True, slots=True)
class Role:
    """A machine of the reference deployment: what runs on it and what it keeps."""

    name: str
    machines: int
    parts: tuple[str, ...]
    keeps: Mapping[str, int]  # place: how many times its size it may take


_DATABASE = {COMPLETIONS: 1}
_INDEX = {INDEX: 2}  # RocksDB keeps old and new files while it compacts
ROLES = (
    Role("replica, active", 1, (ACTIVE_CORE, ACTIVE_FRONT_ENDS), _INDEX),
    Role("replica, passive", 2, (PASSIVE_CORE, PASSIVE_FRONT_ENDS), _INDEX),
    Role("broker that leads", 1, (LEADING_BROKER,), {REQUEST_LOG: 1}),
    Role("broker that follows", 2, (FOLLOWING_BROKER,), {REQUEST_LOG: 1}),
    Role("Postgres primary", 1, (PRIMARY,), _DATABASE),
    Role("Postgres standby", 1, (STANDBY,), _DATABASE),
    Role("HAProxy that has the address", 1, (HAPROXY,), {}),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine of a role needs."""

    role: Role
    cores: Each  # so that the target keeps UTILISATION of them busy
    memory_mib: float  # likewise; the page cache comes on top
    volume_bytes: float  # a transaction, with FREE_SHARE of the volume left free


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a target needs, all in all."""

    front_ends: int  # of each replica: `api_workers`
    core_thread_busy: Each  # share of its time in which the busiest thread of the active core works; 1 is the end
    machines: tuple[Machine, ...]


def deployment_for(measured: Measured, target: Each) -> Deployment:
    """The machines for a target in submissions a second, single or batched, not both at once.

    Raises SizingError for a target of nothing, and for one beyond what the busiest thread of the active core can do:
    no further processor helps there.
    """
    if not (target.single > 0 and target.batch > 0):
        raise SizingError(f"a target is a rate above nought, in submissions a second: {target}")
    busy = measured.core_thread_us.times(target).times(1e-6)
    if max(busy.single, busy.batch) > 1:
        ends = highest_target(measured)
        raise SizingError(
            f"beyond one active core, whose busiest thread ends at {ends.single:,.0f} single requests or "
            f"{ends.batch:,.0f} batched submissions a second: lower the target"
        )
    cores = {name: part.cpu_us.times(target).times(1e-6 / UTILISATION) for name, part in measured.parts.items()}
    wanted = cores[ACTIVE_FRONT_ENDS]
    front_ends = max(FRONT_ENDS_MIN, ceil(wanted.single), ceil(wanted.batch))
    machines = tuple(
        Machine(
            role=role,
            cores=Each(sum(cores[part].single for part in role.parts), sum(cores[part].batch for part in role.parts)),
            memory_mib=sum(_memory_mib(measured, part, front_ends) for part in role.parts) / UTILISATION,
            volume_bytes=sum(measured.disk_bytes[place] * times for place, times in role.keeps.items())
            / (1 - FREE_SHARE),
        )
        for role in ROLES
    )
    return Deployment(front_ends, busy, machines)


def highest_target(measured: Measured) -> Each:
    """The rates at which the busiest thread of the active core has no time left."""
    return Each(1e6 / measured.core_thread_us.single, 1e6 / measured.core_thread_us.batch)


def _memory_mib(measured: Measured, name: str, front_ends: int) -> float:
    part = measured.parts[name]
    grows = name in (ACTIVE_FRONT_ENDS, PASSIVE_FRONT_ENDS)
    return part.memory_mib * front_ends / part.processes if grows else part.memory_mib
