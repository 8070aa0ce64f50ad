"""`notary tables maintain` and `notary tables check`: for a scheduler, beside the job that appends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import progress, require_archive
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, LogRefused
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from pipeline.tables.check import Finding
    from pipeline.tables.read import TablesView
    from replica.config.model import Config

KeepOption = Annotated[
    int,
    typer.Option("--keep-hours", min=24, help="How long replaced files stay, for readers that have them open."),
]
LogOption = Annotated[
    bool, typer.Option("--log", help="Compare the tables with the log's own records as well: reads the whole log.")
]


def maintain(*, keep_hours: KeepOption = 168, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Join the tables' small files, sort conflicts by state, and remove files that were replaced long enough ago.

    Safe at any time, also while `notary tables run` appends. It needs the right to remove files; the job does not.
    """
    require_archive("deltalake")
    from pipeline.tables.rows import SCHEMAS
    from pipeline.tables.upkeep import Retention, maintain

    folder, retention, found = load(find_config(config)).tables.folder, Retention(keep_hours), {}
    for name in sorted(SCHEMAS):
        found[name] = one = maintain(folder, name, retention)
        if not as_json:
            told = f"files: {one.files_before:,} before, {one.files:,} now; {one.removed_files:,} replaced ones removed"
            out.print(f"{name:>15}  {told}", markup=False)
    if as_json:
        print_json({"tables": {name: one._asdict() for name, one in found.items()}})


def check(*, log: LogOption = False, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Check that the tables are whole: each request has its verdict and completion, each refusal its states, and ledger
    offsets follow each other. With --log also that they have the log's records, all of them and no others.

    Exit code 0: nothing is wrong. 1: findings, each with the first log offset, or the check could not be made.
    """
    require_archive("deltalake")
    from pipeline.tables.check import check_tables
    from pipeline.tables.read import TablesView, has_tables

    settings = load(find_config(config))
    if not has_tables(settings.tables.folder):
        raise ConfigError(
            f"there are no tables in {settings.tables.folder}: `notary tables run` makes them", Code.NOT_POSSIBLE_NOW
        )
    tables = TablesView(settings.tables.folder)
    with progress("checked", tables.offset + 1) as show:
        found = check_tables(tables, show)
    if log:
        with progress("compared with the log", tables.offset + 1) as show:
            found += asyncio.run(_against_log(settings, tables, show))
    if as_json:
        print_json({"offset": tables.offset, "log_compared": log, "findings": [one._asdict() for one in found]})
    else:
        _tell(found, tables.offset, log)
    raise typer.Exit(EXIT_FAILED if found else EXIT_OK)


async def _against_log(config: Config, tables: TablesView, show: Callable[[int], None]) -> list[Finding]:
    """Raises LogRefused (LOG_MISMATCH) where the tables are of another log."""
    from pipeline.tables.check import check_against_log
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        if (topic_id := await log.check()) != tables.topic_id:
            raise LogRefused(
                f"the tables in {config.tables.folder} are of log {tables.topic_id}, the configured one is {topic_id}",
                Code.LOG_MISMATCH,
            )
        return await check_against_log(tables, log, show)
    finally:
        await log.close()


def _tell(found: list[Finding], offset: int, log: bool) -> None:
    for one in found:
        records = "1 record" if one.records == 1 else f"{one.records:,} records, the first"
        out.print(f"{one.table:>15}  {one.problem}: {records} at log offset {one.first_offset:,}", markup=False)
    if not found:
        compared = "whole, and have the log's records" if log else "whole"
        out.print(f"the tables are {compared} up to log offset {offset:,}", markup=False)
