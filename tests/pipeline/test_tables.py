"""The log as Delta tables: what is in them, each record once, whatever is killed when."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.jobs.judge import judge_log
from pipeline.jobs.verdicts import requests, verdicts
from pipeline.tables.delta import Table, View
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, EPOCHS, REQUESTS, SCHEMAS, VERDICTS
from pipeline.tables.write import open_writer, write_tables
from replica.active.completions import completions_of
from replica.checker.check import Scope, check
from replica.checker.completions import CompletionRow
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.log.memory import MemoryLog, MemoryReader, MemoryTopic
from replica.notary.errors import ArchiveContended, ConfigError, IndexUnreadable, SalvageMissing
from replica.notary.outcomes import CODE_OF
from replica.notary.position import BEGIN
from replica.notary.salvage import lost_record
from tests.pipeline.delta_tables import expiring
from tests.pipeline.judged import TOPIC, by_replica
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import FIRST, PARTY, log_values, longer_values, tx
from tests.worlds.party_logs import told_log

LONGER = Applier(MemoryIndex(), TOPIC).apply(list(enumerate(longer_values())))


class Killed(BaseException):
    """The job dies here."""


def append(folder: Path, values: Sequence[bytes], cuts: Sequence[int] = (), kill_after: int | None = None) -> None:
    """Run the job once on a log, in runs that end at the cuts; kill it after so many steps."""
    steps = iter(range(10_000))

    def step(_: str) -> None:
        if next(steps) == kill_after:
            raise Killed

    with open_writer(folder / "tables", folder / "index", TOPIC, step) as writer:
        start = writer.position.offset + 1
        for end in sorted({*[cut for cut in cuts if start < cut < len(values)], len(values)}):
            if start < end:
                writer.append(list(enumerate(values))[start:end])
            start = max(start, end)


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """A table's rows, by offset."""
    table = DeltaTable(str(folder / "tables" / name)).to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: (row["log_offset"], str(row.get("state"))))


