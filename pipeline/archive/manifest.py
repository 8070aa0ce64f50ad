"""The archive's manifest: one signed line a segment, each with the hash of the line before.

UTF-8, kept as the archive's layout says (layout.py). The first line opens the archive; every other one adds a segment,
or adopts the topic that the log was restored to. A line counts once it ends in a newline. The archive's public key is
enough to verify that no line was edited, dropped, inserted or moved. The head in the shared database shows that none is
missing at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pipeline.archive.layout import SEGMENTS_NAME, Layout, layout_of
from pipeline.archive.segment import SegmentFacts, read_segment
from replica.log.admin import StoredRecord
from replica.notary.codes import Code
from replica.notary.errors import ArchiveDamaged, ConfigError, FormatUnknown
from replica.notary.places import Place
from replica.notary.position import Position, begin, decode_position
from replica.notary.untrusted import UNREADABLE
from replica.store.archive_head import ArchiveHead

VERSION = 1
SIGNED_TAG = b"notary/archive/1"
NO_HASH = "0" * 64


class Signer(Protocol):
    """Signs manifest lines; see replica/active/signer.py."""

    @property
    def public_key(self) -> bytes:
        """The raw Ed25519 public key."""

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Opens the archive of one log."""

    archive_id: str
    topic_id: str
    at_us: int


class Adopted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From here on the log is the topic that it was restored to: the same records, under another id."""

    topic_id: str
    at_us: int


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment, and the position of a reader after its last record (the bytes of docs/formats.md, hexadecimal)."""

    facts: SegmentFacts
    position: str


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line. Exactly one of `opened`, `segment`, `adopted` is there."""

    version: int
    number: int  # from 0
    previous: str  # SHA-256 of the line before, without its newline
    opened: Opened | None = None
    segment: Segment | None = None
    adopted: Adopted | None = None
    signature: str = ""


_decoder = msgspec.json.Decoder(Line)


class Manifest:
    """The verified lines of an archive. Appended lines are durable when `append` returns."""

    def __init__(self, layout: Layout, lines: Sequence[tuple[Line, str]]) -> None:
        self.layout = layout
        self._lines = list(lines)

    @property
    def opened(self) -> Opened:
        """What opened the archive."""
        opened = self._lines[0][0].opened
        if opened is None:
            raise ArchiveDamaged(f"{self.layout.manifest} does not begin with the line that opens an archive")
        return opened

    @property
    def topic_id(self) -> str:
        """The topic that holds the log now."""
        adopted = [line.adopted.topic_id for line, _ in self._lines if line.adopted is not None]
        return adopted[-1] if adopted else self.opened.topic_id

    @property
    def segments(self) -> list[Segment]:
        """All segments, in the log's order."""
        return [line.segment for line, _ in self._lines if line.segment is not None]

    @property
    def last(self) -> int:
        """The last archived offset; -1 when there is none."""
        segments = self.segments
        return segments[-1].facts.last if segments else -1

    @property
    def newest_us(self) -> int:
        """When the newest archived record came into the log; without one, when the archive was opened or last adopted.

        Microseconds UTC. Lines do not say when they were written.
        """
        adopted = [line.adopted.at_us for line, _ in self._lines if line.adopted is not None]
        archived = [segment.facts.last_ms * 1_000 for segment in self.segments[-1:]]
        return max([self.opened.at_us, *adopted, *archived])

    @property
    def position(self) -> Position:
        """The position of a reader after the last archived record, in the topic that holds the log now."""
        return self.position_before(self.last + 1)

    @property
    def head(self) -> ArchiveHead:
        """What the database keeps of this manifest."""
        return self.head_of(len(self._lines))

    @property
    def folder(self) -> Path:
        """The local folder of the archive. Raises ConfigError (PLACE_UNKNOWN) when it is kept elsewhere."""
        return self.layout.folder

    @property
    def segments_folder(self) -> Path:
        """Where the segments' files are in a local folder. Raises as `folder` does."""
        return self.folder / SEGMENTS_NAME

    def records(self, facts: SegmentFacts) -> Iterator[StoredRecord]:
        """The records of a segment. Raises as `read_segment` does."""
        with self.layout.at_hand(facts) as folder:
            yield from read_segment(folder, facts)

    def head_of(self, lines: int) -> ArchiveHead:
        """The head that the manifest had with so many lines."""
        last = max((line.segment.facts.last for line, _ in self._lines[:lines] if line.segment is not None), default=-1)
        return ArchiveHead(lines, self._lines[lines - 1][1], last)

    def position_before(self, offset: int) -> Position:
        """The position of a reader in front of a segment's first record, or after the last one."""
        before = [segment for segment in self.segments if segment.facts.last < offset]
        found = decode_position(bytes.fromhex(before[-1].position)) if before else begin(self.topic_id)
        return msgspec.structs.replace(found, topic_id=self.topic_id)

    def append(self, signer: Signer, parts: Sequence[Opened | Segment | Adopted]) -> None:
        """Sign and append lines, durable on return. A crash leaves all or none; in a file some, or a piece."""
        lines, text = [], b""
        number, previous = len(self._lines), self._lines[-1][1] if self._lines else NO_HASH
        for part in parts:
            encoded = _signed(signer, number, previous, part)
            number, previous = number + 1, sha256(encoded).hexdigest()
            lines.append((_decoder.decode(encoded), previous))
            text += encoded + b"\n"
        self.layout.append(len(self._lines), text)
        self._lines += lines


