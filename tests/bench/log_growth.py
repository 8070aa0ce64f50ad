"""What the request log on Postgres becomes with 100 million records: sizes, WAL, vacuum, a long snapshot, a detach.

`python -m tests.bench.log_growth --folder FOLDER [--records N] [--body-bytes N] [--batch N]`: a server of its own that
the log's own append function fills within the server, so that no client limits it. At least 25 million records, so that
the oldest partition can go. One line of JSON for each step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psycopg

from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.settings import PostgresLogSettings

STEP = 5_000_000
_FILL = """
DO $$
DECLARE
    id uuid := (SELECT log_id FROM notary_log.log_head);
    batch bytea[] := array_fill(decode(repeat('{byte}', {size}), 'hex'), ARRAY[{batch}]);
BEGIN
    FOR n IN 1 .. {appends} LOOP
        PERFORM notary_log.append(id, batch);
        COMMIT;
        IF n % 100 = 0 THEN PERFORM notary_log.make_partitions(); COMMIT; END IF;
    END LOOP;
END
$$
"""
_SIZES = """
SELECT end_offset,
       (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
         WHERE inhparent = 'notary_log.log_batch'::regclass)::bigint AS batch_bytes,
       pg_total_relation_size('notary_log.log_head')::bigint AS head_bytes,
       (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS wal_bytes,
       (SELECT count(*) FROM pg_inherits WHERE inhparent = 'notary_log.log_batch'::regclass)::int AS partitions,
       (SELECT sum(s.autovacuum_count) FROM pg_stat_all_tables s WHERE schemaname IN ('notary_log', 'pg_toast'))::int
           AS autovacuums,
       (SELECT n_dead_tup FROM pg_stat_all_tables WHERE relname = 'log_head')::int AS dead_heads,
       (SELECT sum(n_dead_tup) FROM pg_stat_all_tables
         WHERE schemaname = 'notary_log' AND relname LIKE 'log_batch%')::int AS dead_batches,
       (SELECT max(age(relfrozenxid)) FROM pg_class WHERE relkind IN ('r', 't') AND relnamespace IN
           ('notary_log'::regnamespace, 'pg_toast'::regnamespace))::int AS xid_age
  FROM notary_log.log_head
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is appended: the bytes of a record, and how many records an append has."""

    body_bytes: int
    batch: int


async def measure(folder: Path, records: int, shape: Shape) -> None:
    """Fill, look, hold a snapshot during the last tenth, detach the first partition, read on after it."""
    with PortReservation() as ports:
        server = PostgresServer(folder / "postgres", ports.take(), {"max_wal_size": "2GB"})
        await server.start()
        try:
            await install(server.dsn())
            async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as own:
                for filled in range(0, records * 9 // 10, STEP):
                    await _fill(own, min(STEP, records * 9 // 10 - filled), shape, "filled")
                async with await psycopg.AsyncConnection.connect(server.dsn()) as other:
                    await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    await other.execute("SELECT FROM notary_log.log_head")
                    for filled in range(0, records // 10, STEP):
                        await _fill(own, min(STEP, records // 10 - filled), shape, "beside a snapshot")
                    await _time_appends(server.dsn(), "appends beside the snapshot")
                await _fill(own, STEP, shape, "after the snapshot")
                await _time_appends(server.dsn(), "appends after the snapshot")
                await _detach(own)
            await _read(server.dsn())
        finally:
            await server.remove()


async def _fill(own: psycopg.AsyncConnection[tuple[object, ...]], records: int, shape: Shape, what: str) -> None:
    began_s = perf_counter()
    statement = _FILL.format(byte="5a", size=shape.body_bytes, batch=shape.batch, appends=records // shape.batch)
    await own.execute(statement.encode())
    took_s = perf_counter() - began_s
    cursor = await own.execute(_SIZES)
    row = await cursor.fetchone() or ()
    names = [column.name for column in cursor.description or ()]
    _tell(what, records=records, took_s=round(took_s, 1), **dict(zip(names, row, strict=True)))


async def _time_appends(dsn: str, what: str) -> None:
    """One record at a time, read back."""
    log = PostgresLog(PostgresLogSettings(conninfo=dsn, single_server=True))
    reader, writer = await log.open_reader(await log.end_offset()), await log.open_writer()
    took_ms = []
    for _ in range(300):
        began_s = perf_counter()
        writer.append(b"x" * 50)
        while not await reader.read(1, 5.0):
            pass
        took_ms.append((perf_counter() - began_s) * 1e3)
    took_ms.sort()
    _tell(what, p50_ms=round(took_ms[150], 2), p99_ms=round(took_ms[297], 2))
    await log.close()


async def _detach(own: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    began_s = perf_counter()
    await own.execute("ALTER TABLE notary_log.log_batch DETACH PARTITION notary_log.log_batch_0 CONCURRENTLY")
    detached_s = perf_counter() - began_s
    await own.execute("DROP TABLE notary_log.log_batch_0")
    _tell("detached", detach_ms=round(detached_s * 1e3), drop_ms=round((perf_counter() - began_s - detached_s) * 1e3))


async def _read(dsn: str) -> None:
    """Read the newest ten million records."""
    log = PostgresLog(PostgresLogSettings(conninfo=dsn, single_server=True))
    end = await log.end_offset()
    first = max(0, end - 2 * STEP)
    reader, left, began_s = await log.open_reader(first), end - first, perf_counter()
    while left:
        left -= len(await reader.read(5_000, 5.0))
    _tell("read", records=end - first, per_s=round((end - first) / (perf_counter() - began_s)))
    await log.close()


def _tell(what: str, **figures: object) -> None:
    print(json.dumps({"step": what, **figures}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder on the disk to fill")
    parser.add_argument("--records", type=int, default=100_000_000)
    parser.add_argument("--body-bytes", type=int, default=50)
    parser.add_argument("--batch", type=int, default=10_000, help="records of one append")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.folder, arguments.records, Shape(arguments.body_bytes, arguments.batch)))
