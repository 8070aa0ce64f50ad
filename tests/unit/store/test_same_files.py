"""Both kinds of database have their files under the same names: who knows one room finds the way in the other."""

from __future__ import annotations

from pathlib import Path

import replica.store

ROOM = Path(replica.store.__file__).parent
ONLY_ON_POSTGRES = {
    "arrays": "a batch travels as arrays in one statement; Oracle's driver takes many rows at once by itself",
    "desk": "workers draw their numbers here; with Oracle the active alone serves (docs/decisions/0021-workers.md)",
    "neighbours": "sessions of others and other ledgers; on Oracle a ledger has a user of its own, and sees no others",
}
ONLY_ON_ORACLE = {
    "errors": "an error is judged by its ORA- number, in one place; psycopg has a class for each",
    "login": "the connection string is ours; on Postgres it is libpq's, which parses it",
}


def names(kind: str) -> set[str]:
    return {file.stem for file in (ROOM / kind).glob("*.py")}


def test_both_kinds_of_database_have_the_same_files() -> None:
    """Goal: a name means the same in both rooms. Method: the names; exceptions have a reason."""
    postgres, oracle = names("postgres"), names("oracle")
    assert {"kind", "store", "reader", "export"} <= postgres & oracle
    assert postgres - oracle == set(ONLY_ON_POSTGRES)
    assert oracle - postgres == set(ONLY_ON_ORACLE)
