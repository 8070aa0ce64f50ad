"""An archive in a store of objects: as whole, as safe and as readable as one in a folder."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.archive import lines
from pipeline.archive.copy import copy_archive
from pipeline.archive.layout import Layout, ObjectLayout, layout_of
from pipeline.archive.manifest import Manifest, load_manifest
from pipeline.archive.verify import Verification, verify_archive
from pipeline.archive.write import Archiver
from pipeline.jobs import slices
from pipeline.jobs.slices import parquet_log
from pipeline.places.objects import ObjectsStore
from pipeline.places.store import Store
from pipeline.sources.topic import TopicView
from replica.log.kafka.settings import KafkaSettings
from replica.notary.codes import Code
from replica.notary.errors import (
    ArchiveContended,
    ArchiveDamaged,
    ArchiveMismatch,
    ConfigError,
    NotaryError,
    PlaceUnavailable,
)
from replica.notary.places import Remote
from replica.notary.position import begin
from replica.notary.reading import read_records
from tests.few import few_quick
from tests.worlds.archive_world import SIGNER, HeadsInMemory, fill_archive, make_archive, some_log, verified
from tests.worlds.folder_store import FolderStore
from tests.worlds.notary_logs import TOPIC
from tests.worlds.stores import FaultyStore, MemoryStore

RECORDS = 35
VALUES = some_log(RECORDS)


@pytest.fixture(autouse=True)
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a seed gives the same run each time."""
    monkeypatch.setattr(lines, "READ_AT_ONCE", 1)


def layout_in(store: Store) -> ObjectLayout:
    """An archive in this store. Nobody waits."""
    return ObjectLayout("memory", lambda: store, lambda seconds: None)


def checked(layout: Layout, heads: HeadsInMemory) -> Verification:
    """What `notary archive verify` finds."""
    return verify_archive(layout, SIGNER.public_key, heads.newest)


def values_of(manifest: Manifest) -> list[bytes | None]:
    """Every record, which must be at its offset."""
    found = [record for segment in manifest.segments for record in manifest.records(segment.facts)]
    assert [record.offset for record in found] == list(range(len(found)))
    return [record.value for record in found]


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "object lock": lambda folder: MemoryStore(locked=True),
    "folder": FolderStore,
    "obstore": lambda folder: ObjectsStore(obstore.store.MemoryStore()),
}


@pytest.mark.parametrize("name", STORES)
def test_a_whole_archive_gives_back_every_record(name: str, tmp_path: Path) -> None:
    """Goal: the same archive as in a folder. Method: archive a log in both, in two runs; compare lines and records."""
    layout = layout_in(STORES[name](tmp_path / "store"))
    fill_archive(layout, VALUES[:20])
    manifest, heads = fill_archive(layout, VALUES)
    local, _ = make_archive(tmp_path / "local", VALUES)
    again = load_manifest(layout, SIGNER.public_key)
    assert again.head == manifest.head == local.head
    assert values_of(again) == VALUES == values_of(local)
    assert again.position == read_records(begin(TOPIC), list(enumerate(VALUES))).position
    found = checked(layout, heads)
    assert (found.findings, found.lines, found.segments, found.last) == ([], 5, 4, RECORDS - 1)


def test_segments_are_named_by_their_offsets_and_their_content() -> None:
    """Goal: no name is ever written with two contents. Method: the names, and the digest of what is there."""
    store = MemoryStore()
    manifest, _ = fill_archive(layout_in(store), VALUES)
    expected = [
        f"segments/{one.facts.first:019d}-{one.facts.last:019d}.{digest}"
        for one in manifest.segments
        for digest in (f"{one.facts.digests_sha256}.digests", f"{one.facts.parquet_sha256}.parquet")
    ]
    assert store.names("segments/") == sorted(expected)


def object_of(store: MemoryStore, first: int, kind: str) -> str:
    """The name of the object of a segment, `parquet` or `digests`."""
    (found,) = (name for name in store.names(f"segments/{first:019d}-") if name.endswith(kind))
    return found


