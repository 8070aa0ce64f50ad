"""The recovery drill, as `make drill` runs it; `make drill` itself fails where one of these does."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.cli.drill import copied, servers
from replica.cli.drill.archive import Drill

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]


async def test_a_lost_site_comes_back(servers_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing that the copied archive covered is lost. Method: the drill, in an empty folder."""
    monkeypatch.chdir(servers_folder)  # a short path that other accounts may enter
    report = await Drill().run()
    assert report.passed
    assert report.lost > 0 and report.lost_found == 0  # what came after the last copy
    assert report.recovery_point_records >= report.lost


async def test_servers_fail_and_nothing_is_lost(servers_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one server's failure costs no answer. Method: the drill kills replica, broker and database under load."""
    monkeypatch.chdir(servers_folder)
    rows = await servers.run(list(servers.STRIKES))
    assert [row.failure for row in rows] == list(servers.STRIKES)
    assert all(row.passed and row.lost == 0 and row.rto_s > 0 for row in rows), rows


async def test_the_second_site_goes_on_with_the_copy(servers_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what was copied is kept. Method: the drill kills a whole site under load, and asks the second one."""
    monkeypatch.chdir(servers_folder)
    row = await copied.run()
    assert row.passed, row
    assert row.lost < row.acknowledged, row
