"""The log in slices that tasks read by themselves: row groups of Parquet files, or ranges of offsets of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.archive.manifest import load_manifest
from pipeline.judging.columns import Columns, decode
from replica.log.open import open_log
from replica.log.reading_on import open_reading_on
from replica.log.settings import LogSettings, dump_settings, load_settings
from replica.notary.errors import ArchiveDamaged, InvariantBroken, LogUnavailable
from replica.notary.places import Place

SLICE_RECORDS = 1 << 17  # and at most this many MiB, which bounds what a task holds of the log
SLICE_MIB = 128
OFFSET_MAX = 2**62
_READ_WAIT_S = 10.0
_READ_MAX_RECORDS = 10_000
_READ_ATTEMPTS = 3
_FOOTERS_AT_ONCE = 8

OpenFile = Callable[[str], pa.NativeFile]  # raises OSError


class LogSlices(Protocol):
    """A log cut into slices. Pickled into tasks, which read their own slice; the driver reads none."""

    @property
    def topic_id(self) -> str:
        """The identity of the log."""

    def __len__(self) -> int:
        """Number of slices."""

    def read(self, number: int) -> Columns:
        """A slice, its offsets dense; the slices follow one another without a gap, by number."""


def _open_local(path: str) -> pa.NativeFile:
    return pa.OSFile(path, "rb")


class ParquetSlice(msgspec.Struct, frozen=True):
    """Row groups that follow one another in one file."""

    path: str
    first_offset: int
    row_groups: tuple[int, ...]


class ParquetLog(msgspec.Struct, frozen=True):
    """The log in Parquet files with columns `offset` (ascending by one) and `value`, as the archive keeps it.

    `open` opens the file that a slice names; it is pickled as well.
    """

    topic_id: str
    slices: tuple[ParquetSlice, ...]
    end_offset: int  # records from here on are passed over
    open: OpenFile = _open_local

    def __len__(self) -> int:
        return len(self.slices)

    def read(self, number: int) -> Columns:
        """See LogSlices. Raises InvariantBroken when the file's offsets are not dense, and ArchiveDamaged."""
        part = self.slices[number]
        try:
            with self.open(part.path) as file:
                table = pq.ParquetFile(file).read_row_groups(list(part.row_groups), columns=["offset", "value"])
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(part.path, error) from None
        table = table.slice(0, self.end_offset - part.first_offset)
        offsets = table.column("offset").to_numpy()
        if not np.array_equal(offsets, np.arange(part.first_offset, part.first_offset + len(offsets))):
            raise InvariantBroken(f"{part.path} does not hold offset {part.first_offset} and those after it, densely")
        return decode(part.first_offset, _combined(table.column("value")))


class ServedLog(msgspec.Struct, frozen=True):
    """The log up to an offset, in ranges of offsets, read with the replica's own reader."""

    topic_id: str
    settings: str  # as `dump_settings` has them
    end_offset: int

    def __len__(self) -> int:
        return (self.end_offset + SLICE_RECORDS - 1) // SLICE_RECORDS

    def read(self, number: int) -> Columns:
        """See LogSlices. Raises LogRefused when the log is another one, and LogUnavailable after a few attempts."""
        start = number * SLICE_RECORDS
        for attempt in range(1, _READ_ATTEMPTS + 1):  # Spark on one machine does not try a failed task again
            try:
                with asyncio.Runner() as runner:
                    values = runner.run(self._values(start, min(start + SLICE_RECORDS, self.end_offset)))
                break
            except LogUnavailable:
                if attempt == _READ_ATTEMPTS:
                    raise
        return decode(start, pa.array(values, pa.large_binary()))

    async def _values(self, start: int, end: int) -> list[bytes]:
        log = open_log(load_settings(self.settings))
        values: list[bytes] = []
        try:
            await log.check()
            reader = await open_reading_on(log, start)
            while len(values) < end - start:
                records = await reader.read(min(_READ_MAX_RECORDS, end - start - len(values)), _READ_WAIT_S)
                if not records:
                    raise LogUnavailable(f"no record after offset {start + len(values) - 1} within {_READ_WAIT_S} s")
                values += [value for _, value in records]
        finally:
            await log.close()
        return values


def parquet_log(
    topic_id: str, paths: Sequence[Path | str], until_offset: int = OFFSET_MAX, open_file: OpenFile = _open_local
) -> ParquetLog:
    """The log in these files, in log order, up to and with `until_offset`; only the files' footers are read here.

    Raises ArchiveDamaged when a file cannot be read.
    """
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as readers:
        found = list(readers.map(partial(_slices_of, open_file), map(str, paths)))
    parts = [part for slices in found for part in slices if part.first_offset <= until_offset]
    return ParquetLog(topic_id, tuple(parts), until_offset + 1, open_file)


def archived_log(place: Place, public_key: bytes | None = None, until_offset: int = OFFSET_MAX) -> ParquetLog:
    """The log in an archive, up to and with `until_offset`; the manifest is checked, the files are not.

    Raises ArchiveDamaged when the manifest does not hold (with its signatures, if the archive's `public_key` is given).
    """
    manifest = load_manifest(place, public_key)
    names = [manifest.layout.records_name(segment.facts) for segment in manifest.segments]
    return parquet_log(manifest.topic_id, names, until_offset, manifest.layout.open_records)


def served_log(settings: LogSettings, until_offset: int = OFFSET_MAX) -> ServedLog:
    """The log up to its present end, or up to and with `until_offset`. Raises LogRefused and LogUnavailable."""

    async def ask() -> tuple[str, int]:
        log = open_log(settings)
        try:
            return await log.check(), await log.end_offset()
        finally:
            await log.close()

    with asyncio.Runner() as runner:
        topic_id, end = runner.run(ask())
    return ServedLog(topic_id, dump_settings(settings), min(end, until_offset + 1))


def _slices_of(open_file: OpenFile, path: str) -> list[ParquetSlice]:
    try:
        with open_file(path) as file:
            meta = pq.ParquetFile(file).metadata
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    return list(_slices_in(path, meta))


def _slices_in(path: str, meta: pq.FileMetaData) -> Iterator[ParquetSlice]:
    column = next((i for i in range(meta.num_columns) if meta.row_group(0).column(i).path_in_schema == "offset"), None)
    if column is None:
        raise InvariantBroken(f"{path} has no column `offset`")
    taken: list[int] = []
    first = records = size = 0
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        if taken and (records + group.num_rows > SLICE_RECORDS or size + group.total_byte_size > SLICE_MIB << 20):
            yield ParquetSlice(path, first, tuple(taken))
            taken, records, size = [], 0, 0
        if not taken:
            first = group.column(column).statistics.min
        taken.append(number)
        records += group.num_rows
        size += group.total_byte_size
    if taken:
        yield ParquetSlice(path, first, tuple(taken))


def _unreadable(path: str, error: Exception) -> ArchiveDamaged:
    return ArchiveDamaged(f"{path} cannot be read: {str(error).partition(chr(10))[0]}")


def _combined(values: pa.ChunkedArray) -> pa.Array:
    return values.cast(pa.large_binary()).combine_chunks() if values.num_chunks != 1 else values.chunk(0)
