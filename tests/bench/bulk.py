"""Fills the index and the completions with many rows, by their bulk ways.

Rows have the shape, the sizes and the key distribution of real ones: keys and hashes are uniformly random, each
transaction consumes STATES_PER_TX states under a command of its own. Table files are written key range by key range,
on every core, and spread over levels as compaction leaves them. Postgres makes the completions itself.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import ceil, log10
from pathlib import Path
from time import sleep

import numpy as np
import psycopg
from rocksdict import AccessType, IngestExternalFileOptions, Rdict, WriteBatch

from replica.index.rocks import FILE_BYTES, MIB, StoredPositions, read_index, table_options
from replica.index.tables import write_table
from replica.notary.acceptances import COMMAND_KEY, VALUE_BYTES
from replica.notary.position import Position
from replica.notary.requests import DIGEST_BYTES, STATE_REF_BYTES, TX_ID_BYTES
from replica.notary.rules import STATE_KEY, TX_KEY

STATES_PER_TX = 4
OFFSET_BYTES = 8
ROWS_PER_FILE_MAX = 500_000
LEVEL_BASE_BYTES = 128 * MIB  # up to here everything is on one level
LEVEL_RATIO = 10
COMPLETION_BYTES = 560  # a row with its part of the primary key and of the write-ahead log's peak
LEFT_FREE_BYTES = 4 << 30
COMPLETIONS_PER_STATEMENT = 1_000_000
OPENINGS_MAX = 20  # of an index that a replica writes to
OPENING_PAUSE_S = 0.1


class DiskTooSmall(RuntimeError):
    """What is to be filled does not fit on this disk."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entry: the key's first byte, the random bytes after it, and those of the value before its offset."""

    prefix: bytes
    key_bytes: int
    value_bytes: int

    @property
    def row_bytes(self) -> int:
        """Key and value, and what RocksDB adds to them."""
        return 1 + self.key_bytes + self.value_bytes + OFFSET_BYTES + 12


STATE = Kind(STATE_KEY, STATE_REF_BYTES, TX_ID_BYTES)
TRANSACTION = Kind(TX_KEY, TX_ID_BYTES, DIGEST_BYTES)
COMMAND = Kind(COMMAND_KEY, DIGEST_BYTES, VALUE_BYTES - OFFSET_BYTES)


@dataclass(frozen=True, slots=True)
class Part:
    """A table file to write: keys whose first random byte is in [low, high)."""

    kind: Kind
    level: int  # 0: the bottom
    low: int
    high: int
    count: int


def bytes_needed(states: int, replicas: int) -> int:
    """Disk space for so many states, transactions, commands and completions, compaction included.

    Replicas share the files at first. Each writes its own as it compacts, which a short measurement does in part.
    """
    index = states * STATE.row_bytes + states // STATES_PER_TX * (TRANSACTION.row_bytes + COMMAND.row_bytes)
    return round(index * (1 + 0.2 * replicas)) + states // STATES_PER_TX * COMPLETION_BYTES


def refuse_small_disk(states: int, replicas: int, free_bytes: int) -> None:
    """Raises DiskTooSmall, with a sentence, unless so many states fit and some space is left."""
    needed = bytes_needed(states, replicas) + LEFT_FREE_BYTES
    if needed > free_bytes:
        raise DiskTooSmall(
            f"{states:,} states need {needed / 2**30:.0f} GiB of disk and {free_bytes / 2**30:.0f} are free: free some,"
            " or measure fewer with --states"
        )


def level_shares(size_bytes: int) -> list[float]:
    """The share of the entries on each level, the bottom first: each level has a tenth of the next, down to the size
    from which RocksDB needs no further level."""
    levels = 1 + max(0, ceil(log10(size_bytes / LEVEL_BASE_BYTES)))
    weights = [LEVEL_RATIO**-level for level in range(levels)]
    return [weight / sum(weights) for weight in weights]


def parts_of(kind: Kind, count: int, shares: Sequence[float]) -> list[Part]:
    """Table files for so many entries: a level has them in ranges of about the same size, which together are all."""
    found, left = [], count
    for level, share in enumerate(shares):
        of_level = left if level == len(shares) - 1 else round(count * share)
        left -= of_level
        ranges = min(256, max(1, ceil(of_level / ROWS_PER_FILE_MAX)))
        for at in range(ranges):
            low, high = 256 * at // ranges, 256 * (at + 1) // ranges
            rows = of_level * high // 256 - of_level * low // 256
            if rows:
                found.append(Part(kind, level, low, high, rows))
    return found


def rows_of(part: Part, offsets: int, random: np.random.Generator) -> Iterator[tuple[bytes, bytes]]:
    """Entries in key order; their log offsets are below `offsets`."""
    kind = part.kind
    rows = np.empty((part.count, 1 + kind.key_bytes + kind.value_bytes + OFFSET_BYTES), np.uint8)
    rows[:] = random.integers(0, 256, rows.shape, np.uint8)
    rows[:, 0] = kind.prefix[0]
    rows[:, 1] = random.integers(part.low, part.high, part.count, np.uint8)
    if kind is STATE:  # the index of an output is a small number
        rows[:, kind.key_bytes - 3 : kind.key_bytes] = 0
        rows[:, kind.key_bytes] &= 3
    recorded = random.integers(0, max(1, offsets), part.count, np.int64).astype(">i8")
    rows[:, -OFFSET_BYTES:] = recorded.view(np.uint8).reshape(-1, OFFSET_BYTES)
    order = np.argsort(np.ascontiguousarray(rows[:, 1:9]).view(">u8").ravel())
    data, width, key_end = rows[order].tobytes(), rows.shape[1], 1 + kind.key_bytes
    for at in range(0, len(data), width):
        yield data[at : at + key_end], data[at + key_end : at + width]


