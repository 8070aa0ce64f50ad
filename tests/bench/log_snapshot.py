"""What a snapshot that stays open does to the request log on Postgres: a reader that never ends, or a long `pg_dump`.

`python -m tests.bench.log_snapshot [--minutes N] [--appends-per-s N]`: two logs in two databases of one server. A
transaction holds a snapshot in the first database alone. Both logs get the same appends. One line of JSON for each
step. The counts of versions, pages and buffers are exact on a busy machine as well; times are not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.log.interface import LogReader, LogWriter
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.settings import PostgresLogSettings

RECORD_BYTES = 430
STEPS = 12
AFTER_S = 90.0  # autovacuum looks once a minute
_SIZES = """
SELECT pg_relation_size('notary_log.log_head')::bigint AS head_bytes,
       pg_indexes_size('notary_log.log_head')::bigint AS head_index_bytes,
       (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
         WHERE inhparent = 'notary_log.log_batch'::regclass)::bigint AS batch_bytes,
       (SELECT n_dead_tup FROM pg_stat_all_tables WHERE relname = 'log_head')::int AS dead_heads,
       (SELECT sum(n_dead_tup) FROM pg_stat_all_tables
         WHERE schemaname = 'notary_log' AND relname LIKE 'log_batch%')::int AS dead_batches,
       (SELECT autovacuum_count FROM pg_stat_all_tables WHERE relname = 'log_head')::int AS autovacuums_of_head
"""
_FIND_HEAD = """EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT end_offset FROM notary_log.log_head WHERE log_id = (SELECT %s::uuid) ORDER BY only_row DESC LIMIT 1
"""  # as an append does


@dataclass(slots=True)
class Watched:
    """One log, with a writer and a reader."""

    name: str
    own: psycopg.AsyncConnection[tuple[object, ...]]
    log: PostgresLog
    log_id: str
    reader: LogReader
    writer: LogWriter
    appends: int = 0
    took_ms: list[float] = field(default_factory=list)

    async def append(self) -> None:
        """One record, read back."""
        began_s = perf_counter()
        self.writer.append(b"x" * RECORD_BYTES)
        while not await self.reader.read(1, 5.0):
            pass
        self.took_ms.append((perf_counter() - began_s) * 1e3)
        self.appends += 1

    async def tell(self, step: str, began_s: float) -> None:
        """Print the sizes, what finding the head costs, and how long appends took since the last step."""
        cursor = await self.own.execute(_SIZES)
        row = await cursor.fetchone() or ()
        sizes = dict(zip([column.name for column in cursor.description or ()], row, strict=True))
        explained: Any = await (await self.own.execute(_FIND_HEAD, (self.log_id,))).fetchone()
        plan = explained[0][0]["Plan"]
        took_ms, self.took_ms = sorted(self.took_ms), []
        figures = {
            "minute": round((monotonic() - began_s) / 60, 1),
            "appends": self.appends,
            **sizes,
            "find_head_buffers": plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
            "find_head_ms": round(plan["Actual Total Time"], 2),
            "read_back_p50_ms": round(took_ms[len(took_ms) // 2], 2) if took_ms else None,
        }
        print(json.dumps({"step": step, "log": self.name, **figures}), flush=True)


async def measure(folder: Path, minutes: float, appends_per_s: float) -> None:
    """Append beside the snapshot, then end it and look what vacuum makes of the rest."""
    with PortReservation() as ports:
        server = PostgresServer(folder / "postgres", ports.take())
        await server.start()
        try:
            logs = [await _watched(server, name) for name in ("snapshot_here", "snapshot_elsewhere")]
            await _append(logs, 10.0, appends_per_s)
            began_s = monotonic()
            for one in logs:
                await one.tell("before", began_s)
            async with await psycopg.AsyncConnection.connect(server.dsn("snapshot_here")) as other:
                await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                await other.execute("SELECT FROM notary_log.log_head")
                for _ in range(STEPS):
                    await _append(logs, minutes * 60 / STEPS, appends_per_s)
                    for one in logs:
                        await one.tell("beside the snapshot", began_s)
            await _append(logs, AFTER_S, appends_per_s)
            for one in logs:
                await one.tell("after the snapshot", began_s)
                await one.log.close()
                await one.own.close()
        finally:
            await server.remove()


async def _watched(server: PostgresServer, name: str) -> Watched:
    await server.ensure_database(name, "postgres")
    log_id = await install(server.dsn(name))
    log = PostgresLog(PostgresLogSettings(conninfo=server.dsn(name), single_server=True))
    as_append_does = make_conninfo(server.dsn(name), options="-c enable_seqscan=off")
    own = await psycopg.AsyncConnection.connect(as_append_does, autocommit=True)
    return Watched(name, own, log, log_id, await log.open_reader(0), await log.open_writer())


async def _append(logs: list[Watched], for_s: float, appends_per_s: float) -> None:
    """To each log at this rate, or as fast as they go where that is slower."""
    began_s = monotonic()
    done = 0
    while (passed_s := monotonic() - began_s) < for_s:
        for one in logs:
            await one.append()
        done += 1
        await asyncio.sleep(max(0.0, done / appends_per_s - passed_s))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--appends-per-s", type=float, default=100.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="notary-snapshot-") as made:
        Path(made).chmod(0o755)
        asyncio.run(measure(Path(made), arguments.minutes, arguments.appends_per_s))
