"""Where consumed states come from: rows of a CSV file, or of another notary's table. Reads; decides nothing."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from replica.notary.errors import BadRequest, ConfigError
from replica.notary.requests import parse_state_ref, parse_tx_id, state_ref

FETCH_ROWS = 10_000
NO_STATE = b""  # of a transaction that consumed nothing
OWN_COLUMNS = ("state", "consumed_by")


class Consumed(NamedTuple):
    """One state and the transaction that consumed it; NO_STATE for a transaction that is only to be remembered."""

    tx_id: bytes
    state: bytes


class Columns(NamedTuple):
    """Names of the three columns of a notary's own table: a state's transaction and index, and who consumed it."""

    state_tx: str
    state_index: str
    consumed_by: str


CORDA = Columns("issue_transaction_id", "issue_transaction_output_id", "consuming_transaction_id")


def parse_columns(text: str) -> Columns:
    """Three names, comma-separated. Raises ConfigError."""
    names = [name.strip() for name in text.split(",")]
    if len(names) != 3 or not all(name.isidentifier() for name in names):
        raise ConfigError(f"three column names, comma-separated, are expected, not {text!r}")
    return Columns(*names)


def file_identity(path: Path) -> str:
    """The identity of the file's content. Raises ConfigError when the file cannot be read."""
    try:
        with path.open("rb") as file:
            digest = sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return f"sha256:{digest.hexdigest()}"


def read_csv(path: Path, columns: Columns) -> Iterator[Consumed]:
    """Rows of a CSV file with a header: `state,consumed_by`, or the three columns of a notary's table.

    Raises ConfigError naming the line that is wrong.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = tuple(next(rows, ()))
        of_row = _reader(header, columns, path)
        for row in rows:
            try:
                if len(row) != len(header):
                    raise BadRequest(f"{len(row)} fields, the header has {len(header)}")
                yield of_row(row)
            except (BadRequest, ValueError) as error:
                raise ConfigError(f"{path}, line {rows.line_num}: {error}") from None


def read_table(conninfo: str, table: str, columns: Columns) -> Iterator[Consumed]:
    """Rows of a table of another notary, as of one moment; ids are text of hexadecimal digits, or bytes.

    Raises ConfigError when the table cannot be read, or a row is none.
    """
    import psycopg
    from psycopg import sql

    query = sql.SQL("SELECT {}, {}, {} FROM {}").format(
        *(sql.Identifier(name) for name in columns), sql.Identifier(*table.split("."))
    )
    try:
        with psycopg.connect(conninfo) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with connection.cursor(name="notary_import") as cursor:
                cursor.itersize = FETCH_ROWS
                cursor.execute(query)
                yield from _consumed_of(cursor, table)
    except psycopg.Error as error:
        raise ConfigError(f"{table} cannot be read: {str(error).strip()}") from None


def _consumed_of(rows: Iterable[tuple[object, ...]], table: str) -> Iterator[Consumed]:
    for number, (state_tx, index, consumed_by) in enumerate(rows, 1):
        try:
            yield Consumed(_tx_id(consumed_by), state_ref(_tx_id(state_tx), int(str(index))))
        except (BadRequest, ValueError) as error:
            raise ConfigError(f"{table}, row {number}: {error}") from None


def _reader(header: tuple[str, ...], columns: Columns, path: Path) -> Callable[[list[str]], Consumed]:
    """The function that turns a row of a file into a consumed state, by the columns in its header."""
    known = OWN_COLUMNS if set(OWN_COLUMNS) <= set(header) else columns
    missing = [name for name in known if name not in header]
    if missing:
        raise ConfigError(f"{path} has no column {', '.join(missing)}; its header is {','.join(header)[:200]!r}")
    places = [header.index(name) for name in known]

    def own(row: list[str]) -> Consumed:
        state, consumed_by = (row[place].strip().lower() for place in places)
        return Consumed(parse_tx_id(consumed_by), parse_state_ref(state) if state else NO_STATE)

    def of_table(row: list[str]) -> Consumed:
        state_tx, index, consumed_by = (row[place].strip().lower() for place in places)
        return Consumed(parse_tx_id(consumed_by), state_ref(parse_tx_id(state_tx), int(index)))

    return own if known == OWN_COLUMNS else of_table


def _tx_id(value: object) -> bytes:
    if isinstance(value, bytes | memoryview):
        return parse_tx_id(bytes(value).hex())
    return parse_tx_id(str(value).strip().lower())
