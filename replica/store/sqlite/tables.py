"""The tables of an embedded ledger: one SQLite file per replica, derived from the log, and the codec of its rows.

Whatever is in here follows from the log, so nothing is ever repaired: a file that is damaged, of another log, or of
another version is put aside, and the ledger is made anew. SQLite has no checksums of its own, so each row has one.
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from zlib import crc32

import msgspec

from replica.notary.untrusted import UNREADABLE
from replica.store.interface import Completion, Row

VERSION = 1
FILE = "ledger.sqlite"
LOCK_WAIT_S = 5.0  # a copy that is taken while the replica runs holds the file for moments only

# One row of `progress`: the log's identity, how far the ledger covers it, and up to where completions may be gone.
SCHEMA = f"""
CREATE TABLE progress (
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    topic_id   TEXT    NOT NULL,
    position   BLOB,
    ledger_end INTEGER NOT NULL DEFAULT 0,
    pruned_to  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE completion (
    ledger_offset INTEGER PRIMARY KEY,
    log_offset    INTEGER NOT NULL,
    recorded_us   INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    checksum      INTEGER NOT NULL
) STRICT;
CREATE TABLE activation (
    epoch      INTEGER PRIMARY KEY,
    replica    TEXT    NOT NULL,
    log_offset INTEGER NOT NULL,
    stamp_us   INTEGER NOT NULL
) STRICT;
PRAGMA user_version = {VERSION};
"""

_NUMBERS = struct.Struct("<qqq")  # ledger offset, log offset, time: what a body does not repeat is protected as well
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(
    tuple[
        bytes, str, str, tuple[str, ...], str, bytes, bytes, str, int | None, bytes, int | None, int | None
    ]  # a Completion without its log offset and time, in order
)

Stored = tuple[int, int, int, bytes, int]
"""A row of `completion`."""


class LedgerDamaged(Exception):
    """The file is not what this replica wrote. It is made anew from the log."""


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """A connection in autocommit mode; one that only reads cannot write, whoever asks. Raises sqlite3.Error."""
    mode = "rwc" if writes else "ro"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=LOCK_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    if writes:
        # After a crash the newest transactions may be missing, never part of one. The log restores them.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def stored(ledger_offset: int, completion: Completion) -> Stored:
    """The row of a completion."""
    log_offset, *head = msgspec.structs.astuple(completion)
    recorded_us = completion.recorded_us
    body = _encoder.encode([*head[:9], *head[10:]])
    return ledger_offset, log_offset, recorded_us, body, _checksum(ledger_offset, log_offset, recorded_us, body)


def restored(row: Stored) -> Row:
    """The completion of a row. Raises LedgerDamaged when it is not what was stored."""
    ledger_offset, log_offset, recorded_us, body, checksum = row
    if checksum != _checksum(ledger_offset, log_offset, recorded_us, body):
        raise LedgerDamaged(f"the completion at ledger offset {ledger_offset} does not have its checksum")
    try:
        fields = _decoder.decode(body)
    except UNREADABLE as error:
        raise LedgerDamaged(f"the completion at ledger offset {ledger_offset} cannot be read: {error}") from None
    return ledger_offset, Completion(log_offset, *fields[:9], recorded_us, *fields[9:])


def _checksum(ledger_offset: int, log_offset: int, recorded_us: int, body: bytes) -> int:
    return crc32(body, crc32(_NUMBERS.pack(ledger_offset, log_offset, recorded_us)))
