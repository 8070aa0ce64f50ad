"""The tables' upkeep beside a job that appends and readers that read, and the check of what the tables say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from threading import Event, Thread

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.check import Finding, check_against_log, check_tables
from pipeline.tables.delta import View
from pipeline.tables.read import TablesView
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, EPOCHS, LOST, REQUESTS, SCHEMAS, VERDICTS
from pipeline.tables.upkeep import KEPT_MIN_H, File, Retention, days_to_join, maintain
from pipeline.tables.write import open_writer
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.errors import ConfigError
from replica.notary.position import BEGIN
from replica.notary.salvage import Salvages
from tests.pipeline.judged import TOPIC
from tests.pipeline.lake_log import lake, lake_values
from tests.pipeline.signed_log import FIRST, log_values, longer_values
from tests.pipeline.test_lost_ranges import in_tables, lost_log

DAY = date(2026, 3, 2)
RETENTION = Retention(KEPT_MIN_H)


def kept(folder: Path, name: str) -> pa.Table:
    """All rows of a table, in one order."""
    view = View(folder / name)
    order = [
        (column, "ascending") for column in SCHEMAS[name].names if column in ("log_offset", "state", "ledger_offset")
    ]
    return view.rows(SCHEMAS[name], BEGIN, view.offset).sort_by(order)


def test_days_of_small_files_are_joined_once() -> None:
    """Goal: what was joined is left alone, whatever is appended. Method: files of a size of 100."""
    other = date(2026, 3, 3)
    assert days_to_join([File(DAY, 9), File(DAY, 9), File(other, 9)], 100) == [DAY]
    assert days_to_join([File(DAY, 90), File(DAY, 9), File(other, 50), File(other, 50)], 100) == []


@pytest.mark.thorough
def test_files_that_readers_may_have_open_are_never_removed() -> None:
    """Goal: no setting takes a file from under a reader. Method: the shortest time, and one hour less."""
    assert Retention(24) == 24
    with pytest.raises(ConfigError, match="at least 24 h, not 23"):
        Retention(23)


def test_tables_are_maintained_under_a_job_and_a_reader(tmp_path: Path) -> None:
    """Goal: upkeep loses and doubles no row, and disturbs nobody. Method: a job that appends record by record while
    each table is maintained again and again; a view from before; the rows of a job that was left alone."""
    values = list(enumerate(longer_values()))
    done, failures = Event(), list[BaseException]()
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        writer.append(values[: FIRST + 1])
        before = TablesView(tmp_path / "tables")

        def keep_up() -> None:
            try:
                while not done.is_set():
                    for name in SCHEMAS:
                        maintain(tmp_path / "tables", name, RETENTION)
            except BaseException as error:
                failures.append(error)

        upkeep = Thread(target=keep_up)
        upkeep.start()
        try:
            for record in values[FIRST + 1 :]:
                writer.append([record])
        finally:
            done.set()
            upkeep.join()
    assert failures == []
    assert before.rows(REQUESTS, ("log_offset",), BEGIN)["log_offset"].to_pylist() == [FIRST]
    joined = [maintain(tmp_path / "tables", name, RETENTION) for name in SCHEMAS]
    assert all(found.files <= 1 for found in joined)
    with open_writer(tmp_path / "once", tmp_path / "other", TOPIC) as writer:
        writer.append(values)
    for name in SCHEMAS:
        assert kept(tmp_path / "tables", name) == kept(tmp_path / "once", name), name
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        assert writer.reached == len(values) - 1


def test_what_was_replaced_goes_after_its_time(tmp_path: Path) -> None:
    """Goal: files that were replaced a day ago are removed, younger ones stay, whoever left them. Method: a joined
    table whose log says that it was joined yesterday; a file that no commit names."""
    folder = tmp_path / "tables" / REQUESTS
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        for record in enumerate(log_values()):
            writer.append([record])
    (folder / "day=1970-01-01").mkdir(exist_ok=True)
    (folder / "day=1970-01-01" / "of-a-writer-that-died.parquet").write_bytes(b"")
    first = maintain(tmp_path / "tables", REQUESTS, RETENTION)
    assert first.files_before > first.files == 1 and first.removed_files == 0
    _age(folder, hours=KEPT_MIN_H + 1)
    assert maintain(tmp_path / "tables", REQUESTS, RETENTION).removed_files == first.files_before
    assert (folder / "day=1970-01-01" / "of-a-writer-that-died.parquet").exists()
    assert len(kept(tmp_path / "tables", REQUESTS)) == len(kept(tmp_path / "tables", VERDICTS)) == 8


def _age(folder: Path, hours: int) -> None:
    """Let every removal in a table's log be so much older."""
    for commit in (folder / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= hours * 3_600_000
        commit.write_text("\n".join(map(json.dumps, actions)) + "\n")
    for checkpoint in [
        *(folder / "_delta_log").glob("*.checkpoint.parquet"),
        folder / "_delta_log" / "_last_checkpoint",
    ]:
        checkpoint.unlink()


def test_conflicts_are_sorted_by_state(tmp_path: Path) -> None:
    """Goal: a look-up by state reads few rows. Method: the order of rows in the file, and the size of its groups."""
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        for record in enumerate(lake_values()):
            writer.append([record])
    assert maintain(tmp_path / "tables", CONFLICTS, RETENTION).files == 1
    (file,) = DeltaTable(str(tmp_path / "tables" / CONFLICTS)).file_uris()
    states = [row[0] for row in duckdb.sql(f"SELECT state FROM read_parquet('{file}')").fetchall()]
    assert states == sorted(states) and len(set(states)) == 2


def found_in(folder: Path) -> list[tuple[str, str, int, int]]:
    """What the check finds, with stretches that cut the log anywhere."""
    view = TablesView(folder)
    whole = check_tables(view)
    assert all(check_tables(view, stretch_records=records) == whole for records in (1, 3, 5))
    return [tuple(one) for one in whole]


@pytest.mark.parametrize("values", [lake_values(), log_values(), longer_values()], ids=["lake", "log", "longer"])
def test_nothing_is_found_in_whole_tables(values: list[bytes], tmp_path: Path) -> None:
    """Goal: no false alarm. Method: tables of logs with each verdict and epochs; the logs themselves."""
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        writer.append(list(enumerate(values)))
    assert found_in(tmp_path / "tables") == []
    assert against(tmp_path / "tables", values) == []


@pytest.mark.thorough
def test_nothing_is_found_in_tables_of_a_log_that_lost_records(tmp_path: Path) -> None:
    """Goal: ledger offsets that go on higher after a lost range are no finding. Method: such a log."""
    values, salvage = lost_log()
    in_tables(tmp_path, values, Salvages([salvage]))
    assert found_in(tmp_path / "tables") == []
    assert against(tmp_path / "tables", values) == []


def against(folder: Path, values: list[bytes]) -> list[Finding]:
    topic = MemoryTopic(TOPIC)
    for value in values:
        topic.store(value)
    return asyncio.run(check_against_log(TablesView(folder), MemoryLog(topic)))


def deleted(name: str, rows: str) -> Callable[[Path], None]:
    return lambda folder: DeltaTable(str(folder / name)).delete(rows) and None


def changed(name: str, rows: str, **values: str) -> Callable[[Path], None]:
    return lambda folder: DeltaTable(str(folder / name)).update(updates=values, predicate=rows) and None


def doubled(name: str) -> Callable[[Path], None]:
    def add(folder: Path) -> None:
        place = str(folder / name)
        write_deltalake(place, DeltaTable(place).to_pyarrow_table(), mode="append")

    return add


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "problems"),
    [
        (
            deleted(VERDICTS, "log_offset = 8"),
            {(REQUESTS, "has no verdict", 1, 8), (COMPLETIONS, "has no verdict", 1, 8)},
        ),
        (deleted(REQUESTS, "log_offset = 8"), {(VERDICTS, "has no request", 1, 8)}),
        (deleted(CONFLICTS, "log_offset = 10"), {(VERDICTS, "is STATE_CONFLICT without a state", 1, 10)}),
        (
            deleted(COMPLETIONS, "log_offset = 9"),
            {
                (COMPLETIONS, "lacks a verdict's completion", 1, 9),
                (COMPLETIONS, "has a ledger_offset that does not follow the one before", 1, 10),
            },
        ),
        (
            changed(VERDICTS, "log_offset = 11", outcome="'NOTARISED'"),
            {(VERDICTS, "contradicts its notarised_offset", 1, 11), (COMPLETIONS, "contradicts its verdict", 1, 11)},
        ),
        (
            changed(COMPLETIONS, "log_offset = 9", notarised_offset="2"),
            {(COMPLETIONS, "contradicts its verdict", 1, 9)},
        ),
        (
            changed(CONFLICTS, "log_offset = 10", consumed_offset="10"),
            {(CONFLICTS, "was consumed after the refusal", 1, 10)},
        ),
        (doubled(CONFLICTS), {(CONFLICTS, "is there twice", 3, 7)}),
        (changed(EPOCHS, "epoch = 3", epoch="2"), {(EPOCHS, "has an epoch that is not above the one before", 1, 13)}),
    ],
)
def test_what_somebody_changed_is_found(
    damage: Callable[[Path], None], problems: set[tuple[str, str, int, int]], tmp_path: Path
) -> None:
    """Goal: each rule of the check goes red. Method: whole tables in which one thing is wrong."""
    folder = lake(tmp_path)
    damage(folder)
    assert set(found_in(folder)) == problems


@pytest.mark.thorough
def test_what_is_missing_everywhere_is_found_in_the_log(tmp_path: Path) -> None:
    """Goal: tables that agree with each other are compared with the log. Method: a request, an epoch and a lost record
    whose rows are gone; a row of a record that the log does not have."""
    folder = lake(tmp_path)
    for name in (REQUESTS, VERDICTS, EPOCHS):
        DeltaTable(str(folder / name)).delete("log_offset = 11 OR log_offset = 13")
    with_more = [*lake_values()[:-1], b"no record"]
    assert {tuple(one) for one in against(folder, with_more)} == {
        (REQUESTS, "lacks a record of the log", 1, 11),
        (EPOCHS, "lacks a record of the log", 1, 13),
        (REQUESTS, "has a record that does not count in the log", 1, 16),
    }
    values, salvage = lost_log()
    in_tables(tmp_path / "lost", values, Salvages([salvage]))
    DeltaTable(str(tmp_path / "lost" / "tables" / LOST)).delete("log_offset = 7")
    assert against(tmp_path / "lost" / "tables", values) == [Finding(LOST, "lacks a record of the log", 1, 7)]
