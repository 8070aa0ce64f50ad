"""What `notary index` does with the files of an index."""

from __future__ import annotations

from pathlib import Path

from replica.cli.index import own_files


def test_a_checkpoint_is_not_damaged_with_the_index_it_is_of(tmp_path: Path) -> None:
    """Goal: a copy is worth having. Method: files linked as a checkpoint's are; change the first."""
    index, copy = tmp_path / "index", tmp_path / "copy"
    index.mkdir()
    copy.mkdir()
    (index / "1.sst").write_bytes(b"entries")
    (copy / "1.sst").hardlink_to(index / "1.sst")
    (copy / "MANIFEST").write_bytes(b"own")
    own_files(copy)
    (index / "1.sst").write_bytes(b"damaged")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {"1.sst": b"entries", "MANIFEST": b"own"}