def test_what_the_log_decided_is_in_the_tables(tmp_path: Path) -> None:
    """Goal: each table has its rows, with real times and days. Method: the log with each verdict, led once more."""
    append(tmp_path, longer_values())
    of_all = rows(tmp_path, VERDICTS)
    assert [(row["log_offset"], row["outcome"], row["notarised_offset"]) for row in of_all] == [
        (offset, *verdict) for offset, verdict in sorted(by_codes(longer_values()).items())
    ]
    (first,) = [row for row in rows(tmp_path, REQUESTS) if row["log_offset"] == FIRST]
    assert first["stamp_at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC) and first["day"] == date(1970, 1, 1)
    assert (first["tx_id"], first["party"], first["user_id"], first["command_id"]) == (
        tx(1),
        PARTY,
        "alice",
        "command-0",
    )
    assert first["inputs"] == [f"{tx(1001).hex()}:1"] and first["referenced_states"] == []
    assert [(row["log_offset"], row["usage"]) for row in rows(tmp_path, CONFLICTS)] == [
        (5, "input"), (7, "reference"), (19, "input")
    ]  # fmt: skip
    assert [(row["log_offset"], row["epoch"], row["replica"]) for row in rows(tmp_path, EPOCHS)] == [
        (1, 1, "R0"),
        (3, 2, "r1"),
        (14, 3, "r2"),
    ]


def test_completions_are_those_that_replicas_publish(tmp_path: Path) -> None:
    """Goal: a completion for each decided command, dense. Method: the reference judge of
    `notary check` compares each with the log; the logs whose runs are cut anywhere. One that is left out is found."""
    for number, values in enumerate([log_values(), longer_values()]):
        for cut in (1, 9, 10):
            append(tmp_path / f"{number}-{cut}", values, [cut])
            found = rows(tmp_path / f"{number}-{cut}", COMPLETIONS)
            assert found[-1]["ledger_offset"] == len(found) >= 8
            assert wrong_completions(values, found) == {}
        assert wrong_completions(values, found[1:]) and wrong_completions(values, found[:-1])
    first = found[0]
    assert first["recorded_at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC) and first["day"] == date(1970, 1, 1)


def wrong_completions(values: Sequence[bytes], found: Iterable[dict[str, Any]]) -> dict[str, int]:
    """What the reference judge finds wrong, by code."""
    return check([], enumerate(values), completions=published(found), scope=Scope(complete=False)).counts


def published(found: Iterable[dict[str, Any]]) -> list[CompletionRow]:
    """Rows of the table as the participant store has them; the states of a conflict are in a table of their own."""
    conflicts = {completion.log_offset: completion.detail for _, completion in completions_of(LONGER)}
    return [
        CompletionRow(
            row["ledger_offset"],
            row["log_offset"],
            row["change_id"],
            row["user_id"],
            row["command_id"],
            tuple(row["act_as"]),
            row["submission_id"],
            row["tx_id"],
            row["content_digest"],
            row["outcome"],
            row["notarised_offset"],
            round(row["recorded_at"].timestamp() * 1e6),
            conflicts[row["log_offset"]],
        )
        for row in sorted(found, key=lambda row: int(row["ledger_offset"]))
    ]


def by_codes(values: Sequence[bytes]) -> dict[int, tuple[str, int | None]]:
    """A replica's verdicts of a log, with their codes."""
    return {offset: (CODE_OF[outcome], at) for offset, (outcome, at) in by_replica(values).verdicts.items()}


def test_each_record_is_there_once_whenever_the_job_is_killed(tmp_path: Path) -> None:
    """Goal: no row is missing, and none is there twice. Method: a log in three runs, a job killed after
    each step of them, and another one whose runs end elsewhere."""
    values = longer_values()
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        try:
            append(folder, values, [5, 12], kill_after=steps)
        except Killed:
            append(folder, values, [8])
        else:
            break  # it ended before it was killed
        found = {row["log_offset"]: (row["outcome"], row["notarised_offset"]) for row in rows(folder, VERDICTS)}
        assert found == by_codes(values), steps
        assert [row["log_offset"] for row in rows(folder, VERDICTS)] == sorted(found), steps
        assert [row["log_offset"] for row in rows(folder, REQUESTS)] == sorted(found), steps
        assert [row["log_offset"] for row in rows(folder, CONFLICTS)] == [5, 7, 19], steps
        assert [row["log_offset"] for row in rows(folder, EPOCHS)] == [1, 3, 14], steps
        assert wrong_completions(values, rows(folder, COMPLETIONS)) == {}, steps
        steps += 1
    assert steps > 10


@pytest.mark.thorough
def test_tables_without_their_index_are_gone_on_with_and_an_index_without_its_tables_is_made_anew(
    tmp_path: Path,
) -> None:
    """Goal: the index is derived. Method: remove the index; remove one table; remove all; go on each time."""
    values = log_values()
    for lost in ("index", f"tables/{VERDICTS}", f"tables/{REQUESTS}", "tables"):
        append(tmp_path, values[: FIRST + 4])
        shutil.rmtree(tmp_path / lost)
        append(tmp_path, values)
        assert {
            row["log_offset"]: (row["outcome"], row["notarised_offset"]) for row in rows(tmp_path, VERDICTS)
        } == by_codes(values)
        assert len(rows(tmp_path, VERDICTS)) == len(rows(tmp_path, REQUESTS)) == len(by_codes(values))
        shutil.rmtree(tmp_path / "tables")
        shutil.rmtree(tmp_path / "index")


@pytest.mark.thorough
def test_tables_of_a_backup_are_gone_on_with(tmp_path: Path) -> None:
    """Goal: an index that is newer than its tables misses no row. Method: put older tables back."""
    values = log_values()
    append(tmp_path, values[: FIRST + 2])
    shutil.copytree(tmp_path / "tables", tmp_path / "backup")
    append(tmp_path, values[: FIRST + 5])
    shutil.rmtree(tmp_path / "tables")
    shutil.copytree(tmp_path / "backup", tmp_path / "tables")
    append(tmp_path, values)
    assert [row["log_offset"] for row in rows(tmp_path, REQUESTS)] == sorted(by_codes(values))
    assert [row["log_offset"] for row in rows(tmp_path, VERDICTS)] == sorted(by_codes(values))


def test_columns_come_and_stay(tmp_path: Path) -> None:
    """Goal: a table of an older release gets our new columns, and keeps those that users added. Method: both."""
    values = log_values()
    older = pa.schema([field for field in SCHEMAS[VERDICTS] if field.name != "notarised_offset"])
    Table(tmp_path / "tables" / VERDICTS, older.append(pa.field("theirs", pa.string())), TOPIC)
    append(tmp_path, values)
    found = DeltaTable(str(tmp_path / "tables" / VERDICTS)).to_pyarrow_table()
    assert {"theirs", "notarised_offset"} <= set(found.column_names)
    assert found.column("notarised_offset").null_count < len(found) == found.column("theirs").null_count


def test_comments_stay_as_they_are(tmp_path: Path) -> None:
    """Goal: a release that words a comment otherwise appends to older tables, whose owners may have changed comments.
    Method: a table with other comments; a new column brings its own."""
    fields = [field.with_metadata({"comment": "theirs"}) for field in SCHEMAS[VERDICTS]]
    older = pa.schema([field for field in fields if field.name != "notarised_offset"])
    Table(tmp_path / "tables" / VERDICTS, older, TOPIC)
    append(tmp_path, log_values(), [4])
    found = DeltaTable(str(tmp_path / "tables" / VERDICTS)).schema().fields
    comments = {field.name: field.metadata["comment"] for field in found}
    ours = SCHEMAS[VERDICTS].field("notarised_offset").metadata[b"comment"].decode()
    assert comments == {field.name: "theirs" for field in older} | {"notarised_offset": ours}
    assert not any(field.nullable for field in found if field.name in older.names)


def test_a_table_that_lacks_a_column_which_is_never_null_is_refused(tmp_path: Path) -> None:
    """Goal: rows of a release that named columns otherwise are not mixed with ours. Method: a table with `offset`."""
    log_offset, *rest = SCHEMAS[REQUESTS]
    Table(tmp_path / "tables" / REQUESTS, pa.schema([log_offset.with_name("offset"), *rest]), TOPIC)
    with pytest.raises(ConfigError, match="has no column log_offset: an earlier release made it"):
        append(tmp_path, log_values())


def test_a_table_of_another_log_and_a_lost_record_are_refused(tmp_path: Path) -> None:
    """Goal: tables never mix two logs, and nothing is judged past a lost record. Method: both."""
    append(tmp_path, log_values())
    with (
        pytest.raises(ConfigError, match="name another folder"),
        open_writer(tmp_path / "tables", tmp_path / "other", "topic-2"),
    ):
        pass
    with pytest.raises(SalvageMissing):
        append(tmp_path, [*log_values(), lost_record(len(log_values()), 0, 0, bytes(32))])


def test_of_two_writers_one_is_refused(tmp_path: Path) -> None:
    """Goal: a second writer adds nothing, on this machine or another. Method: one index; two indexes, one table."""
    values = log_values()
    append(tmp_path, values[:6])
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        with pytest.raises(IndexUnreadable):
            append(tmp_path, values)
        shutil.copytree(tmp_path / "index", tmp_path / "theirs")
        (tmp_path / "theirs" / "LOCK").unlink()
        with open_writer(tmp_path / "tables", tmp_path / "theirs", TOPIC) as other:
            other.append(list(enumerate(values))[6:8])
        with pytest.raises(ArchiveContended):
            writer.append(list(enumerate(values))[6:10])
    append(tmp_path, values)
    assert [row["log_offset"] for row in rows(tmp_path, REQUESTS)] == sorted(by_codes(values))


def test_an_append_removes_nothing(tmp_path: Path) -> None:
    """Goal: a writer needs no right to delete. Method: appends to a table with expired log entries, across checkpoints;
    its owner's tool cleans the log up, and the job goes on."""
    values, folder = log_values(), tmp_path / "tables" / REQUESTS
    append(tmp_path, values[: FIRST + 1])
    table = expiring(str(folder))
    for end in range(FIRST + 2, FIRST + 6):
        append(tmp_path, values[:end])
    table.update_incremental()
    log = folder / "_delta_log"
    commits = {log / f"{version:020d}.json" for version in range(table.version() + 1)}
    assert commits == set(log.glob("*.json")) and len(list(log.glob("*.checkpoint.parquet"))) >= 2
    table.cleanup_metadata()
    assert set(log.glob("*.json")) < commits
    append(tmp_path, values)
    assert [row["log_offset"] for row in rows(tmp_path, REQUESTS)] == sorted(by_codes(values))


def test_tables_are_compacted_at_any_time(tmp_path: Path) -> None:
    """Goal: upkeep loses and doubles no row, under a job and a reader that go on. Method: compact each table, append,
    remove the files that compaction replaced, append; a view from before the compaction, and one from after all."""
    values = list(enumerate(longer_values()))
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        for start in range(0, 9, 3):
            writer.append(values[start : start + 3])
        tables = [DeltaTable(str(tmp_path / "tables" / name)) for name in SCHEMAS]
        view = View(tmp_path / "tables" / REQUESTS)
        before = view.rows(SCHEMAS[REQUESTS], BEGIN, view.offset)
        assert sum(int(table.optimize.compact()["numFilesRemoved"]) for table in tables) > 0
        writer.append(values[9:12])
        assert view.rows(SCHEMAS[REQUESTS], BEGIN, view.offset).equals(before)
        for table in tables:
            table.update_incremental()
        removed = [table.vacuum(0, dry_run=False, enforce_retention_duration=False) for table in tables]
        assert any(removed)
        writer.append(values[12:])
    append(tmp_path / "once", longer_values())
    for name, schema in SCHEMAS.items():
        found, expected = (View(folder / "tables" / name) for folder in (tmp_path, tmp_path / "once"))
        order = [(column, "ascending") for column in schema.names if column in ("log_offset", "state", "ledger_offset")]
        assert found.rows(schema, BEGIN, found.offset).sort_by(order) == (
            expected.rows(schema, BEGIN, expected.offset).sort_by(order)
        )


def test_a_job_that_follows_appends_what_comes(tmp_path: Path) -> None:
    """Goal: what is added to the log while the job follows it is in the tables. Method: a log that grows."""

    async def play() -> None:
        topic = MemoryTopic(TOPIC)
        for value in log_values()[:4]:
            topic.store(value)
        log = MemoryLog(topic)
        arrived = asyncio.Event()
        with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
            follows = asyncio.create_task(
                write_tables(
                    log,
                    writer,
                    interval_s=0.01,
                    progress=lambda offset: arrived.set() if offset + 1 == len(log_values()) else None,
                )
            )
            for value in log_values()[4:]:
                await asyncio.sleep(0.005)
                topic.store(value)
            async with asyncio.timeout(30):
                await arrived.wait()
            follows.cancel()
            await asyncio.gather(follows, return_exceptions=True)

    asyncio.run(play())
    assert [row["log_offset"] for row in rows(tmp_path, REQUESTS)] == sorted(by_codes(log_values()))


class _Sipping(MemoryLog):
    """A log whose reads return with two records, as those of a busy machine return with a few."""

    async def open_reader(self, start_offset: int) -> MemoryReader:
        reader = await super().open_reader(start_offset)
        read = reader.read
        reader.read = lambda max_records, wait_s: read(min(2, max_records), wait_s)  # type: ignore[method-assign]
        return reader


@pytest.mark.thorough
def test_a_job_that_follows_waits_for_no_interval_while_there_are_records(tmp_path: Path) -> None:
    """Goal: the lag does not grow where reads return with few records. Method: runs of five, an interval of an hour."""
    values = log_values()
    runs = len(values) // 5
    reached: list[int] = []

    async def play() -> None:
        topic = MemoryTopic(TOPIC)
        for value in values:
            topic.store(value)
        full = asyncio.Event()

        def note(offset: int) -> None:
            reached.append(offset)
            if len(reached) == runs:
                full.set()

        with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
            follows = asyncio.create_task(
                write_tables(_Sipping(topic), writer, interval_s=3_600, run_records=5, progress=note)
            )
            async with asyncio.timeout(60):
                await full.wait()
            follows.cancel()
            await asyncio.gather(follows, return_exceptions=True)

    asyncio.run(play())
    assert reached == [5 * run - 1 for run in range(1, runs + 1)]


@pytest.mark.thorough
@pytest.mark.spark
def test_the_tables_have_what_the_jobs_on_spark_find_under_rules_3(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: keys are judged alike. Method: a log with registrations, in two runs, in three files."""
    values = [value for _, value in told_log()]
    append(tmp_path, values, [6])
    log = write_log(tmp_path / "log", values, [4, 9])
    judged = judge_log(spark, log, tmp_path / "work")
    decided = verdicts(spark, judged, requests(spark, log, judged.plan)).orderBy("offset").collect()
    found = [(row["log_offset"], row["outcome"], row["notarised_offset"]) for row in rows(tmp_path, VERDICTS)]
    assert [(row.offset, row.outcome, row.notarised_offset) for row in decided] == found
    assert [outcome for _, outcome, _ in found] == [
        "PARTY_UNKNOWN",
        "NOTARISED",
        "KEY_NOT_VALID",
        "DEDUPLICATED",
        "KEY_NOT_VALID",
        "KEY_NOT_VALID",
        "NOTARISED",
    ]


@pytest.mark.spark
def test_the_tables_have_what_the_jobs_on_spark_find(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: two implementations agree. Method: one log, judged in parallel on Spark, and in order here."""
    append(tmp_path, longer_values(), [5, 12])
    log = write_log(tmp_path / "log", longer_values(), [13])
    judged = judge_log(spark, log, tmp_path / "work")
    decided = verdicts(spark, judged, requests(spark, log, judged.plan)).orderBy("offset").collect()
    assert [(row.offset, bytes(row.tx_id), row.outcome, row.notarised_offset) for row in decided] == [
        (row["log_offset"], row["tx_id"], row["outcome"], row["notarised_offset"]) for row in rows(tmp_path, VERDICTS)
    ]
