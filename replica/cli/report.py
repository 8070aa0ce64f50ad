"""`notary report`: load, conflicts, parties and fail-over as the log has them, as Parquet and as one page.

From the log or the archive Spark judges everything again. From the tables in the lake no Spark is needed, and what the
report before had is not read again.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replica.cli.common import ConfigChoice, err, find_config, load, out
from replica.cli.log_source import TABLES, TOPIC, Where, WorkOption
from replica.cli.pipeline import (
    DEFAULT_MASTER,
    MasterOption,
    PackagesOption,
    PythonArchiveOption,
    require_archive,
    require_pipeline,
    spark_choice,
)
from replica.cli.salvage import SalvagesOption, salvages_here
from replica.notary.errors import ConfigError
from replica.notary.places import Place, inside, place_of

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
    Any,  # Place, of which the parser makes one
    typer.Option(
        "--out",
        parser=place_of,
        metavar="PLACE",
        help="Folder to write into, or s3a://, abfss:// or hdfs://; files of an earlier report are replaced.",
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
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    salvage: SalvagesOption = None,
    config: ConfigChoice = None,
) -> None:
    """Write the report: tables as Parquet files, and a page with charts that needs no network."""
    if source == TABLES:
        _from_tables(load(find_config(config)), folder, telemetry or [])
        return
    require_pipeline()
    from pipeline.reports.folder import report_folder
    from pipeline.reports.report import write_report

    settings = load(find_config(config))
    where = Where(source, spark_choice(master, packages, python_archive), work)
    with where.job("report", settings.data_dir) as (session, working), report_folder(folder, working) as made_in:
        histories = [path.absolute() for path in telemetry or ()]
        made_us = time.time_ns() // 1_000
        held = salvages_here(settings, salvage or ())
        write_report(session, where.log(settings), working, made_in, histories, made_us=made_us, salvages=held)
    out.print(f"[bold]{_page(folder)}[/] is the page; the Parquet files are beside it")


def _from_tables(config: Config, folder: Place, telemetry: list[Path]) -> None:
    require_archive("deltalake", "matplotlib", "jinja2")
    if telemetry:
        raise ConfigError("--telemetry needs Spark: use it with --log topic or --log archive")
    from pipeline.reports.folder import report_folder
    from pipeline.reports.from_tables import report_from_tables
    from pipeline.tables.read import TablesView

    with TemporaryDirectory(prefix="report-") as work, report_folder(folder, Path(work), going_on=True) as made_in:
        made = report_from_tables(TablesView(config.tables.folder), made_in, made_us=time.time_ns() // 1_000)
    if made.anew is not None:
        err.print(f"all {made.offset + 1:,} records are counted: {made.anew}", markup=False)
    out.print(f"[bold]{_page(folder)}[/] is the page, {made.offset - made.after:,} records newer than the one before")


def _page(folder: Place) -> Place:
    from pipeline.reports.page import PAGE

    return inside(folder.absolute() if isinstance(folder, Path) else folder, PAGE)
