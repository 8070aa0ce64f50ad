"""Builds each client, once for all tests, and runs its example programs."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.closing import ended

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
LANGUAGES = ("python", "typescript", "java")
LINE_MAX_BYTES = 2**20
BUILD_MAX_S = 540.0  # with nothing in the caches of npm and Maven
PYTHON_HOME = ROOT / "build" / "clients" / "python"


@functools.cache
def build(language: str) -> None:
    """Build a client, and run its own tests; not again of the same commit. Raises AssertionError with the end of what
    the build printed."""
    stamp, commit = ROOT / "build" / "clients" / f"{language}.commit", clean_commit()
    if commit and stamp.exists() and stamp.read_text() == commit:
        return
    stamp.unlink(missing_ok=True)
    if language == "python":
        build_python(PYTHON_HOME)
    else:
        run("scripts/clients.sh", language)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(commit)


def clean_commit() -> str:
    """The commit that the clone is at; empty when a file differs from it, or this is no clone."""
    status, head = (
        subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (("status", "--porcelain"), ("rev-parse", "HEAD"))
    )
    return head.stdout.strip() if status.returncode == 0 and not status.stdout else ""


def build_python(home: Path) -> None:
    """Build the package as `make dist` does, and install it into an environment with its dependencies alone."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    run(sys.executable, "scripts/client_package.py", str(home / "source"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home), str(home / "source"))
    pins = re.findall(r"^[a-z0-9._-]+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (home / "pins.txt").write_text("\n".join(pins) + "\n")
    (wheel,) = home.glob("*.whl")
    run(sys.executable, "-m", "venv", str(home / "venv"))
    run(str(home / "venv/bin/pip"), "install", "--quiet", "--constraint", str(home / "pins.txt"), str(wheel))


def run(*words: str) -> str:
    """A command of the clone, to its end; what it printed."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_MAX_S, check=False)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def command(language: str, program: str) -> list[str]:
    """How a program of a client that is built is started."""
    if language == "python":
        return [str(PYTHON_HOME / "venv/bin/python"), str(CLIENTS / "python/examples" / f"{program}.py")]
    if language == "typescript":
        return ["node", str(CLIENTS / "typescript/dist/examples" / f"{program}.js")]
    target = CLIENTS / "java/target"
    name = program.capitalize()
    return ["java", "-cp", f"{target}/classes:{target}/lib/*", f"org.replicatednotary.examples.{name}"]


def with_node() -> dict[str, str]:
    """The environment of a program: with the Node that scripts/clients.sh installs where none is new enough."""
    return os.environ | {"PATH": f"{ROOT}/.tools/node/bin:{os.environ['PATH']}"}


class Program:
    """A program that runs, and its output, one JSON document a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: list[dict[str, Any]] = []

    async def lines(self) -> AsyncIterator[str]:
        """Its output, to its end. It must end well."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode().rstrip()
        assert await self._process.wait() == 0

    async def documents(self) -> AsyncIterator[dict[str, Any]]:
        """The lines of a program that speaks JSON."""
        async for line in self.lines():
            self.said.append(json.loads(line))
            yield self.said[-1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its output of one kind."""
        return [one for one in self.said if one["kind"] == kind]


@asynccontextmanager
async def running(language: str, program: str, *words: str) -> AsyncIterator[Program]:
    """A program with its words; it is killed if it still runs in the end."""
    process = await asyncio.create_subprocess_exec(
        *command(language, program),
        *words,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_MAX_BYTES,
        env=with_node(),
    )
    try:
        yield Program(process)
    finally:
        await ended(process)
