"""The archive's files: whatever is lost, moved or edited is found, and the first bad offset named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.archive.layout import MANIFEST_NAME, FolderLayout
from pipeline.archive.manifest import Adopted, Manifest, Opened, load_manifest, open_manifest
from pipeline.archive.segment import (
    SegmentDamaged,
    archived_digest,
    digests_of,
    digests_path,
    parquet_path,
    read_segment,
    records_of,
    segment_name,
    write_segment,
)
from pipeline.archive.write import Archiver, BatchSize, in_process, refuse_cut_tail
from pipeline.sources.topic import TopicView
from replica.active.signer import FileSigner
from replica.log.in_memory.settings import MemoryLogSettings
from replica.notary.errors import ArchiveDamaged, FormatUnknown, InvariantBroken
from replica.notary.position import begin
from replica.notary.reading import read_records
from tests.worlds.archive_world import SIGNER, HeadsInMemory, batch_of, make_archive, some_log, verified
from tests.worlds.notary_logs import TOPIC, made, request_of

RECORDS = 35  # segments 0-9, 10-19, 20-29, 30-34
VALUES = some_log(RECORDS)


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, HeadsInMemory]:
    """A whole archive of four segments."""
    _, heads = make_archive(tmp_path / "archive", VALUES)
    return tmp_path / "archive", heads


def segment_file(folder: Path, first: int, last: int, path: Callable[..., Path] = parquet_path) -> Path:
    return path(folder / "segments", first, last)


def lines_of(folder: Path) -> list[bytes]:
    return (folder / MANIFEST_NAME).read_bytes().splitlines(keepends=True)


def test_a_whole_archive_gives_back_every_record(archive: tuple[Path, HeadsInMemory]) -> None:
    """Goal: what goes in comes out. Method: archive a log in four segments, read it, compare positions, verify."""
    folder, heads = archive
    for name, mode in ((MANIFEST_NAME, 0o640), ("segments", 0o750)):  # they name what others need not know
        assert (folder / name).stat().st_mode & 0o777 == mode, name
    manifest = load_manifest(folder, SIGNER.public_key)
    read = [r for segment in manifest.segments for r in read_segment(manifest.segments_folder, segment.facts)]
    assert [(record.offset, record.value) for record in read] == list(enumerate(VALUES))
    assert [segment.facts.count for segment in manifest.segments] == [10, 10, 10, 5]
    log = list(enumerate(VALUES))
    for offset in (0, 10, 20, 30, RECORDS):
        assert manifest.position_before(offset) == read_records(begin(TOPIC), log[:offset]).position
    found = verified(folder, heads)
    assert (found.findings, found.lines, found.segments, found.last) == ([], 5, 4, RECORDS - 1)


def test_names_sort_and_show_gaps() -> None:
    """Goal: a listing of the folder is in the log's order. Method: sort names of small and of huge offsets."""
    names = [segment_name(0, 9), segment_name(10, 19), segment_name(10**12, 2**63 - 1)]
    assert names == sorted(names)
    assert names[0] == "0000000000000000000-0000000000000000009"