def edited(raw: bytes, row: int) -> bytes:
    """A Parquet file with another value in a row, as a skilled attacker would write it."""
    table = pq.read_table(pa.BufferReader(raw))
    rows = table.to_pylist()
    rows[row].update(value=b"forged")
    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), written, compression="zstd")
    return bytes(written.getvalue())


def forge(store: MemoryStore, first: int, row: int) -> None:
    """Edit a record."""
    name = object_of(store, first, "parquet")
    store.objects[name] = edited(store.objects[name], row)


def part(number: int) -> str:
    """The object of the manifest whose first line has this number."""
    return f"manifest/{number:019d}.jsonl"


TAMPERINGS: dict[str, tuple[Callable[[MemoryStore], object], int]] = {
    "a record edited": (lambda s: forge(s, 10, 4), 14),
    "a segment missing": (lambda s: s.objects.pop(object_of(s, 20, "parquet")), 20),
    "a segment cut": (
        lambda s: s.objects.update({(n := object_of(s, 20, "parquet")): s.objects[n][:-40]}),
        20,
    ),
    "a segment replaced by another": (
        lambda s: s.objects.update({object_of(s, 10, "parquet"): s.objects[object_of(s, 20, "parquet")]}),
        10,
    ),
    "digests missing": (lambda s: s.objects.pop(object_of(s, 30, "digests")), 30),
    "digests overwritten": (lambda s: s.objects.update({object_of(s, 10, "digests"): b"x" * 320}), 10),
    "a line edited": (
        lambda s: s.objects.update({part(2): s.objects[part(2)].replace(b'"first_ms":17', b'"first_ms":18')}),
        10,
    ),
    "a part of the manifest missing": (lambda s: s.objects.pop(part(2)), 10),
    "the first part missing": (lambda s: s.objects.pop(part(0)), 0),
    "the last part missing": (lambda s: s.objects.pop(part(4)), 30),
    "a part that is no line": (lambda s: s.objects.update({part(5): b"half"}), 0),
    "everything gone": (lambda s: s.objects.clear(), 0),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found_and_its_first_offset_named(name: str) -> None:
    """Goal: nothing lost, moved or edited goes unnoticed. Method: do each kind of harm, and verify."""
    store = MemoryStore()
    _, heads = fill_archive(layout_in(store), VALUES)
    harm, offset = TAMPERINGS[name]
    harm(store)
    assert checked(layout_in(store), heads).first_bad_offset == offset


def test_what_nobody_can_name_any_more_is_removed_and_nothing_else() -> None:
    """Goal: killed archivers leave no objects for ever. Method: orphans from before and after the end, and a stranger.

    An orphan after the end may be what another archiver signs for next.
    """
    store = MemoryStore()
    layout = layout_in(store)
    manifest, _ = fill_archive(layout, VALUES[:20])
    whole = dict(store.objects)
    below, after = (f"segments/{first:019d}-{first + 9:019d}.{'0' * 64}.parquet" for first in (10, 20))
    for orphan in (below, after, "segments/notes.txt"):
        store.objects[orphan] = b"left"
    layout.remove_orphans([segment.facts for segment in manifest.segments])
    assert store.objects == whole | {after: b"left", "segments/notes.txt": b"left"}


def test_a_store_that_keeps_everything_keeps_orphans_too() -> None:
    """Goal: object lock stops nobody. Method: an orphan in a locked store."""
    store = MemoryStore(locked=True)
    layout = layout_in(store)
    manifest, heads = fill_archive(layout, VALUES)
    store.objects[f"segments/{0:019d}-{9:019d}.{'0' * 64}.parquet"] = b"left"
    layout.remove_orphans([segment.facts for segment in manifest.segments])
    assert checked(layout, heads).findings == []


def test_an_archiver_that_starts_removes_nothing_that_another_is_about_to_name() -> None:
    """Goal: a line never names a missing segment. Method: another archiver opens between segment and line."""
    inner, other = MemoryStore(), []

    def another_opens(call: str) -> None:
        if call == "create" and len(inner.names("segments/")) == 2 * 3 and not other:  # before the third line
            other.append(call)
            manifest = load_manifest(layout_in(inner))
            layout_in(inner).remove_orphans([segment.facts for segment in manifest.segments])

    store = FaultyStore(inner, Random(1), before=another_opens)
    _, heads = fill_archive(layout_in(store), VALUES)
    assert other
    assert checked(layout_in(inner), heads).findings == []


def test_an_archiver_refuses_a_store_that_overwrites() -> None:
    """Goal: two archivers never both append. Method: begin an archive in a store that passes the condition over."""

    class Overwriting(MemoryStore):
        def create(self, name: str, parts: Iterable[bytes]) -> None:
            self.objects[name] = b"".join(parts)

    for store, code in ((Overwriting(), Code.PLACE_UNSAFE), (MemoryStore(), Code.ARCHIVE_MISMATCH)):
        settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", topic="none")
        archiver = Archiver(settings, layout_in(store), SIGNER, HeadsInMemory())
        with pytest.raises(NotaryError) as refused, archiver.open(TopicView(TOPIC, 0, -1), 1, "archive-1"):
            raise AssertionError("it was opened")
        assert refused.value.code is code


def test_a_name_that_has_other_content_is_refused() -> None:
    """Goal: a line names only what is there. Method: somebody else's bytes under the name of a segment to come."""
    store = MemoryStore()
    fill_archive(layout_in(store), VALUES)
    name = object_of(store, 30, "parquet")
    planted = MemoryStore({name: b"planted"})
    with pytest.raises(ArchiveDamaged, match="other content"):
        fill_archive(layout_in(planted), VALUES)
    assert len(load_manifest(layout_in(planted)).segments) == 3


@pytest.mark.parametrize("seed", few_quick(range(60), 15))
def test_archivers_on_a_store_that_fails_archive_each_record_once(seed: int) -> None:
    """Goal: whatever fails and whoever else archives, each record is there once. Method: two archivers, 503s, kills.

    Between the calls of one archiver another one opens the archive, removes orphans and goes on, by chance.
    """
    random, inner, heads = Random(seed), MemoryStore(locked=seed % 3 == 0), HeadsInMemory()
    deep = [0]

    def run(store: Store) -> None:
        try:
            layout = layout_in(store)
            manifest, _ = fill_archive(layout, VALUES[: random.randrange(1, RECORDS + 1)], random.randrange(3, 12))
            layout.remove_orphans([segment.facts for segment in manifest.segments])
            heads.record("archive-1", manifest.head)
        except (ArchiveContended, PlaceUnavailable):
            pass

    def another(call: str) -> None:
        if random.random() < 0.04 and deep[0] == 0:
            deep[0] += 1
            run(FaultyStore(inner, random, refused=0.2, lost=0.2))
            deep[0] -= 1

    for _ in range(6):
        run(FaultyStore(inner, random, refused=0.25, lost=0.25, before=another))
    manifest, _ = fill_archive(layout_in(inner), VALUES)
    heads.record("archive-1", manifest.head)
    assert values_of(load_manifest(layout_in(inner), SIGNER.public_key)) == VALUES
    assert checked(layout_in(inner), heads).findings == []


def test_a_copy_in_a_folder_is_whole(tmp_path: Path) -> None:
    """Goal: every command that needs local files can have them. Method: copy, lose a file, copy again, verify."""
    manifest, heads = fill_archive(layout_in(MemoryStore()), VALUES)
    site = tmp_path / "site"
    assert [copy_archive(manifest, site), copy_archive(manifest, site)] == [4, 0]
    next((site / "segments").glob("*.digests")).unlink()
    assert copy_archive(manifest, site) == 1
    assert verified(site, heads).findings == []


def test_an_archive_moves_into_a_store(tmp_path: Path) -> None:
    """Goal: who has an archive in a folder goes on with it in a bucket. Method: copy, go on, copy again; then there."""
    local, _ = make_archive(tmp_path / "local", VALUES[:20])
    store = MemoryStore()
    assert copy_archive(local, layout_in(store)) == 2
    local, _ = make_archive(tmp_path / "local", VALUES[:30])
    assert [copy_archive(local, layout_in(store)), copy_archive(local, layout_in(store))] == [1, 0]
    assert load_manifest(layout_in(store)).head == local.head
    del store.objects[object_of(store, 10, "parquet")]
    assert copy_archive(local, layout_in(store)) == 1
    _, heads = fill_archive(layout_in(store), VALUES)
    assert checked(layout_in(store), heads).findings == []
    with pytest.raises(ArchiveMismatch):
        copy_archive(local, layout_in(store))  # the copy went on by itself
    other, _ = make_archive(tmp_path / "other", some_log(12))
    with pytest.raises(ArchiveMismatch):
        copy_archive(other, layout_in(store))


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_to_a_store_that_fails_names_nothing_that_is_missing(seed: int, tmp_path: Path) -> None:
    """Goal: a kill does no harm. Method: copies that give up by chance, looked at after each; then a whole one."""
    local, heads = make_archive(tmp_path / "local", VALUES)
    random, inner = Random(seed), MemoryStore()
    for _ in range(4):
        with suppress(PlaceUnavailable):
            copy_archive(local, layout_in(FaultyStore(inner, random, refused=0.3, lost=0.3)))
        if layout_in(inner).read_lines() is not None:
            assert checked(layout_in(inner), heads).findings == []
    copy_archive(local, layout_in(inner))
    assert checked(layout_in(inner), heads).findings == []


def test_a_copy_of_what_is_missing_is_refused(tmp_path: Path) -> None:
    """Goal: a plain sentence. Method: a segment that is gone."""
    store = MemoryStore()
    manifest, _ = fill_archive(layout_in(store), VALUES)
    del store.objects[object_of(store, 20, "digests")]
    with pytest.raises(ArchiveDamaged, match="digests is missing"):
        copy_archive(manifest, tmp_path / "site")


def test_jobs_read_the_parts_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: audit, report and rebuild read objects as they read files. Method: slices, while the store fails."""
    monkeypatch.setattr(slices, "SLICE_RECORDS", 4)
    store = FaultyStore(MemoryStore(), Random(5), refused=0.1, lost=0.1)
    layout = layout_in(store)
    manifest, _ = fill_archive(layout, VALUES)
    names = [layout.records_name(segment.facts) for segment in manifest.segments]
    log = parquet_log(TOPIC, names, 32, layout.open_records)
    found = [
        columns.value(row)
        for number in range(len(log))
        for columns in [log.read(number)]
        for row in range(len(columns))
    ]
    assert found == VALUES[:33]
    missing = parquet_log(TOPIC, names, 32, layout.open_records)
    del store.inner.objects[names[0]]  # type: ignore[attr-defined]
    with pytest.raises(ArchiveDamaged, match="is missing"):
        missing.read(0)
    with pytest.raises(ArchiveDamaged, match="is missing"):
        parquet_log(TOPIC, names, 32, layout.open_records)


def test_a_url_goes_to_a_task_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: workers use their own credentials. Method: what is sent to them, while the driver has some."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    layout = layout_of(Remote("s3a://bucket/prefix"))
    assert isinstance(layout, ObjectLayout)
    layout.opened()
    sent = pickle.dumps(layout)
    assert b"the-" not in sent
    assert pickle.loads(sent).place == layout.place
    with pytest.raises(ConfigError) as refused:
        str(layout.folder)
    assert refused.value.code is Code.PLACE_UNKNOWN
