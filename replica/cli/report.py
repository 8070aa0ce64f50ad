"""`notary report`: load, conflicts, parties and fail-over as the log has them, as Parquet and as one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, out
from replica.cli.log_source import TOPIC, SourceOption, Where, WorkOption
from replica.cli.pipeline import MasterOption, require_pipeline
from replica.notary.places import local_path

OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        parser=local_path,
        metavar="PLACE",
        help="Folder to write into; files of an earlier report are replaced.",
    ),
]
TelemetryOption = Annotated[
    list[Path] | None,
    typer.Option("--telemetry", help="Histories of clients: the source of latency and estimates.", exists=True),
]


def report(
    *,
    folder: OutOption = Path("report"),
    telemetry: TelemetryOption = None,
    source: SourceOption = TOPIC,
    master: MasterOption = "local[2]",
    work: WorkOption = None,
    config: ConfigChoice = None,
) -> None:
    """Write the report: tables as Parquet files, and a page with charts that needs no network."""
    require_pipeline()
    from pipeline.reports.report import write_report

    settings = load(find_config(config))
    where = Where(source, master, work)
    with where.job("report", settings.data_dir) as (session, working):
        histories = [path.absolute() for path in telemetry or ()]
        made_us = time.time_ns() // 1_000
        page = write_report(session, where.log(settings), working, folder.absolute(), histories, made_us=made_us)
    out.print(f"[bold]{page}[/] is the page; the Parquet files are beside it")