def _signed(signer: Signer, number: int, previous: str, part: Opened | Segment | Adopted) -> bytes:
    line = Line(
        version=VERSION,
        number=number,
        previous=previous,
        opened=part if isinstance(part, Opened) else None,
        segment=part if isinstance(part, Segment) else None,
        adopted=part if isinstance(part, Adopted) else None,
    )
    signature = signer.sign(SIGNED_TAG + msgspec.json.encode(line)).hex()
    return msgspec.json.encode(msgspec.structs.replace(line, signature=signature))


class BadLine(Exception):
    """A line of a manifest does not hold; `number` counts from 0."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        self.problem = problem
        super().__init__(f"line {number + 1}: {problem}")


def check_lines(raw: bytes, public_key: bytes | None) -> Iterator[tuple[Line, str]]:
    """The lines of a manifest with their hashes, as far as they hold. Raises BadLine at the first that does not.

    `public_key`: the archive's; None leaves the signatures out. A last line without its newline is left out: it was
    never written to its end. Raises FormatUnknown for a line of a newer release.
    """
    verify = None if public_key is None else Ed25519PublicKey.from_public_bytes(public_key).verify
    previous, following = NO_HASH, 0
    for number, encoded in enumerate(raw.split(b"\n")[:-1]):
        line = _checked(number, encoded, verify)
        if (line.number, line.previous) != (number, previous):
            raise BadLine(number, "it does not follow the line before: lines were dropped, inserted or moved")
        if (line.opened is None) == (number == 0):
            raise BadLine(number, "an archive is opened by its first line, and by no other")
        if line.segment is not None:
            if line.segment.facts.first != following or line.segment.facts.count < 1:
                raise BadLine(number, f"its segment does not begin at offset {following}")
            following = line.segment.facts.last + 1
        previous = sha256(encoded).hexdigest()
        yield line, previous


def _checked(number: int, encoded: bytes, verify: Callable[[bytes, bytes], None] | None) -> Line:
    try:
        version = msgspec.json.decode(encoded).get("version")
        if version != VERSION and isinstance(version, int):
            raise FormatUnknown(f"the archive's manifest has version {version}, this release knows {VERSION}")
        line = _decoder.decode(encoded)
        unsigned = msgspec.structs.replace(line, signature="")
        parts = [part for part in (line.opened, line.segment, line.adopted) if part is not None]
        if msgspec.json.encode(line) != encoded or len(parts) != 1:
            raise BadLine(number, "it is not a line of a manifest")
        if verify is not None:
            verify(bytes.fromhex(line.signature), SIGNED_TAG + msgspec.json.encode(unsigned))
    except InvalidSignature:
        raise BadLine(number, "its signature is not the archive's: it was edited, or signed with another key") from None
    except (*UNREADABLE, ValueError, AttributeError) as error:
        raise BadLine(number, f"it is not a line of a manifest: {error}") from None
    return line


def load_manifest(place: Place | Layout, public_key: bytes | None = None) -> Manifest:
    """The manifest of an archive. Raises ConfigError when there is none, ArchiveDamaged when a line does not hold."""
    layout = layout_of(place)
    raw = layout.read_lines()
    if raw is None:
        raise ConfigError(
            f"there is no archive: {layout.manifest} is not there. `notary archive run` makes it, where archive.folder"
            " or --folder says; one that was there before must be brought back",
            Code.NOT_POSSIBLE_NOW,
        )
    return _held_by(layout, raw, public_key)


def _held_by(layout: Layout, raw: bytes, public_key: bytes | None) -> Manifest:
    try:
        lines = list(check_lines(raw, public_key))
    except BadLine as bad:
        problem = f"{layout.manifest}, {bad}; `notary archive verify` shows which offsets are good"
        raise ArchiveDamaged(problem) from None
    if not lines:
        raise ArchiveDamaged(f"{layout.manifest} has no whole line")
    return Manifest(layout, lines)


def open_manifest(layout: Layout, signer: Signer, opened: Opened) -> Manifest:
    """The manifest of an archive, begun if there is none. What a killed archiver left half written is removed.

    Raises ArchiveDamaged.
    """
    layout.prepare()
    if raw := layout.read_lines():
        return _held_by(layout, raw, signer.public_key)
    manifest = Manifest(layout, [])
    manifest.append(signer, [opened])
    return manifest
