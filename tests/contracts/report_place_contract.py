"""The contract of a place that reports are brought to. A class that inherits it provides the fixture `place`: a new,
empty one in a store of objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.reports import folder as reports
from pipeline.reports.folder import report_folder
from pipeline.reports.page import PAGE
from pipeline.reports.state import NAME as STATE
from replica.notary.places import Remote


def make(place: Remote, work: Path, files: dict[str, bytes], *, going_on: bool = False) -> bytes | None:
    """Make a report of these files; returns the state that it could go on from."""
    work.mkdir()
    with report_folder(place, work, going_on=going_on) as folder:
        state = (folder / STATE).read_bytes() if (folder / STATE).exists() else None
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    return state


def contents(place: Remote) -> dict[str, bytes]:
    """Every object in a place, by name."""
    store = reports.open_store(place)
    return {name: store.read(name) for name in store.names("")}


FIRST = {
    PAGE: b"<p>first",
    "outcomes.parquet": b"first" * 1_000,
    "latency.parquet": b"of clients",
    STATE: b"state",
    "verdicts/part-1.parquet": b"a",
    "verdicts/part-2.parquet": b"b",
    "verdicts/_SUCCESS": b"",
}
SECOND = {
    PAGE: b"<p>second",
    "outcomes.parquet": b"2",
    "verdicts/part-3.parquet": b"c",
    "verdicts/_SUCCESS": b"",
}


class ReportPlaceContract:
    """What a report's place is after each report, whatever keeps it."""

    def test_a_report_replaces_the_one_before(self, place: Remote, tmp_path: Path) -> None:
        """Goal: as in a folder: files are replaced, further ones stay, a table's earlier rows are gone. Method: two
        reports, with the checksums that Spark leaves on a local disk."""
        checksums = {".report.html.crc": b"x", "verdicts/.part-1.parquet.crc": b"x"}
        assert make(place, tmp_path / "1", FIRST | checksums, going_on=True) is None
        assert contents(place) == FIRST
        assert make(place, tmp_path / "2", SECOND) is None
        kept = {name: FIRST[name] for name in ("latency.parquet", STATE)}
        assert contents(place) == kept | SECOND
        assert make(place, tmp_path / "3", {PAGE: b"<p>third"}, going_on=True) == b"state"
        assert contents(place) == kept | SECOND | {PAGE: b"<p>third"}

    def test_a_report_that_fails_changes_nothing(self, place: Remote, tmp_path: Path) -> None:
        """Goal: the report before stays. Method: an error while the next one is made."""
        make(place, tmp_path / "1", FIRST)
        (tmp_path / "2").mkdir()
        with pytest.raises(ZeroDivisionError), report_folder(place, tmp_path / "2") as folder:
            (folder / PAGE).write_text("half")
            raise ZeroDivisionError
        assert contents(place) == FIRST
