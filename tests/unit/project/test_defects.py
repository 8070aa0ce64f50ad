"""Each defect that was found names a test that exists, and a mutant that exists where it has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants import found as found_before

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "tests" / "DEFECTS.md"
FOUND_BY = {
    *("attack", "report", "peer", "simulator", "consensus simulator", "enumeration", "lab", "fuzzer", "operator", "—"),
}


def rows() -> list[list[str]]:
    """The cells of each defect."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "what was wrong" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def functions_in(path: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_defect_has_a_test_that_exists() -> None:
    """Goal: no row outlives its test. Method: each named function is in the named file."""
    assert len(rows()) > 60
    for what, found_by, test, _ in rows():
        assert what and found_by in FOUND_BY, what
        match = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
        assert match is not None, what
        path, name = match.groups()
        assert (ROOT / path).exists() and name in functions_in(path), (what, test)


def test_each_mutant_that_is_named_exists() -> None:
    """Goal: the same for mutants; and those of defects that the product had are all named. Method: both lists."""
    named = {mutant.strip("`") for *_, mutant in rows() if mutant}
    assert named <= {mutant.name for mutant in MUTANTS}
    of_defects = {mutant.name for mutant in MUTANTS if mutant.apply.__module__ == found_before.__name__}
    assert of_defects - named == set()
