"""Verifies that nothing in an archive is lost, reordered or edited; if something is, finds from which offset on.

Needs the archive, its public key, and the head that was recorded in the database or the log; no Spark, no broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.archive.layout import Layout, layout_of
from pipeline.archive.manifest import BadLine, Line, Manifest, check_lines
from pipeline.archive.segment import SegmentDamaged, find_damage
from replica.notary.errors import ArchiveDamaged
from replica.notary.places import Place
from replica.store.archive_head import ArchiveHead


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something is wrong, from this offset on."""

    offset: int
    problem: str


@dataclass(slots=True)
class Verification:
    """What was checked, and the findings by offset. `last`: the last offset that the good lines cover."""

    lines: int = 0
    segments: int = 0
    last: int = -1
    archive_id: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def first_bad_offset(self) -> int | None:
        """The first offset that cannot be vouched for; None if all can."""
        return min(self.findings).offset if self.findings else None


def verify_archive(
    place: Place | Layout,
    public_key: bytes,
    newest_head: Callable[[str], ArchiveHead | None],
    *,
    first: int = 0,
    last: int | None = None,
    on_segment: Callable[[int], None] = lambda offset: None,
) -> Verification:
    """Check every line of the manifest, and every segment that has offsets in first..last.

    `newest_head`: the known head for an archive id, or None. `on_segment` gets the last offset of each segment that
    was checked. Raises FormatUnknown for an archive of a newer release.
    """
    found = Verification()
    layout = layout_of(place)
    lines, raw = _check_manifest(layout, public_key, found)
    if lines:
        manifest = Manifest(layout, lines)
        found.archive_id, found.last = manifest.opened.archive_id, manifest.last
        _check_head(manifest, newest_head(found.archive_id), found)
        _check_segments(manifest, first, last, found, on_segment)
    if raw and not raw.endswith(b"\n"):
        problem = "the manifest's last line is incomplete: a write was interrupted; `notary archive run` goes on"
        found.findings.append(Finding(found.last + 1, problem))
    found.findings.sort()
    return found


def _check_manifest(layout: Layout, public_key: bytes, found: Verification) -> tuple[list[tuple[Line, str]], bytes]:
    lines: list[tuple[Line, str]] = []
    try:
        raw = layout.read_lines()
    except ArchiveDamaged as damaged:
        found.findings.append(Finding(0, damaged.detail))
        return lines, b""
    if raw is None:
        found.findings.append(Finding(0, f"there is no {layout.manifest}"))
        return lines, b""
    try:
        for line in check_lines(raw, public_key):
            lines.append(line)
    except BadLine as bad:
        following = max((line.segment.facts.last for line, _ in lines if line.segment is not None), default=-1) + 1
        found.findings.append(Finding(following, f"manifest, {bad}"))
    found.lines = len(lines)
    return lines, raw


def _check_head(manifest: Manifest, known: ArchiveHead | None, found: Verification) -> None:
    if known is None:
        return
    if known.lines > manifest.head.lines:
        problem = f"the manifest has {manifest.head.lines} good lines, but it had {known.lines}: its end is missing"
        found.findings.append(Finding(manifest.last + 1, problem))
    elif manifest.head_of(known.lines) != known:
        problem = f"line {known.lines} of the manifest is not the one that was recorded: the chain was made anew"
        found.findings.append(Finding(0, problem))


def _check_segments(
    manifest: Manifest, first: int, last: int | None, found: Verification, on_segment: Callable[[int], None]
) -> None:
    for segment in manifest.segments:
        facts = segment.facts
        if facts.last < first or (last is not None and facts.first > last):
            continue
        try:
            with manifest.layout.at_hand(facts) as folder:
                find_damage(folder, facts)
        except SegmentDamaged as damage:
            found.findings.append(Finding(damage.offset, damage.problem))
        found.segments += 1
        on_segment(facts.last)
