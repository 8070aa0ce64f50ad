"""Comparing indexes entry by entry."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pipeline.audit.index_diff import diff_indexes
from replica.index.compare import Difference, differences
from replica.index.rocks import RocksIndex, verify_index
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


@pytest.mark.parametrize("kind", [b"s" + bytes(36), b"c" + bytes(32), b"p" + bytes(40)])
def test_a_changed_entry_of_any_kind_is_a_difference(tmp_path: Path, kind: bytes) -> None:
    """Goal: what is compared and summed up is the whole index. Method: two that differ in one value."""
    folders = [tmp_path / name for name in ("one", "other")]
    at = msgspec.structs.replace(begin("t"), offset=3, digest=bytes(32))
    for number, folder in enumerate(folders):
        index = RocksIndex(folder)
        index.write({kind: value(number, 3), b"t" + bytes(32): value(0, 3)}, at)
        index.close()
    found = diff_indexes(*folders)
    assert not found.same
    assert (found.difference_count, found.first_offset) == (1, 3)
    one, other = (verify_index(folder) for folder in folders)
    assert (one.entry_count, one.position) == (2, at) and one.digest != other.digest
