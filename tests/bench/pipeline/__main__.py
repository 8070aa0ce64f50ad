"""`python -m tests.bench.pipeline`: the data pipeline against replay, a plain pool and the notary."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from subprocess import PIPE, Popen
from time import monotonic
from typing import Any

import msgspec
import structlog
import uvloop

from pipeline.audit.signatures import bad_signatures
from pipeline.jobs.judge import plan_log
from pipeline.jobs.slices import parquet_log
from pipeline.session import spark_session
from replica.index.rocks import verify_index
from replica.local.process import descendants
from replica.native.lanes import Check
from replica.native.signatures import checks_together, signatures_hold
from tests.bench.conditions import add_machine
from tests.bench.pipeline.archiving import measure_archive
from tests.bench.pipeline.big_log import TOPIC_ID, write_big_log
from tests.bench.pipeline.engines import ENGINES
from tests.bench.pipeline.lag import measure_lag
from tests.bench.pipeline.signed import write_signed_log
from tests.bench.report import Report

FOLDER = Path("build/bench-pipeline")
JSON = Path("build/bench-pipeline.json")
PACKAGES = ("pyspark", "pyarrow", "deltalake", "numpy", "rocksdict", "confluent-kafka", "pynacl")
SIZES, SIZES_QUICK = "1000000,10000000", "100000"
COMPARED_MAX = 10_000_000  # records, for which replay takes six minutes
BEYOND = ("spark",)
FURTHER = {"warm_s": "again", "session_s": "aside, the session's start"}
LAG_RUN_S, LAG_RUN_QUICK_S = 60, 10
SIGNED_RECORDS = 1_000_000
AUDIT_RUNS = 3
POOL_PART = 1_000  # signatures that a process of the pool takes at a time
SAMPLE_S = 1.0  # a sample walks through page tables, and holds up the processes meanwhile
ARCHIVE, AUDIT, LAG, REBUILD = PARTS = (
    "archive",
    "audit",
    "lag",
    "rebuild",
)  # in this order: the quick ones first


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pipeline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small logs for lag and rebuild: no figure of record")
    parser.add_argument("--records", help="lengths of the log that indexes are made of")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, default=JSON, help="where the figures go")
    arguments = parser.parse_args()
    parts = set(arguments.only.split(","))
    if not parts <= set(PARTS):
        parser.error(f"there is no part {', '.join(parts - set(PARTS))}")
    sizes = arguments.records or (SIZES_QUICK if arguments.quick else SIZES)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    shutil.rmtree(FOLDER, ignore_errors=True)
    report = Report()
    add_machine(report, PACKAGES)
    if ARCHIVE in parts:
        uvloop.run(measure_archive(FOLDER / "archive", report))
        report.write(arguments.json)
    if AUDIT in parts:
        measure_audit(report)
        report.write(arguments.json)
    if LAG in parts:
        asyncio.run(measure_lag(FOLDER / "lag", report, LAG_RUN_QUICK_S if arguments.quick else LAG_RUN_S))
        report.write(arguments.json)
    if REBUILD in parts:
        measure_rebuild([int(records) for records in sizes.split(",")], report, arguments.json)
    return 0


def measure_rebuild(sizes: list[int], report: Report, out: Path) -> None:
    """Every engine on the same log, each in a process of its own; all must make the same index.

    Logs above COMPARED_MAX are given to Spark alone. Replay is then estimated from the longest log that it
    was given, though a record costs it more the longer the log is. `out`: where figures go after each log.
    """
    warm_us: dict[int, float] = {}
    replay_us = 0.0
    for records in sorted(sizes):
        size = _size_name(records)
        engines = tuple(ENGINES) if records <= COMPARED_MAX or not replay_us else BEYOND
        report.section(f"Index of {records:,} records")
        took_s = _rebuild_by_each(engines, records, size, report)
        warm_us[records] = took_s.get("spark again", took_s["spark"]) / records * 1e6
        if "replay" in took_s:
            replay_us = took_s["replay"] / records * 1e6
        else:
            took_s["replay"] = replay_us * records / 1e6
        ratio = took_s["replay"] / took_s["spark"]
        label = "Spark against replay" + ("" if "replay" in engines else ", estimated")
        report.add(f"rebuild_vs_replay_{size}", round(ratio, 2), label, f"{ratio:.2f} times as fast")
        report.write(out)
    if len(warm_us) > 1:
        least, most = min(warm_us), max(warm_us)
        flatness = warm_us[most] / warm_us[least]
        label = f"Spark, cost of a record: {_size_name(most)} against {_size_name(least)}"
        report.add("rebuild_flatness", round(flatness, 2), label, f"{flatness:.2f}")
        report.write(out)


def _size_name(records: int) -> str:
    return f"{records // 1_000_000}m" if records >= 1_000_000 else str(records)


def _rebuild_by_each(engines: Sequence[str], records: int, size: str, report: Report) -> dict[str, float]:
    """Seconds of each engine that ended; "spark again": Spark's second time, its session warm."""
    folder = FOLDER / size
    write_big_log(folder / "log", records)
    took_s: dict[str, float] = {}
    digests: dict[str, str] = {}
    for engine in engines:
        found, peak_gib, disk_gb = _run_engine(engine, folder)
        report.figures[f"rebuild_{engine}_peak_gib_{size}"] = round(peak_gib, 2)
        report.figures[f"rebuild_{engine}_disk_gb_{size}"] = round(disk_gb, 1)
        took_s[engine] = found["took_s"]
        if "warm_s" in found:
            took_s[f"{engine} again"] = found["warm_s"]
        summary = verify_index(Path(found["index"]))
        digests[engine] = f"{summary.entry_count} {summary.digest.hex()} {summary.position}"
        text = f"{found['took_s']:8.1f} s   {records / found['took_s']:10,.0f} records/s"
        text += f"   peak {peak_gib:.2f} GiB, {disk_gb:.1f} GB on disk"
        further = {name: found[name] for name in FURTHER if name in found}
        for name, further_s in further.items():
            report.figures[f"rebuild_{engine}_{name}_{size}"] = round(further_s, 2)
            text += f"   {FURTHER[name]} {further_s:.1f} s"
        report.add(f"rebuild_{engine}_s_{size}", round(found["took_s"], 2), engine, text)
        shutil.rmtree(folder / engine)
    if len(set(digests.values())) != 1:
        raise SystemExit(f"the engines do not agree: {digests}")
    report.add(f"rebuild_compared_{size}", sorted(digests), "indexes that were found equal", ", ".join(digests))
    shutil.rmtree(folder)
    return took_s


