"""Golden files: this release reads every persisted format that ever was, and writes the newest unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from replica.checker.history import decode_event, encode_event
from replica.checker.judge import (
    JudgedBarrier,
    JudgedRequest,
    JudgedSettlement,
    JudgedVoid,
    ReferenceJudge,
)
from replica.notary.position import decode_position, encode_position
from replica.notary.receipts import (
    ReceiptDocument,
    receipt_from_document,
    receipt_to_document,
    verify_receipt,
)
from replica.notary.records import decode_record, encode_record
from replica.notary.rules import Conflict
from tests.golden import samples
from tests.golden.make import FOLDER, WouldOverwrite, make

ARCHIVES = "archives"  # of more than one file: test_pipeline_archive.py reads them
FILES = sorted(
    path.relative_to(FOLDER)
    for path in FOLDER.rglob("*")
    if path.suffix in (".msgpack", ".json", ".jsonl") and path.relative_to(FOLDER).parts[0] != ARCHIVES
)


def _record(raw: bytes) -> bytes:
    return encode_record(decode_record(raw, 1))


def _record_2(raw: bytes) -> bytes:
    return encode_record(decode_record(raw, 2))


def _position(raw: bytes) -> bytes:
    return encode_position(decode_position(raw))


def _receipt(raw: bytes) -> bytes:
    receipt = receipt_from_document(msgspec.json.decode(raw, type=ReceiptDocument))
    assert verify_receipt(receipt, samples.NOTARY_PUBLIC_KEY)
    return msgspec.json.encode(receipt_to_document(receipt))


def _conflict_detail(raw: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(raw, type=tuple[Conflict, ...]))


def _history(raw: bytes) -> bytes:
    return b"".join(encode_event(decode_event(line)) for line in raw.splitlines())


READ_AND_WRITE: dict[str, Callable[[bytes], bytes]] = {
    "records/format-1": _record,
    "records/format-2": _record_2,
    "positions/version-1": _position,
    "positions/version-3": _position,
    "receipts/version-1": _receipt,
    "completions/version-1": _conflict_detail,
    "history/version-1": _history,
}
READ_OTHERWISE = {"logs/format-1", "vectors"}


def test_every_golden_file_is_read_by_some_test() -> None:
    """Goal: no format is forgotten. Method: each file lies in a folder that a test below reads, and none is missing."""
    assert {str(path.parent) for path in FILES} == READ_AND_WRITE.keys() | READ_OTHERWISE
    assert {str(path) for path in FILES} >= samples.samples().keys()


@pytest.mark.parametrize("path", [path for path in FILES if str(path.parent) in READ_AND_WRITE], ids=str)
def test_a_golden_file_is_read_and_written_again_byte_by_byte(path: Path) -> None:
    """Goal: nothing persisted is ever misread. Method: decode, encode, compare bytes."""
    raw = (FOLDER / path).read_bytes()
    assert READ_AND_WRITE[str(path.parent)](raw) == raw


@pytest.mark.parametrize("path", samples.samples(), ids=str)
def test_this_release_writes_what_the_golden_files_hold(path: str) -> None:
    """Goal: a format does not change by accident. Method: encode the samples and compare bytes."""
    assert (FOLDER / path).read_bytes() == samples.samples()[path]


def test_an_old_log_is_judged_as_it_was(golden_log: list[tuple[int, bytes]]) -> None:
    """Goal: the verdicts of format 1 under rules 1 stay. Method: the reference judge on the kept log, line by line.

    The product's own verdicts are compared by `test_this_release_writes_what_the_golden_files_hold`.
    """
    kept = _lines("logs/format-1/judged-by-rules-1.jsonl")
    outcomes = {"conflict": "STATE_CONFLICT"}
    for judged, line in zip(ReferenceJudge().judge(golden_log), kept, strict=True):
        match judged:
            case JudgedVoid(offset, reason):
                assert (offset, reason) == (line["offset"], line["void"])
            case JudgedBarrier():
                assert line["barrier"]
            case JudgedSettlement():
                assert (len(judged.record.commands), judged.judged_us) == (line["settles"], line["judged_us"])
            case JudgedRequest():
                assert judged.outcome == outcomes.get(line["outcome"], line["outcome"].upper())
                assert (judged.judged_us, judged.notarised_offset) == (line["judged_us"], line["notarised_offset"])
                assert [c.state.hex() for c in judged.conflicts] == [state for state, _, _ in line["conflicts"]]


def test_the_kept_log_has_every_outcome_and_every_reason() -> None:
    """Goal: the golden log is worth keeping. Method: count what its lines name."""
    kept = _lines("logs/format-1/judged-by-rules-1.jsonl")
    assert {line["outcome"] for line in kept if "outcome" in line} == {
        "notarised",
        "tx_id_reused",
        "conflict",
        "time_window_closed",
    }
    assert {line["void"] for line in kept if "void" in line} == {
        "undecodable",
        "not_in_force",
        "repeat",
        "barrier_not_higher",
    }


def test_golden_files_are_never_overwritten(tmp_path: Path) -> None:
    """Goal: a changed format cannot hide. Method: make them, change one and remove another, make again."""
    assert set(make(tmp_path)) == samples.samples().keys()
    assert make(tmp_path) == []
    changed, removed = tmp_path / "records/format-1/barrier.msgpack", tmp_path / "vectors/merkle.json"
    changed.write_bytes(b"other")
    removed.unlink()
    with pytest.raises(WouldOverwrite, match=r"records/format-1/barrier\.msgpack"):
        make(tmp_path)
    assert changed.read_bytes() == b"other"
    assert not removed.exists()


@pytest.fixture
def golden_log() -> list[tuple[int, bytes]]:
    """The kept log."""
    return [(line["offset"], bytes.fromhex(line["value"])) for line in _lines("logs/format-1/log.jsonl")]


def _lines(path: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in (FOLDER / path).read_bytes().splitlines()]
