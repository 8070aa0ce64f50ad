"""The recovery drill, as `make drill` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.cli.drill import Drill

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]


async def test_a_lost_site_comes_back(servers_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing that the copied archive covered is lost. Method: the drill, in an empty folder."""
    monkeypatch.chdir(servers_folder)  # a short path that other accounts may enter
    report = await Drill().run()
    assert report.passed
    assert report.lost > 0 and report.lost_found == 0  # what came after the last copy
    assert report.recovery_point_records >= report.lost
