"""The index in memory beside RocksDB: what a restart takes, what a state takes of memory, what applying a record takes.

    python -m tests.bench.memory_index --records 1000000,2000000

Each index has a process of its own, which applies the same kind of log, records of rules 2 with four inputs each, in
runs as a follower reads them. An index in memory begins with nothing, so its restart is that again; RocksDB's is closed
and opened. No log is read: records are made beforehand, a part at a time, outside what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Literal

from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.index.rocks import RocksIndex
from tests.bench.filler import filling
from tests.bench.report import Report, number
from tests.bench.usage import memory_mib

Kind = Literal["memory", "rocksdb"]
INPUTS = 4
PER_RUN = 1_000  # records that a follower applies at a time when it catches up
PART = 50_000  # records that are made at a time
TOPIC = "memory-index"


@dataclass(frozen=True, slots=True)
class Found:
    """Of one index, after so many records."""

    records: int
    apply_us: float  # a record, wall clock
    apply_cpu_us: float  # a record, with RocksDB's own threads
    memory_bytes: float  # a state, above that of an empty process
    restart_s: float

    @property
    def states(self) -> int:
        """States that were consumed."""
        return self.records * INPUTS


def fill(kind: Kind, records: int, folder: Path) -> Found:
    """Apply so many records in this process."""
    index = MemoryIndex() if kind == "memory" else RocksIndex(folder)
    applier, values = Applier(index, TOPIC), filling(1, records, INPUTS)
    before_mib, offset, took_s, cpu_s = _memory_mib(), 0, 0.0, 0.0
    while part := list(islice(values, PART)):
        log = list(enumerate(part, start=offset))
        offset += len(part)
        began_s, cpu_began_s = perf_counter(), process_time()
        for at in range(0, len(log), PER_RUN):
            applier.apply(log[at : at + PER_RUN])
        took_s += perf_counter() - began_s
        cpu_s += process_time() - cpu_began_s
    del log
    used_bytes = (_memory_mib() - before_mib) * 2**20
    restart_s = took_s
    if kind == "rocksdb":
        index.close()
        began_s = perf_counter()
        again = RocksIndex(folder)
        assert again.position() == applier.position
        restart_s = perf_counter() - began_s
        again.close()
    return Found(records, 1e6 * took_s / records, 1e6 * cpu_s / records, used_bytes / (records * INPUTS), restart_s)


def _memory_mib() -> float:
    return memory_mib({"this": [os.getpid()]})["this"]


def tell(found: dict[Kind, Found], report: Report) -> None:
    """The figures of one length of the log."""
    for kind, one in found.items():
        name = f"index_{kind}_{one.states}"
        label = f"{number(one.states)} states, {kind}"
        spent = f"{one.apply_us:.1f} µs a record ({one.apply_cpu_us:.1f} of processors)"
        shown = f"{spent}, {one.memory_bytes:.0f} bytes a state, restart {one.restart_s:.2f} s"
        report.add(f"{name}_apply_us", round(one.apply_us, 2), label, shown)
        report.figures[f"{name}_memory_bytes"] = round(one.memory_bytes)
        report.figures[f"{name}_restart_s"] = round(one.restart_s, 3)
    ratio = found["rocksdb"].apply_us / found["memory"].apply_us
    report.add(
        f"index_memory_speed_{found['memory'].states}",
        round(ratio, 2),
        "  applying, memory over RocksDB",
        f"{ratio:.2f}",
    )


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory_index", description=__doc__)
    parser.add_argument("--records", default="500000,1000000,2000000", help="lengths of the log, with commas")
    parser.add_argument("--json", type=Path, default=Path("build/memory-index.json"))
    parser.add_argument("--one", nargs=2, metavar=("KIND", "RECORDS"), help="one index, in this process; prints JSON")
    given = parser.parse_args()
    if given.one is not None:
        with TemporaryDirectory(prefix="memory-index-") as folder:
            print(json.dumps(asdict(fill(given.one[0], int(given.one[1]), Path(folder) / "index"))))
        return 0
    report = Report()
    report.section(f"An index in memory beside RocksDB, {INPUTS} inputs a record, load {os.getloadavg()[0]:.1f}")
    kinds: tuple[Kind, ...] = ("memory", "rocksdb")
    for records in map(int, given.records.split(",")):
        tell({kind: _apart(kind, records) for kind in kinds}, report)
    report.write(given.json)
    return 0


def _apart(kind: Kind, records: int) -> Found:
    """`fill` in a process of its own, whose memory is nobody else's."""
    argv = [sys.executable, "-m", "tests.bench.memory_index", "--one", kind, str(records)]
    return Found(**json.loads(subprocess.run(argv, check=True, capture_output=True).stdout))


if __name__ == "__main__":
    sys.exit(main())
