"""The tables as people meet them in SQL: names without quotes, comments, NOT NULL, the queries of docs/tables.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.tables.delta import Table
from pipeline.tables.rows import SCHEMAS
from tests.golden.error_table import list_in
from tests.golden.tables_page import NAME, PAGE, columns
from tests.pipeline.judged import TOPIC
from tests.pipeline.lake_log import BANK_A, BANK_B, FUND, lake, lake_tx

STRICT = "spark.sql.ansi.enforceReservedKeywords"  # with it Spark refuses the keywords of the SQL standard as names


def statement(table: str) -> str:
    """Every column of a table, without quotes: by its name, of an alias, as a key and as an order."""
    names = SCHEMAS[table].names
    columns = ", ".join(names)
    return f"SELECT {columns}, one.{', one.'.join(names)} FROM {table} AS one GROUP BY {columns} ORDER BY {columns}"


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_name_is_a_keyword_of_duckdb(name: str) -> None:
    """Goal: what is typed is understood. Method: every column of the table, unquoted; `offset` would be refused."""
    connection = duckdb.connect()
    connection.register(name, SCHEMAS[name].empty_table())
    assert connection.sql(statement(name)).fetchall() == []
    with pytest.raises(duckdb.ParserException):
        connection.sql("SELECT * FROM range(1) AS one(offset)")


@pytest.mark.spark
def test_no_name_is_a_keyword_of_spark(spark: SparkSession) -> None:
    """Goal: the same in Spark's strict mode. Method: every column of every table, unquoted; `references` is refused."""
    spark.conf.set(STRICT, "true")
    try:
        for name, schema in SCHEMAS.items():
            spark.createDataFrame(schema.empty_table()).createOrReplaceTempView(name)
            assert spark.sql(statement(name)).collect() == []
        with pytest.raises(Exception, match="PARSE_SYNTAX_ERROR"):
            spark.sql("SELECT 1 AS references")
    finally:
        spark.conf.unset(STRICT)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_table_says_what_its_columns_are(name: str, tmp_path: Path) -> None:
    """Goal: any reader of Delta shows what a column means, and which are never null. Method: a made table's schema."""
    Table(tmp_path / name, SCHEMAS[name], TOPIC)
    fields = DeltaTable(str(tmp_path / name)).schema().fields
    wanted = {field.name: field.nullable for field in SCHEMAS[name]}
    assert {field.name: field.nullable for field in fields} == wanted
    assert all(len(field.metadata["comment"]) > 8 for field in fields)
    assert not any(nullable for column, nullable in wanted.items() if column in ("log_offset", "day", "outcome"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_row_that_lacks_a_value_is_refused(name: str, tmp_path: Path) -> None:
    """Goal: NOT NULL holds for whoever writes. Method: a row of nulls alone but for its keys."""
    table = Table(tmp_path / name, SCHEMAS[name], TOPIC)
    row = dict.fromkeys(SCHEMAS[name].names) | {"log_offset": 1, "day": 0}
    nulls = pa.Table.from_pylist([row], pa.schema([field.with_nullable(True) for field in SCHEMAS[name]]))
    with pytest.raises(Exception, match=r"non-nullable|failed validation"):
        table.append(nulls, 1)
    assert table.offset == -1


def queries() -> dict[str, str]:
    """The queries of docs/tables.md, by their headings."""
    found = re.findall(r"^### ([^\n`]+)\n(?:(?!^#)[^\n]*\n)*?```sql\n(.*?)```", PAGE.read_text(), re.M | re.S)
    assert PAGE.read_text().count("```sql") == len(found) == len(dict(found)) >= 10
    return dict(found)


def plain(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """Rows of either engine: decimals as floats, times in UTC without saying so."""

    def value(one: Any) -> Any:
        if isinstance(one, Decimal):
            return float(one)
        return one.astimezone(UTC).replace(tzinfo=None) if isinstance(one, datetime) and one.tzinfo else one

    return [tuple(map(value, row)) for row in rows]


def in_duckdb(tables: Path, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    for name in SCHEMAS:
        connection.register(name, DeltaTable(str(tables / name)).to_pyarrow_dataset())
    return plain(connection.sql(sql).fetchall())


NINE = datetime(2026, 3, 2, 9)
ANSWERS = {
    "Who lost to whom": [(BANK_B, BANK_A, 1), (BANK_B, FUND, 1), (FUND, BANK_A, 1)],
    "Conflict rate by party and hour": [
        (NINE, BANK_A, 3, 0, 0.0),
        (NINE, BANK_B, 2, 1, 50.0),
        (NINE, FUND, 1, 1, 100.0),
        (NINE + timedelta(hours=1), BANK_B, 2, 1, 50.0),
        (NINE + timedelta(hours=1), FUND, 1, 0, 0.0),
    ],
    "A state's life": [
        (NINE, BANK_A, "NOTARISED", lake_tx("sale").hex(), "input"),
        (NINE + timedelta(seconds=1), BANK_B, "STATE_CONFLICT", lake_tx("other sale").hex(), "input"),
        (NINE + timedelta(seconds=2), BANK_A, "DEDUPLICATED", lake_tx("sale").hex(), "input"),
        (NINE + timedelta(seconds=61), BANK_A, "NOTARISED", lake_tx("sale").hex(), "input"),
        (NINE + timedelta(seconds=90), FUND, "STATE_CONFLICT", lake_tx("valuation").hex(), "reference"),
    ],
    "Share of work that was done before": [(NINE.date(), 9, 1, 1, 22.2)],
    "Fail-overs, and the pause that each made": [
        (1, "R0", 0, None),
        (2, "r1", 7, None),
        (3, "r2", 2, timedelta(seconds=30)),
    ],
    "Commands that needed several attempts": [
        ("bank-a", "sell-1", 2, timedelta(0)),
        ("bank-b", "buy-1", 2, timedelta(seconds=3_959)),
    ],
}


@pytest.mark.parametrize("name", queries())
def test_the_pages_queries_answer_in_duckdb(name: str, tmp_path: Path) -> None:
    """Goal: a query of docs/tables.md answers its question. Method: take it from the page; a log whose answers are
    known, or have some rows at least."""
    found = in_duckdb(lake(tmp_path), queries()[name])
    assert found == ANSWERS.get(name, found) and found
    assert ANSWERS.keys() <= queries().keys()


@pytest.mark.thorough
@pytest.mark.spark
def test_the_pages_queries_answer_alike_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: one SQL for both engines. Method: the page's queries in Spark's strict mode; the rows of DuckDB."""
    tables = lake(tmp_path)
    spark.conf.set(STRICT, "true")
    try:
        for name in SCHEMAS:
            rows = DeltaTable(str(tables / name)).to_pyarrow_table()
            whole = pa.Table.from_pylist(rows.to_pylist(), rows.schema)  # Spark takes no table without a chunk
            spark.createDataFrame(whole).createOrReplaceTempView(name)
        for name, sql in queries().items():
            assert plain(spark.sql(sql).collect()) == in_duckdb(tables, sql), name
    finally:
        spark.conf.unset(STRICT)


def test_the_page_has_the_columns_as_they_are() -> None:
    """Goal: the page is true. Method: compare; `python -m tests.golden.tables_page` rewrites it."""
    assert list_in(PAGE.read_text(), NAME) == columns()
