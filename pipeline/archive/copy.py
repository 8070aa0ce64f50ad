"""A second site's copy of an archive: copied segment by segment, and verified there.

The copy's manifest is written last, so that it never names a missing segment. A copy that was killed can be continued.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.archive.layout import FolderLayout, Layout, layout_of
from pipeline.archive.manifest import Manifest
from pipeline.archive.segment import SegmentDamaged, SegmentFacts, find_damage, write_whole
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch
from replica.notary.places import Place
from replica.notary.salvage import SALVAGES_NAME, decode_salvage


def copy_archive(
    manifest: Manifest, place: Place | Layout, on_segment: Callable[[int], None] = lambda offset: None
) -> int:
    """Bring the copy in a place up to this manifest; returns how many segments were carried over.

    `on_segment` gets the last offset of each segment that is in the copy. Raises ArchiveMismatch when the place holds
    anything but an earlier state of the same archive, ArchiveDamaged when a segment does not arrive whole, and
    SalvageDamaged when a salvage that is kept with the archive is not whole.
    """
    source, target = manifest.layout, layout_of(place)
    raw, known = source.read_lines() or b"", target.read_lines() or b""
    whole = raw[: raw.rfind(b"\n") + 1]
    if not whole.startswith(known):
        raise ArchiveMismatch(f"{target.manifest} is not an earlier state of this archive's")
    target.prepare()
    carried = 0
    for segment in manifest.segments:
        carried += _copy_segment(source, target, segment.facts)
        on_segment(segment.facts.last)
    if isinstance(source, FolderLayout) and isinstance(target, FolderLayout):  # salvages are kept in folders only
        _copy_salvages(source.folder / SALVAGES_NAME, target.folder / SALVAGES_NAME)
    if lacking := whole[known.rfind(b"\n") + 1 :]:
        target.append(known.count(b"\n"), lacking)
    return carried


def _copy_salvages(source: Path, target: Path) -> None:
    """Copy the salvages that the archive's lost records name; a replica at the second site needs them to read on."""
    for path in sorted(source.glob("*.salvage")):
        raw = path.read_bytes()
        if decode_salvage(raw).digest.hex() != path.stem:
            raise ArchiveDamaged(f"{path} is another salvage than its name says")
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / path.name, raw)


def _copy_segment(source: Layout, target: Layout, facts: SegmentFacts) -> bool:
    """Copy a segment unless it is there already; returns whether it was copied."""
    if target.has(facts):
        return False
    with source.at_hand(facts) as folder:
        target.take(facts, folder)
    try:
        with target.at_hand(facts) as folder:
            find_damage(folder, facts)
    except SegmentDamaged as damage:
        raise ArchiveDamaged(f"the segment did not arrive whole: {damage}") from None
    return True
