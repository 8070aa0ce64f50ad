"""The mark in the archive's own manifest, where the archive is a folder that this machine can read.

The row in the database does not count here: it goes back with the database. No signature is checked: whoever can write
there could only keep replicas from serving, and `notary archive verify` finds it. An archive that cannot be read is
named and passed over, because a replica must start while the archive's disk is away.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from replica.notary.errors import BadRequest
from replica.notary.marks import decode_mark, mark_of
from replica.notary.position import Position, decode_position, encode_position
from replica.notary.untrusted import UNREADABLE, read_bounded

log = structlog.get_logger()

MANIFEST_NAME = "manifest.jsonl"


class _Segment(msgspec.Struct, frozen=True):
    position: str


class _Log(msgspec.Struct, frozen=True):
    topic_id: str


class _Line(msgspec.Struct, frozen=True):
    """What is needed of a line (docs/formats.md)."""

    segment: _Segment | None = None
    opened: _Log | None = None
    adopted: _Log | None = None


_decoder = msgspec.json.Decoder(_Line)


def archived_mark(folder: Path | None) -> Position | None:
    """The mark of the newest archived record, in the log that has it now; None where there is none."""
    if folder is None or not (folder / MANIFEST_NAME).exists():
        return None
    try:
        return mark_in(read_bounded(folder / MANIFEST_NAME))
    except (OSError, ValueError, BadRequest, *UNREADABLE) as error:
        log.warning("archive_mark_unread", folder=str(folder), detail=str(error))
        return None


def mark_in(manifest: bytes) -> Position | None:
    """The mark in the bytes of a manifest. Raises BadRequest, or what UNREADABLE names."""
    whole = manifest[: manifest.rfind(b"\n") + 1]  # a line counts once it ends
    lines = [_decoder.decode(line) for line in whole.splitlines()]
    segments = [line.segment for line in lines if line.segment is not None]
    logs = [at.topic_id for line in lines for at in (line.opened, line.adopted) if at is not None]
    if not segments or not logs:
        return None
    position = mark_of(decode_position(bytes.fromhex(segments[-1].position)))
    return decode_mark(encode_position(msgspec.structs.replace(position, topic_id=logs[-1])))
