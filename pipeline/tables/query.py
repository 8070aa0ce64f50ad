"""The tables' job on Spark: a streaming query whose batches tasks decode and write, and the driver judges in order.

The query begins after the position of the job's index, with a checkpoint that goes with it: index and tables know what
was done, and Spark's checkpoint would be a third opinion. The index is written after the last table, as the other
engine does, so whatever is killed, the next query judges again what the tables may lack.

Delta's writer makes one commit of each table, which appends rows and notes the log offset that it reaches. A JVM that
outlived its job, or another writer, may have committed some of the rows since the table was looked at. So the noted
offset is read again in the commit's own transaction; and of two transactions that read it at the same time Delta
refuses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from time import monotonic, thread_time, time
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark import StorageLevel, inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.failures import explained
from pipeline.session import on_this_machine
from pipeline.tables.delta import Table, commit_note
from pipeline.tables.dense import (
    BY_TABLE,
    DENSE,
    Decisions,
    decisions_of,
    dense_batches,
    judged_of,
    lacking,
    records_of,
    row_batches,
    rows_of_few,
)
from pipeline.tables.rows import REQUESTS
from pipeline.tables.write import Judged, OnStep, OrderedJudge
from replica.notary.errors import ArchiveContended, ConfigError
from replica.notary.places import Remote

BATCH_RECORDS = 50_000  # in one batch, which also bounds the memory of the driver
QUERY = "notary-tables"  # its name, also in the history of the tables
_POLL_S = 0.2
_KEPT = StorageLevel.MEMORY_AND_DISK
COMMITS_AT_ONCE = 4  # most of a commit is waiting for the disk and for Spark
_CONTENDED = "DELTA_CONCURRENT"


class Batch(NamedTuple):
    """What one batch did: records up to `offset`, and how long it took; `driver_s` of processor time for judging."""

    offset: int
    records: int
    driver_s: float
    took_s: float


class SparkWriter:
    """Judges and writes batches of one query; see `run_query`."""

    def __init__(
        self, tables: Mapping[str, Table], judge: OrderedJudge, on_step: OnStep, done: Callable[[Batch], None]
    ) -> None:
        self._tables = tables
        self._judge = judge
        self._on_step = on_step
        self._done = done
        self._one_batch = Lock()
        self._threads = ThreadPoolExecutor(COMMITS_AT_ONCE)
        self._stopped = False
        self.failure: BaseException | None = None

    def stop(self) -> None:
        """Return when the batch that runs has ended, and what goes on beside it; no other one is written after it."""
        with self._one_batch:
            self._stopped = True
        self._threads.shutdown()

    def batch(self, frame: DataFrame, _: int) -> None:
        """One batch of the query: judge it, and write its rows to every table."""
        with self._one_batch:
            if self._stopped:
                return
            try:
                with explained():
                    self._write(frame.select("offset", "value"))
            except BaseException as error:
                self.failure, self._stopped = error, True
                raise

    def _write(self, frame: DataFrame) -> None:
        began_s, before = monotonic(), self._judge.position.offset
        with _kept(frame) as records:
            dense = records_of(records.mapInArrow(dense_batches, from_arrow_schema(DENSE)).toArrow())
            if not dense:  # the log has nothing new
                return
            driver_s = -thread_time()
            judged = judged_of(self._judge, dense)
            decisions = decisions_of(judged)
            driver_s += thread_time()
            self._write_rows(records, judged, decisions)
            driver_s -= thread_time()
            self._judge.advance(judged)
            self._on_step("index")
            driver_s += thread_time()
        offset = self._judge.position.offset
        self._done(Batch(offset, offset - before, driver_s, monotonic() - began_s))

    def _write_rows(self, records: DataFrame, judged: Judged, decisions: Decisions) -> None:
        reached = {name: table.offset for name, table in self._tables.items()}
        few = lacking(rows_of_few(judged), reached)
        make_rows = partial(row_batches, decisions, reached)
        with _kept(records.mapInArrow(make_rows, from_arrow_schema(BY_TABLE))) as rows:
            rows.count()  # makes them with all cores: a table's writer is one task
            frames = {
                name: _of_table(name, rows, few[name])
                for name in self._tables
                if judged.row_counts[name] or name == REQUESTS
            }
            last = frames.pop(REQUESTS)  # it notes how far all of them are
            session = records.sparkSession
            for name in self._written_at_once(session, frames, judged.offset):
                self._on_step(name)
            append_rows(self._tables[REQUESTS], last, judged.offset)
            self._on_step(REQUESTS)

    def _written_at_once(self, session: SparkSession, frames: Mapping[str, DataFrame], offset: int) -> Iterator[str]:
        """Write tables side by side; each one's name when it is written.

        Raises what a table's writing raises, after all have ended.
        """
        write = inheritable_thread_target(session)(append_rows)
        names = {self._threads.submit(write, self._tables[name], rows, offset): name for name, rows in frames.items()}
        try:
            for future in as_completed(names):
                future.result()
                yield names[future]
        finally:
            wait(names)


def _of_table(name: str, rows: DataFrame, few: pa.Table) -> DataFrame:
    of_table = rows.where(F.col(name).isNotNull()).select(f"{name}.*")
    return of_table.unionByName(rows.sparkSession.createDataFrame(few)) if len(few) else of_table


def append_rows(table: Table, rows: DataFrame, offset: int) -> None:
    """Add rows after those that the table has, and note that it now has all up to this log offset.

    Delta's data frame writer takes no offset that the table must be at, so this is what it does inside. Raises
    ArchiveContended when another writer was first.
    """
    if offset <= (reached := table.offset):
        return
    session = rows.sparkSession
    jvm: Any = session._jvm
    sql = jvm.org.apache.spark.sql
    sql.classic.SparkSession.setActiveSession(session._jsparkSession)  # Delta asks for this thread's
    delta = sql.delta
    commit = delta.DeltaLog.forTable(session._jsparkSession, _location(table)).startTransaction()
    if (now := commit.txnVersion(table.application)) != reached:
        raise ArchiveContended(f"{table.place}: another process brought it to offset {now} from {reached}")
    files = commit.writeFiles(rows.coalesce(1)._jdf)
    some = jvm.scala.Option.apply
    noted = delta.actions.SetTransaction(table.application, offset, some(int(time() * 1_000)))
    note = some(commit_note("spark", uuid4().hex))
    append = sql.streaming.OutputMode.Append()
    what = getattr(delta, "DeltaOperations$StreamingUpdate")(append, QUERY, offset, note)
    try:
        commit.commit(files.appended(noted), what)
    except Exception as error:
        if _CONTENDED in str(error):
            raise ArchiveContended(f"{table.place}: another process writes this table") from None
        raise
    table.look_again()


def _location(table: Table) -> str:
    if isinstance(table.place, Remote):
        raise ConfigError(f"--engine spark writes tables to a folder, not to {table.place}: use --engine process")
    return on_this_machine(table.place.absolute())


def run_query(frame: DataFrame, writer: SparkWriter, *, interval_s: float | None, stopping: Event) -> None:
    """Write all that the log has now; with an interval go on for ever, with a batch in each, until `stopping` is set.

    Then the batch that runs is finished first. Raises what `SparkWriter.batch` raises, and the query's failures as our
    errors.
    """
    trigger = {"availableNow": True} if interval_s is None else {"processingTime": f"{interval_s} seconds"}
    with TemporaryDirectory(prefix="notary-tables-") as folder, explained():
        query = (
            frame.writeStream.queryName(QUERY)
            .foreachBatch(writer.batch)
            .option("checkpointLocation", on_this_machine(Path(folder).absolute()))
            .trigger(**trigger)
            .start()
        )
        try:
            while query.isActive:
                if stopping.wait(_POLL_S):
                    return
            query.awaitTermination()  # raises what ended it
        except StreamingQueryException:
            if writer.failure is None:
                raise
            raise writer.failure from None
        finally:
            writer.stop()
            query.stop()


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, computed once while the context lasts."""
    kept = frame.persist(_KEPT)
    try:
        yield kept
    finally:
        kept.unpersist()
