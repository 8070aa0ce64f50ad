"""The mark in the archive's own manifest, read from the kept archive of version 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipeline.archive.layout import MANIFEST_NAME as WRITTEN_NAME
from pipeline.archive.manifest import load_manifest
from replica.marks.archived import MANIFEST_NAME, archived_mark, mark_in
from replica.notary.errors import BadRequest
from replica.notary.marks import mark_of
from replica.notary.untrusted import UNREADABLE

KEPT = Path(__file__).parents[2] / "golden/archives/version-1"


def test_the_mark_is_the_position_after_the_last_archived_record() -> None:
    assert MANIFEST_NAME == WRITTEN_NAME
    assert archived_mark(KEPT) == mark_of(load_manifest(KEPT).position)


def test_a_line_counts_once_it_ends(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "archive")
    manifest = tmp_path / "archive" / MANIFEST_NAME
    manifest.write_bytes(manifest.read_bytes() + b'{"segment": {"posi')
    assert archived_mark(tmp_path / "archive") == archived_mark(KEPT)


def test_no_archive_has_no_mark(tmp_path: Path) -> None:
    assert archived_mark(None) is None
    assert archived_mark(tmp_path) is None
    assert mark_in(b"") is None


@pytest.mark.parametrize("raw", [b"\xff\n", b"{}\n" + b"[" * 100_000 + b"\n", b'{"segment": 7}\n'], ids=range(3))
def test_an_archive_that_cannot_be_read_is_named_and_passed_over(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(raw)
    with pytest.raises((BadRequest, *UNREADABLE)):
        mark_in(raw)
    with capture_logs() as lines:
        assert archived_mark(tmp_path) is None
    assert [line["event"] for line in lines] == ["archive_mark_unread"]
