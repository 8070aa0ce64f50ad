"""The archive job: from the log into segments, exactly once.

The manifest is the only state: what it covers is archived, and the next batch begins after it. A batch takes three
steps: its segments are written, lines of the manifest sign for them, and the new head is recorded where the replicas
are. A job that is killed in between leaves at worst files that no line names. They are removed, and their records
archived again.

Segments are written by this process, one after the other, or by Spark (`on_spark.py`), several at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from pipeline.archive.layout import Layout, layout_of
from pipeline.archive.manifest import Manifest, Opened, Segment, Signer, open_manifest
from pipeline.archive.segment import SegmentFacts
from pipeline.judging.plan import Survey, advance
from pipeline.sources.stretch import read_stretch, stretches
from pipeline.sources.topic import TopicView, refuse_other_log
from replica.log.settings import LogSettings
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch, InvariantBroken, PlaceUnavailable
from replica.notary.places import Place
from replica.notary.position import Position, encode_position
from replica.notary.reading import read_records
from replica.store.archive_head import Heads


class Step(Enum):
    """What was just done; a job may be killed after each of them."""

    OPENED = "opened"
    WRITTEN = "written"  # segments are on the disk
    VOUCHED = "vouched"  # lines of the manifest name them
    RECORDED = "recorded"  # the replicas' side has the new head


OnStep = Callable[[Step, Manifest], None]
Written = tuple[SegmentFacts, list[Survey]]
WriteSegments = Callable[[Layout, int, int, int], list[Written]]
"""Writes the records from an offset up to another one as so many segments, in any order."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Records in a segment, and segments in a batch: after which the archive has moved on."""

    segment_records: int = 50_000
    segments: int = 8


class Archiver:
    """Archives one log into one place. Of two archivers in one place, one is refused or fails."""

    def __init__(
        self,
        settings: LogSettings,
        place: Place | Layout,
        signer: Signer,
        heads: Heads,
        *,
        size: BatchSize = BatchSize(),
        write: WriteSegments | None = None,
        on_step: OnStep = lambda step, manifest: None,
    ) -> None:
        self._settings = settings
        self._layout = layout_of(place)
        self._signer = signer
        self._heads = heads
        self._size = size
        self._write = write or in_process(settings)
        self._on_step = on_step

    @contextmanager
    def open(self, view: TopicView, now_us: int, archive_id: str) -> Iterator[Manifest]:
        """The archive of this topic, made with that id if there is none, ready to be continued.

        Raises ArchiveContended when another archiver has the place, ConfigError when the place is unsafe,
        ArchiveDamaged when the manifest is not whole, ArchiveMismatch when it is another log's, LogRefused when the
        log is no longer what was archived, and PlaceUnavailable when the place takes nothing, here or in the context.
        """
        with _disk_failures(self._layout), self._layout.alone():
            opened = Opened(archive_id=archive_id, topic_id=view.topic_id, at_us=now_us)
            manifest = open_manifest(self._layout, self._signer, opened)
            self._layout.refuse_unsafe()
            refuse_cut_tail(manifest, self._heads)
            refuse_other_topic(manifest, view)
            refuse_other_log(self._settings, manifest.position)
            self._layout.remove_orphans([segment.facts for segment in manifest.segments])
            self._record(manifest)
            self._on_step(Step.OPENED, manifest)
            yield manifest

    def archive(self, manifest: Manifest, end: int) -> None:
        """Archive all records below `end`, batch by batch."""
        batch = self._size.segment_records * self._size.segments
        while manifest.last + 1 < end:
            self._archive_batch(manifest, min(end, manifest.last + 1 + batch))

    def _archive_batch(self, manifest: Manifest, end: int) -> None:
        first = manifest.last + 1
        splits = -(-(end - first) // self._size.segment_records)
        written = self._write(self._layout, first, end, splits)
        self._on_step(Step.WRITTEN, manifest)
        manifest.append(self._signer, _entries(manifest, sorted(written, key=lambda pair: pair[0].first), end))
        self._on_step(Step.VOUCHED, manifest)
        self._record(manifest)

    def _record(self, manifest: Manifest) -> None:
        self._heads.record(manifest.opened.archive_id, manifest.head)
        self._on_step(Step.RECORDED, manifest)


@contextmanager
def _disk_failures(layout: Layout) -> Iterator[None]:
    """A local folder's failures, as a full disk, as those of a store: they may pass."""
    try:
        yield
    except ConnectionError:
        raise  # of Spark's JVM
    except OSError as error:
        raise PlaceUnavailable(f"{layout.manifest}: {error.strerror or error}") from error


def in_process(settings: LogSettings) -> WriteSegments:
    """Segments are written here, one after the other: without Spark, and without Java."""

    def write(layout: Layout, first: int, end: int, splits: int) -> list[Written]:
        found = (layout.write(read_stretch(settings, start, until)) for start, until in stretches(first, end, splits))
        return [one for one in found if one is not None]

    return write


def refuse_cut_tail(manifest: Manifest, heads: Heads) -> None:
    """Raise ArchiveDamaged unless the manifest goes on from the head that was recorded."""
    known = heads.newest(manifest.opened.archive_id)
    if known is None:
        return
    if known.lines > manifest.head.lines:
        raise ArchiveDamaged(
            f"the manifest has {manifest.head.lines} lines up to offset {manifest.last}, but it had {known.lines} up to"
            f" offset {known.last}: its end was cut off"
        )
    if manifest.head_of(known.lines) != known:
        raise ArchiveDamaged(f"line {known.lines} of the manifest is not the one that was recorded")


def refuse_other_topic(manifest: Manifest, view: TopicView) -> None:
    """Raise ArchiveMismatch unless the topic is the one that is archived, with all that is archived in it."""
    if manifest.topic_id != view.topic_id:
        raise ArchiveMismatch(f"the archive is of topic id {manifest.topic_id}, the log's is {view.topic_id}")
    if view.end <= manifest.last:
        raise ArchiveMismatch(f"the log ends at {view.end}, but offsets up to {manifest.last} are archived")


def _entries(manifest: Manifest, written: list[Written], end: int) -> list[Segment]:
    """The segments' entries, each with the position after it. Raises InvariantBroken unless they go up to `end`."""
    position = manifest.position
    entries = []
    for facts, surveys in written:
        position = advance(position, surveys) or _read_exactly(manifest, facts, position)
        entries.append(Segment(facts=facts, position=encode_position(position).hex()))
    if position.offset != end - 1:
        raise InvariantBroken(f"asked for the log up to {end - 1}, was given it up to {position.offset}")
    return entries


def _read_exactly(manifest: Manifest, facts: SegmentFacts, position: Position) -> Position:
    values = ((record.offset, record.value or b"") for record in manifest.records(facts))
    return read_records(position, values).position