def rewrite(path: Path, change: Callable[[list[dict[str, object]]], object]) -> None:
    """Rewrite a segment's Parquet file, as a skilled attacker would."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, compression="zstd")


TAMPERINGS: dict[str, tuple[Callable[[Path], object], int]] = {
    "a record edited": (lambda f: rewrite(segment_file(f, 10, 19), lambda rows: rows[4].update(value=b"forged")), 14),
    "a record dropped": (lambda f: rewrite(segment_file(f, 10, 19), lambda rows: rows.pop(6)), 16),
    "the last record dropped": (lambda f: rewrite(segment_file(f, 30, 34), lambda rows: rows.pop()), 34),
    "two values swapped": (
        lambda f: rewrite(
            segment_file(f, 20, 29),
            lambda r: (v := r[2]["value"], r[2].update(value=r[3]["value"]), r[3].update(value=v)),
        ),
        22,
    ),
    "a time edited": (lambda f: rewrite(segment_file(f, 0, 9), lambda rows: rows[3].update(timestamp_ms=1)), 3),
    "a file rewritten, records untouched": (lambda f: rewrite(segment_file(f, 0, 9), lambda rows: None), 0),
    "a file missing": (lambda f: segment_file(f, 20, 29).unlink(), 20),
    "a file cut": (lambda f: segment_file(f, 20, 29).write_bytes(segment_file(f, 20, 29).read_bytes()[:-40]), 20),
    "a file replaced by another segment's": (
        lambda f: segment_file(f, 10, 19).write_bytes(segment_file(f, 20, 29).read_bytes()),
        10,
    ),
    "digests edited": (lambda f: segment_file(f, 10, 19, digests_path).write_bytes(b"x" * 320), 10),
    "digests missing": (lambda f: segment_file(f, 30, 34, digests_path).unlink(), 30),
    "records and digests edited": (
        lambda f: (
            rewrite(segment_file(f, 10, 19), lambda rows: rows[4].update(value=b"forged")),
            segment_file(f, 10, 19, digests_path).write_bytes(b"x" * 320),
        ),
        10,
    ),
    "a line edited": (lambda f: write_lines(f, edit=(2, b'"first_ms":17', b'"first_ms":18')), 10),
    "a line dropped": (lambda f: write_lines(f, [0, 1, 3, 4]), 10),
    "two lines swapped": (lambda f: write_lines(f, [0, 1, 3, 2, 4]), 10),
    "a line doubled": (lambda f: write_lines(f, [0, 1, 1, 2, 3, 4]), 10),
    "the first line dropped": (lambda f: write_lines(f, [1, 2, 3, 4]), 0),
    "the tail cut": (lambda f: write_lines(f, [0, 1, 2]), 20),
    "everything cut": (lambda f: (f / MANIFEST_NAME).unlink(), 0),
    "a piece of a line at the end": (
        lambda f: (f / MANIFEST_NAME).write_bytes((f / MANIFEST_NAME).read_bytes() + b'{"version":1,'),
        35,
    ),
}


def write_lines(folder: Path, order: list[int] | None = None, edit: tuple[int, bytes, bytes] | None = None) -> None:
    lines = lines_of(folder)
    if edit is not None:
        number, old, new = edit
        assert old in lines[number]
        lines[number] = lines[number].replace(old, new)
    (folder / MANIFEST_NAME).write_bytes(b"".join(lines[at] for at in order or range(len(lines))))


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found_and_its_first_offset_named(archive: tuple[Path, HeadsInMemory], name: str) -> None:
    """Goal: nothing lost, moved or edited goes unnoticed. Method: do each kind of harm, and verify."""
    folder, heads = archive
    harm, offset = TAMPERINGS[name]
    harm(folder)
    assert verified(folder, heads).first_bad_offset == offset


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_flipped_byte_anywhere_in_a_file_is_found(archive: tuple[Path, HeadsInMemory], at: int) -> None:
    """Goal: no byte of a file is free. Method: flip one in each quarter of a Parquet file."""
    folder, heads = archive
    path = segment_file(folder, 10, 19)
    raw = bytearray(path.read_bytes())
    raw[len(raw) * at // 4 + 2] ^= 1
    path.write_bytes(raw)
    found = verified(folder, heads)
    assert found.first_bad_offset is not None and 10 <= found.first_bad_offset <= 19
    with pytest.raises(SegmentDamaged):
        list(read_segment(folder / "segments", load_manifest(folder).segments[1].facts))


def test_a_chain_made_anew_with_another_key_is_found(archive: tuple[Path, HeadsInMemory], tmp_path: Path) -> None:
    """Goal: the signature and the database stand against a forger. Method: archive other records under another key."""
    folder, heads = archive
    forger = FileSigner(Ed25519PrivateKey.from_private_bytes(b"f" * 32))
    manifest = load_manifest(folder)
    forged = Manifest(FolderLayout(tmp_path), [])
    (tmp_path / "segments").mkdir()
    forged.append(forger, [manifest.opened, *manifest.segments])
    (folder / MANIFEST_NAME).write_bytes((tmp_path / MANIFEST_NAME).read_bytes())
    assert "another key" in verified(folder, heads).findings[0].problem


def test_a_chain_made_anew_with_the_archives_own_key_is_found(archive: tuple[Path, HeadsInMemory]) -> None:
    """Goal: a holder of the key cannot rewrite history unnoticed by the database. Method: sign another first line."""
    folder, heads = archive
    manifest = load_manifest(folder)
    (folder / MANIFEST_NAME).unlink()
    other = Manifest(FolderLayout(folder), [])
    other.append(SIGNER, [Opened(archive_id="archive-1", topic_id=TOPIC, at_us=2), *manifest.segments])
    assert [finding.offset for finding in verified(folder, heads).findings] == [0]
    with pytest.raises(ArchiveDamaged, match="not the one that was recorded"):
        refuse_cut_tail(other, heads)


def test_an_archiver_does_not_go_on_behind_a_cut_tail(archive: tuple[Path, HeadsInMemory]) -> None:
    """Goal: a cut tail is not healed over. Method: cut it, and ask as the job does before it goes on."""
    folder, heads = archive
    write_lines(folder, [0, 1, 2, 3])
    with pytest.raises(ArchiveDamaged, match="its end was cut off"):
        refuse_cut_tail(load_manifest(folder), heads)


def test_an_interrupted_line_is_dropped_when_the_archive_goes_on(archive: tuple[Path, HeadsInMemory]) -> None:
    """Goal: a kill in the middle of a line does no harm. Method: leave a piece of one, open the manifest again."""
    folder, heads = archive
    with (folder / MANIFEST_NAME).open("ab") as file:
        file.write(b'{"version":1,"num')
    manifest = open_manifest(FolderLayout(folder), SIGNER, Opened(archive_id="other", topic_id="other", at_us=9))
    assert (manifest.opened.archive_id, manifest.last) == ("archive-1", RECORDS - 1)
    assert verified(folder, heads).findings == []


def test_an_adopted_topic_is_the_archives_from_then_on(archive: tuple[Path, HeadsInMemory]) -> None:
    """Goal: positions are in the topic that the log is in by now. Method: adopt another id, ask for positions."""
    manifest = load_manifest(archive[0])
    manifest.append(SIGNER, [Adopted(topic_id="restored", at_us=5)])
    again = load_manifest(archive[0], SIGNER.public_key)
    assert (again.topic_id, again.position.topic_id, again.position.offset) == ("restored", "restored", RECORDS - 1)


def test_a_gap_and_a_newer_manifest_are_refused(archive: tuple[Path, HeadsInMemory]) -> None:
    """Goal: nothing is guessed. Method: write a segment with a gap, read a manifest of a later version."""
    folder, _ = archive
    with pytest.raises(InvariantBroken, match="goes from offset 0 to 2"):
        write_segment(folder / "segments", iter([batch_of([b"a"], 0), batch_of([b"b"], 2)]))
    assert not list((folder / "segments").glob("*.partial"))
    path = folder / MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(FormatUnknown):
        load_manifest(folder)


def test_digests_of_a_batch_are_those_of_its_records() -> None:
    """Goal: the quick way gives what formats.md requires. Method: nulls, keys and headers, against the plain
    definition."""
    plain = batch_of([b"a", None, b"", b"bc"], 7)
    full = pa.RecordBatch.from_pylist(
        [row | {"key": b"k", "headers": [{"key": "h", "value": b"v"}]} for row in plain.to_pylist()], plain.schema
    )
    for batch in (plain, plain.slice(1, 2), full):
        assert digests_of(batch) == b"".join(map(archived_digest, records_of(batch)))


GOLDEN = Path(__file__).parents[2] / "golden" / "archives" / "version-1"


def test_the_golden_archive_is_whole() -> None:
    """Goal: an archive of version 1 is read for ever. Method: manifest, digests and records of one that is kept."""
    manifest = load_manifest(GOLDEN, SIGNER.public_key)
    assert verified(GOLDEN, HeadsInMemory({"archive-1": manifest.head})).findings == []
    assert manifest.head.hash == "d698c75a63b53a469355b026e0d17ec8929d67bfe05989a38424428d24efa259"
    values = some_log(25)
    for segment in manifest.segments:
        first, last = segment.facts.first, segment.facts.last
        rows = batch_of(list(values[first : last + 1]), first)
        assert digests_path(manifest.segments_folder, first, last).read_bytes() == digests_of(rows)
        assert pq.read_table(parquet_path(manifest.segments_folder, first, last)).to_pylist() == rows.to_pylist()
    assert manifest.position == read_records(begin(TOPIC), list(enumerate(values))).position


def test_a_log_with_claims_and_repeats_is_archived_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: segments that this process writes carry the positions of a replica. Method: claims, a void one among them,
    and repeats in segments of their own; archive in two runs, and read what was archived."""
    maker = made()
    maker.claim(1, -1)
    maker.submit(request_of(1, (1,)))
    maker.claim(2, 1, wins=False)  # void: the holder wrote
    maker.raw(maker.values[2])
    maker.claim(3, 2)
    for number in range(2, 12):
        maker.submit(request_of(number, (number,)))
    monkeypatch.setattr(
        "pipeline.archive.write.read_stretch",
        lambda settings, first, end: iter([batch_of(list(maker.values[first:end]), first)]),
    )
    monkeypatch.setattr("pipeline.archive.write.refuse_other_log", lambda settings, position: None)
    log, heads = MemoryLogSettings(socket_path=tmp_path / "nobody"), HeadsInMemory()
    size = BatchSize(segment_records=3, segments=2)
    for end in (7, len(maker.values)):
        archiver = Archiver(log, tmp_path / "archive", SIGNER, heads, size=size, write=in_process(log))
        with archiver.open(TopicView(TOPIC, 0, end), 1, "archive-1") as manifest:
            archiver.archive(manifest, end)
    manifest = load_manifest(tmp_path / "archive", SIGNER.public_key)
    assert manifest.position == read_records(begin(TOPIC), maker.log).position
    assert manifest.position.epoch == 3
    assert [segment.facts.count for segment in manifest.segments] == [3, 3, 1, 3, 3, 3]
    assert verified(tmp_path / "archive", heads).findings == []
