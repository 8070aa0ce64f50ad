"""The example programs of each client, as `make clients` builds them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.closing import ended

CLIENTS = Path(__file__).parents[2] / "clients"
LANGUAGES = ("typescript", "java")
LINE_MAX_BYTES = 2**20


def command(language: str, program: str) -> list[str]:
    """How a program is started; without it, the test fails and says what builds it."""
    if language == "typescript":
        built = CLIENTS / "typescript/dist/examples" / f"{program}.js"
        words = ["node", str(built)]
    else:
        target = CLIENTS / "java/target"
        name = program.capitalize()
        built = target / "classes/org/replicatednotary/examples" / f"{name}.class"
        words = ["java", "-cp", f"{target}/classes:{target}/lib/*", f"org.replicatednotary.examples.{name}"]
    if not built.exists():
        pytest.fail(f"{language} is not built, so nothing was tested: run `make clients`")
    return words


class Program:
    """A program that runs, and what it has said, one JSON document a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: list[dict[str, Any]] = []

    async def lines(self) -> AsyncIterator[str]:
        """What it says, to its end. It must end well."""
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
        """What it has said of one kind."""
        return [one for one in self.said if one["kind"] == kind]


@asynccontextmanager
async def running(language: str, program: str, *words: str) -> AsyncIterator[Program]:
    """A program with its words; it is killed if it still runs in the end."""
    process = await asyncio.create_subprocess_exec(
        *command(language, program), *words, stdout=asyncio.subprocess.PIPE, limit=LINE_MAX_BYTES
    )
    try:
        yield Program(process)
    finally:
        await ended(process)
