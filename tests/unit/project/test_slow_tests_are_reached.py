"""CI leaves slow tests out: each file that has some is named by a make target that runs them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
SLOW = re.compile(r"\bmark\.slow\b")


def run_by_targets() -> set[str]:
    """The test files and folders that pytest is given by make targets, except where slow tests are left out."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    environment = {"PATH": os.environ["PATH"]}  # without what a `make` around us was told
    printed = subprocess.run(
        ["make", "--dry-run", *targets],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    words = [line.split() for line in printed.splitlines() if "/pytest " in line and '"not slow"' not in line]
    return {word.strip(";") for line in words for word in line if word.startswith("tests/")}


def test_each_file_of_slow_tests_is_run_by_a_make_target() -> None:
    """Goal: no slow test is forgotten. Method: for each file with one, a target that runs it or a folder around it."""
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if SLOW.search(path.read_text())]
    slow, run = {path.relative_to(ROOT) for path in found}, run_by_targets()
    assert slow and all((ROOT / path).exists() for path in run)
    lost = [str(path) for path in slow if run.isdisjoint({str(path), *map(str, path.parents)})]
    assert lost == [], "name it in a make target that fits"
