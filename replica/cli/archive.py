"""`notary archive`: the request log as files that can be checked, and restored from, without any server."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import uuid4

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import (
    AUTO,
    DEFAULT_MASTER,
    IN_PROCESS,
    SPARK,
    ArchiveKeyOption,
    ConnectorOption,
    FolderOption,
    MasterOption,
    PackagesOption,
    PythonArchiveOption,
    SparkChoice,
    archive_folder,
    archive_public_key,
    archive_signer,
    connector_named,
    ending_for_good,
    follower_metrics,
    progress,
    require_archive,
    spark,
    spark_choice,
    tell_failure,
)
from replica.notary.errors import ConfigError, LogUnavailable, StoreUnavailable
from replica.notary.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.archive.manifest import Manifest
    from pipeline.archive.verify import Verification
    from pipeline.archive.write import OnStep, Step, WriteSegments
    from replica.config.model import Config
    from replica.store.archive_head import ArchiveHead

app = typer.Typer(help="Archive the request log, and check the archive.", no_args_is_help=True)

FollowOption = Annotated[
    bool, typer.Option("--follow", help="Go on for ever, looking every archive.interval_s; failures are tried again.")
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Do not ask the database, or the log's nodes, for the newest head.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="What writes segments: `process` (no Spark, no Java), `spark`, or `auto`: Spark if there is a database.",
    ),
]
FromOption = Annotated[int, typer.Option("--from", min=0, help="First offset whose segment is read.")]
ToOption = Annotated[int | None, typer.Option("--to", min=0, help="Last offset whose segment is read.")]


@app.command()
def run(
    *,
    follow: FollowOption = False,
    engine: EngineOption = AUTO,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    connector: ConnectorOption = "auto",
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Archive what the log has and the archive has not: each record once, whatever is killed when.

    The archive goes on where its manifest ends. Another archiver, another log or a cut manifest is refused.
    """
    require_archive()
    settings = load(find_config(config))
    where = spark_choice(master, packages, python_archive)
    if follow:
        _follow(settings, engine, where, connector, as_json)
    with _writing(settings, engine, where, connector) as write:
        _archive(write, settings, as_json)


def _follow(config: Config, engine: str, where: SparkChoice, connector: str, as_json: bool) -> NoReturn:
    """Archive for ever. Raises an error that needs a person first, and ConfigError when the metrics' port is taken."""
    from pipeline.archive.follow import ArchiveOnce, follow_archive
    from pipeline.archive.manifest import load_manifest

    @contextmanager
    def ready() -> Iterator[ArchiveOnce]:
        with _writing(config, engine, where, connector) as write:
            yield lambda on_step: _archive(write, config, as_json, on_step)

    with ending_for_good():
        follow_archive(
            ready,
            lambda: load_manifest(config.archive.folder),
            follower_metrics("archive", config.archive.metrics, config.log.settings, hosts=config.known_hosts),
            interval_s=config.archive.interval_s,
            tell_failure=tell_failure,
            now_s=time.time,
            sleep_s=time.sleep,
        )


@contextmanager
def _writing(config: Config, engine: str, where: SparkChoice, connector: str) -> Iterator[WriteSegments]:
    """What writes the segments while the context lasts. Raises ConfigError."""
    if engine == AUTO:
        engine = IN_PROCESS if config.database.is_embedded else SPARK  # that profile needs no Java
    if engine == IN_PROCESS:
        from pipeline.archive.write import in_process

        yield in_process(config.log.settings)
        return
    if engine != SPARK:
        raise ConfigError(f"--engine is {AUTO}, {IN_PROCESS} or {SPARK}, not {engine!r}")
    of = connector_named(connector)
    with spark("archive", where) as session:
        from pipeline.archive.on_spark import on_spark

        yield on_spark(session, config.log.settings, of)


