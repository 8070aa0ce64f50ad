"""The tables: statements of Oracle's dialect, parsed and translated by sqlglot, carried out by SQLite."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp

_NUMBER = {exp.DataType.Type.DECIMAL, exp.DataType.Type.DOUBLE, exp.DataType.Type.BIGDECIMAL, exp.DataType.Type.FLOAT}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
LOBS = ("act_as", "detail", "published_position")


class OracleError(Exception):
    """An ORA- error: number and text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"ORA-{number:05}: {text}")
        self.number = number


def open_tables(path: Path) -> sqlite3.Connection:
    """One session's connection to the tables."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
    connection.create_function("SYS_GUID", 0, lambda: b"\x01" * 16)
    connection.create_function("RAWTOHEX", 1, lambda value: value.hex().upper())
    connection.create_function("SYSTIMESTAMP", 0, lambda: datetime.now(UTC).replace(tzinfo=None).isoformat())
    connection.create_function("SYS_EXTRACT_UTC", 1, lambda value: value)
    connection.create_function("GETLENGTH", 1, lambda value: None if value is None else len(value))
    connection.execute("CREATE TABLE IF NOT EXISTS dual (dummy TEXT PRIMARY KEY)")
    connection.execute("INSERT OR IGNORE INTO dual VALUES ('X')")
    connection.execute("CREATE TABLE IF NOT EXISTS nls_database_parameters (parameter TEXT PRIMARY KEY, value TEXT)")
    connection.execute("INSERT OR IGNORE INTO nls_database_parameters VALUES ('NLS_CHARACTERSET', 'AL32UTF8')")
    return connection


def carry_out(connection: sqlite3.Connection, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]] | None:
    """Run one statement; the rows of a query, else None. Raises OracleError.

    As Oracle does: a change of the schema commits, other changes open a transaction, an empty text or RAW is NULL.
    """
    kind, translated = translate(text)
    if kind is exp.Create:
        _commit(connection)
    elif (kind is not exp.Select or "FOR UPDATE" in text) and not connection.in_transaction:
        connection.execute("BEGIN IMMEDIATE")
    given = {name: None if value in ("", b"") else value for name, value in values.items()}
    try:
        for statement in translated:
            cursor = connection.execute(statement, given)
    except sqlite3.Error as error:
        raise _named(error) from error
    return [tuple(map(_from_sqlite, row)) for row in cursor.fetchall()] if kind is exp.Select else None


def returns_lobs(text: str) -> bool:
    """Whether a query gives a LOB, for which the driver hands out a locator unless it is set otherwise."""
    select = sqlglot.parse_one(text, read="oracle")
    columns = [column.output_name.lower() for column in getattr(select, "selects", [])]
    return isinstance(select, exp.Select) and any(name in LOBS for name in columns)


@cache
def translate(text: str) -> tuple[type[exp.Expression], list[str]]:
    """What kind of statement it is, and what SQLite is asked instead. Raises ParseError."""
    tree = sqlglot.parse_one(text, read="oracle", error_level=sqlglot.ErrorLevel.RAISE)
    assert not isinstance(tree, exp.Command), f"not understood: {text}"
    before: list[str] = []
    if isinstance(tree, exp.Merge):
        return exp.Merge, [_upsert(tree)]
    for call in list(tree.find_all(exp.Dot)):  # of a package: DBMS_LOB.GETLENGTH
        call.replace(call.expression)
    for kind in tree.find_all(exp.DataType):
        if kind.this in _NUMBER:
            kind.replace(exp.DataType.build("INTEGER"))
    if isinstance(tree, exp.Create) and tree.args.get("replace"):
        tree.set("replace", False)
        before.append(f"DROP VIEW IF EXISTS {tree.this.sql(dialect='sqlite')}")
    if isinstance(tree, exp.Select):
        tree.set("locks", None)
    return type(tree), [*before, tree.sql(dialect="sqlite")]


def _upsert(merge: exp.Merge) -> str:
    """MERGE of one row by its key, as SQLite puts it."""
    table = merge.this.name
    source = {column.alias: column.this.sql(dialect="sqlite") for column in merge.args["using"].this.selects}
    key = merge.args["on"].find(exp.Column).name
    update, insert = (when.args["then"] for when in merge.args["whens"].expressions)
    names = [column.name for column in insert.this.expressions]
    assert [value.name for value in insert.expression.expressions] == names
    changed = {change.this.name: change.expression.name for change in update.expressions}
    assert set(changed) | {key} == set(names), "MERGE changes other columns than it inserts"
    assignments = ", ".join(f"{name} = {source[value]}" for name, value in changed.items())
    values = ", ".join(source[name] for name in names)
    where = update.args.get("where")
    only = "" if where is None else f" WHERE {_with_values(where.this, merge, source)}"
    upsert = f"ON CONFLICT ({key}) DO UPDATE SET {assignments}{only}"
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) {upsert}"


def _with_values(condition: exp.Expression, merge: exp.Merge, source: Mapping[str, str]) -> str:
    """A condition of MERGE with the table's own name, and the source's values in place of its columns."""

    def replaced(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column):
            return node
        if node.table == merge.this.alias:
            return exp.column(node.name, table=merge.this.name)
        return sqlglot.parse_one(source[node.name], read="sqlite")

    return condition.transform(replaced).sql(dialect="sqlite")


def _commit(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("COMMIT")


def _from_sqlite(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) and _TIME.match(value) else value


def _named(error: sqlite3.Error) -> Exception:
    text = str(error)
    for pattern, number, meaning in [
        ("no such table", 942, "table or view does not exist"),
        ("no such column", 904, "invalid identifier"),
        ("already exists", 955, "name is already used by an existing object"),
        ("UNIQUE", 1, "unique constraint violated"),
        ("NOT NULL", 1400, "cannot insert NULL"),
        ("CHECK", 2290, "check constraint violated"),
        ("locked", 54, "resource busy and acquire with NOWAIT specified or timeout expired"),
    ]:
        if pattern in text:
            return OracleError(number, f"{meaning} ({text})")
    return AssertionError(f"the double does not know: {text}")
