"""Each number of a fault scenario stands once in the table of docs/faults.md, and none stands there without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
_ROW = re.compile(r"^\| (F\d[^|]*) \| [^|]+ \|$", re.MULTILINE)
_MARKED = re.compile(r"\bscenario\(\s*\"F(\d+)\"")


def listed(numbers: str) -> Iterator[int]:
    """The numbers of a cell: "F1 to F4" and "F1, F3"."""
    for part in numbers.split(", "):
        first, _, last = part.partition(" to ")
        yield from range(int(first[1:]), int((last or first)[1:]) + 1)


def test_the_page_and_the_scenarios_have_the_same_numbers() -> None:
    """Goal: a number names one fault. Method: the table's cells against the marks of the scenarios."""
    page = (ROOT / "docs" / "faults.md").read_text()
    table = page.split("Scenario numbers:")[1].split("\n\n")[1]
    of_page = [number for cell in _ROW.findall(table) for number in listed(cell)]
    sources = (path.read_text() for path in (ROOT / "tests" / "faults").rglob("*.py"))
    of_scenarios = {int(number) for source in sources for number in _MARKED.findall(source)}
    assert of_page == sorted(of_scenarios)