def _archive(
    write: WriteSegments, config: Config, as_json: bool, on_step: OnStep = lambda step, manifest: None
) -> Manifest:
    """Archive what the log has now, say so, and return the manifest."""
    from pipeline.archive.write import Archiver, BatchSize
    from pipeline.sources.topic import look_at

    began_s = time.monotonic()
    view = look_at(config.log.settings)
    with progress("archived", view.end) as show:

        def note(step: Step, manifest: Manifest) -> None:
            show(manifest.last + 1)
            on_step(step, manifest)

        archiver = Archiver(
            config.log.settings,
            config.archive.folder,
            archive_signer(config),
            config.ledgers().archive_heads(),
            size=BatchSize(segment_records=config.archive.segment_records),
            write=write,
            on_step=note,
        )
        with archiver.open(view, time.time_ns() // 1_000, str(uuid4())) as manifest:
            before = manifest.last
            archiver.archive(manifest, view.end)
    _tell_run(manifest, before, time.monotonic() - began_s, as_json)
    return manifest


def _tell_run(manifest: Manifest, before: int, took_s: float, as_json: bool) -> None:
    count = manifest.last - before
    if as_json:
        print_json({**_summary(manifest), "archived_now": count, "took_s": round(took_s, 3)})
    elif count:
        out.print(
            f"[bold green]archived[/] offsets {before + 1:,} to {manifest.last:,}: {count:,} records in {took_s:.1f} s"
        )
    else:
        out.print(f"nothing new: the archive covers the log up to offset {manifest.last:,}")


@app.command()
def status(folder: FolderOption = None, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """What is archived, and how far the log is ahead, if the brokers answer."""
    require_archive()
    from pipeline.archive.manifest import load_manifest
    from pipeline.sources.topic import look_at
    from replica.notary.errors import LogRefused, LogUnavailable

    settings = load(find_config(config))
    manifest = load_manifest(archive_folder(settings, folder))
    found = _summary(manifest)
    try:
        view = look_at(settings.log.settings)
        found |= {"log_end": view.end, "behind_records": view.end - 1 - manifest.last, "log_topic_id": view.topic_id}
    except (LogUnavailable, LogRefused) as error:
        found |= {"log": error.detail}
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        out.print(f"{name.replace('_', ' '):>15}  {value}", markup=False)


@app.command()
def verify(
    *,
    folder: FolderOption = None,
    archive_key: ArchiveKeyOption = None,
    first: FromOption = 0,
    last: ToOption = None,
    offline: OfflineOption = False,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Check that nothing was lost, moved or edited: every signature, every file, every record's digest, the head.

    Exit code 0: the archive is whole. 1: it is not; the first bad offset is named.
    """
    require_archive()
    from pipeline.archive.verify import verify_archive

    settings = load(find_config(config))
    heads = (lambda archive_id: None) if offline else _newest_head(settings)
    with progress("verified", (last or 0) + 1) as show:
        found = verify_archive(
            archive_folder(settings, folder),
            archive_public_key(settings, archive_key),
            heads,
            first=first,
            last=last,
            on_segment=show,
        )
    _tell_verification(found, as_json)
    raise typer.Exit(EXIT_FAILED if found.findings else 0)


def _newest_head(config: Config) -> Any:
    def newest(archive_id: str) -> ArchiveHead | None:
        try:
            return config.ledgers().archive_heads().newest(archive_id)
        except (StoreUnavailable, LogUnavailable) as error:
            raise type(error)(f"{error.detail}; --offline verifies without the head") from None

    return newest


def _tell_verification(found: Verification, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "archive_id": found.archive_id,
                "lines": found.lines,
                "segments": found.segments,
                "last": found.last,
                "first_bad_offset": found.first_bad_offset,
                "findings": [{"offset": finding.offset, "problem": finding.problem} for finding in found.findings],
            }
        )
        return
    if not found.findings:
        out.print(
            f"[bold green]whole[/]: {found.lines:,} lines, {found.segments:,} segments read, offsets to {found.last:,}"
        )
        return
    out.print(f"[bold red]not whole[/]: the first bad offset is {found.first_bad_offset}")
    for finding in found.findings:
        out.print(f"  offset {finding.offset}: {finding.problem}", markup=False)


def _summary(manifest: Manifest) -> dict[str, Any]:
    segments = manifest.segments
    head = manifest.head
    return {
        "archive_id": manifest.opened.archive_id,
        "topic_id": manifest.topic_id,
        "segments": len(segments),
        "last": head.last,
        "epoch": manifest.position.epoch,
        "bytes": sum(segment.facts.parquet_bytes for segment in segments),
        "lines": head.lines,
        "head": head.hash,
    }
