"""`notary recovery`: what survives the loss of a whole site, and the drill that proves it."""

from __future__ import annotations

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
    require_pipeline,
)
from replica.notary.exit_codes import EXIT_FAILED
from replica.notary.places import Place, local_path, place_of

if TYPE_CHECKING:
    from pipeline.archive.manifest import Manifest
    from replica.config.model import Config
    from replica.notary.position import Position

app = typer.Typer(help="Keep a second site, and bring a lost cluster back from it.", no_args_is_help=True)

CopyOption = Annotated[
    Any,  # Place, of which the parser makes one
    typer.Option("--to", parser=place_of, metavar="PLACE", help="Place of the copy: a folder, or s3a://BUCKET/PREFIX."),
]
SiteOption = Annotated[
    Path, typer.Option("--to", parser=local_path, metavar="PLACE", help="Folder at the second site.")
]
CheckpointArgument = Annotated[Path, typer.Argument(help="Folder of the checkpoint.", exists=True, file_okay=False)]
ReportOption = Annotated[Path | None, typer.Option("--json", help="Write the report to this file.", dir_okay=False)]


@app.command()
def copy(to: CopyOption, folder: FolderOption = None, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Bring the second site's copy of the archive up to date; every segment is verified there.

    A copy of the log itself is kept by: notary log copy --follow.
    """
    require_pipeline()
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
    require_pipeline()
    from pipeline.checkpoints import ship_checkpoint
    from replica.active.signer import load_signer

    settings = load(find_config(config))
    to.mkdir(parents=True, exist_ok=True)
    shipped = ship_checkpoint(checkpoint, to, _manifest(settings, None, None), load_signer(settings.archive.key_file))
    out.print(f"[bold]{shipped}[/] holds the checkpoint, verified")


@app.command()
def verify(
    checkpoint: CheckpointArgument,
    folder: FolderOption = None,
    archive_key: ArchiveKeyOption = None,
    config: ConfigChoice = None,
) -> None:
    """Check that a shipped checkpoint is whole, signed, and of the archived log."""
    require_pipeline()
    from pipeline.checkpoints import verify_checkpoint

    settings = load(find_config(config))
    key = archive_public_key(settings, archive_key)
    position = verify_checkpoint(checkpoint, _manifest(settings, folder, archive_key), key)
    out.print(f"[bold green]whole[/]: applied to log offset {position.offset}, epoch {position.epoch}")


@app.command()
def seed(
    checkpoint: CheckpointArgument, name: NameOption, folder: FolderOption = None, config: ConfigChoice = None
) -> None:
    """Give a replica that has no index a shipped checkpoint, so that it replays only what came after it.

    Works over the log as it is and over a restored topic: the log must have the very record at the index's position.
    """
    require_pipeline()
    from pipeline.checkpoints import seed_index
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
def drill(report: ReportOption = None) -> None:
    """Destroy a cluster of its own, database, log, indexes, archive and all, and bring it back from the second site.

    Works in data/drill and touches nothing else. Prints recovery point and time. Exit code 0 when every answer that the
    copied archive covered is still given, and no state that it covered can be spent again.
    """
    require_pipeline()
    from replica.cli.drill import Drill, show

    found = run(Drill().run())
    show(found, report)
    raise typer.Exit(0 if found.passed else EXIT_FAILED)


def _manifest(config: Config, folder: Place | None, archive_key: str | None) -> Manifest:
    from pipeline.archive.manifest import load_manifest

    return load_manifest(archive_folder(config, folder), archive_public_key(config, archive_key))
