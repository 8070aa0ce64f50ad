"""`notary restore`: the request log's topic from its archive, at the same offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, make_table, out, print_json
from replica.cli.pipeline import (
    ArchiveKeyOption,
    FolderOption,
    archive_folder,
    archive_public_key,
    progress,
    require_archive,
)
from replica.cli.salvage import published_offset, read_salvage
from replica.cli.trailed import ConfirmOption, ProposeOption, ReasonOption, acting
from replica.cli.trailed import propose as propose_act
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, LogRefused, RestoreRefused
from replica.notary.exit_codes import EXIT_FAILED
from replica.notary.places import Place

if TYPE_CHECKING:
    from pipeline.archive.manifest import Manifest
    from pipeline.archive.restore_plan import RestorePlan, Until
    from pipeline.sources.topic import TopicView
    from replica.config.model import Config
    from replica.log.settings import LogSettings
    from replica.notary.position import Position
    from replica.notary.salvage import Salvage

_ODD = re.compile(r"[^A-Za-z0-9._-]+")  # not for the name of a file

app = typer.Typer(help="Restore the request log's topic from its archive.", no_args_is_help=True)

TopicOption = Annotated[
    str | None, typer.Option("--to-topic", help="Topic to restore to; else the configured one, which must be gone.")
]
ServersOption = Annotated[
    str | None,
    typer.Option(
        "--to-servers",
        help="Brokers of another cluster, HOST:PORT,...; other log nodes, NAME=HOST:PORT,...; on Postgres a connection"
        " string of the log's owner. Else as configured.",
    ),
]
OffsetOption = Annotated[int | None, typer.Option("--until-offset", min=0, help="Last offset to restore.")]
TimeOption = Annotated[
    str | None,
    typer.Option("--until-time", help="Restore what the broker had by then: 2026-11-21T10:00:00Z. A zone is needed."),
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Do not ask the database what it knows.")]
LossOption = Annotated[
    int | None,
    typer.Option("--accept-loss", min=0, help="The number that the plan prints: how much stays lost, and is accepted."),
]
SalvageOption = Annotated[
    Path | None,
    typer.Option("--salvage", help="What is known of records that the archive lacks: notary log salvage.", exists=True),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on after records that are in the topic and are the archive's.")
]
EvidenceOption = Annotated[
    Path | None, typer.Option("--evidence", help="File for the signed report; else restore-TOPIC.json here.")
]
NamesOption = Annotated[
    list[str] | None, typer.Option("--name", help="Replica whose index is adopted too; may be given several times.")
]


@app.command()
def plan(
    *,
    to_topic: TopicOption = None,
    to_servers: ServersOption = None,
    folder: FolderOption = None,
    until_offset: OffsetOption = None,
    until_time: TimeOption = None,
    archive_key: ArchiveKeyOption = None,
    offline: OfflineOption = False,
    accept_loss: LossOption = None,
    salvage: SalvageOption = None,
    resume: ResumeOption = False,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a restore would do and what stands against it. Reads the whole archive; writes nothing.

    Exit code 0: it can be done. 1: it would be refused.
    """
    settings = load(find_config(config))
    target = _target(settings, to_topic, to_servers)
    manifest = _manifest(settings, folder, archive_key)
    until = _until(until_offset, until_time)
    key = archive_public_key(settings, archive_key)
    found = _plan(
        settings,
        manifest,
        key,
        target,
        until,
        offline=offline,
        resume=resume,
        accept_loss=accept_loss,
        salvage=None if salvage is None else read_salvage(salvage, key),
    )
    _tell_plan(found, as_json)
    raise typer.Exit(EXIT_FAILED if found.refused else 0)