def _run_engine(engine: str, folder: Path) -> tuple[dict[str, Any], float, float]:
    """What the engine reports, the most memory that its processes had at once, GiB, and the most that it added to what
    is on disk, GB."""
    command = [sys.executable, "-m", "tests.bench.pipeline.engines", engine, folder / "log", folder / engine]
    peak = peak_disk = 0
    used = shutil.disk_usage(folder).used
    with Popen([str(part) for part in command], stdout=PIPE) as process:
        ended = threading.Event()

        def sample() -> None:
            nonlocal peak, peak_disk
            while not ended.wait(SAMPLE_S):
                peak = max(peak, sum(map(_resident_bytes, (process.pid, *descendants(process.pid)))))
                peak_disk = max(peak_disk, shutil.disk_usage(folder).used - used)

        sampler = threading.Thread(target=sample)
        sampler.start()
        out, _ = process.communicate()
        ended.set()
        sampler.join()
    if process.returncode:
        raise SystemExit(f"{engine} ended with exit code {process.returncode}")
    return msgspec.json.decode(out.strip().splitlines()[-1]), peak / 2**30, peak_disk / 1e9


def _resident_bytes(pid: int) -> int:
    """Proportional share of memory, so that pages which workers share count once; 0 for one that has ended."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return 0


def measure_audit(report: Report) -> None:
    """The audit's signatures against a pool of two processes that does nothing but verify, with the same verifier.

    In turns, so that what else the machine does harms both alike.
    """
    report.section(f"Signatures of {SIGNED_RECORDS:,} requests")
    signed = write_signed_log(FOLDER / "signed", SIGNED_RECORDS)
    log = parquet_log(TOPIC_ID, signed.paths)
    _in_pool[:] = [
        part[start : start + POOL_PART] for part in signed.checks for start in range(0, len(part), POOL_PART)
    ]
    with get_context("fork").Pool(2) as pool:  # before there is a session: its threads would not be in the fork
        pool.map(_verify_part, [0, 1], chunksize=1)  # both are up
        session = spark_session("bench-audit", shuffle_partitions=2)
        plan = plan_log(session, log).plan
        bad_signatures(session, log, plan, [0, 1], after=-1).count()  # workers are up
        pool_per_s, audit_per_s = [], []
        for _ in range(AUDIT_RUNS):
            began_s = monotonic()
            held = sum(pool.imap_unordered(_verify_part, range(len(_in_pool))))
            pool_per_s.append(SIGNED_RECORDS / (monotonic() - began_s))
            began_s = monotonic()
            bad = bad_signatures(session, log, plan, range(len(log)), after=-1).count()
            audit_per_s.append(SIGNED_RECORDS / (monotonic() - began_s))
            if bad or held != SIGNED_RECORDS:
                raise SystemExit(f"{bad} signatures of the log and {SIGNED_RECORDS - held} of the pool do not hold")
        session.stop()
    _in_pool.clear()
    shutil.rmtree(FOLDER / "signed")
    lanes = checks_together()
    report.add("signatures_in_lanes", lanes, "verifier of both", "eight at a time" if lanes else "one by one")
    pool_median = report.add_runs(
        "pool_signatures_per_s", pool_per_s, "two processes, the verifier alone", "signatures/s"
    )
    audit_median = report.add_runs("audit_signatures_per_s", audit_per_s, "audit on Spark", "signatures/s")
    ratio = audit_median / pool_median
    report.add("audit_vs_pool_ratio", round(ratio, 3), "audit against the pool", f"{ratio:.2f}")


_in_pool: list[list[Check]] = []  # what the processes of the pool verify; they inherit it


def _verify_part(number: int) -> int:
    return sum(signatures_hold(_in_pool[number]))


if __name__ == "__main__":
    sys.exit(main())
