"""What the project's own log nodes do: three processes on this machine, no replica around them.

As in service, every record is synced on two nodes before it counts, hashed into the log's tree, and signed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter

from ha.raft.messages import Kind
from replica.log.raft.client import LogClient
from replica.log.raft.settings import LogNodeSettings
from tests.bench.conditions import add_machine
from tests.bench.report import Report, number, quantiles
from tests.bench.sizes import Sizes
from tests.lognode.real_nodes import GROUP, Nodes, bodies_of

PACKAGES = ("msgspec", "uvloop", "pynacl")
RECORD_BYTES = 430
CALL_RECORDS = 500
CALLS_OPEN = 16
SYNC_PROBES = 200
LATENCY_RECORDS = 1_000
LATENCY_GAP_S = 0.002
READ_WAIT_MS = 1_000
_POOL_BYTES = 2**24
_MIB = 2**20
_FILL_S = 2.0
_SEALED_MAX_S = 120.0
_DISK_FILES = 9
_SEGMENT_MIB = 64


def payloads() -> Iterator[bytes]:
    """Records of which no two are the same, and that do not compress."""
    pool, room = os.urandom(_POOL_BYTES), RECORD_BYTES - 8
    for number_of in count():
        at = number_of * 37 % (_POOL_BYTES - room)
        yield number_of.to_bytes(8, "big") + pool[at : at + room]


async def measure_log_nodes(folder: Path, sizes: Sizes, report: Report) -> None:
    """Throughput, read-back, memory, and how fast a new member gets the log."""
    shutil.rmtree(folder, ignore_errors=True)
    defaults = LogNodeSettings(group=GROUP, name="r1", listen="127.0.0.1:1", data_dir=folder)
    service = ("message_timeout_ms", "election_timeout_ms", "segment_bytes", "entry_max_bytes")
    nodes = Nodes(folder, 4, change_max_s=600.0, **{name: getattr(defaults, name) for name in service})
    add_machine(report, PACKAGES)
    _add_conditions(nodes, defaults, report)
    try:
        await nodes.start_group(nodes.names[:3])
        await _measure_throughput(nodes, sizes, report)
        await _measure_read_back(nodes, report)
        _measure_memory(nodes, report)
        await _measure_joining(nodes, sizes, report)
    finally:
        nodes.stop_all()


def _add_conditions(nodes: Nodes, settings: LogNodeSettings, report: Report) -> None:
    sync_ms = _sync_ms(nodes.folder)
    report.add("raft_sync_ms", sync_ms, "fdatasync of 64 KiB on this disk", f"p50 {sync_ms:.2f} ms")
    timeouts = f"{settings.message_timeout_ms} and {settings.election_timeout_ms} ms"
    report.line("three log nodes", f"one process each, loopback, no TLS; message and election timeout {timeouts}")
    report.line(
        "each record", f"{RECORD_BYTES} bytes, all different; synced on two nodes before it counts; hashed, signed"
    )
    report.line("load", f"one client, {CALLS_OPEN} calls of {CALL_RECORDS} records open at a time")


async def _fill(nodes: Nodes, leader: str, records: int) -> None:
    """Append until the log has so many, and wait until each node has sealed its full segments."""
    client, bodies = await nodes.client(leader), payloads()
    while (await client.end()).records < records:
        await _load(client, bodies, _FILL_S)
    await client.close()
    for name in nodes.names[:3]:
        async with asyncio.timeout(_SEALED_MAX_S):
            while len(nodes.segments(name)) > len(list(nodes.disk(name).glob("*.seal"))) + 1:
                await nodes.append([b"one more"])  # a node looks at its segments as it writes
                await asyncio.sleep(0.05)


def _disk_mb_s(folder: Path) -> float:
    """Of the same kind of work: files of a segment's size, each synced, median of several."""
    data, took = os.urandom(_MIB), list[float]()
    for _ in range(_DISK_FILES):
        with tempfile.TemporaryFile(dir=folder) as file:
            began_s = perf_counter()
            for _ in range(_SEGMENT_MIB):
                file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
            took.append(perf_counter() - began_s)
    return round(_SEGMENT_MIB * _MIB / median(took) / 1e6, 1)


def _sync_ms(folder: Path) -> float:
    took: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_PROBES):
            file.write(bytes(2**16))
            file.flush()
            began_s = perf_counter()
            os.fdatasync(file.fileno())
            took.append((perf_counter() - began_s) * 1_000)
    return round(median(took), 3)


