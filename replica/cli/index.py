"""`notary index`: a replica's committed-state index. It is a cache of the log, and can be read again from it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, NameOption, find_config, load, out, print_json
from replica.cli.index_jobs import diff_with_log, rebuild_on_spark, tell_diff, tell_rebuilt
from replica.cli.log_source import ARCHIVE, SourceOption, Where, WorkOption, reporter
from replica.cli.pipeline import (
    DEFAULT_MASTER,
    MasterOption,
    PackagesOption,
    PythonArchiveOption,
    require_pipeline,
    spark_choice,
)
from replica.cli.salvage import import_salvage
from replica.cli.stopped_index import place_of_index, stopped_index
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from replica.index.summary import IndexSummary

app = typer.Typer(help="Look after a replica's index; the replica must be stopped.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(help="Folder to write the copy into; it must not exist yet.")]


app.command("salvage")(import_salvage)
REPLAY, SPARK = "replay", "spark"
EngineOption = Annotated[str, typer.Option("--engine", help="What makes the new index: `replay` or `spark`.")]
UntilOption = Annotated[int | None, typer.Option("--until-offset", min=0, help="Last log offset to apply.")]
ReplicaOption = Annotated[str | None, typer.Option("--replica", help="Compare with this replica's index.")]
OtherFolderOption = Annotated[
    Path | None, typer.Option("--folder", help="Compare with this index, a checkpoint perhaps.", exists=True)
]
LogOption = Annotated[
    str | None, typer.Option("--log", help="Compare with an index made from the `topic` or the `archive`.")
]
LinkOption = Annotated[
    bool, typer.Option("--link", help="Share files with the index: at once and without room, but damage is shared too.")
]
DatabaseOption = Annotated[
    bool,
    typer.Option("--database", help="Compare with the completions: in the database, or in this replica's own ledger."),
]
FirstOption = Annotated[int, typer.Option("--first", min=1, max=1_000, help="How many differences to show.")]


@app.command()
def verify(name: NameOption, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Read every entry with its checksum, and print what the index amounts to.

    The digest does not depend on the entries' order: replicas at the same position have the same one.
    """
    from replica.index.rocks import verify_index

    summary = verify_index(stopped_index(config, name))
    if as_json:
        print_json(_document(summary))
        return
    out.print(f"[bold green]readable and whole[/]: {summary.entry_count:,} entries, {_where(summary)}")
    out.print(f"digest {summary.digest.hex()}")


@app.command()
def rebuild(
    name: NameOption,
    *,
    engine: EngineOption = REPLAY,
    source: SourceOption = ARCHIVE,
    until_offset: UntilOption = None,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Move the index aside and have another one: read again by the replica when it starts, or made by Spark now.

    There need not be one, as after the loss of a disk.
    `replay` needs nothing but the replica. `spark` makes the same index in parallel, from the archive or the topic; the
    replica then reads what came since from the topic.
    """
    folder = place_of_index(config, name)
    if engine == SPARK:
        where = Where(source, spark_choice(master, packages, python_archive), work)
        moved, rebuilt = rebuild_on_spark(
            load(find_config(config)), folder, where, until_offset, reporter("rebuild", as_json)
        )
        tell_rebuilt(moved, rebuilt, as_json)
        return
    if engine != REPLAY:
        raise ConfigError(f"--engine is {REPLAY} or {SPARK}, not {engine!r}")
    from replica.index.quarantine import quarantine_index

    if not folder.is_dir():
        out.print(f"{name} has no index: it reads the log again when it starts")
        return
    moved = quarantine_index(folder, time.time_ns() // 1_000)
    out.print(f"moved to [bold]{moved}[/]; start the replica, and delete that folder when nobody needs it any more")


@app.command()
def diff(
    name: NameOption,
    *,
    replica: ReplicaOption = None,
    folder: OtherFolderOption = None,
    log: LogOption = None,
    database: DatabaseOption = False,
    first: FirstOption = 10,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    work: WorkOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Compare an index with another replica's, with a checkpoint, with the log, or with the database's completions.

    Both are compared as far as both have come. Exit code 0: no difference. 1: differences, the first ones named.
    """
    settings = load(find_config(config))
    own = stopped_index(config, name)
    if [replica is not None, folder is not None, log is not None, database].count(True) != 1:
        raise ConfigError("compare with one thing: --replica, --folder, --log or --database")
    require_pipeline()
    from pipeline.audit.index_diff import diff_index_database, diff_indexes

    if database:
        found = diff_index_database(own, next(iter(settings.ledgers(name).addresses().values())), first)
    elif log is not None:
        where = Where(log, spark_choice(master, packages, python_archive), work)
        found = diff_with_log(settings, own, where, first)
    else:
        found = diff_indexes(own, stopped_index(config, replica) if replica is not None else Path(folder or ""), first)
    tell_diff(found, as_json)
    raise typer.Exit(EXIT_OK if found.same else EXIT_FAILED)


@app.command()
def checkpoint(folder: FolderArgument, name: NameOption, config: ConfigChoice = None, link: LinkOption = False) -> None:
    """Write a consistent copy of the index, its position included."""
    from replica.index.rocks import RocksIndex

    index = RocksIndex(stopped_index(config, name))
    try:
        index.checkpoint(folder)
    finally:
        index.close()
    if not link:
        own_files(folder)
    out.print(f"[bold]{folder}[/] holds the copy")


def own_files(folder: Path) -> None:
    """Make a file of its own of each that is shared with another folder by a hard link, as a checkpoint's are."""
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_nlink > 1:
            copy = path.with_name(f"{path.name}.copy")
            shutil.copy2(path, copy)
            copy.replace(path)


def _where(summary: IndexSummary) -> str:
    return "nothing is applied" if summary.position is None else f"applied to log offset {summary.position.offset}"


def _document(summary: IndexSummary) -> dict[str, object]:
    position = summary.position
    return {
        "entries": summary.entry_count,
        "digest": summary.digest.hex(),
        "applied_offset": None if position is None else position.offset,
        "epoch": None if position is None else position.epoch,
    }
