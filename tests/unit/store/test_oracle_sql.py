"""Every statement for Oracle is read by two parsers of Oracle's dialect: sqlfluff, PL/SQL included, and sqlglot."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
import sqlglot
from sqlfluff.core import Linter

from ha.lock import oracle as lock
from replica.store.oracle import migrate
from replica.store.oracle.looking import REQUEST_LOCK
from replica.store.oracle.migrate import statements_of
from replica.store.oracle.store import named_statement
from replica.store.schema import read_migrations

ROOT = Path(__file__).parents[3]
NAMES = sorted(item.name.removesuffix(".sql") for item in files("replica.store").joinpath("sql/oracle").iterdir())
BLOCKS = {f"lock {name}": getattr(lock, name) for name in ("REQUEST", "NOTE", "RELEASE")} | {"_LOCK": REQUEST_LOCK}
QUERIES = {
    **{f"lock {name}": getattr(lock, name) for name in ("CHECK", "PROFILE", "PARAMETERS", "LOOK", "IDENTITY")},
    **{name: getattr(migrate, name) for name in ("_VERSIONS", "_KNOWN", "_BEGIN", "_STEP", "_END")},
    **{name: named_statement(name) for name in NAMES if name != "roles"},
    **{
        f"{migration.name} {number}": text
        for migration in read_migrations("oracle")
        for number, text in enumerate(statements_of(migration), 1)
    },
}
OTHERS = {"roles": named_statement("roles"), **{f"lock PREPARE {at}": text for at, text in enumerate(lock.PREPARE)}}
RESERVED = {
    "ACCESS",
    "DATE",
    "LEVEL",
    "MODE",
    "NUMBER",
    "ROW",
    "ROWS",
    "SESSION",
    "SIZE",
    "START",
    "UID",
    "USER",
}  # no binds


@pytest.fixture(scope="module")
def linter() -> Linter:
    return Linter(dialect="oracle")


def unparsable(linter: Linter, text: str) -> list[str]:
    parsed = linter.parse_string(text)
    assert parsed.tree is not None
    found = [segment.raw for segment in parsed.tree.recursive_crawl("unparsable")]
    return found + [str(violation) for violation in parsed.violations]


@pytest.mark.parametrize("text", [*BLOCKS.values()], ids=[*BLOCKS])
def test_a_block_is_pl_sql(linter: Linter, text: str) -> None:
    """Goal: PL/SQL is spelt right. Method: sqlfluff's grammar of it, as SQL*Plus ends a block."""
    assert unparsable(linter, f"{text}\n/\n") == []
    assert unparsable(linter, f"{text.replace('END;', 'ENDING;')}\n/\n") != []  # the parser does mind


@pytest.mark.parametrize("text", [*QUERIES.values(), *OTHERS.values()], ids=[*QUERIES, *OTHERS])
def test_a_statement_is_oracle_s_sql(linter: Linter, text: str) -> None:
    """Goal: SQL is spelt right. Method: sqlfluff's grammar."""
    assert unparsable(linter, text if text.endswith(";") else f"{text};\n") == []


@pytest.mark.parametrize("text", [*QUERIES.values()], ids=[*QUERIES])
def test_a_statement_is_understood_by_another_parser(text: str) -> None:
    """Goal: one parser may be lenient. Method: sqlglot; nothing stays opaque, no bind has a reserved name."""
    tree = sqlglot.parse_one(text, read="oracle", error_level=sqlglot.ErrorLevel.RAISE)
    assert not isinstance(tree, sqlglot.exp.Command)
    assert not {bind.name.upper() for bind in tree.find_all(sqlglot.exp.Placeholder)} & RESERVED
    again = sqlglot.parse_one(tree.sql(dialect="oracle"), read="oracle")
    assert again == tree


def test_every_statement_carries_its_name() -> None:
    """Goal: V$SQL shows what a statement is for. Method: the first line."""
    for name in NAMES:
        assert named_statement(name).startswith(f"/* notary.{name} */\n")
    for text in [*BLOCKS.values(), *lock.PREPARE, lock.CHECK, lock.LOOK, lock.PROFILE, lock.PARAMETERS, lock.IDENTITY]:
        assert text.startswith(("/* ha.lock.", "/* notary."))


def test_roles_grant_what_the_runbook_says_and_no_more() -> None:
    """Goal: least privilege. Method: the list."""
    granted = [line for line in named_statement("roles").splitlines() if line.startswith("GRANT")]
    assert granted == [
        "GRANT CREATE SESSION, CREATE TABLE, CREATE VIEW TO notary;",
        "GRANT EXECUTE ON sys.dbms_lock TO notary;",
        "GRANT SELECT ON sys.v_$database TO notary;",
        "GRANT SELECT ON sys.gv_$lock TO notary;",
        "GRANT SELECT ON sys.gv_$session TO notary;",
        "GRANT SELECT ON sys.v_$parameter TO notary;",
    ]


def test_the_runbook_s_queries_are_oracle_s(linter: Linter) -> None:
    """Goal: what an operator types is spelt right. Method: runbooks/oracle.md; users are in no grammar at hand."""
    blocks = re.findall(r"```sql\n(.*?)```", (ROOT / "runbooks/oracle.md").read_text(), re.DOTALL)
    queries = [block for block in blocks if block.startswith("SELECT")]
    assert (len(blocks), len(queries)) == (8, 4)
    assert [unparsable(linter, query) for query in queries] == [[]] * 4