@app.command()
def run(
    *,
    to_topic: TopicOption = None,
    to_servers: ServersOption = None,
    folder: FolderOption = None,
    until_offset: OffsetOption = None,
    until_time: TimeOption = None,
    evidence: EvidenceOption = None,
    offline: OfflineOption = False,
    accept_loss: LossOption = None,
    salvage: SalvageOption = None,
    resume: ResumeOption = False,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Restore, read every record back, compare it, and write a signed report. Nothing else may write to the topic.

    A restore that was killed goes on with --resume. Then: notary restore adopt.
    """
    from pipeline.archive.restore import run_restore
    from replica.active.signer import load_signer

    settings = load(find_config(config))
    signer = load_signer(settings.archive.key_file)
    target = _target(settings, to_topic, to_servers)
    manifest = _manifest(settings, folder, signer.public_key.hex())
    until = _until(until_offset, until_time)
    found = _plan(
        settings,
        manifest,
        signer.public_key,
        target,
        until,
        offline=offline,
        resume=resume,
        accept_loss=accept_loss,
        salvage=None if salvage is None else read_salvage(salvage, signer.public_key),
    )
    with progress("restored", found.end, found.first) as show:
        report = run_restore(manifest, found, target, lambda: time.time_ns() // 1_000, show).signed_by(signer.sign)
    path = evidence or Path(f"restore-{_ODD.sub('-', target.label)}.json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if as_json:
        print_json({"topic_id": report.topic_id, "last": report.last, "evidence": str(path)})
        return
    took_s = (report.finished_us - report.started_us) / 1e6
    out.print(
        f"[bold green]restored[/] offsets {report.written_from:,} to {report.last:,} in {took_s:.1f} s; every record"
        f" was read back and is the archive's. The log {report.topic} has id {report.topic_id}"
    )
    out.print(f"evidence, signed by the archive's key: {path}", markup=False)


def _plan(
    config: Config, manifest: Manifest, public_key: bytes, target: LogSettings, until: Until, **options: Any
) -> RestorePlan:
    from pipeline.archive.restore import plan_restore

    head = published = None
    if not options.pop("offline"):
        head = config.ledgers().archive_heads().newest(manifest.opened.archive_id)
        published = published_offset(config)
    return plan_restore(manifest, public_key, target, until, head=head, published=published, **options)


def _tell_plan(found: RestorePlan, as_json: bool) -> None:
    if as_json:
        checks = [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in found.checks]
        print_json({"topic": found.topic, "first": found.first, "last": found.last, "checks": checks})
        return
    table = make_table("check", "", "detail", title=f"Restore offsets {found.first} to {found.last} to {found.topic}")
    for check in found.checks:
        table.add_row(check.name, "[green]passed[/]" if check.passed else "[bold red]refused[/]", check.detail)
    out.print(table)


def _target(config: Config, topic: str | None, servers: str | None) -> LogSettings:
    return config.log.settings.elsewhere(topic, servers)


def _manifest(config: Config, folder: Place | None, archive_key: str | None) -> Manifest:
    require_archive()
    from pipeline.archive.manifest import load_manifest

    return load_manifest(archive_folder(config, folder), archive_public_key(config, archive_key))


def _until(offset: int | None, time_text: str | None) -> Until:
    from pipeline.archive.restore_plan import Until

    if offset is not None and time_text is not None:
        raise ConfigError("--until-offset and --until-time exclude one another")
    if time_text is None:
        return Until(offset=offset)
    try:
        at = datetime.fromisoformat(time_text)
    except ValueError:
        raise ConfigError(f"--until-time is no moment: {time_text!r}; write 2026-11-21T10:00:00Z") from None
    if at.tzinfo is None:
        raise ConfigError("--until-time needs a zone: write 2026-11-21T10:00:00Z")
    return Until(time_ms=int(at.timestamp() * 1_000))


@app.command()
def adopt(
    *,
    name: NamesOption = None,
    salvage: SalvageOption = None,
    accept_loss: LossOption = None,
    reason: ReasonOption = None,
    propose: ProposeOption = False,
    confirm: ConfirmOption = None,
    config: ConfigChoice = None,
) -> None:
    """Make the configured topic the log of this database, of the archive, and of the indexes that are named.

    All replicas must be stopped. Each of them is adopted only if the topic has, at its position, the very record that
    it was read from. An index that is not adopted is rebuilt: notary index rebuild. With a salvage the database names
    it from then on, and no replica serves whose index lacks it: notary index salvage, on every replica.
    """
    require_archive()
    settings = load(find_config(config))
    asked = {
        "topic": settings.log.settings.label,
        "indexes": ",".join(name or ()),
        "salvage": None if salvage is None else sha256(salvage.read_bytes()).hexdigest(),
        "accept_loss": accept_loss,
    }
    if propose:
        propose_act(settings, "restore-adopt", asked, reason)
        return
    with acting(settings, "restore-adopt", asked, reason, confirm=confirm) as act:
        act.outcome = _adopt(settings, name or (), salvage, accept_loss)


def _adopt(settings: Config, names: Sequence[str], salvage: Path | None, accept_loss: int | None) -> str:
    """Adopt the configured topic, and say so; returns what the database was told."""
    from pipeline.archive.layout import layout_of
    from pipeline.sources.topic import look_at, refuse_other_log
    from replica.following.salvaged import keep_salvage

    view = look_at(settings.log.settings)
    archive = layout_of(settings.archive.folder)
    archived = archive.read_lines() is not None
    beside = archive.folder if archived and salvage is not None else None  # refuses early where none can be kept
    used = None if salvage is None else read_salvage(salvage, archive_public_key(settings, None))
    _check_lost_range(settings, view, used, accept_loss)

    def check(position: Position) -> None:
        if position.offset >= view.end:
            raise LogRefused(f"the topic ends at {view.end}, but offset {position.offset} was read before")
        refuse_other_log(settings.log.settings, position)

    told = _adopt_completions(settings, view.topic_id, check, used)
    out.print(told)
    for one in names:
        settings.replica(one)
        _adopt_index(settings.replica_dir(one) / "index", view.topic_id, check)
        out.print(f"the index of {one} belongs to it as well")
    if archived:
        _adopt_archive(settings, view.topic_id, check)
        if salvage is not None and used is not None and beside is not None:
            keep_salvage(beside, used, salvage.read_bytes())
        out.print("the archive goes on with it")
    return told


def _adopt_completions(
    config: Config, topic_id: str, check: Callable[[Position], None], salvage: Salvage | None
) -> str:
    """Make the topic that of the completions, and say so. Raises as `replica.store.open.adopt_topic` does."""
    from ha.lock.ids import Counter, lock_id
    from replica.store.open import adopt_topic

    if config.database.is_embedded:
        if salvage is not None:  # nothing would say that every replica needs it
            raise ConfigError("a salvage needs a database that the replicas share", Code.NOT_POSSIBLE_NOW)
        return f"each replica makes its ledger anew from the log {topic_id} when it starts"
    lock = lock_id(config.database.scope, Counter.PARTICIPANT_WRITE)
    position = adopt_topic(config.conninfo(), lock, topic_id, check, salvage)
    where = "nothing was published" if position is None else f"published up to offset {position.offset}"
    return f"the database belongs to topic id {topic_id}; {where}"


def _check_lost_range(config: Config, view: TopicView, salvage: Salvage | None, accept_loss: int | None) -> None:
    """Raise RestoreRefused unless the topic's lost records are the salvage's, and the operator accepts what is lost.

    If nothing names the lost range, releases that pass over it would serve the topic.
    """
    from pipeline.archive.layout import layout_of
    from pipeline.sources.stretch import read_stretch
    from pipeline.sources.topic import value_at
    from replica.notary.salvage import salvage_named

    archived = layout_of(config.archive.folder).read_lines() is not None
    manifest = _manifest(config, None, None) if archived else None
    if salvage is None:
        ends = [view.end - 1] if manifest is None else [manifest.last + 1, view.end - 1]  # of the archive, of a copy
        for at in ends:
            if 0 <= at < view.end and (named := salvage_named(at, value_at(config.log.settings, at))) is not None:
                raise RestoreRefused(
                    f"the record at offset {at} was lost: adopt with --salvage, the file {named.hex()}"
                )
        return
    if accept_loss != salvage.header.accepted_loss:
        raise RestoreRefused(f"to accept what stays lost: --accept-loss {salvage.header.accepted_loss}")
    if view.end <= salvage.last:
        raise RestoreRefused(
            f"the topic ends at {view.end}, lost were offsets {salvage.first} to {salvage.last}: restore with"
            " this salvage first (notary restore run --salvage; a copy: notary log copy --finish --salvage)"
        )
    at = salvage.first
    for batch in read_stretch(config.log.settings, salvage.first, salvage.last + 1):
        for value in batch.column("value").to_pylist():
            if value != salvage.lost_record(at):
                raise RestoreRefused(
                    f"the record at offset {at} is not one that this salvage is named by: name the file that the log"
                    " was restored with"
                )
            at += 1


def _adopt_index(folder: Path, topic_id: str, check: Callable[[Position], None]) -> None:
    from replica.index.rocks import RocksIndex

    index = RocksIndex(folder)
    try:
        position = index.position()
        if position is not None:
            check(position)
            index.adopt(topic_id)
    finally:
        index.close()


def _adopt_archive(config: Config, topic_id: str, check: Callable[[Position], None]) -> None:
    from pipeline.archive.manifest import Adopted
    from replica.active.signer import load_signer

    signer = load_signer(config.archive.key_file)
    manifest = _manifest(config, None, signer.public_key.hex())
    check(manifest.position)
    if manifest.topic_id != topic_id:
        manifest.append(signer, [Adopted(topic_id=topic_id, at_us=time.time_ns() // 1_000)])
    config.ledgers().archive_heads().record(manifest.opened.archive_id, manifest.head)
