"""`notary recovery`: what survives the loss of a whole site, and the drill that proves it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replica.cli.common import ConfigChoice, JsonOption, NameOption, find_config, load, out, print_json, run
from replica.cli.pipeline import (
    ArchiveKeyOption,
    FolderOption,
    archive_folder,
    archive_public_key,
    progress,
    require_archive,
    require_pipeline,
)
from replica.notary.exit_codes import EXIT_FAILED
from replica.notary.places import Place, place_of

if TYPE_CHECKING:
    from pipeline.archive.manifest import Manifest
    from replica.config.model import Config
    from replica.notary.position import Position

app = typer.Typer(help="Keep a second site, and bring a lost cluster back from it.", no_args_is_help=True)

CopyOption = Annotated[
    Any,  # Place, of which the parser makes one
    typer.Option(
        "--to", parser=place_of, metavar="PLACE", help="Place of the copy: a folder, s3a://, abfss:// or hdfs://."
    ),
]
SiteOption = Annotated[
    Any,  # Place, of which the parser makes one
    typer.Option(
        "--to",
        parser=place_of,
        metavar="PLACE",
        help="Place at the second site: a folder, s3a://, abfss:// or hdfs://.",
    ),
]
CheckpointArgument = Annotated[Path, typer.Argument(help="Folder of the checkpoint.", exists=True, file_okay=False)]


def _shipped_place(text: str) -> Place:
    place = place_of(text)
    if isinstance(place, Path) and not place.is_dir():
        raise typer.BadParameter(f"{place} is not a folder.")
    return place


ShippedArgument = Annotated[
    Any,  # Place, of which the parser makes one
    typer.Argument(parser=_shipped_place, metavar="CHECKPOINT", help="Place of the shipped checkpoint."),
]


class FailureName(StrEnum):
    """What a drill can make fail."""

    REPLICA = "replica"
    BROKER = "broker"
    DATABASE = "database"
    SITE_COPY = "site-copy"
    SITE_ARCHIVE = "site-archive"


FailureOption = Annotated[
    list[FailureName] | None, typer.Option("--failure", help="Only this failure; may be repeated. All by default.")
]
ReportOption = Annotated[Path | None, typer.Option("--json", help="Write the report to this file.", dir_okay=False)]


@app.command()
def copy(to: CopyOption, folder: FolderOption = None, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Bring the second site's copy of the archive up to date; every segment is verified there.

    A copy of the log itself is kept by: notary log copy --follow.
    """
    require_archive()
    from pipeline.archive.copy import copy_archive

    settings = load(find_config(config))
    manifest = _manifest(settings, folder, None)
    with progress("copied", manifest.last + 1) as show:
        carried = copy_archive(manifest, to, lambda offset: show(offset + 1))
    if as_json:
        print_json({"folder": str(to), "carried": carried, "segments": len(manifest.segments), "last": manifest.last})
        return
    out.print(
        f"[bold green]{to}[/] has the archive up to offset {manifest.last:,}; {carried:,} segments were carried over"
    )


@app.command()
def ship(checkpoint: CheckpointArgument, to: SiteOption, config: ConfigChoice = None) -> None:
    """Ship a checkpoint of an index (notary index checkpoint) to the second site, signed and tied to the archive."""
    require_archive()
    from pipeline.checkpoints.ship import ship_checkpoint
    from replica.active.signer import load_signer

    settings = load(find_config(config))
    shipped = ship_checkpoint(checkpoint, to, _manifest(settings, None, None), load_signer(settings.archive.key_file))
    out.print(f"[bold]{shipped}[/] holds the checkpoint, verified")


@app.command()
def verify(
    checkpoint: ShippedArgument,
    folder: FolderOption = None,
    archive_key: ArchiveKeyOption = None,
    config: ConfigChoice = None,
) -> None:
    """Check that a shipped checkpoint is whole, signed, and of the archived log."""
    require_archive()
    from pipeline.checkpoints.ship import verify_checkpoint

    settings = load(find_config(config))
    key = archive_public_key(settings, archive_key)
    position = verify_checkpoint(checkpoint, _manifest(settings, folder, archive_key), key)
    out.print(f"[bold green]whole[/]: applied to log offset {position.offset}, epoch {position.epoch}")


@app.command()
def seed(
    checkpoint: ShippedArgument, name: NameOption, folder: FolderOption = None, config: ConfigChoice = None
) -> None:
    """Give a replica that has no index a shipped checkpoint, so that it replays only what came after it.

    Works over the log as it is and over a restored topic: the log must have the very record at the index's position.
    """
    require_archive()
    from pipeline.checkpoints.ship import seed_index
    from pipeline.sources.topic import look_at, refuse_other_log

    settings = load(find_config(config))
    settings.replica(name)
    view = look_at(settings.log.settings)

    def check(position: Position) -> None:
        refuse_other_log(settings.log.settings, position)

    index = settings.replica_dir(name) / "index"
    manifest = _manifest(settings, folder, None)
    key = archive_public_key(settings, None)
    position = seed_index(checkpoint, index, view.topic_id, manifest, key, check=check)
    out.print(f"{name} starts at offset {position.offset}; the log ends at {view.end}")


@app.command()
def drill(failure: FailureOption = None, report: ReportOption = None) -> None:
    """Make clusters of its own fail, and measure what each failure costs: answers lost (RPO), seconds without (RTO).

    A replica, a broker and the database fail under load; then a site whose log was copied, and a site of which only the
    archive was copied, with database, log, indexes and all. Works in data/drill* and touches nothing else. Exit code 0
    when no answer is lost that a majority, the copy or the archive had, and no state of it can be spent again.
    """
    require_pipeline()
    from replica.cli.drill import archive, copied, servers
    from replica.cli.drill.report import Failure, show

    chosen = set(failure or ()) or set(FailureName)
    found: list[Failure] = run(servers.run([name for name in servers.STRIKES if name in chosen]))
    restored = None
    if FailureName.SITE_COPY in chosen:
        found.append(run(copied.run()))
    if FailureName.SITE_ARCHIVE in chosen:
        restored = run(archive.Drill().run())
        found.append(restored.failure())
    show(found, restored, report)
    raise typer.Exit(0 if all(row.passed for row in found) else EXIT_FAILED)


def _manifest(config: Config, folder: Place | None, archive_key: str | None) -> Manifest:
    from pipeline.archive.manifest import load_manifest

    return load_manifest(archive_folder(config, folder), archive_public_key(config, archive_key))
