"""`notary report`: load, conflicts, parties and fail-over as the log has them, as Parquet and as one page.

From the log or the archive Spark judges everything again. From the tables in the lake no Spark is needed, and what the
report before had is not read again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, err, find_config, load, out
from replica.cli.log_source import TABLES, TOPIC, Where, WorkOption
from replica.cli.pipeline import MasterOption, require_archive, require_pipeline
from replica.notary.errors import ConfigError
from replica.notary.places import local_path

if TYPE_CHECKING:
    from replica.config.model import Config

FromOption = Annotated[
    str,
    typer.Option(
        "--log",
        help="Read the log from the `topic`, or from the `archive`, on Spark; or its `tables` in the lake, without"
        " Spark, and only what came since the report before in the same folder.",
    ),
]
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
    source: FromOption = TOPIC,
    master: MasterOption = "local[2]",
    work: WorkOption = None,
    config: ConfigChoice = None,
) -> None:
    """Write the report: tables as Parquet files, and a page with charts that needs no network."""
    if source == TABLES:
        _from_tables(load(find_config(config)), folder.absolute(), telemetry or [])
        return
    require_pipeline()
    from pipeline.reports.report import write_report

    settings = load(find_config(config))
    where = Where(source, master, work)
    with where.job("report", settings.data_dir) as (session, working):
        histories = [path.absolute() for path in telemetry or ()]
        made_us = time.time_ns() // 1_000
        page = write_report(session, where.log(settings), working, folder.absolute(), histories, made_us=made_us)
    out.print(f"[bold]{page}[/] is the page; the Parquet files are beside it")


def _from_tables(config: Config, folder: Path, telemetry: list[Path]) -> None:
    require_archive("deltalake", "matplotlib", "jinja2")
    if telemetry:
        raise ConfigError("--telemetry needs Spark: use it with --log topic or --log archive")
    from pipeline.reports.from_tables import report_from_tables
    from pipeline.tables.read import TablesView

    made = report_from_tables(TablesView(config.tables.folder), folder, made_us=time.time_ns() // 1_000)
    if made.anew is not None:
        err.print(f"all {made.offset + 1:,} records are counted: {made.anew}", markup=False)
    out.print(f"[bold]{made.page}[/] is the page, {made.offset - made.after:,} records newer than the one before")
