"""The committed-state index on RocksDB: one database, one write batch a run of records, for entries and position.

RocksDB can hide losses in three ways. Each has a remedy here, and a test:

- The end of its manifest is lost. Then RocksDB forgets older files, while newer entries, and with them the position,
  come back from its write-ahead log. Remedy: the position is stored with the number of entries, and opening compares
  that number with what the files hold.
- Its iterators end at a corrupt block as if there were no more entries. Remedy: ask them for their status.
- rocksdict opens an existing database with the stored options, but without the bloom filter: look-ups then take twenty
  times as long, and nothing reports it. Remedy: name the options for the column family.

Damage that RocksDB reports (IndexDamaged) is distinguished from failures caused by another process, a full disk or
missing rights. Only a damaged index is moved aside (replica/index/quarantine.py).

The write-ahead log is not synced, because the index is a cache. A machine that crashes loses the newest batches whole,
position and entries together, and the replica reads them from the request log again. A killed process loses nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from msgspec.structs import replace
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    UniversalCompactOptions,
    WriteBatch,
)

from replica.index.compare import recorded_at
from replica.index.interface import BEFORE_KEY, POSITION_KEY
from replica.index.summary import IndexSummary, summarise
from replica.notary.codes import Code
from replica.notary.errors import FormatUnknown, IndexDamaged, IndexUnreadable
from replica.notary.parties import OFFICERS_KEY, PARTY_KEY
from replica.notary.position import Position, decode_position, encode_position

MIB = 1 << 20
_OFFSET_BYTES = _COUNT_BYTES = 8  # the value of POSITION_KEY: the number of entries, big-endian, then the position
_FIRST_KIND = b"\x02"  # sorts after both positions, and not after any entry
_NOTED = (OFFICERS_KEY, PARTY_KEY)  # kinds whose keys are a prefix and the log offset
_EARLIER_POSITION_KEY = b"m/position"  # of an index that had a database for each kind

# Measured: docs/decisions/0005.
WRITE_BUFFER_BYTES = 2 * MIB  # a skip list of random keys gets slower as it grows: this size fits the caches
WRITE_BUFFERS_TO_FILE = 8  # this many are merged into one file, because each file slows every look-up
WRITE_BUFFERS_MAX = 32
FILE_BYTES = WRITE_BUFFERS_TO_FILE * WRITE_BUFFER_BYTES
MEMTABLE_BLOOM_RATIO = 0.05  # of the write buffer; nearly all look-ups are for keys that are absent
BLOOM_BITS_PER_KEY = 10
BLOCK_CACHE_BYTES = 64 * MIB  # serves look-ups that hit, which are resubmissions and double spends
SORTED_RUNS = 8  # compaction starts at this number: files on level 0, and levels below it
SORTED_RUNS_SLOW = 32
SORTED_RUNS_STOP = 64
RUN_SIZE_RATIO_PERCENT = 10  # runs whose sizes differ by no more than this are merged together
RUN_AMPLIFICATION_MAX_PERCENT = 1_000_000  # no merge frees space: keys are unique, and nothing is deleted
BACKGROUND_JOBS = 3  # a flush, a long merge, and a short one meanwhile
OPEN_FILES_MAX = 2_000  # they have 64 MiB, and small ones are merged
SYNC_BYTES = MIB  # sync table files in small steps: a burst of dirty pages would delay the database's fsync

_ENTRIES_IN = re.compile(r"# entries=(\d+);")

_SIGNS_OF_DAMAGE = (  # in messages of RocksDB; any other failure, such as an I/O error, may be temporary
    "Corruption",
    "No such file or directory",  # a file that the manifest names
    "create_if_missing is false",  # there are index files, but no file that lists the valid ones
)

_SIZES = {
    "table_bytes": "rocksdb.total-sst-files-size",
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "cache_bytes": "rocksdb.block-cache-usage",
    "write_stopped": "rocksdb.is-write-stopped",
    "running_compactions": "rocksdb.num-running-compactions",
    "running_flushes": "rocksdb.num-running-flushes",
    "waiting_memtables": "rocksdb.num-immutable-mem-table",
    "delayed_write_bytes_per_second": "rocksdb.actual-delayed-write-rate",
    "background_errors": "rocksdb.background-errors",
}


class RocksIndex:
    """See Index. One process at a time; all calls from one thread; a call waits only for the disk.

    The first failure is final: every later call raises IndexUnreadable with the same detail.
    """

    def __init__(self, folder: Path) -> None:
        """Open the index in `folder`, or make a new one there.

        Raises IndexDamaged when it is corrupt or incomplete, and IndexUnreadable when another release wrote it, another
        process has it open, or it cannot be opened for another reason.
        """
        self._failure: IndexUnreadable | None = None
        try:
            self._db = _open(folder)
        except Exception as error:  # rocksdict raises nothing more specific
            raise _unreadable(f"the index in {folder} cannot be opened", error) from None
        self._noted: dict[bytes, bytes] | None = None  # read when it is first asked for: a start reads no block
        try:
            self._at = self._read_position(folder)
            self._check_complete(folder)
        except IndexUnreadable:
            self._db.close()
            raise

    def position(self) -> Position | None:
        """See Index."""
        self._check_usable()
        return self._at.position

    def position_before(self) -> Position | None:
        """See Index."""
        self._check_usable()
        return self._at.before

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index. One call for all keys: 1 microsecond each, and other threads run meanwhile."""
        self._check_usable()
        try:
            return cast(list[bytes | None], self._db.get(list(keys)))
        except Exception as error:
            self._fail("a look-up failed", error)

    def newest(self, prefixes: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """See Index. A seek for each acceptance. Officers and registrations are few, and asked for with each run: the
        newest of each is in memory."""
        self._check_usable()
        return [
            self._newest_noted(prefix, offset) if prefix[:1] in _NOTED else self._newest(prefix, offset)
            for prefix, offset in zip(prefixes, below, strict=True)
        ]

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Index. Sorted, because neighbours in the batch are then neighbours in the memtable."""
        self._check_usable()
        self._put(entries, self._at.after(len(entries), position))

    def adopt(self, topic_id: str) -> None:
        """Make it one that was read from this topic, which has the same records. May be repeated.

        An index names the log that it was read from, and a replica refuses one that names another. Raises
        IndexUnreadable.
        """
        self._check_usable()
        if self._at.position is not None:
            self._put({}, self._at.of_topic(topic_id))

    def entries(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See Index. What is written meanwhile is not seen."""
        self._check_usable()
        try:
            yield from _iterate(self._db, prefix)
        except Exception as error:
            self._fail("reading all entries failed", error)

    def keys_after(self, key: bytes, keys_max: int) -> list[bytes]:
        """The next keys of entries, in order; none at the end."""
        self._check_usable()
        found: list[bytes] = []
        try:
            cursor = self._db.iter()
            cursor.seek(key + b"\0")
            while len(found) < keys_max and cursor.valid():
                found.append(cursor.key())
                cursor.next()
            cursor.status()  # raises if the iterator stopped at an error
        except Exception as error:
            self._fail("reading keys failed", error)
        return found

    def checkpoint(self, folder: Path) -> None:
        """See Index. Files are shared by hard links when `folder` is on the same file system; takes about 0.1 s."""
        self._check_usable()
        try:
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as error:  # the index itself is unharmed
            detail = _unreadable(f"no checkpoint in {folder}", error).detail
            raise IndexUnreadable(detail, Code.NOT_POSSIBLE_NOW) from None

    @property
    def entry_count(self) -> int:
        """See Index."""
        return self._at.entry_count

    def sizes(self) -> dict[str, int]:
        """The size of the index, for metrics: entries, and bytes by kind. Reads only counters; empty once failed."""
        if self._failure is not None:
            return {}
        found = {kind: self._db.property_int_value(name) or 0 for kind, name in _SIZES.items()}
        return {"entries": self._at.entry_count, **found}

    def close(self) -> None:
        """See Index."""
        if self._failure is None:
            self._failure = IndexUnreadable("the index is closed")
        with suppress(Exception):  # closed already, or broken: nothing is left to do, and nothing is lost
            self._db.close()

    def _put(self, entries: Mapping[bytes, bytes], at: StoredPositions) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in at.encoded().items():
            batch.put(key, value)
        keys = sorted(entries)
        for key in keys:
            batch.put(key, entries[key])
        try:
            self._db.write(batch)
        except Exception as error:
            self._fail("a write failed", error)
        self._at = at
        if self._noted is None:
            return
        for kind in _NOTED:
            of_kind = keys[bisect_left(keys, kind) : bisect_left(keys, bytes([kind[0] + 1]))]
            self._noted |= {key[:-_OFFSET_BYTES]: entries[key] for key in of_kind}

    def _read_position(self, folder: Path) -> StoredPositions:
        try:
            return _read_positions(self._db, folder)
        except Exception as error:
            self._fail("the position cannot be read", error)

    def _check_complete(self, folder: Path) -> None:
        """Compare the number of entries in the files with the number stored with the position.

        Opening has moved the content of the write-ahead log into files. A file holds no key twice. It has the two
        positions, which every batch writes, if and only if it starts with them, because no key sorts before them. The
        files themselves are asked: `live_files` knows the entries of some twenty of those that it did not write.
        """
        in_files = _ENTRIES_IN.search(self._db.property_value("rocksdb.aggregated-table-properties") or "")
        positions = sum(file["start_key"] == POSITION_KEY for file in self._db.live_files())
        found = -1 if in_files is None else int(in_files[1]) - 2 * positions
        if found != self._at.entry_count:
            raise IndexDamaged(f"the index in {folder} has {found} of {self._at.entry_count} entries")

    def _newest_noted(self, prefix: bytes, below: int) -> bytes | None:
        if self._noted is None:
            self._noted = {key[:-_OFFSET_BYTES]: value for kind in _NOTED for key, value in self.entries(kind)}
        value = self._noted.get(prefix)
        return value if value is None or recorded_at(value) < below else self._newest(prefix, below)

    def _newest(self, prefix: bytes, below: int) -> bytes | None:
        if below <= 0:
            return None
        try:
            cursor = self._db.iter()
            cursor.seek_for_prev(prefix + (below - 1).to_bytes(_OFFSET_BYTES, "big"))
            key, value = (cursor.key(), cursor.value()) if cursor.valid() else (b"", b"")
            cursor.status()  # raises if the iterator stopped at an error
        except Exception as error:
            self._fail("a seek failed", error)
        return value if key.startswith(prefix) and recorded_at(value) < below else None

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.detail)

    def _fail(self, what: str, error: Exception) -> NoReturn:
        self._failure = _unreadable(what, error)
        raise self._failure from None