async def _measure_throughput(nodes: Nodes, sizes: Sizes, report: Report) -> None:
    report.section("The replicated log: records committed a second")
    client = await nodes.client(await nodes.leader())
    records, acknowledged = payloads(), 0
    runs: list[float] = []
    for seconds in (sizes.run_s / 2, *[sizes.run_s] * sizes.runs):
        committed, took_s = await _load(client, records, seconds)
        acknowledged += committed
        runs.append(committed / took_s)
    report.add_runs("raft_records_s", runs[1:], "committed, three nodes", "records/s")
    view = (await client.status())["current_view"]
    report.add("raft_views", view, "view at the end: 2 where nobody was replaced", str(view))
    end = (await client.end()).idx
    await client.close()
    for name in nodes.names[:3]:
        found = await _count(nodes, name, end)
        if found != acknowledged:
            raise AssertionError(f"{name} has {found} records, {acknowledged} were acknowledged")
    report.line("read back from each node's disk", f"{acknowledged:,} records, all that were acknowledged")


async def _load(client: LogClient, records: Iterator[bytes], seconds: float) -> tuple[int, float]:
    began_s, committed = monotonic(), 0

    async def call_on() -> None:
        nonlocal committed
        while monotonic() - began_s < seconds:
            bodies = [next(records) for _ in range(CALL_RECORDS)]
            await client.append(bodies)
            committed += len(bodies)

    await asyncio.gather(*(call_on() for _ in range(CALLS_OPEN)))
    return committed, monotonic() - began_s


async def _count(nodes: Nodes, name: str, end: int) -> int:
    client, at, found = await nodes.client(name), 0, 0
    while at < end:
        entries, _ = await client.read(at + 1, end, wait_ms=READ_WAIT_MS)
        found += sum(entry.kind is Kind.RAW for entry in entries)
        at += len(entries)
    await client.close()
    return found


async def _measure_read_back(nodes: Nodes, report: Report) -> None:
    report.section("The replicated log: from an append until it is read from a node's own disk, one record at a time")
    leader = await nodes.leader()
    follower = next(name for name in nodes.names[:3] if name != leader)
    for name, label in ((leader, "leader"), (follower, "follower")):
        took_ms = await _read_back(nodes, leader, name)
        figures = {f"p{share}": took_ms[len(took_ms) * share // 100] for share in (50, 90, 99)}
        report.add(f"raft_read_back_{label}_p50_ms", round(figures["p50"], 3), f"on the {label}", quantiles(figures))


async def _read_back(nodes: Nodes, leader: str, name: str) -> list[float]:
    writer, reader = await nodes.client(leader), await nodes.client(name)
    at = (await writer.end()).idx
    sent: dict[bytes, float] = {}
    took_ms: list[float] = []

    async def read_on() -> None:
        nonlocal at
        while len(took_ms) < LATENCY_RECORDS:
            entries, _ = await reader.read(at + 1, wait_ms=READ_WAIT_MS)
            now_s = perf_counter()
            at += len(entries)
            took_ms.extend((now_s - sent[body]) * 1_000 for body in bodies_of(entries))

    reading = asyncio.create_task(read_on())
    for _, body in zip(range(LATENCY_RECORDS), payloads(), strict=False):
        sent[body] = perf_counter()
        await writer.append([body])
        await asyncio.sleep(LATENCY_GAP_S)
    async with asyncio.timeout(60):
        await reading
    await writer.close()
    await reader.close()
    return sorted(took_ms)


def _measure_memory(nodes: Nodes, report: Report) -> None:
    report.section("The replicated log: memory of each node")
    for figure, field, label in (("raft_rss_mib", "VmRSS", "resident now"), ("raft_rss_peak_mib", "VmHWM", "at most")):
        found = [_memory_mib(process.pid, field) for process in nodes.running.values()]
        report.add(figure, max(found), label, " ".join(number(value) for value in found) + " MiB")


def _memory_mib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith(field))
    return round(kib / 1_024, 1)


async def _measure_joining(nodes: Nodes, sizes: Sizes, report: Report) -> None:
    report.section("The replicated log: a new member")
    leader = await nodes.leader()
    await _fill(nodes, leader, sizes.join_records)
    disk_mb_s = _disk_mb_s(nodes.folder)
    report.add("raft_disk_write_mb_s", disk_mb_s, "this disk takes, one file, synced", f"{number(disk_mb_s)} MB/s")
    size = sum(path.stat().st_size for path in nodes.segments(leader))
    entries = (await nodes.status(leader) or {})["last_idx"]
    nodes.start("r4")
    states = await nodes.until(lambda states: len(states) == 4 and len(states["r4"]["connected"]) == 3)
    began_s = monotonic()
    await nodes.change(leader, [str(state["node_id"]) for state in states.values()])
    took_s = monotonic() - began_s
    speed = size / took_s / 1e6
    report.add("raft_join_mb_s", round(speed, 1), "log copied to it", f"{number(speed)} MB/s")
    share = speed / disk_mb_s
    report.add("raft_join_share_of_disk", round(share, 2), "of what the disk takes", f"{share:.0%}")
    (line,) = nodes.lines("r4", "log_segments_copied")
    report.line("copied as whole segments", f"{line['entries']:,} of them; the rest one by one")
    report.line("until it is a member", f"{took_s:.1f} s for {entries:,} entries, {size / _MIB:,.0f} MiB")
