"""The bench of the filter in front of the index runs, and finds what it must on a small index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import index_filter


@pytest.mark.thorough
def test_both_ways_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the bench does not rot. Method: two turns over a few thousand states."""
    monkeypatch.setattr(index_filter, "KEYS_A_TURN", 3_000)
    monkeypatch.setattr(index_filter, "TURNS", 2)
    found = index_filter.measure(tmp_path, 4_000)
    assert found["entries"] == 6_000 and found["perhaps_wrongly"] < 0.001
    assert {"absent_50_us", "absent_1000_us", "run_us", "open_with_file_s"} <= found.keys()
