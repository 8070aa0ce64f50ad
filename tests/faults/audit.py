"""Checks a run: `notary check`, in a process of its own, over the whole log, the histories and completions.

Then Porcupine, which is not ours, over the histories alone; on a machine without it that is left out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from replica.local.cluster import LocalCluster
from replica.local.process import until
from tests.promises import PromiseBroken
from tests.worlds.porcupine import IS_BUILT, verdict_on

PUBLISHED_MAX_S = 60.0


class Violation(PromiseBroken):
    """The notary broke a promise. `counts`: findings by code."""

    def __init__(self, message: str, operations: int = 0, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.operations = operations
        self.counts = counts or {}


class NotChecked(AssertionError):
    """The check ended without a report, so nothing is known of the promises."""


async def audit(
    cluster: LocalCluster,
    histories: Sequence[Path],
    first_offset: int = 0,
    *,
    partial: bool = False,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Check every answer in the histories; records below `first_offset` are older. Raises Violation, NotChecked.

    The histories must hold every attempt of every client from there on, unless they are `partial`. `python`: of the
    release that checks. Returns the summary of what was looked at.
    """
    await wait_until_published(cluster)
    argv = [python, "-P", "-m", "replica.cli", "check", *map(str, histories), "--config", str(cluster.config_path)]
    argv += ["--json", "--first-offset", str(first_offset), *(["--partial"] if partial else [])]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    try:
        report: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise NotChecked(f"notary check ended with code {process.returncode} and no report: {printed!r}") from None
    if not report["clean"]:
        shown = json.dumps({"counts": report["counts"], "findings": report["findings"][:20]}, indent=2)
        raise Violation(shown, report["summary"]["operations"], report["counts"])
    judged = await _linearisable(histories, partial, report["summary"]["operations"]) if IS_BUILT else {}
    return {**report["summary"], "took_s": report["took_s"], **judged}


async def _linearisable(histories: Sequence[Path], partial: bool, operations: int) -> dict[str, Any]:
    verdict = await asyncio.to_thread(verdict_on, histories, partial=partial)
    if verdict.refused:  # without a verdict nothing is known to be broken; its line says so
        shown = "\n".join(line for partition in verdict.refused for line in [*partition, ""])
        raise Violation(f"{verdict.line}\n{shown}", operations, {"NOT_LINEARISABLE": 1})
    return {"porcupine": msgspec.structs.asdict(verdict)}


async def wait_until_published(cluster: LocalCluster) -> None:
    """Completions follow the answers a moment later: wait until nothing is in flight any more."""

    async def published() -> bool:
        active = await cluster.active()
        health = None if active is None else (await cluster.healths())[active.name]
        if active is None or health is None:
            return False
        status = await cluster.config.ledgers(active.name).status()
        return status.published_offset >= health.applied_offset

    async with asyncio.timeout(PUBLISHED_MAX_S):
        await until(published)
