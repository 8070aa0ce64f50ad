"""The head row beside watermarks: throughput, read-back latency, and how long readers stand still for one writer.

`python -m tests.bench.sequencing`: one Postgres server on loopback; the commit takes 0, 4 or 10 ms longer, as with a
standby so far away. It prints the table of docs/decisions/0013. Writers that are killed or frozen are processes of
their own: `python -m tests.bench.sequencing write KIND DSN NODE`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import psycopg
import structlog
import uvloop

from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.log.postgres import install as head_row
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.settings import PostgresLogSettings
from tests.bench import watermarks
from tests.bench.watermarks import WatermarkLog

COMMITS_MS = (0, 4, 10)
WRITERS = (1, 3)
RECORD_BYTES = 430
RATE_S = 4.0
SINGLES = 150
IN_FLIGHT_MAX = 10_000
STALL_LOOK_S = 10.0
STALLS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
BEGIN_MAX_S = 60.0  # until all writers' processes append
# What a commit waits for, while its locks are held: it runs when everything else of the transaction is done.
SLOW = """
CREATE FUNCTION public.wait_for_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION public.wait_for_commit();
"""


async def measure(dsn: str, kind: str, writers: int) -> dict[str, float]:
    """One log, of either kind, with so many writers."""
    log = log_of(kind, dsn)
    values = [Random(number).randbytes(RECORD_BYTES) for number in range(2_000)]
    reader = await log.open_reader(0)
    handles = [await log.open_writer() for _ in range(writers)]
    rate = await _rate(reader, handles, values)
    singles = sorted([await _single(reader, handles[at % writers], values[at]) for at in range(SINGLES)])
    found = {"records_per_s": rate, "p50_ms": singles[SINGLES // 2] * 1e3, "p99_ms": singles[SINGLES * 99 // 100] * 1e3}
    for handle in handles if writers > 1 else ():
        await handle.close()
    for node, (how, number) in enumerate(STALLS.items() if writers > 1 else (), 1):
        found[f"{how}_s"] = await _stall(reader, kind, dsn, writers * node, writers, number)
    await log.close()
    return found


def log_of(kind: str, dsn: str, node: int = 0) -> Any:
    """One of the two logs. `node`: the index of its first writer where writers have one."""
    if kind == "watermarks":
        return WatermarkLog(dsn, node)
    return PostgresLog(PostgresLogSettings(conninfo=dsn, single_server=True))


async def _rate(reader: Any, writers: list[Any], values: list[bytes]) -> float:
    began_s, sent, read = perf_counter(), 0, 0
    while perf_counter() - began_s < RATE_S:
        while sent - read < IN_FLIGHT_MAX:
            writers[sent // 500 % len(writers)].append_all(values[:500])
            sent += 500
        read += len(await reader.read(5_000, 1.0))
    rate = read / (perf_counter() - began_s)
    while read < sent:
        read += len(await reader.read(5_000, 1.0))
    return rate


async def _single(reader: Any, writer: Any, value: bytes) -> float:
    began_s = perf_counter()
    writer.append(value)
    while not await reader.read(1, 1.0):
        pass
    return perf_counter() - began_s


async def _stall(reader: Any, kind: str, dsn: str, node: int, writers: int, number: signal.Signals) -> float:
    """The longest time without a record once a writer was killed or frozen. Each appends every millisecond."""
    argv = [sys.executable, "-m", "tests.bench.sequencing", "write", kind, dsn]
    others = [subprocess.Popen([*argv, str(node + at)]) for at in range(writers)]
    try:
        silent = {b"node%04d" % (node + at) for at in range(writers)}
        async with asyncio.timeout(BEGIN_MAX_S):
            while silent:
                silent -= {record[:8] for _, record in await reader.read(5_000, 0.5)}
        others[0].send_signal(number)
        began_s = last_s = perf_counter()
        longest_s = 0.0
        while perf_counter() - began_s < STALL_LOOK_S:
            if await reader.read(5_000, 0.5):
                now_s = perf_counter()
                longest_s, last_s = max(longest_s, now_s - last_s), now_s
        return max(longest_s, perf_counter() - last_s)
    finally:
        for other in others:
            other.kill()
            other.wait()


async def write(kind: str, dsn: str, node: int) -> None:
    """Append a record every millisecond, until ended."""
    writer = await log_of(kind, dsn, node).open_writer()
    while True:
        writer.append((b"node%04d" % node).ljust(RECORD_BYTES, b"x"))
        await asyncio.sleep(0.001)


async def main(commits_ms: list[int]) -> None:
    """Each case on a database of its own."""
    with tempfile.TemporaryDirectory() as folder, PortReservation() as ports:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "postgres", ports.take())
        await server.start()
        print(
            "| commit | writers | log | records/s | p50 ms | p99 ms | killed s | frozen s |\n"
            "|---|---|---|---|---|---|---|---|"
        )
        try:
            for commit_ms in commits_ms:
                for writers in WRITERS:
                    for kind in ("head row", "watermarks"):
                        dsn = await _prepared(server, kind, commit_ms, writers)
                        found = await measure(dsn, kind, writers)
                        stalls = [f"{found[f'{how}_s']:.2f}" if f"{how}_s" in found else "" for how in STALLS]
                        print(
                            f"| {commit_ms} ms | {writers} | {kind} | {found['records_per_s']:,.0f} | "
                            f"{found['p50_ms']:.1f} | {found['p99_ms']:.1f} | {' | '.join(stalls)} |",
                            flush=True,
                        )
        finally:
            await server.remove()


async def _prepared(server: PostgresServer, kind: str, commit_ms: int, writers: int) -> str:
    name = f"bench_{kind.split(maxsplit=1)[0]}_{commit_ms}_{writers}"
    async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as own:
        await own.execute(f"CREATE DATABASE {name}".encode())
    dsn = server.dsn(name)
    if kind == "watermarks":
        await watermarks.install(dsn)
    else:
        await head_row.install(dsn)
    if commit_ms:
        table = "watermark" if kind == "watermarks" else "notary_log.log_head"
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as own:
            await own.execute(SLOW.format(seconds=commit_ms / 1e3, table=table).encode())
    return dsn


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    if sys.argv[1:2] == ["write"]:
        uvloop.run(write(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        uvloop.run(main([int(text) for text in sys.argv[1:]] or list(COMMITS_MS)))
