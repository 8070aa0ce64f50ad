"""Index checkpoints at a second site: shipped, signed, and tied to the archive that they were built from.

With a checkpoint a new replica need not replay the log up to its position. That is safe only if it is the index of the
same log. So its position is compared with the archived record, and its content with the signed digest.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec.structs import replace

from pipeline.archive.manifest import Manifest, Signer
from pipeline.archive.restore import archived_records
from pipeline.archive.segment import PARTIAL
from pipeline.checkpoints.layout import CheckpointLayout, checkpoint_layout, digests_in
from replica.index.rocks import RocksIndex, verify_index
from replica.notary.codes import Code
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch, ConfigError
from replica.notary.places import Place, inside
from replica.notary.position import BEGIN, Position, decode_position, encode_position
from replica.notary.records import record_digest
from replica.notary.untrusted import UNREADABLE

SIGNED_TAG = b"notary/checkpoint/1"
_OF_A_PROCESS = re.compile(r"LOCK|LOG|LOG\.old.*")  # RocksDB's files of the process that had the index open


class Label(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a shipped checkpoint is. `signature`: the archive's, over SIGNED_TAG and this with an empty one.

    `digest`: of all entries, as `notary index verify` prints it. `position`: docs/formats.md, in hexadecimal.
    """

    archive_id: str
    position: str
    entries: int
    digest: str
    files: dict[str, str]
    signature: str = ""


def ship_checkpoint(checkpoint: Path, place: Place, manifest: Manifest, signer: Signer) -> Place:
    """Copy a checkpoint into a new place within `place`, verified before and after; returns where it is.

    Raises IndexUnreadable when it is not whole, ArchiveMismatch when it is not of the archived log, and ConfigError
    when one of that position was shipped already.
    """
    summary = verify_index(checkpoint)
    if summary.position is None or summary.position.offset == BEGIN:
        raise ConfigError(f"the index in {checkpoint} has nothing applied")
    refuse_foreign(summary.position, manifest)
    target = inside(place, f"{summary.position.offset:019d}")
    layout = checkpoint_layout(target)
    layout.refuse_taken()
    found = digests_in(checkpoint).items()
    label = Label(
        archive_id=manifest.opened.archive_id,
        position=encode_position(summary.position).hex(),
        entries=summary.entry_count,
        digest=summary.digest.hex(),
        files={name: digest for name, digest in found if not _OF_A_PROCESS.fullmatch(name.rpartition("/")[2])},
    )
    signature = signer.sign(SIGNED_TAG + msgspec.json.encode(label)).hex()
    layout.keep(checkpoint, label.files, msgspec.json.encode(replace(label, signature=signature)))
    verify_checkpoint(target, manifest, signer.public_key)
    return target


def verify_checkpoint(place: Place, manifest: Manifest, public_key: bytes) -> Position:
    """The position of a shipped checkpoint. Raises ArchiveDamaged unless it is whole, and ArchiveMismatch."""
    layout = checkpoint_layout(place)
    label = _signed_label(layout, public_key)
    _refuse_changed(layout, layout.digests(label.files), label)
    return _archived_position(label, manifest)


def _signed_label(layout: CheckpointLayout, public_key: bytes) -> Label:
    try:
        label = msgspec.json.decode(layout.label(), type=Label)
        signed = SIGNED_TAG + msgspec.json.encode(replace(label, signature=""))
        Ed25519PublicKey.from_public_bytes(public_key).verify(bytes.fromhex(label.signature), signed)
    except (OSError, *UNREADABLE, ValueError, InvalidSignature) as error:
        problem = f"the label of {layout.place} is not one that the archive's key signed: {error!r}"
        raise ArchiveDamaged(problem) from None
    return label


def _refuse_changed(layout: CheckpointLayout, found: dict[str, str], label: Label) -> None:
    if changed := sorted(set(found.items()) ^ set(label.files.items())):
        raise ArchiveDamaged(f"{layout.place}: {changed[0][0]} is not the file that was shipped")


def _archived_position(label: Label, manifest: Manifest) -> Position:
    if label.archive_id != manifest.opened.archive_id:
        raise ArchiveMismatch(f"the checkpoint is of archive {label.archive_id}, not of {manifest.opened.archive_id}")
    position = decode_position(bytes.fromhex(label.position))
    refuse_foreign(position, manifest)
    return position


def seed_index(
    checkpoint: Place,
    index: Path,
    topic_id: str,
    manifest: Manifest,
    public_key: bytes,
    *,
    check: Callable[[Position], None],
) -> Position:
    """Make a shipped checkpoint a replica's index, in the topic that holds the log now; returns its position.

    `check` raises unless the topic has the record that the position was read from. Raises ConfigError when the replica
    has an index, and whatever `verify_checkpoint` raises.
    """
    if index.exists():
        raise ConfigError(f"{index} exists: move it away, or leave it, a checkpoint only spares replay")
    layout = checkpoint_layout(checkpoint)
    label = _signed_label(layout, public_key)
    position = replace(_archived_position(label, manifest), topic_id=topic_id)
    check(position)
    index.parent.mkdir(parents=True, exist_ok=True)
    partial = index.with_name(f"{index.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        layout.fetch(label.files, partial)
    except FileNotFoundError as error:
        raise ArchiveDamaged(f"{layout.place} is not whole: {error}") from None
    _refuse_changed(layout, digests_in(partial), label)
    opened = RocksIndex(partial)
    opened.adopt(topic_id)
    opened.close()
    partial.rename(index)
    return position


def refuse_foreign(position: Position, manifest: Manifest) -> None:
    """Raise ArchiveMismatch unless the archive has, at the position, the record that it was read from."""
    if position.offset > manifest.last:
        problem = f"offset {position.offset} is not archived yet: archive the log first, then ship"
        raise ArchiveMismatch(problem, Code.NOT_POSSIBLE_NOW)
    for record in archived_records(manifest, position.offset, position.offset):
        if record_digest(record.value or b"") != position.digest:
            raise ArchiveMismatch(f"the archive has another record at offset {position.offset}")
