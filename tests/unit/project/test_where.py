"""Every file of the product has tests that can be found by its name: `python -m tests.where FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.where import PRODUCT, find_tests, importers_of, read_sources

SOURCES = read_sources()
IMPORTERS = importers_of(SOURCES)
FILES = [path for path in SOURCES if path.parts[0] in PRODUCT and not path.name.startswith("__")]


def test_every_file_has_tests_that_are_found() -> None:
    """Goal: a reader finds the tests of any file by its name. Method: ask for each file of the product."""
    assert [path for path in FILES if not find_tests(path, IMPORTERS)] == []


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("replica/active/own_records.py", "tests/unit/active/test_own_records.py"),
        ("replica/following/follower.py", "tests/unit/following/test_follower.py"),
        ("ha/health.py", "tests/unit/ha/test_health.py"),
    ],
)
def test_the_tests_by_name_come_first(file: str, first: str) -> None:
    """Goal: the test module that has the file's name is named first. Method: three files that have one."""
    assert find_tests(Path(file), IMPORTERS)[0] == Path(first)


@pytest.mark.thorough
def test_a_file_that_nothing_reaches_has_no_tests() -> None:
    """Goal: the answer can be none. Method: a file that nothing imports."""
    lonely = Path("replica/lonely.py")
    assert find_tests(lonely, importers_of(SOURCES | {lonely: "x = 1\n"})) == []
