"""A commit on Spark that Delta refuses: repeated where others only moved rows about, else a second writer is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pipeline.tables.query import COMMITS_MAX, replace_rows
from replica.notary.errors import ArchiveContended

REFUSED = RuntimeError("[DELTA_CONCURRENT_APPEND] Files were added by a concurrent update")


class Writes:
    """A table at offset 9, and the writer of a frame of rows; each save does what comes next."""

    place, application = Path("/tables/verdicts"), "notary/topic"

    def __init__(self, *outcomes: int | Exception) -> None:
        self.offset, self.saves, self._committed = 9, 0, 9
        self._outcomes = iter(outcomes)
        self.options: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return self if name == "write" else lambda *given: self

    def option(self, name: str, value: str) -> Writes:
        self.options[name] = value
        return self

    def save(self, path: str) -> None:
        self.saves += 1
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        self._committed = outcome

    def look_again(self) -> None:
        self.offset = self._committed


def test_a_commit_notes_its_range_and_its_end() -> None:
    """Goal: what is replaced is the batch's range, no more. Method: what Delta's writer is given."""
    writes = Writes(15)
    replace_rows(writes, writes, 15)  # type: ignore[arg-type]
    assert writes.options["replaceWhere"] == "log_offset > 9 AND log_offset <= 15"
    assert (writes.options["txnAppId"], writes.options["txnVersion"]) == ("notary/topic", "15")
    assert '"notaryEngine": "spark"' in writes.options["userMetadata"]
    replace_rows(writes, writes, 15)  # type: ignore[arg-type]
    assert writes.saves == 1  # it has them


def test_a_compaction_in_between_is_no_other_writer() -> None:
    """Goal: upkeep does not end the job. Method: Delta refuses a commit once, and the table has no more rows since."""
    writes = Writes(REFUSED, 15)
    replace_rows(writes, writes, 15)  # type: ignore[arg-type]
    assert (writes.saves, writes.offset) == (2, 15)


@pytest.mark.parametrize("outcomes", [(REFUSED,) * COMMITS_MAX, (12,), (20,)])
def test_another_writer_is_named(outcomes: tuple[int | Exception, ...]) -> None:
    """Goal: of two writers one ends. Method: refused again and again; a table that ends before or after the batch."""
    writes = Writes(*outcomes)
    with pytest.raises(ArchiveContended, match="another process"):
        replace_rows(writes, writes, 15)  # type: ignore[arg-type]


def test_what_else_goes_wrong_is_not_repeated() -> None:
    """Goal: a full disk is no contention. Method: another error."""
    writes = Writes(OSError("No space left on device"), 15)
    with pytest.raises(OSError, match="No space left"):
        replace_rows(writes, writes, 15)  # type: ignore[arg-type]
    assert writes.saves == 1
