"""The drill's judgement: which answers are lost, and when a failure has cost what it may not cost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import msgspec
import pytest

from replica.cli.drill.report import Failure, find_lost, show
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, Refused
from replica.notary.codes import Code
from replica.notary.receipts import Receipt

RECEIPT = cast(Receipt, None)  # nobody looks at it here
ROW = Failure(failure="broker", what="killed", acknowledged=5, lost=0, lost_though_kept=0, rto_s=1.5)


class Client:
    """Answers look-ups as the notary that is left."""

    def __init__(self, offsets: dict[bytes, int]) -> None:
        self._offsets = offsets

    async def look_up(self, tx_id: bytes) -> Notarised | Refused:
        offset = self._offsets.get(tx_id)
        if offset is None:
            return Refused(Code.TX_NOT_FOUND.name, tx_id)
        return Notarised(tx_id, bytes(32), offset, None, False, RECEIPT)


def test_what_is_gone_or_elsewhere_is_lost() -> None:
    """Goal: no lost answer is overlooked. Method: one that is there, one that is gone, one at another offset."""
    left = cast(RecordingClient, Client({b"a": 1, b"c": 7}))
    assert asyncio.run(find_lost(left, {b"a": 1, b"b": 2, b"c": 3})) == {b"b": 2, b"c": 3}


@pytest.mark.parametrize(
    ("row", "passed"),
    [
        (ROW, True),
        (msgspec.structs.replace(ROW, lost=2), True),  # after the last copy
        (msgspec.structs.replace(ROW, lost=2, lost_though_kept=1), False),
        (msgspec.structs.replace(ROW, acknowledged=0), False),  # nothing was measured
    ],
)
def test_a_failure_passes_when_nothing_is_lost_that_was_kept(row: Failure, passed: bool, tmp_path: Path) -> None:
    """Goal: the drill goes red where it must. Method: rows by hand, and what the file says of them."""
    show([ROW, row], None, tmp_path / "drill.json")
    written = json.loads((tmp_path / "drill.json").read_text())
    assert (row.passed, written["passed"]) == (passed, passed)
    assert written["failures"][0] == msgspec.to_builtins(ROW)
