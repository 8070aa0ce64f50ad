"""Least privilege: a replica's statements write those columns that its role has the right to write, and no other."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import sqlglot
from sqlglot import exp

POSTGRES = files("replica.store").joinpath("sql/postgres")
OWNERS = {"raise_formats"}  # the tables' owner alone may
GRANT = re.compile(r"GRANT [^;]*\bUPDATE(?: \((?P<columns>[^)]*)\))?[^;()]* ON (?P<tables>[\w, ]+) TO", re.ASCII)
STATEMENTS = sorted(
    path.name.removesuffix(".sql")
    for path in POSTGRES.iterdir()
    if path.name.removesuffix(".sql") not in OWNERS | {"roles"}
)


def granted() -> dict[str, set[str] | None]:
    """Columns of each table that may be updated; None: all of them."""
    found: dict[str, set[str] | None] = {}
    for grant in GRANT.finditer(POSTGRES.joinpath("roles.sql").read_text()):
        columns = grant["columns"]
        for table in grant["tables"].split(","):
            found[table.strip()] = None if columns is None else {name.strip() for name in columns.split(",")}
    return found


def updated(text: str) -> set[tuple[str, str]]:
    """Table and column of each assignment in the UPDATE statements of a text."""
    plain = re.sub(r"%\((\w+)\)[sbt]", r":\1", text)
    return {
        (update.this.this.name, assignment.this.name)
        for statement in sqlglot.parse(plain, read="postgres")
        if statement is not None
        for update in statement.find_all(exp.Update)
        for assignment in update.expressions
    }


def test_updates_and_grants_are_read() -> None:
    """Goal: the test below is no rubber stamp. Method: what both are known to have."""
    assert granted()["archive_head"] is None
    assert {"epoch", "ledger_end", "published_offset"} <= (granted()["participant"] or set())
    assert ("participant", "pruned_to") in updated(POSTGRES.joinpath("prune.sql").read_text())
    assert ("epoch_grant", "found_over_at") in updated(POSTGRES.joinpath("raise_epoch.sql").read_text())


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_is_updated_is_granted(name: str) -> None:
    """Goal: no statement meets "permission denied" on a server. Method: its columns against the grants' columns."""
    rights = granted()
    for table, column in updated(POSTGRES.joinpath(f"{name}.sql").read_text()):
        columns = rights.get(table, set())
        assert columns is None or column in columns, f"{table}.{column} is not granted in roles.sql"
