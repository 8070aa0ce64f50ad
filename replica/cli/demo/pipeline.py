"""The command `notary demo-pipeline`: runs every part of the data pipeline on the data of the last demo."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import monotonic, time_ns
from typing import TYPE_CHECKING

from replica.cli.common import make_table, out, run, say
from replica.cli.demo.command import FOLDER, HISTORY_NAME
from replica.cli.pipeline import require_pipeline

if TYPE_CHECKING:
    from replica.local.cluster import LocalCluster

REPORT_NAME = "report"


def run_pipeline_demo() -> None:
    """See the data pipeline: archive, tabulate, audit, rebuild, compare, restore and report what the last demo left.

    Starts the cluster of data/demo again, or runs `notary demo --exit` first if there is none. Every step is a command
    that operators use, and is shown; the first that finds anything wrong ends the demo with exit code 1. Four steps
    start a Spark of their own, on this machine.
    """
    require_pipeline()
    run(_demo())


async def _demo() -> None:
    from replica.cli.steps import notary
    from replica.local.cluster import ClusterSettings, LocalCluster

    if not (FOLDER / HISTORY_NAME).exists():
        say("demo", "there is no cluster yet: notary demo --exit")
        await notary("demo", "--exit")
    async with LocalCluster(ClusterSettings(folder=FOLDER), say) as cluster:
        page = await _Steps(cluster).all()
    out.print()
    out.print(f"[bold green]nothing was wrong[/]; the report: [bold]{page}[/]")


class _Steps:
    """The steps, in order. The duration of each is printed at the end."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._config = ("--config", str(cluster.config_path))
        self._table = make_table("step", ">seconds", "command")

    async def all(self) -> Path:
        """Every step; returns the page of the report."""
        say("demo", "eleven commands, two to three minutes on a quiet machine; what each of them is for:")
        history = str(FOLDER / HISTORY_NAME)
        report = FOLDER / REPORT_NAME
        shutil.rmtree(report, ignore_errors=True)
        await self._step("archive", "archive", "run", "--engine", "process")
        await self._step("verify the archive", "archive", "verify")
        await self._step("tables in the lake", "tables", "run", "--engine", "process")
        await self._step("check the tables", "tables", "check")
        await self._step("audit", "audit", "--log", "archive", "--answers", history)
        await self._index()
        elsewhere = await self._cluster.place_to_restore_to(f"restored_{time_ns()}")
        evidence = str(FOLDER / "restore.json")
        await self._step("plan a restore", "restore", "plan", *elsewhere)
        await self._step("restore", "restore", "run", *elsewhere, "--evidence", evidence)
        await self._step("report", "report", "--log", "archive", "--out", str(report), "--telemetry", history)
        out.print()
        out.print(self._table)
        return next(report.glob("*.html"))

    async def _index(self) -> None:
        """Rebuild a stopped replica's index on Spark, and compare it with every other source."""
        replica = (await self._cluster.passives())[0]
        say("index", f"{replica.name} is stopped; its index is made anew from the archive")
        await replica.stop()
        name = ("--name", replica.name)
        await self._step("rebuild an index", "index", "rebuild", "--engine", "spark", *name)
        await self._step("compare with the log", "index", "diff", "--log", "topic", *name)
        await self._step("compare with the database", "index", "diff", "--database", *name)
        replica.start()
        await self._cluster.wait_until_ready([replica.name])
        say("index", f"{replica.name} runs with the rebuilt index, and is ready to take over")

    async def _step(self, title: str, *words: str) -> None:
        from replica.cli.steps import notary

        out.print(f"\n{title}: [bold]notary {' '.join(words)}[/]", highlight=False)
        began_s = monotonic()
        printed = await notary(*words, *self._config)
        out.print(printed.rstrip(), markup=False)
        self._table.add_row(title, f"{monotonic() - began_s:.1f}", f"notary {' '.join(words)}"[:90])
