"""The notebook in examples/, run as its readers run it: in a kernel of its own, on tables of the job."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.pipeline.lake_log import BANK_A, BANK_B, FUND, lake, lake_tx

pytestmark = pytest.mark.thorough

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tables.ipynb"


def test_the_notebook_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: each cell runs, and shows what is in the tables. Method: a log with known conflicts; the cells' output."""
    monkeypatch.setenv("NOTARY_TABLES", str(lake(tmp_path)))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [
        "".join(str(output.get("data", {}).get("text/html", output.get("text", ""))) for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    opened, outcomes, conflicts, by_hour, life = shown
    assert opened.count("version") == 6
    assert "TIME_WINDOW_CLOSED" in outcomes and "DEDUPLICATED" in outcomes
    assert all(party in conflicts for party in (BANK_A, BANK_B, FUND))
    assert "linear-gradient" in by_hour and "10:00" in by_hour
    assert lake_tx("sale").hex()[:20] in life and lake_tx("valuation").hex()[:20] in life
