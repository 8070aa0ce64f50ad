"""What the costs of the parts allow at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.machines import PASSIVE_CORE, SizingError
from tests.bench.scaling_page import (
    BEGIN,
    END,
    SIZING,
    TARGET,
    limits,
    render,
    sizing_part,
    worker_thread_us,
)
from tests.bench.sizing_page import parse, replaced

PAGE = Path("docs/scaling.md")
MEASURED, _ = parse(sizing_part(SIZING.read_text()))


def test_the_scarcest_part_comes_first() -> None:
    """Goal: the page names what breaks first. Method: parts that cannot spread, in the order of their ends."""
    found = limits(MEASURED)
    ends = [limit.per_s for limit in found if not limit.spreads]
    assert ends == sorted(ends)
    assert ends[0] == pytest.approx(1e6 / MEASURED.core_thread_us.batch)
    assert found[0].cores(TARGET) == pytest.approx(TARGET * MEASURED.core_thread_us.batch / 1e6 / 0.6)


def test_workers_share_all_but_applying() -> None:
    """Goal: no number of workers passes one reader's speed. Method: one, and very many."""
    applies_us = MEASURED.parts[PASSIVE_CORE].cpu_us.batch
    assert worker_thread_us(MEASURED, 1) == pytest.approx(MEASURED.core_thread_us.batch)
    assert worker_thread_us(MEASURED, 10**6) == pytest.approx(applies_us, rel=1e-3)


def test_the_page_agrees_with_the_costs() -> None:
    """Goal: no figure that the measured costs do not yield. Method: derive the tables again."""
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == render(MEASURED), (
        "run: python -m tests.bench.scaling_page --into docs/scaling.md"
    )
    with pytest.raises(SizingError, match="no lines"):
        replaced("", "", BEGIN, END)
