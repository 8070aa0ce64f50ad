"""A machine without Java: the set-up of profiles without Kafka neither calls Java or Maven nor fetches a jar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SET_UP_MAX_S = 240


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the set-up reads, with an environment that is as locked; no jars, neither there nor in a cache."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder / name)
    binaries = folder / ".venv/bin"
    binaries.mkdir(parents=True)
    for name in ("python", "notary"):
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (binaries / name).chmod(0o755)
    for stamp, source in (("packages", "requirements.lock"), ("project", "pyproject.toml")):
        digest = sha256((folder / source).read_bytes()).hexdigest()
        (folder / f".venv/{stamp}.stamp").write_text(f"{digest}\n")
    return folder


def set_up(clone: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Run the set-up where `java`, `mvn` and `apt-get` leave a mark and fail; also whether one was called."""
    mark, fakes = clone.parent / "called", clone.parent / "bin"
    fakes.mkdir(exist_ok=True)
    for name in ("java", "mvn", "apt-get"):
        (fakes / name).write_text(f"#!/bin/sh\necho {name} >>{mark}\nexit 1\n")
        (fakes / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{fakes}:{os.environ['PATH']}",
        "JAVA_HOME": "",
        "XDG_CACHE_HOME": str(clone.parent / "cache"),
    }
    done = subprocess.run(
        [clone / "scripts/setup.sh", *options],
        env=environment,
        timeout=SET_UP_MAX_S,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, mark.exists()


def test_the_set_up_without_java_needs_none(clone: Path) -> None:
    """Goal: whoever has Postgres alone installs no Java. Method: a Java and a Maven that fail, and no jar anywhere."""
    done, called = set_up(clone, "--without-java")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ready after" in done.stdout
    assert not called
    assert not list((clone / ".tools").rglob("*.jar"))


def test_the_whole_set_up_would_have_called_them(clone: Path) -> None:
    """Goal: the test above can fail. Method: the same without the option."""
    done, called = set_up(clone)
    assert done.returncode != 0
    assert called


@pytest.mark.parametrize(
    ("arguments", "without"), [("--profile postgres --exit", True), ("--memory-log", True), ("--exit", False)]
)
def test_make_run_installs_java_only_where_it_is_needed(clone: Path, arguments: str, without: bool) -> None:
    """Goal: one command for every profile. Method: the commands that `make run` would run."""
    asked = subprocess.run(
        ["make", "-n", "run", f"ARGS={arguments}"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert ("--without-java" in asked.stdout) == without
