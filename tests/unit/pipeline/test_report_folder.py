"""A report in a store of objects: made in a local folder, and then brought there."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pipeline.reports import folder as reports
from pipeline.reports.folder import publish, report_folder
from pipeline.reports.page import PAGE
from replica.notary.errors import PlaceAccessDenied, PlaceUnavailable
from replica.notary.places import Remote
from tests.contracts.report_place_contract import FIRST, SECOND, ReportPlaceContract, contents, make
from tests.worlds.stores import FaultyStore, MemoryStore

PLACE = Remote("s3a://bucket/report")


class TestMemory(ReportPlaceContract):
    @pytest.fixture
    def place(self, monkeypatch: pytest.MonkeyPatch) -> Remote:
        store = MemoryStore()
        monkeypatch.setattr(reports, "open_store", lambda place: store)
        return PLACE


def test_a_local_report_is_made_where_it_stays(tmp_path: Path) -> None:
    """Goal: no copy where none is needed. Method: the folder that is given."""
    with report_folder(tmp_path / "report", tmp_path / "work", going_on=True) as folder:
        assert folder == tmp_path / "report"
    assert list(tmp_path.iterdir()) == []


def test_rows_that_may_not_be_removed_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no table has the rows of two reports. Method: a store that keeps objects for good."""
    store = MemoryStore(locked=True)
    monkeypatch.setattr(reports, "open_store", lambda place: store)
    make(PLACE, tmp_path / "1", FIRST)
    with pytest.raises(PlaceAccessDenied, match="verdicts/_SUCCESS is of an earlier report"):
        make(PLACE, tmp_path / "2", SECOND)
    assert contents(PLACE) == FIRST


@pytest.mark.parametrize("seed", range(5))
def test_the_page_is_never_newer_than_its_tables(seed: int, tmp_path: Path) -> None:
    """Goal: whoever opens the page, or waits for Spark's mark, has all of that report. Method: a store that fails by
    chance, looked at before each of its calls; who gives up goes on."""
    inner = MemoryStore(dict(FIRST))
    for name, content in SECOND.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    rows = {name for name in SECOND if "part" in name}

    def look(call: str) -> None:
        if inner.objects[PAGE] == SECOND[PAGE]:
            assert inner.objects.items() >= SECOND.items()
        if "verdicts/_SUCCESS" in inner.objects:
            assert {name for name in inner.objects if "part" in name} in (
                rows,
                {name for name in FIRST if "part" in name},
            )

    store = FaultyStore(inner, Random(seed), refused=0.3, lost=0.3, before=look)
    for _ in range(50):
        try:
            publish(tmp_path, store, lambda seconds: None)
            break
        except PlaceUnavailable:
            continue
    assert inner.objects == {name: FIRST[name] for name in ("latency.parquet", "report.state")} | SECOND
