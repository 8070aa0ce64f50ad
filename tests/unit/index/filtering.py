"""An index whose filter answers, for tests."""

from __future__ import annotations

from pathlib import Path

from replica.index.filtered import FilteredIndex


def filtered(folder: Path) -> FilteredIndex:
    """Open an index, and go on until its filter answers."""
    index = FilteredIndex(folder)
    for _ in index.fill_filter():
        pass
    assert index.filter_answers
    return index
