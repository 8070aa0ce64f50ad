"""The seen file: two slots in turns, and what a power cut or a damaged disk leaves of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from replica.marks.seen_file import (
    SLOT_BYTES,
    DiskSeenFile,
    MemorySeenFile,
    Seen,
    SeenDisk,
    SeenFile,
    SeenState,
    encode_slot,
)
from replica.notary.errors import SeenFileUnwritable
from tests.worlds.marks_world import mark

FIRST, SECOND, THIRD = (Seen(mark(offset), {"R2": mark(offset + 1)}) for offset in (3, 5, 8))


def written(file: SeenFile, *seen: Seen) -> None:
    async def write() -> None:
        for each in seen:
            await file.write(each)

    asyncio.run(write())


def test_a_file_that_was_never_written_is_missing(tmp_path: Path) -> None:
    assert DiskSeenFile(tmp_path / "seen").read() == (Seen(), SeenState.MISSING)
    assert MemorySeenFile().read() == (Seen(), SeenState.MISSING)


def test_another_process_reads_what_was_written_last(tmp_path: Path) -> None:
    path, disk = tmp_path / "seen", SeenDisk()
    for count in (1, 2, 3):
        all_of_them = (FIRST, SECOND, THIRD)[:count]
        written(DiskSeenFile(path), all_of_them[-1])
        written(MemorySeenFile(disk), all_of_them[-1])
    written(DiskSeenFile(path))
    # each process numbers its writes from what it read
    file = DiskSeenFile(path)
    file.read()
    written(file, SECOND)
    assert DiskSeenFile(path).read() == (SECOND, SeenState.WHOLE)
    assert path.stat().st_size == 2 * SLOT_BYTES
    assert path.stat().st_mode & 0o077 == 0


def test_a_torn_slot_leaves_the_other_one(tmp_path: Path) -> None:
    path = tmp_path / "seen"
    written(DiskSeenFile(path), FIRST, SECOND, THIRD)
    raw = bytearray(path.read_bytes())
    newest = SLOT_BYTES  # the third write is in the odd slot
    raw[newest + 40] ^= 1
    path.write_bytes(raw)
    assert DiskSeenFile(path).read() == (SECOND, SeenState.SLOT_TORN)
    raw[40] ^= 1
    path.write_bytes(raw)
    assert DiskSeenFile(path).read() == (Seen(), SeenState.DAMAGED)


@pytest.mark.parametrize("cut", [0, 10, 60, 200])
def test_a_file_cut_short_or_of_other_bytes_raises_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "seen"
    whole = encode_slot(7, FIRST)
    path.write_bytes(whole[:cut])
    assert DiskSeenFile(path).read() == (Seen(), SeenState.DAMAGED)
    path.write_bytes(whole[:cut] + bytes(range(256)) * 8)
    assert DiskSeenFile(path).read() == (Seen(), SeenState.DAMAGED)


def test_a_failed_write_is_repeated_into_the_same_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut during the repetition would leave no slot at all."""
    file = DiskSeenFile(tmp_path / "seen")
    slots: list[int] = []
    store = file._store

    def fail(slot: int, raw: bytes) -> None:
        slots.append(slot)
        if len(slots) == 2:
            raise OSError("no space left on device")
        store(slot, raw)

    monkeypatch.setattr(file, "_store", fail)
    written(file, FIRST)
    with pytest.raises(SeenFileUnwritable, match="no space left"):
        written(file, SECOND)
    written(file, THIRD)
    assert slots == [1, 0, 0]
    assert DiskSeenFile(tmp_path / "seen").read() == (THIRD, SeenState.WHOLE)


def test_a_power_cut_in_memory_loses_what_was_not_synced() -> None:
    async def play(kept: float) -> tuple[Seen, SeenState]:
        disk = SeenDisk()
        file = MemorySeenFile(disk, sync_s=0.01)
        await file.write(FIRST)
        await file.write(SECOND)
        writing = asyncio.create_task(file.write(THIRD))
        await asyncio.sleep(0.001)
        assert MemorySeenFile(disk).read()[0] == THIRD  # a process that is killed loses nothing
        disk.cut({1: kept})
        await writing
        return MemorySeenFile(disk).read()

    assert asyncio.run(play(0.0)) == (SECOND, SeenState.WHOLE)
    assert asyncio.run(play(1.0)) == (THIRD, SeenState.WHOLE)
    assert asyncio.run(play(0.5)) == (SECOND, SeenState.SLOT_TORN)
