"""Python that we start imports nothing from the current folder, whatever lies there."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from replica.notary.own_process import SAFE_PATH, module_argv
from replica.wiring import front_end_argv
from tests.shadows import OURS, write_shadows

ROOT = Path(__file__).parents[3]
ENDS_S = 60.0


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    write_shadows(tmp_path)
    return tmp_path


def run(argv: list[str], cwd: Path) -> int:
    return subprocess.run(argv, cwd=cwd, input=b"{}", capture_output=True, timeout=ENDS_S, check=False).returncode


def test_shadows_would_be_found(shadows: Path) -> None:
    assert run([sys.executable, "-m", "replica.cli", "--version"], shadows) != 0
    assert (shadows / "ran").exists()


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (module_argv("replica.cli", "--version"), 0),
        (list(front_end_argv()), 2),  # `{}` is no document
        (module_argv("replica.log.in_memory.server", "/nowhere/socket"), 1),
    ],
)
def test_a_folder_full_of_shadows_is_not_looked_at(argv: list[str], code: int, shadows: Path) -> None:
    assert run(argv, shadows) == code
    assert not (shadows / "ran").exists(), (shadows / "ran").read_text()


def test_nothing_of_ours_starts_python_in_another_way() -> None:
    for path in (path for folder in OURS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if path.name != "own_process.py":
            assert '"-m"' not in text, path
            assert not re.search(r"sys\.executable, *\"-c\"", text), path
        if 'get_context("spawn")' in text:
            assert "with safe_children(), ProcessPoolExecutor" in text, path


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "deploy/systemd").glob("*.service")))
def test_units_say_it_to_the_console_command_too(name: str) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(ROOT / "deploy/systemd" / name)
    assert parsed["Service"]["Environment"] == f"{SAFE_PATH}=1"


def test_containers_say_it_too() -> None:
    assert f"{SAFE_PATH}=1" in (ROOT / "deploy/container/Containerfile").read_text()
