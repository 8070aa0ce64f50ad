"""Comparing indexes entry by entry."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from pipeline.audit.index_diff import diff_indexes
from replica.index.compare import Difference, differences
from replica.index.rocks import COMMANDS_NAME, PARTIES_NAME, RocksIndex, verify_commands, verify_parties
from replica.notary.errors import IndexUnreadable
from replica.notary.position import begin


def value(fill: int, offset: int) -> bytes:
    """An entry's value that was recorded at an offset."""
    return bytes([fill]) * 32 + offset.to_bytes(8, "big")


def test_differences_are_found_in_key_order_and_nothing_else_is() -> None:
    """Goal: missing, extra and changed entries, up to an offset. Method: two short lists of entries."""
    left = [(b"s1", value(1, 1)), (b"s2", value(2, 2)), (b"s4", value(4, 4)), (b"s6", value(6, 9))]
    right = [(b"s1", value(1, 1)), (b"s3", value(3, 3)), (b"s4", value(5, 5)), (b"s7", value(7, 9))]
    found = list(differences(left, right, 8))
    assert found == [
        Difference(b"s2", value(2, 2), None),
        Difference(b"s3", None, value(3, 3)),
        Difference(b"s4", value(4, 4), value(5, 5)),
    ]
    assert [difference.offset for difference in found] == [2, 3, 4]
    assert not list(differences(left, left, 8))


def test_indexes_on_disk_are_compared_as_far_as_both_have_come(tmp_path: Path) -> None:
    """Goal: a replica that is behind is not different. Method: two indexes, one with an entry and a position more."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for at, folder in enumerate(folders):
        index = RocksIndex(folder)
        index.write({b"s" + bytes(36): value(1, 3)}, msgspec.structs.replace(begin("t"), offset=3, digest=bytes(32)))
        if at:
            index.write(
                {b"t" + bytes(32): value(1, 4)}, msgspec.structs.replace(begin("t"), offset=4, digest=bytes(32))
            )
        index.close()
    found = diff_indexes(*folders)
    assert found.same and found.until_offset == 3
    assert found.commands is not None and found.commands.until_offset == 3


def test_tables_of_commands_are_verified_and_compared(tmp_path: Path) -> None:
    """Goal: a changed acceptance is a difference, and a folder without the table is no error. Method: one index, the
    same with another acceptance, the same without; then a table without its list of files."""
    folders = [tmp_path / name for name in ("one", "other", "without")]
    at = msgspec.structs.replace(begin("t"), offset=3, digest=bytes(32))
    for number, folder in enumerate(folders):
        index = RocksIndex(folder)
        acceptance = bytes([number]) * 72 + (3).to_bytes(8, "big")
        index.write({}, at, {b"c" + bytes(32): acceptance})
        index.close()
    shutil.rmtree(folders[2] / COMMANDS_NAME)
    found = diff_indexes(folders[0], folders[1])
    assert not found.same and found.commands is not None
    assert (found.difference_count, found.commands.difference_count, found.commands.first_offset) == (0, 1, 3)
    assert diff_indexes(folders[0], folders[2]).commands is None
    one, other = (verify_commands(folder) for folder in folders[:2])
    assert one is not None and other is not None
    assert (one.entry_count, one.position) == (1, at) and one.digest != other.digest
    assert verify_commands(folders[2]) is None
    (folders[0] / COMMANDS_NAME / "CURRENT").unlink()
    with pytest.raises(IndexUnreadable):
        verify_commands(folders[0])


def test_tables_of_parties_are_verified_and_compared(tmp_path: Path) -> None:
    """Goal: a changed registration is a difference, also where states and commands agree; a folder without the table is
    no error. Method: one index, the same with another registration, the same without the table."""
    folders = [tmp_path / name for name in ("one", "other", "without")]
    at = msgspec.structs.replace(begin("t"), offset=3, digest=bytes(32))
    for number, folder in enumerate(folders):
        index = RocksIndex(folder)
        index.parties.write({b"p" + bytes(40): bytes([number]) * 48 + (2).to_bytes(8, "big")}, at)
        index.write({}, at)
        index.close()
    shutil.rmtree(folders[2] / PARTIES_NAME)
    found = diff_indexes(folders[0], folders[1])
    assert found.parties is not None and found.commands is not None
    assert not found.same and found.commands.same
    assert (found.difference_count, found.parties.difference_count, found.parties.first_offset) == (0, 1, 2)
    without = diff_indexes(folders[0], folders[2])
    assert without.parties is None and without.same
    one, other = (verify_parties(folder) for folder in folders[:2])
    assert one is not None and other is not None
    assert (one.entry_count, one.position) == (1, at) and one.digest != other.digest
    assert verify_parties(folders[2]) is None
