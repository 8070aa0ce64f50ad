"""The head row beside watermarks: throughput, read-back latency, and how long readers stand still for a dead writer.

`python -m tests.bench.sequencing`: one Postgres server on loopback; the commit takes 0, 4 or 10 ms longer, as with a
standby so far away. It prints the table of docs/decisions/0013.
"""

from __future__ import annotations

import asyncio
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
# What a commit waits for, while its locks are held: it runs when everything else of the transaction is done.
SLOW = """
CREATE FUNCTION public.wait_for_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION public.wait_for_commit();
"""


async def measure(dsn: str, kind: str, writers: int) -> dict[str, float]:
    """One log, of either kind, with so many writers."""
    log: Any = (
        WatermarkLog(dsn)
        if kind == "watermarks"
        else PostgresLog(PostgresLogSettings(conninfo=dsn, single_server=True))
    )
    values = [Random(number).randbytes(RECORD_BYTES) for number in range(2_000)]
    reader = await log.open_reader(0)
    handles = [await log.open_writer() for _ in range(writers)]
    rate = await _rate(reader, handles, values)
    singles = sorted([await _single(reader, handles[at % writers], values[at]) for at in range(SINGLES)])
    found = {"records_per_s": rate, "p50_ms": singles[SINGLES // 2] * 1e3, "p99_ms": singles[SINGLES * 99 // 100] * 1e3}
    if writers > 1:
        found["stall_s"] = await _stall(reader, handles)
    await log.close()
    return found


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


async def _stall(reader: Any, writers: list[Any]) -> float:
    """The longest time without a record, while one of the writers is dead and the others append every millisecond."""
    dead, *living = writers
    dead.freeze() if hasattr(dead, "freeze") else dead.leave(RuntimeErrorOfBench("ended"))

    async def write() -> None:
        while True:
            for writer in living:
                writer.append(b"x" * RECORD_BYTES)
            await asyncio.sleep(0.001)

    writing = asyncio.create_task(write())
    began_s = last_s = perf_counter()
    longest_s = 0.0
    while perf_counter() - began_s < STALL_LOOK_S:
        if await reader.read(5_000, 0.5):
            now_s = perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
    writing.cancel()
    return max(longest_s, perf_counter() - last_s)


class RuntimeErrorOfBench(Exception):
    """Why the bench ends a writer."""

    detail = "ended by the bench"


async def main(commits_ms: list[int]) -> None:
    """Each case on a database of its own."""
    with tempfile.TemporaryDirectory() as folder, PortReservation() as ports:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "postgres", ports.take())
        await server.start()
        print("| commit | writers | log | records/s | p50 ms | p99 ms | stall s |\n|---|---|---|---|---|---|---|")
        try:
            for commit_ms in commits_ms:
                for writers in WRITERS:
                    for kind in ("head row", "watermarks"):
                        dsn = await _prepared(server, kind, commit_ms, writers)
                        found = await measure(dsn, kind, writers)
                        stall = f"{found['stall_s']:.2f}" if "stall_s" in found else ""
                        print(
                            f"| {commit_ms} ms | {writers} | {kind} | {found['records_per_s']:,.0f} | "
                            f"{found['p50_ms']:.1f} | {found['p99_ms']:.1f} | {stall} |",
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
    uvloop.run(main([int(text) for text in sys.argv[1:]] or list(COMMITS_MS)))
