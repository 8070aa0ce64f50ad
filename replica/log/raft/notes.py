"""Small files that are replaced as a whole: after a crash there is the old content or the new one, never a mixture."""

from __future__ import annotations

from hashlib import sha256
from typing import TypeVar

import msgspec

from replica.log.raft.files import Files
from replica.notary.untrusted import UNREADABLE

_DIGEST_BYTES = 32
UNFINISHED = ".new"
Note = TypeVar("Note", bound=msgspec.Struct)


class Seal(msgspec.Struct, frozen=True):
    """What a full segment holds, for ever: all of it is committed."""

    first_idx: int
    last_idx: int
    size: int  # bytes of the file
    file_digest: bytes  # SHA-256
    root: bytes  # Merkle root over the entries


class Hard(msgspec.Struct, frozen=True):
    """The core's hard state."""

    view: int
    voted_for: str | None
    commit_idx: int


class Identity(msgspec.Struct, frozen=True):
    """Whose disk this is. An id names one disk: a new disk has a new id."""

    group: str
    node_id: str
    key: bytes  # seed of the Ed25519 key that signs for this disk; the file is readable by its owner only


def encode_note(note: msgspec.Struct) -> bytes:
    """Digest, then MessagePack."""
    body = msgspec.msgpack.encode(note)
    return sha256(body).digest() + body


def decode_note(raw: bytes, kind: type[Note]) -> Note | None:
    """The note; None if the bytes are damaged or of another kind."""
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if sha256(body).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE:
        return None


def write_note(files: Files, name: str, note: msgspec.Struct) -> None:
    """Replace the file `name`; it is on disk when this returns."""
    unfinished = name + UNFINISHED
    files.create(unfinished)
    files.write(unfinished, 0, encode_note(note))
    files.sync(unfinished)
    files.rename(unfinished, name)
    files.sync_names()


def remove_unfinished(files: Files) -> None:
    """Remove what a crash left of a replacement."""
    for name in files.names():
        if name.endswith(UNFINISHED):
            files.remove(name)
