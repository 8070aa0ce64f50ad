"""One engine makes an index of a log in Parquet files: `python -m tests.bench.pipeline.engines ENGINE LOG INDEX`.

Each engine has a process of its own, so that its memory can be measured. All of them read the same files and leave an
index that a replica opens. Spark is the product's job; `replay` is the replica's own code for applying the log; DuckDB
and Polars get the claims from the product's decoder, and do the rest with their own means.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.jobs.slices import ParquetLog, parquet_log
from pipeline.jobs.tasks import fixed_binaries
from pipeline.judging.claims import CONSUMES, claims_of
from pipeline.judging.contested import Contender, Resolver
from pipeline.judging.keys import barred
from pipeline.judging.plan import Survey, counted, make_plan, survey
from replica.following.apply import Applier
from replica.following.log_reading import bounded_runs
from replica.index.rocks import RocksIndex
from replica.index.tables import Tables, adopt_tables, write_table
from replica.notary.position import Position, begin
from replica.notary.rules import TX_KEY
from replica.settings import CoreSettings
from tests.bench.pipeline.big_log import TOPIC_ID

OUT_OF_ROOM = "out_of_room"  # in place of figures: why the engine ended, short of memory or of disk
AGAIN_SLICES_MAX = 100  # a longer log is given to Spark once: what a session's start costs does not show


def spark(log: ParquetLog, folder: Path) -> dict[str, Any]:
    """The product's job, its session's start not counted. If the log is short, then once more with the session warm."""
    from pipeline.jobs.rebuild import rebuild_index
    from pipeline.session import spark_session

    began_s = monotonic()
    session = spark_session("bench")
    session_s = monotonic() - began_s
    took_s = {}
    for turn in ("took_s", "warm_s") if len(log) <= AGAIN_SLICES_MAX else ("took_s",):
        shutil.rmtree(folder, ignore_errors=True)
        began_s = monotonic()
        rebuilt = rebuild_index(session, log, folder / "index", folder / "work")
        took_s[turn] = monotonic() - began_s
    session.stop()
    return {
        **took_s,
        "session_s": session_s,
        "steps_s": rebuilt.steps_s,
        "entries": rebuilt.entry_count,
        "index": str(folder / "index"),
    }


def replay(log: ParquetLog, folder: Path) -> dict[str, Any]:
    """What a replica does: runs of the size that it reads, judged and written one after the other."""
    settings = CoreSettings()
    began_s = monotonic()
    index = RocksIndex(folder / "index")
    applier = Applier(index, TOPIC_ID)
    for records in _records(log, settings.read_batch_max):
        for run in bounded_runs(records, settings.read_batch_states_max):
            applier.apply(run)
    index.close()
    return {"took_s": monotonic() - began_s, "index": str(folder / "index")}


def duckdb(log: ParquetLog, folder: Path) -> dict[str, Any]:
    """Claims in a table; contested keys, losers and entries by SQL; one table file."""
    import duckdb as engine

    try:
        return _by_duckdb(engine, log, folder)
    except (engine.OutOfMemoryException, engine.IOException) as error:
        return {OUT_OF_ROOM: str(error).partition("\n")[0]}


def _by_duckdb(engine: Any, log: ParquetLog, folder: Path) -> dict[str, Any]:
    began_s = monotonic()
    database = engine.connect(str(folder / "claims.duckdb"))
    database.execute("SET threads = 2; SET preserve_insertion_order = false; SET memory_limit = '6GB'")
    database.execute('CREATE TABLE claims (key BLOB, "at" BIGINT, consumes BOOLEAN, stands BLOB)')
    for claims in _Claims(log):
        database.register("slice", claims)
        database.execute("INSERT INTO claims SELECT * FROM slice")
    contested = database.execute(
        'SELECT "at", key, consumes, stands FROM claims WHERE key IN (SELECT key FROM claims GROUP BY key'
        ' HAVING count(*) > 1 AND bool_or(consumes) AND min(stands) <> max(stands)) ORDER BY "at"'
    ).fetchall()
    dropped = pa.table({"offset": pa.array(_dropped(contested), pa.int64())})
    database.register("dropped", dropped)
    entries = database.execute(
        'SELECT key, arg_min(stands, "at"), min("at") FROM claims WHERE consumes'
        ' AND "at" NOT IN (SELECT "offset" FROM dropped) GROUP BY key ORDER BY key'
    )
    return _written(folder, _fetched(entries), _Claims.position, began_s)


def polars(log: ParquetLog, folder: Path) -> dict[str, Any]:
    """The same as one lazy query on its streaming engine."""
    import polars as engine

    began_s = monotonic()
    collected = _Claims(log)
    frames = [engine.DataFrame(table) for table in collected]
    claims = engine.concat(frames, rechunk=False).lazy()
    keys = claims.group_by("key").agg(
        engine.len().alias("n"), engine.col("consumes").any(), engine.col("stands").n_unique().alias("rivals")
    )
    disputed = keys.filter((engine.col("n") > 1) & engine.col("consumes") & (engine.col("rivals") > 1)).select("key")
    contested = claims.join(disputed, on="key", how="semi").select("at", "key", "consumes", "stands").sort("at")
    dropped = engine.DataFrame(
        {"at": _dropped(contested.collect(engine="streaming").rows())}, schema={"at": engine.Int64}
    )
    entries = (
        claims.filter("consumes")
        .join(dropped.lazy(), on="at", how="anti")
        .group_by("key")
        .agg(engine.col("stands").sort_by("at").first(), engine.col("at").min())
        .sort("key")
        .collect(engine="streaming")
    )
    return _written(folder, entries.iter_rows(), collected.position, began_s)


class _Claims:
    """The claims of each slice as an Arrow table; then the position behind them all."""

    position: Position

    def __init__(self, log: ParquetLog) -> None:
        self._log = log

    def __iter__(self) -> Iterator[pa.Table]:
        surveys: list[Survey] = []
        for number in range(len(self._log)):
            columns = self._log.read(number)
            surveys.append(survey(columns))
            plan = make_plan(begin(TOPIC_ID), surveys, lambda plan, firsts: [])  # nothing here is repeated
            found = counted(columns, plan.rules_of(columns))
            claims = claims_of(columns, found, barred(columns, found, plan))
            _Claims.position = plan.position
            yield pa.table(
                {
                    "key": fixed_binaries(np.ascontiguousarray(claims["key"]).view("V37")),
                    "at": claims["offset"].astype(np.int64),
                    "consumes": claims["role"] & CONSUMES != 0,
                    "stands": fixed_binaries(np.ascontiguousarray(claims["stands"])),
                }
            )


def _dropped(contested: list[tuple[int, bytes, bool, bytes]]) -> list[int]:
    resolver, dropped = Resolver(), []
    for at, rows in groupby(contested, key=lambda row: row[0]):
        claims = [(key, CONSUMES if consumes else 0, stands) for _, key, consumes, stands in rows]
        if resolver.decide(Contender(at, claims))[0] is not None:
            dropped.append(at)
    return dropped


def _fetched(entries: Any) -> Iterator[tuple[bytes, bytes, int]]:
    while rows := entries.fetchmany(100_000):
        yield from rows


def _written(
    folder: Path, rows: Iterator[tuple[bytes, bytes, int]], position: Position, began_s: float
) -> dict[str, Any]:
    count = 0

    def entries() -> Iterator[tuple[bytes, bytes]]:
        nonlocal count
        for key, stands, at in rows:
            count += 1
            yield key if key[:1] != TX_KEY else key[:33], stands + at.to_bytes(8, "big")

    write_table(folder / "all.sst", entries())
    (folder / "index").mkdir()
    adopt_tables(folder / "index", Tables([folder / "all.sst"], count), position)
    return {"took_s": monotonic() - began_s, "entries": count, "index": str(folder / "index")}


def _records(log: ParquetLog, size: int) -> Iterator[list[tuple[int, bytes]]]:
    for path in dict.fromkeys(part.path for part in log.slices):
        for batch in pq.ParquetFile(path).iter_batches(size, columns=["offset", "value"]):
            yield list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))


ENGINES = {"spark": spark, "replay": replay, "duckdb": duckdb, "polars": polars}

if __name__ == "__main__":
    name, log_folder, index_folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    index_folder.mkdir(parents=True)
    found = ENGINES[name](parquet_log(TOPIC_ID, sorted(log_folder.glob("*.parquet"))), index_folder)
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(found) + b"\n")