def write_tables(folder: Path, parts: Sequence[Part], offsets: int) -> dict[int, list[Path]]:
    """Write the table files of the parts, on every core; their paths by level."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number}.sst" for number in range(len(parts))]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_write_table, paths, parts, [offsets] * len(parts)))
    by_level: dict[int, list[Path]] = {}
    for path, part in zip(paths, parts, strict=True):
        by_level.setdefault(part.level, []).append(path)
    return by_level


def _write_table(path: Path, part: Part, offsets: int) -> None:
    write_table(path, rows_of(part, offsets, np.random.default_rng()))


def fill_one(folder: Path, tables: Mapping[int, Sequence[Path]], added: int) -> None:
    """Put table files under what a stopped replica's index has: the same position, so many more entries.

    The files are linked: other replicas may have the same.
    """
    with read_index(folder) as stored:
        position, own = stored.position, list(stored.entries)
    assert position is not None
    for path in folder.iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path)
    db = Rdict(str(folder), table_options(create=True))
    moving = IngestExternalFileOptions()
    moving.set_move_files(True)
    for level in sorted(tables):
        links = [folder / f"link-{path.name}" for path in tables[level]]
        for path, link in zip(tables[level], links, strict=True):
            os.link(path, link)
        db.ingest_external_file([str(link) for link in links], moving)
    _write_batch(db, own, len(own) + added, position)
    db.flush()
    db.close()


def pile_up(folder: Path, files: int, random: np.random.Generator) -> int:
    """Give a stopped replica's index so many files on level 0, which wait for compaction; returns the entries added."""
    options = table_options()
    options.set_disable_auto_compactions(True)
    with read_index(folder) as stored:
        position, count = stored.position, stored.entry_count
    assert position is not None
    kinds = (STATE, TRANSACTION, COMMAND)
    rows = FILE_BYTES // sum(kind.row_bytes for kind in kinds)
    db = Rdict(str(folder), options, {"default": options})
    for number in range(1, files + 1):
        added = [row for kind in kinds for row in rows_of(Part(kind, 0, 0, 256, rows), position.offset, random)]
        _write_batch(db, added, count + number * len(added), position)
        db.flush()
    db.close()
    return files * rows * len(kinds)


def level_files(folder: Path) -> dict[int, int]:
    """How many files each level of an index has; of one in use, as of its last flush."""
    db = _open_to_read(folder)
    try:
        levels: dict[int, int] = {}
        for file in db.live_files():
            levels[file["level"]] = levels.get(file["level"], 0) + 1
        return dict(sorted(levels.items()))
    finally:
        db.close()


def _open_to_read(folder: Path) -> Rdict:
    """The index, although a replica may delete a file of its write-ahead log between naming and opening it."""
    for _ in range(OPENINGS_MAX):
        try:
            return Rdict(str(folder), table_options(), {"default": table_options()}, AccessType.read_only(False))
        except Exception as error:  # rocksdict raises nothing more specific
            failure = error
            sleep(OPENING_PAUSE_S)
    raise failure


def _write_batch(db: Rdict, entries: Sequence[tuple[bytes, bytes]], count: int, position: Position) -> None:
    batch = WriteBatch(raw_mode=True)
    for key, value in (*entries, *StoredPositions(count, position).encoded().items()):
        batch.put(key, value)
    db.write(batch)


def fill_index(folder: Path, states: int, replica_folders: Sequence[Path], offsets: int) -> None:
    """Fill the indexes of stopped replicas with so many states, and their transactions and commands."""
    transactions = states // STATES_PER_TX
    counts = {STATE: states, TRANSACTION: transactions, COMMAND: transactions}
    shares = level_shares(sum(count * kind.row_bytes for kind, count in counts.items()))
    parts = [part for kind, count in counts.items() for part in parts_of(kind, count, shares)]
    tables = write_tables(folder, parts, offsets)
    for replica in replica_folders:
        fill_one(replica, tables, sum(counts.values()))
    shutil.rmtree(folder)


COMPLETIONS = """
INSERT INTO completion (ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
       content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us, deduplication_after)
SELECT %(begin)s + n, t.log_offset, sha256(int8send(n) || 'c'), t.user_id, encode(sha256(int8send(n)), 'hex'), t.act_as,
       encode(substr(sha256(int8send(n) || 's'), 1, 16), 'hex'), sha256(int8send(n)), sha256(int8send(n) || 'd'),
       t.outcome, t.notarised_offset, t.recorded_us, t.detail, t.deduplication_us, t.deduplication_after
  FROM generate_series(%(low)s::bigint, %(high)s::bigint) AS n, completion AS t
 WHERE t.ledger_offset = %(template)s
"""


def fill_completions(conninfo: str, count: int) -> None:
    """So many completions after the newest one, each like it but for its hashes. No replica may run. Blocks."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        found = connection.execute("SELECT ledger_end FROM participant").fetchone()
        assert found is not None
        (end,) = found
        for low in range(1, count + 1, COMPLETIONS_PER_STATEMENT):
            high = min(count, low + COMPLETIONS_PER_STATEMENT - 1)
            connection.execute(COMPLETIONS, {"begin": end, "low": low, "high": high, "template": end})
        connection.execute("UPDATE participant SET ledger_end = ledger_end + %s", (count,))
        connection.execute("VACUUM (ANALYZE) completion")
        connection.execute("CHECKPOINT")


def evict(folders: Sequence[Path]) -> int:
    """Write out all files of these folders and drop them from the page cache; returns their bytes."""
    os.sync()
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    total += path.stat().st_size
    return total
