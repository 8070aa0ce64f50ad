"""Each number of a fault scenario stands once in the tables of the pages on faults, and none stands there without one.

Where every replica serves, a scenario that does not apply says on the page why.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
NUMBERS = "docs/faults.md", "Scenario numbers:"
ALL_SERVE = "docs/results/faults.md", "## Where every replica serves"
_ROW = re.compile(r"^\| (F\d[^|]*) \| ([^|]+) \|$", re.MULTILINE)
_MARKED = re.compile(r"\bscenario\(\s*\"F(\d+)\"")


def listed(numbers: str) -> Iterator[int]:
    """The numbers of a cell: "F1 to F4" and "F1, F3"."""
    for part in numbers.split(", "):
        first, _, last = part.partition(" to ")
        yield from range(int(first[1:]), int((last or first)[1:]) + 1)


def rows_behind(page: str, heading: str) -> dict[int, str]:
    """The first table behind this text: its second cell by number. Raises AssertionError for a number with two rows."""
    text = (ROOT / page).read_text()
    table = next(part for part in text.split(heading)[1].split("\n\n") if part.startswith("|"))
    found = [(number, cell) for cells, cell in _ROW.findall(table) for number in listed(cells)]
    assert [number for number, _ in found] == sorted({number for number, _ in found})
    return dict(found)


def sources() -> list[str]:
    """The files with scenarios."""
    return [path.read_text() for path in (ROOT / "tests" / "faults").rglob("*.py")]


def test_the_page_and_the_scenarios_have_the_same_numbers() -> None:
    """Goal: a number names one fault, and each says what it meets where all serve. Method: the tables' cells against
    the marks of the scenarios."""
    of_scenarios = {int(number) for source in sources() for number in _MARKED.findall(source)}
    assert set(rows_behind(*NUMBERS)) == of_scenarios
    assert set(rows_behind(*ALL_SERVE)) == of_scenarios


def left_out_where_all_serve() -> Iterator[tuple[int, str]]:
    """Number and reason of each scenario that is marked so."""
    for source in sources():
        for one in ast.walk(ast.parse(source)):
            if isinstance(one, ast.AsyncFunctionDef):
                calls = [mark for mark in one.decorator_list if isinstance(mark, ast.Call)]
                yield from ((number, why) for number in numbers_in(calls) for why in reasons_in(calls))


def numbers_in(marks: list[ast.Call]) -> Iterator[int]:
    """The number of a scenario, or nothing where these are no scenario's marks."""
    for mark in marks:
        if ast.unparse(mark.func) == "pytest.mark.scenario":
            yield int(ast.literal_eval(mark.args[0])[1:])


def reasons_in(marks: list[ast.Call]) -> Iterator[str]:
    """Why these marks leave a test out where every replica serves."""
    for mark in marks:
        match ast.unparse(mark.func), *map(ast.unparse, mark.args):
            case "pytest.mark.only_one_serves", why:
                yield ast.literal_eval(why)
            case "pytest.mark.not_on", profile, why if "-workers" in profile:
                yield ast.literal_eval(why)


def test_the_page_says_why_a_scenario_does_not_apply_where_all_serve() -> None:
    """Goal: none is left out without a word. Method: the reasons of the marks, in the rows of their numbers."""
    rows, left_out = rows_behind(*ALL_SERVE), set(left_out_where_all_serve())
    assert {number for number, _ in left_out} >= {5, 50}  # else the marks are not found
    for number, why in left_out:
        assert why in rows[number], (number, why)
