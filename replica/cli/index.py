"""`notary index`: a replica's committed-state index. It is a cache of the log: what is lost is read again."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, NameOption, find_config, load, out, print_json
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from replica.index.summary import IndexSummary

app = typer.Typer(help="Look after a replica's index; the replica must be stopped.", no_args_is_help=True)

FolderArgument = Annotated[Path, typer.Argument(help="Folder to write the copy into; it must not exist yet.")]


@app.command()
def verify(name: NameOption, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Read every entry with its checksum, and print what the index amounts to.

    The digest does not depend on the entries' order: replicas at the same position have the same digest.
    """
    from replica.index.rocks import verify_index

    summary = verify_index(_stopped_index(config, name))
    if as_json:
        print_json(_document(summary))
        return
    position = summary.position
    where = "nothing is applied" if position is None else f"applied to log offset {position.offset}"
    out.print(f"[bold green]readable and whole[/]: {summary.entry_count:,} entries, {where}")
    out.print(f"digest {summary.digest.hex()}")


@app.command()
def rebuild(name: NameOption, config: ConfigChoice = None) -> None:
    """Move the index aside; the replica makes a new one from the log when it starts."""
    from replica.index.rocks import quarantine_index

    moved = quarantine_index(_stopped_index(config, name), time.time_ns() // 1_000)
    out.print(f"moved to [bold]{moved}[/]; start the replica, and delete that folder when nobody needs it any more")


@app.command()
def checkpoint(folder: FolderArgument, name: NameOption, config: ConfigChoice = None) -> None:
    """Write a consistent copy of the index, its position included."""
    from replica.index.rocks import RocksIndex

    index = RocksIndex(_stopped_index(config, name))
    try:
        index.checkpoint(folder)
    finally:
        index.close()
    out.print(f"[bold]{folder}[/] holds the copy")


def _stopped_index(config: Path | None, name: str) -> Path:
    """The folder of a replica's index, which no process has open. Raises ConfigError."""
    settings = load(find_config(config))
    settings.replica(name)
    folder = settings.replica_dir(name) / "index"
    if not folder.is_dir():
        raise ConfigError(f"{name} has no index: there is no {folder}")
    try:
        with (folder / "LOCK").open("r+b") as lock:  # RocksDB's own; let go of when it is closed
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except OSError:
        raise ConfigError(f"{name} is running: stop it first, its index is in use") from None
    return folder


def _document(summary: IndexSummary) -> dict[str, object]:
    position = summary.position
    return {
        "entries": summary.entry_count,
        "digest": summary.digest.hex(),
        "applied_offset": None if position is None else position.offset,
        "epoch": None if position is None else position.epoch,
    }