def verify_index(folder: Path) -> IndexSummary:
    """Read every entry of a checkpoint, or of the index of a replica that is stopped, with all checksums verified.

    Raises IndexUnreadable when anything is corrupt, or entries are missing.
    """
    with read_index(folder) as index:
        summary = summarise(index.position, index.entries)
        if summary.entry_count != index.entry_count:
            raise IndexDamaged(f"the index in {folder} has {summary.entry_count} of {index.entry_count} entries")
    return summary


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index that nobody writes to. `entries`: all of them, in key order; can be read once."""

    position: Position | None
    entry_count: int
    entries: Iterator[tuple[bytes, bytes]]
    lookup: Callable[[list[bytes]], list[bytes | None]]


@contextmanager
def read_index(folder: Path) -> Iterator[StoredIndex]:
    """Read a checkpoint, or the index of a stopped replica, with all checksums verified. Changes nothing.

    This function, the iterator and the look-up raise IndexUnreadable when anything is corrupt.
    """
    with _errors_named(folder):
        db = _open(folder, AccessType.read_only(False))
    try:
        with _errors_named(folder):
            at = _read_positions(db, folder)

        def entries() -> Iterator[tuple[bytes, bytes]]:
            with _errors_named(folder):
                yield from _iterate(db)

        def lookup(keys: list[bytes]) -> list[bytes | None]:
            with _errors_named(folder):
                return cast(list[bytes | None], db.get(list(keys)))

        yield StoredIndex(at.position, at.entry_count, entries(), lookup)
    finally:
        db.close()


@contextmanager
def _errors_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _unreadable(f"the index in {folder} cannot be verified", error) from None


def _open(folder: Path, access: AccessType | None = None) -> Rdict:
    is_new = access is None and not _holds_data(folder)
    options = table_options(create=is_new)
    by_family = None if is_new else {"default": options}
    db = Rdict(str(folder), options, by_family, access or AccessType.read_write())
    reading = ReadOptions()
    reading.set_verify_checksums(True)
    db.set_read_options(reading)
    return db


def _holds_data(folder: Path) -> bool:
    """Whether the folder has an index, whole or partial: then it must not be used for a new one."""
    patterns = ("CURRENT", "*.sst", "*.log")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def table_options(*, create: bool = False) -> Options:
    """The layout of an index. Code that writes table files for an index must use the same options."""
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_block_based_table_factory(table)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_compression_type(DBCompressionType.none())  # hashes do not compress
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_min_write_buffer_number_to_merge(WRITE_BUFFERS_TO_FILE)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
    options.set_compaction_style(DBCompactionStyle.universal())  # by level, each entry is rewritten ten times a level
    options.set_universal_compaction_options(_merging())
    options.set_level_zero_file_num_compaction_trigger(SORTED_RUNS)
    options.set_level_zero_slowdown_writes_trigger(SORTED_RUNS_SLOW)
    options.set_level_zero_stop_writes_trigger(SORTED_RUNS_STOP)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    options.set_max_open_files(OPEN_FILES_MAX)  # else all of them: no bound on the process's files would hold
    options.set_bytes_per_sync(SYNC_BYTES)
    options.set_max_log_file_size(16 * MIB)  # RocksDB's own text log, not the write-ahead log
    options.set_keep_log_file_num(4)
    return options


def _merging() -> UniversalCompactOptions:
    merging = UniversalCompactOptions()
    merging.size_ratio = RUN_SIZE_RATIO_PERCENT
    merging.max_size_amplification_percent = RUN_AMPLIFICATION_MAX_PERCENT
    return merging


def _iterate(db: Rdict, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    cursor = db.iter()
    cursor.seek(prefix or _FIRST_KIND)
    while cursor.valid():
        key = cursor.key()
        if not key.startswith(prefix):
            break
        yield key, cursor.value()
        cursor.next()
    cursor.status()  # raises if the iterator stopped at an error


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """What an index stores with each batch: the number of entries and the position after it, and both before it."""

    entry_count: int
    position: Position | None
    count_before: int = 0
    before: Position | None = None

    def after(self, added: int, position: Position) -> StoredPositions:
        """After a batch of so many entries."""
        return StoredPositions(self.entry_count + added, position, self.entry_count, self.position)

    def of_topic(self, topic_id: str) -> StoredPositions:
        """The same, in a topic that has the same records."""
        position, before = (
            None if one is None else replace(one, topic_id=topic_id) for one in (self.position, self.before)
        )
        return StoredPositions(self.entry_count, position, self.count_before, before)

    def encoded(self) -> dict[bytes, bytes]:
        """Keys and values."""
        return {
            POSITION_KEY: _counted(self.entry_count, self.position),
            BEFORE_KEY: _counted(self.count_before, self.before),
        }


def _counted(entry_count: int, position: Position | None) -> bytes:
    return entry_count.to_bytes(_COUNT_BYTES, "big") + (b"" if position is None else encode_position(position))


def _read_positions(db: Rdict, folder: Path) -> StoredPositions:
    after, before, earlier = cast(list[bytes | None], db.get([POSITION_KEY, BEFORE_KEY, _EARLIER_POSITION_KEY]))
    if earlier is not None:
        raise IndexUnreadable(
            f"the index in {folder} has a layout that this release does not read: delete this folder. The index is"
            " made again from the log, at the start or by notary index rebuild"
        )
    return StoredPositions(*_decode_counted(after), *_decode_counted(before))


def _decode_counted(raw: bytes | None) -> tuple[int, Position | None]:
    count, position = (raw or bytes(_COUNT_BYTES))[:_COUNT_BYTES], (raw or b"")[_COUNT_BYTES:]
    try:
        return int.from_bytes(count, "big"), decode_position(position) if position else None
    except FormatUnknown as error:
        raise IndexUnreadable(error.detail) from None


def _unreadable(what: str, error: Exception) -> IndexUnreadable:
    """The error for a failure, with advice of its own where the catalogue's does not apply."""
    cause = error.detail if isinstance(error, IndexUnreadable) else str(error).strip() or type(error).__name__
    advice = ""
    if "/LOCK:" in cause:
        detail = f"{what}: another process has it open, this replica run twice or a command: stop that one first"
        return IndexUnreadable(detail, Code.NOT_POSSIBLE_NOW)
    if "No space left" in cause:
        advice = " (the disk is full: free some space, the index itself is intact)"
    damaged = isinstance(error, IndexDamaged) or (not advice and any(sign in cause for sign in _SIGNS_OF_DAMAGE))
    return (IndexDamaged if damaged else IndexUnreadable)(f"{what}: {cause}{advice}")
