"""The work file of an import: all of its transactions, and the progress.

It is one SQLite file, written once from the source and checked as a whole before the first record is made. After that,
only the progress changes. Its loss is harmless: a new import of the same source finds everything already imported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from replica.importing.sources import Consumed
from replica.notary.errors import ConfigError
from replica.notary.requests import DERIVED, STATES_LIMIT, format_state_ref

CHUNK_ROWS = 50_000
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS consumed (tx_id BLOB, state BLOB, PRIMARY KEY (tx_id, state)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (tx_id BLOB PRIMARY KEY, code TEXT NOT NULL, detail TEXT NOT NULL) WITHOUT ROWID;
"""
_DOUBLE = """
SELECT state, min(tx_id), max(tx_id) FROM consumed WHERE state != x'' GROUP BY state HAVING count(*) > 1 LIMIT 1
"""
_DERIVED = "SELECT tx_id FROM consumed WHERE substr(tx_id, -8) = ? LIMIT 1"
_TOO_MANY = "SELECT tx_id, count(*) FROM consumed GROUP BY tx_id HAVING count(*) >= ? LIMIT 1"


class ImportedTx(NamedTuple):
    """One transaction of the source with every state it consumed there, ascending."""

    tx_id: bytes
    states: tuple[bytes, ...]


class Progress(NamedTuple):
    """How far an import is. `refused` are part of `done`."""

    transactions: int
    states: int
    done: int
    refused: int


class Staging:
    """Open it, `fill` it unless it `is_filled`, then process `remaining` and record the results with `note`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when the file is no work file, or another import uses it."""
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=0.0)
            self._db.executescript(_SCHEMA)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._set("opened", 1)  # takes the lock, and keeps it
        except sqlite3.Error as error:
            raise ConfigError(f"{path} is no work file of an import, or is in use: {error}") from None

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def is_filled(self, identity: str) -> bool:
        """Whether the source is in the file already. Raises ConfigError when another source is."""
        known = self._get("identity")
        if known not in (None, identity):
            raise ConfigError("the work file belongs to another source: name another file with --work")
        return known is not None

    def fill(self, rows: Iterable[Consumed], identity: str) -> None:
        """Take the source in, all of it or nothing. Raises ConfigError when no notary can have decided it.

        A row that occurs twice counts once.
        """
        self._db.execute("BEGIN")
        try:
            left = iter(rows)
            while chunk := list(islice(left, CHUNK_ROWS)):
                self._db.executemany("INSERT OR IGNORE INTO consumed VALUES (?, ?)", chunk)
            # a transaction that consumes states needs no row of its own
            self._db.execute(
                "DELETE FROM consumed WHERE state = x'' AND tx_id IN (SELECT tx_id FROM consumed WHERE state != x'')"
            )
            self._check()
            for name, query in (("transactions", "count(DISTINCT tx_id)"), ("states", "count(nullif(state, x''))")):
                self._set(name, self._one(f"SELECT {query} FROM consumed")[0])  # noqa: S608 (our own two texts)
            self._set("identity", identity)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def progress(self) -> Progress:
        """How far it is."""
        (refused,) = self._one("SELECT count(*) FROM refused")
        transactions, states, done = (int(self._get(name) or 0) for name in ("transactions", "states", "done"))
        return Progress(transactions, states, done, refused)

    def remaining(self, count: int) -> list[ImportedTx]:
        """The next transactions, ascending by id; none when all are done."""
        after = self._get("done_to") or b""
        rows = self._db.execute(
            "SELECT tx_id, state FROM consumed WHERE tx_id IN"
            " (SELECT DISTINCT tx_id FROM consumed WHERE tx_id > ? ORDER BY tx_id LIMIT ?) ORDER BY tx_id, state",
            (after, count),
        )
        return [
            ImportedTx(tx_id, tuple([state for _, state in group if state]))
            for tx_id, group in groupby(rows, key=itemgetter(0))
        ]

    def note(self, done: list[ImportedTx], refused: dict[bytes, tuple[str, str]]) -> None:
        """Mark these transactions of `remaining` as done. `refused`: code and detail of each that was refused."""
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT OR REPLACE INTO refused VALUES (?, ?, ?)", [(tx_id, *why) for tx_id, why in refused.items()]
        )
        self._set("done", int(self._get("done") or 0) + len(done))
        self._set("done_to", done[-1].tx_id)
        self._db.execute("COMMIT")

    def refusals(self) -> Iterator[tuple[bytes, str, str]]:
        """Transaction id, code and detail of what the notary refused."""
        yield from self._db.execute("SELECT tx_id, code, detail FROM refused ORDER BY tx_id")

    def _check(self) -> None:
        double = self._db.execute(_DOUBLE).fetchone()
        if double is not None:
            state, one, other = double
            raise ConfigError(
                f"the source says that {format_state_ref(state)} was consumed by {one.hex()} and by {other.hex()}:"
                " find out which is true before anything is imported"
            )
        derived = self._db.execute(_DERIVED, (DERIVED,)).fetchone()
        if derived is not None:
            raise ConfigError(f"{derived[0].hex()} ends in '/derived', which no transaction's id may do")
        large = self._db.execute(_TOO_MANY, (STATES_LIMIT,)).fetchone()
        if large is not None:
            raise ConfigError(
                f"{large[0].hex()} consumed {large[1]} states; one request has at most {STATES_LIMIT - 1}"
            )

    def _one(self, query: str) -> tuple[int, ...]:
        row: tuple[int, ...] = self._db.execute(query).fetchone()
        return row

    def _get(self, name: str) -> str | int | bytes | None:
        row = self._db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _set(self, name: str, value: str | int | bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))
