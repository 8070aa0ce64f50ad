"""A second site's copy of an archive: copied segment by segment, and verified there.

The copy's manifest is written last, so that it never names a missing segment. A copy that was killed can be continued.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.archive.layout import MANIFEST_NAME, SEGMENTS_NAME, FolderLayout, Layout
from pipeline.archive.manifest import Manifest
from pipeline.archive.segment import (
    PARTIAL,
    SegmentDamaged,
    SegmentFacts,
    digests_path,
    find_damage,
    parquet_path,
    sync_file,
    write_whole,
)
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch
from replica.notary.salvage import SALVAGES_NAME, decode_salvage


def copy_archive(manifest: Manifest, folder: Path, on_segment: Callable[[int], None] = lambda offset: None) -> int:
    """Bring the copy in `folder` up to this manifest; returns how many segments were carried over.

    `on_segment` gets the last offset of each segment that is in the copy. Raises ArchiveMismatch when the folder holds
    anything but an earlier state of the same archive, ArchiveDamaged when a segment does not arrive whole, and
    SalvageDamaged when a salvage that is kept with the archive is not whole.
    """
    (folder / SEGMENTS_NAME).mkdir(parents=True, exist_ok=True)
    raw = manifest.layout.read_lines() or b""
    whole = raw[: raw.rfind(b"\n") + 1]
    path = folder / MANIFEST_NAME
    if path.exists() and not whole.startswith(path.read_bytes()):
        raise ArchiveMismatch(f"{folder} does not hold an earlier state of this archive")
    carried = 0
    for segment in manifest.segments:
        carried += _copy_segment(manifest.layout, folder / SEGMENTS_NAME, segment.facts)
        on_segment(segment.facts.last)
    if isinstance(manifest.layout, FolderLayout):  # salvages are kept beside local archives only
        _copy_salvages(manifest.folder / SALVAGES_NAME, folder / SALVAGES_NAME)
    write_whole(path, whole)
    return carried


def _copy_salvages(source: Path, target: Path) -> None:
    """Copy the salvages that the archive's lost records name; a replica at the second site needs them to read on."""
    for path in sorted(source.glob("*.salvage")):
        raw = path.read_bytes()
        if decode_salvage(raw).digest.hex() != path.stem:
            raise ArchiveDamaged(f"{path} is another salvage than its name says")
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / path.name, raw)


def _copy_segment(layout: Layout, target: Path, facts: SegmentFacts) -> bool:
    """Copy a segment unless it is there already; returns whether it was copied."""
    if _is_whole(target, facts):
        return False
    with layout.at_hand(facts) as source:
        for path in (parquet_path, digests_path):
            end = path(target, facts.first, facts.last)
            partial = end.with_name(f"{end.name}{PARTIAL}")
            try:
                shutil.copyfile(path(source, facts.first, facts.last), partial)
            except FileNotFoundError:
                raise ArchiveDamaged(f"{end.name} is missing in the archive") from None
            sync_file(partial)
            partial.replace(end)
    sync_file(target)
    try:
        find_damage(target, facts)
    except SegmentDamaged as damage:
        raise ArchiveDamaged(f"the segment did not arrive whole: {damage}") from None
    return True


def _is_whole(folder: Path, facts: SegmentFacts) -> bool:
    try:
        find_damage(folder, facts)
    except (SegmentDamaged, OSError):
        return False
    return True
