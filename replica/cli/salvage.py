"""`notary log salvage` and `notary index salvage`: keep the decisions of a lost topic's newest records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from replica.cli.common import ConfigChoice, JsonOption, NameOption, err, find_config, load, out, print_json
from replica.cli.common import run as run_coroutine
from replica.cli.pipeline import (
    ArchiveKeyOption,
    FolderOption,
    archive_folder,
    archive_public_key,
    archive_signer,
    require_archive,
)
from replica.cli.stopped_index import stopped_index
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, RestoreRefused, SalvageDamaged, StoreMismatch
from replica.notary.places import Place

if TYPE_CHECKING:
    from pipeline.archive.cut import ReadRecords
    from pipeline.archive.manifest import Manifest
    from pipeline.archive.salvage import Survivors
    from pipeline.judging.lost import Lost
    from replica.config.model import Config
    from replica.log.settings import LogSettings
    from replica.notary.position import Position
    from replica.notary.salvage import Salvage, Salvages

NamesOption = Annotated[
    list[str] | None, typer.Option("--name", help="Replica whose index survives; else every one that is here.")
]
IndexesOption = Annotated[
    list[Path] | None,
    typer.Option("--index", help="An index of another machine, or a checkpoint of one.", exists=True, file_okay=False),
]
FileOption = Annotated[Path, typer.Option("--to", help="File to write; it must not exist yet.", dir_okay=False)]
CopyOption = Annotated[
    Path | None,
    typer.Option(
        "--copy", dir_okay=False, exists=True,
        help="Configuration file of the second site, whose [log] is a copy: save what it lacks, and not the archive.",
    ),
]  # fmt: skip
FileArgument = Annotated[Path, typer.Argument(help="The file of the salvage.", exists=True, dir_okay=False)]
CutOption = Annotated[
    bool, typer.Option("--cut", help="The log itself is there and ends too early: save what it lacks, and no archive.")
]
MarksOption = Annotated[
    list[str] | None,
    typer.Option("--mark", help="A position that a replica noted, in hexadecimal, as its health document has it."),
]
ExposedOption = Annotated[
    int | None,
    typer.Option(
        "--exposed", min=0, max=1_000_000,
        help="How many answered records nobody may have noted; else what the log's durability allows.",
    ),
]  # fmt: skip
SalvagesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--salvage", dir_okay=False, exists=True,
        help="A salvage that lost records of the log name; those of replicas here and beside the archive are found.",
    ),
]  # fmt: skip
SHOWN_MAX = 20
EXPOSED_MAX_RECORDS = 20_000  # that answers run ahead of every note, on a log that does not survive power loss


class Kept(NamedTuple):
    """What is left of the log: the id of the archive, of the copy or of the log itself; the position in the lost log
    after its last record; and the folders beside it that may hold salvages."""

    id: str
    position: Position
    folders: Sequence[Path]


def make_salvage(
    to: FileOption,
    *,
    name: NamesOption = None,
    index: IndexesOption = None,
    folder: FolderOption = None,
    copy: CopyOption = None,
    cut: CutOption = False,
    mark: MarksOption = None,
    exposed: ExposedOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Save what is known of records that the archive, a copy, or the log itself lacks, from surviving indexes, the
    database and marks.

    All replicas must be stopped, and the job that copies. Name every index that is left: what is in no index and in no
    completion is lost, and counted. The file is signed with the archive's key. Then: notary restore plan --salvage
    FILE; of a copy, notary log copy --finish --salvage FILE; of a log that was cut, notary log fill FILE.
    """
    require_archive()
    if cut and copy is not None:
        raise ConfigError("--cut and --copy exclude one another")
    from pipeline.archive.salvage import merge, states_unknown
    from pipeline.archive.segment import write_whole
    from replica.notary.salvage import decode_salvage, encode_salvage

    settings = load(find_config(config))
    if to.exists():
        raise ConfigError(f"{to} exists already; a salvage that was used must never be replaced")
    signer = archive_signer(settings)
    indexes = _indexes(settings, config, name, index)
    marks = _marks(mark or ())
    if cut:
        kept = _kept_by_log(settings, folder, signer.public_key, indexes, marks)
    elif copy is None:
        kept = _kept_by_archive(_manifest(settings, folder, signer.public_key))
    else:
        kept = _kept_by_copy(settings, copy, folder, signer.public_key, indexes)
    asked = exposed is not None
    if exposed is None:
        exposed = 0 if settings.log.settings.survives_power_loss else EXPOSED_MAX_RECORDS
    survivors = _survivors(settings, kept, indexes, marks, exposed)
    if not (asked or survivors.knows_anything):
        raise RestoreRefused("no index, no completion and no mark is left", Code.SALVAGE_SOURCELESS)
    header, entries = merge(survivors, at_us=time.time_ns() // 1_000, public_key=signer.public_key)
    raw = encode_salvage(header, entries, signer.sign)
    write_whole(to, raw)
    without_states = [tx_id.hex() for tx_id in states_unknown(entries, header.applied)]
    _show(decode_salvage(to.read_bytes(), signer.public_key), to, without_states, as_json)


def _kept_by_archive(manifest: Manifest) -> Kept:
    from pipeline.archive.layout import FolderLayout

    beside = [manifest.folder] if isinstance(manifest.layout, FolderLayout) else []
    return Kept(manifest.opened.archive_id, manifest.position, beside)


def _kept_by_copy(
    config: Config, second: Path, folder: Place | None, public_key: bytes, indexes: Sequence[tuple[str, Path]]
) -> Kept:
    """What the second site's log has. Raises RestoreRefused where the archive has more: its records are the better."""
    from pipeline.archive.layout import layout_of
    from pipeline.log_copy import kept_by

    kept = Kept(*kept_by(load(second).log.settings, *_lost_log(config, indexes)), ())
    if layout_of(archive_folder(config, folder)).read_lines() is None:
        return kept
    manifest = _manifest(config, folder, public_key)
    if manifest.last > kept.position.offset:
        raise RestoreRefused(
            f"the archive goes up to offset {manifest.last}, the copy to {kept.position.offset}: salvage what the"
            " archive lacks (without --copy), and restore from it"
        )
    return kept._replace(folders=_kept_by_archive(manifest).folders)


def _kept_by_log(
    config: Config,
    folder: Place | None,
    public_key: bytes,
    indexes: Sequence[tuple[str, Path]],
    marks: Sequence[Position],
) -> Kept:
    """What the log itself has. Raises RestoreRefused where the archive has more, and where the log has other records
    than somebody knows."""
    from pipeline.archive.cut import Evidence, kept_of
    from pipeline.archive.layout import layout_of
    from pipeline.log_copy import refuse_begun
    from pipeline.sources.topic import look_at, refuse_other_log
    from replica.index.rocks import RocksIndex
    from replica.notary.position import begin, decode_position
    from replica.store.open import published_state

    log = config.log.settings
    view = look_at(log, any_contract=True)
    start, beside = begin(view.topic_id), tuple[Path, ...]()
    if layout_of(archive_folder(config, folder)).read_lines() is not None:
        archived = _kept_by_archive(_manifest(config, folder, public_key))
        start, beside = archived.position, tuple(archived.folders)
    if view.first or start.topic_id != view.topic_id or start.offset >= view.end:
        raise RestoreRefused(
            f"{log.label} is {view.topic_id} and has offsets {view.first} to {view.end - 1}; the archive, of"
            f" {start.topic_id}, goes up to {start.offset}: restore from the archive (runbooks/topic-loss.md)"
        )
    refuse_other_log(log, start)
    with config.shared_database().export() as export:
        if export.topic_id not in (None, view.topic_id):
            raise RestoreRefused(f"the database belongs to topic id {export.topic_id}, the log is {view.topic_id}")
        refuse_begun(log, view.end, export.salvages)
        completions = [one for _, one in export.rows if start.offset < one.log_offset < view.end]
    published = published_state(config.conninfo()).position
    noted = [(f"mark {at}", position) for at, position in enumerate(marks, 1)]
    noted += [] if published is None else [("the database", decode_position(published))]
    noted += [(name, position) for name, position in _positions(indexes) if position.offset > start.offset]
    furthest = max(_positions(indexes), key=lambda one: one[1].offset, default=None)
    index = None if furthest is None else RocksIndex(dict(indexes)[furthest[0]])
    try:
        named = None if furthest is None or index is None else (furthest[0], index)
        evidence = Evidence(named, completions, noted, salvages_here(config))
        kept = kept_of(start, view.end, _reader(log), evidence)
    finally:
        if index is not None:
            index.close()
    if kept.contradiction is not None:
        last = kept.position.offset
        raise RestoreRefused(
            f"{log.label} has other records after offset {last} than it had: {kept.contradiction}. No log takes"
            f" records back: copy it to another one (notary log copy --until-offset {last} --to FILE), and salvage what"
            " that one lacks (notary log salvage --copy FILE)"
        )
    return Kept(view.topic_id, kept.position, beside)


def _positions(indexes: Sequence[tuple[str, Path]]) -> list[tuple[str, Position]]:
    """How far each index is. Raises RestoreRefused for one that has nothing applied."""
    from replica.index.rocks import read_index

    found = []
    for name, folder in indexes:
        with read_index(folder) as index:
            if index.position is None:
                raise RestoreRefused(f"the index of {name} has nothing applied: leave it out")
            found.append((name, index.position))
    return found


def _reader(log: LogSettings) -> ReadRecords:
    from pipeline.sources.stretch import read_stretch

    def read(first: int, end: int) -> Iterator[tuple[int, bytes]]:
        for batch in read_stretch(log, first, end) if first < end else ():
            values = (value or b"" for value in batch.column("value").to_pylist())
            yield from zip(batch.column("offset").to_pylist(), values, strict=True)

    return read


def _marks(texts: Iterable[str]) -> list[Position]:
    """Positions from their bytes in hexadecimal. Raises ConfigError."""
    from replica.notary.errors import FormatUnknown
    from replica.notary.position import decode_position

    try:
        return [decode_position(bytes.fromhex(text)) for text in texts]
    except (ValueError, FormatUnknown) as error:
        raise ConfigError(f"--mark is no position: {error}") from None


def _lost_log(config: Config, indexes: Sequence[tuple[str, Path]]) -> tuple[str, tuple[str, ...]]:
    """The id of the log that was lost, which the database knows, and each index; and the salvages that the database
    demands of it. Raises RestoreRefused."""
    from replica.index.rocks import read_index

    with config.shared_database().export() as export:
        if export.topic_id is not None:
            return export.topic_id, tuple(export.salvages)
    for _, folder in indexes:
        with read_index(folder) as index:
            if index.position is not None:
                return index.position.topic_id, ()
    raise RestoreRefused("nothing is known of a lost log: name an index of it (--index), or its database")


def _survivors(
    config: Config, kept: Kept, indexes: Sequence[tuple[str, Path]], marks: Sequence[Position], exposed: int
) -> Survivors:
    from pipeline.archive.salvage import Survivors, complete_from, read_tail
    from replica.notary.position import BEGIN

    base = kept.position
    tails = [read_tail(name, folder, base) for name, folder in indexes]
    with config.shared_database().export() as export:
        if export.topic_id not in (None, base.topic_id):
            raise RestoreRefused(f"the database belongs to topic id {export.topic_id}, the archive {base.topic_id}")
        first_kept = None
        completions = []
        for _, completion in export.rows:
            first_kept = first_kept or completion
            if completion.log_offset > base.offset:
                completions.append(completion)
        published = BEGIN if export.topic_id is None else export.published_offset
        kept_from = complete_from(base, export.pruned_to, first_kept, published)
        ledger_end = export.ledger_end
        earlier = _earlier(config, kept.folders, export.salvages)
    return Survivors(
        archive_id=kept.id,
        base=base,
        indexes=tails,
        published=published,
        completions=completions,
        complete_from=kept_from,
        ledger_end=ledger_end,
        marks=marks,
        exposed=exposed,
        earlier=earlier,
    )


def _earlier(config: Config, beside: Sequence[Path], digests: Iterable[str]) -> list[Salvage]:
    """The salvages that the database demands, from beside the archive or a replica's index. Raises RestoreRefused."""
    from replica.following.salvaged import read_salvages

    folders = [*beside, *(config.replica_dir(one.name) for one in config.replicas)]
    held = {digest.hex(): salvage for folder in folders for digest, salvage in read_salvages(folder).held.items()}
    if missing := [digest for digest in digests if digest not in held]:
        raise RestoreRefused(
            f"the log was restored before with salvage {missing[0]}, which no replica here and no archive has: what it"
            " knows would be lost. Give it to a replica first: notary index salvage"
        )
    return [held[digest] for digest in digests]


def _indexes(
    config: Config, path: Path | None, names: list[str] | None, folders: list[Path] | None
) -> list[tuple[str, Path]]:
    """Name and folder of each index that survives; no process has it open."""
    here = [one.name for one in config.replicas if (config.replica_dir(one.name) / "index").is_dir()]
    chosen = names if names is not None else [] if folders else here
    return [(one, stopped_index(path, one)) for one in chosen] + [(str(folder), folder) for folder in folders or ()]


def _show(salvage: Salvage, path: Path, without_states: list[str], as_json: bool) -> None:
    from replica.notary.salvage import OF_COMMANDS, OF_PARTIES, OF_STATES

    header = salvage.header
    kinds = Counter(entry.key[0] for entry in salvage.entries())
    counts = {table: sum(kinds[kind] for kind in table) for table in (OF_STATES, OF_COMMANDS, OF_PARTIES)}
    if as_json:
        print_json(
            {
                "file": str(path),
                "digest": salvage.digest.hex(),
                "first": salvage.first,
                "last": salvage.last,
                "applied": header.applied,
                "mark": header.mark,
                "exposed": header.exposed,
                "published": header.published,
                "entries": counts[OF_STATES],
                "acceptances": counts[OF_COMMANDS],
                "registrations": counts[OF_PARTIES],
                "states_unknown": without_states,
                "accept_loss": header.accepted_loss,
            }
        )
        return
    out.print(
        f"[bold green]saved[/] {counts[OF_STATES]:,} entries of states and transactions, {counts[OF_COMMANDS]:,}"
        f" acceptances of commands and {counts[OF_PARTIES]:,} entries of officers and registrations, of the lost"
        f" offsets {salvage.first} to {salvage.last}, from {len(header.sources)} indexes and completions up to offset"
        f" {header.published}"
    )
    out.print(f"digest {salvage.digest.hex()}")
    if header.states_unknown:
        out.print(
            f"[bold red]{header.states_unknown:,} transactions[/] whose states nobody knows; they can be spent again:"
        )
        for tx_id in without_states[:SHOWN_MAX]:
            out.print(f"  {tx_id}")
    out.print(f"what stays lost is accepted with --accept-loss {header.accepted_loss}")


def salvages_here(config: Config, files: Iterable[Path] = ()) -> Salvages:
    """The salvages imported into replicas of this machine, those kept with the archive, and these files.

    The log names each by its digest, so nobody's key has to be known. Raises SalvageDamaged and ConfigError.
    """
    from replica.following.salvaged import read_salvages
    from replica.notary.salvage import Salvages

    beside = [config.archive.folder] if isinstance(config.archive.folder, Path) else []
    folders = [*beside, *(config.replica_dir(one.name) for one in config.replicas)]
    kept = [salvage for folder in folders for salvage in read_salvages(folder).held.values()]
    return Salvages([*kept, *(read_salvage(path) for path in files)])


def tell_lost(lost: Iterable[Lost]) -> None:
    """Say on standard error which ranges of the log are lost, and what is therefore not known."""
    for one in lost:
        err.print(f"lost: {one}", markup=False)


def read_salvage(path: Path, public_key: bytes | None = None) -> Salvage:
    """A salvage that the operator's key signed; see `decode_salvage`. Raises ConfigError and SalvageDamaged."""
    from replica.notary.salvage import decode_salvage

    try:
        return decode_salvage(path.read_bytes(), public_key)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except SalvageDamaged as error:
        raise SalvageDamaged(f"{path}: {error.detail}") from None


def published_offset(config: Config) -> int | None:
    """The offset that completions are published up to; None in a new database, which has nothing to lose."""
    with suppress(StoreMismatch):
        return run_coroutine(config.ledgers().status()).published_offset
    return None


def import_salvage(
    file: FileArgument, name: NameOption, archive_key: ArchiveKeyOption = None, config: ConfigChoice = None
) -> None:
    """Give a replica the salvage that the restored log names, after verifying it. The replica must be stopped.

    Every replica needs the same file, for as long as it reads this log: it reads past the lost range with it only, also
    when its index is made anew.
    """
    from replica.following.salvaged import keep_salvage

    settings = load(find_config(config))
    settings.replica(name)
    salvage = read_salvage(file, archive_public_key(settings, archive_key))
    path = keep_salvage(settings.replica_dir(name), salvage, file.read_bytes())
    out.print(f"[bold]{path}[/] holds what {name} needs for offsets {salvage.first} to {salvage.last}")


def _manifest(config: Config, folder: Place | None, public_key: bytes) -> Manifest:
    from pipeline.archive.manifest import load_manifest

    err.print("verifying the archive's manifest and the indexes", highlight=False)
    return load_manifest(archive_folder(config, folder), public_key)
