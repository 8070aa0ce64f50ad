"""Golden files: this release reads every persisted format that ever was, and writes the newest unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from replica.checker.check import Scope, check
from replica.checker.history import decode_event, encode_event
from replica.checker.judge import (
    JudgedBarrier,
    JudgedGenesis,
    JudgedNote,
    JudgedRequest,
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
from replica.notary.records import SignOfLifeRecord, decode_record, encode_record
from replica.notary.rules import Conflict
from replica.notary.words import decode_word, encode_word
from tests.golden import samples
from tests.golden.make import FOLDER, WouldOverwrite, make

ARCHIVES = "archives"  # of more than one file: test_pipeline_archive.py reads them
FILES = sorted(
    path.relative_to(FOLDER)
    for path in FOLDER.rglob("*")
    if path.suffix in (".msgpack", ".json", ".jsonl") and path.relative_to(FOLDER).parts[0] != ARCHIVES
)


def _record(raw: bytes) -> bytes:
    return encode_record(decode_record(raw, 2))


def _position(raw: bytes) -> bytes:
    return encode_position(decode_position(raw))


def _receipt(raw: bytes) -> bytes:
    receipt = receipt_from_document(msgspec.json.decode(raw, type=ReceiptDocument))
    assert verify_receipt(receipt, samples.NOTARY_PUBLIC_KEY)
    return msgspec.json.encode(receipt_to_document(receipt))


def _conflict_detail(raw: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(raw, type=tuple[Conflict, ...]))


def _word(raw: bytes) -> bytes:
    word = decode_word(raw)
    assert word is not None
    return encode_word(word)


def _history(raw: bytes) -> bytes:
    return b"".join(encode_event(decode_event(line)) for line in raw.splitlines())


READ_AND_WRITE: dict[str, Callable[[bytes], bytes]] = {
    "records/format-2": _record,
    "positions/version-4": _position,
    "receipts/version-2": _receipt,
    "completions/version-1": _conflict_detail,
    "history/version-1": _history,
    "words/version-1": _word,
}
READ_OTHERWISE = {"logs/format-2", "logs/format-2-lease", "logs/format-2-parties", "vectors"}


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


JUDGED = ("logs/format-2", "logs/format-2-lease", "logs/format-2-parties")


@pytest.mark.parametrize("folder", JUDGED)
def test_an_old_log_is_judged_as_it_was(folder: str) -> None:
    """Goal: the verdicts of each format under its rules stay. Method: the reference judge on a kept log, line by line.

    The product's own verdicts are compared by `test_this_release_writes_what_the_golden_files_hold`.
    """
    kept = _lines(f"{folder}/judged-by-rules-3.jsonl")
    outcomes = {"conflict": "STATE_CONFLICT"}
    for judged, line in zip(ReferenceJudge().judge(kept_log(folder)), kept, strict=True):
        match judged:
            case JudgedVoid(offset, reason):
                assert (offset, reason) == (line["offset"], line["void"])
            case JudgedBarrier():
                assert line["barrier"]
            case JudgedGenesis():
                assert line["genesis"]
            case JudgedNote(record=SignOfLifeRecord()):
                assert line["life"]
            case JudgedNote():
                assert line["note"] and judged.judged_us == line["judged_us"]
            case JudgedRequest():
                assert judged.outcome == outcomes.get(line["outcome"], line["outcome"].upper())
                assert (judged.judged_us, judged.notarised_offset) == (line["judged_us"], line["notarised_offset"])
                assert [c.state.hex() for c in judged.conflicts] == [state for state, _, _ in line["conflicts"]]
            case _:
                raise AssertionError(f"not in the kept log: {judged}")


def test_an_old_log_gives_the_index_that_it_gave() -> None:
    """Goal: entries and acceptances of each format stay, byte by byte. Method: made from what the reference judge says,
    as docs/formats.md lays them out."""
    judge = ReferenceJudge()
    acceptances: dict[bytes, bytes] = {}
    for one in judge.judge(kept_log("logs/format-2")):
        if isinstance(one, JudgedRequest) and one.outcome == "NOTARISED":
            key = b"c" + one.change_id + (b"" if one.acceptance is None else _eight(one.offset))
            times = _eight(one.judged_us) + _eight(one.ledger_offset) + _eight(one.offset)
            acceptances[key] = one.request.tx_id + one.content_digest + times
    index = {b"t" + tx_id: digest + _eight(at) for tx_id, (digest, at) in judge.notarised.items()}
    index |= {b"s" + state: tx_id + _eight(judge.notarised[tx_id][1]) for state, tx_id in judge.consumed.items()}
    assert samples.entry_lines(index) == (FOLDER / "logs/format-2/index-by-rules-3.jsonl").read_bytes()
    assert samples.entry_lines(acceptances) == (FOLDER / "logs/format-2/acceptances.jsonl").read_bytes()


COUNTED = {"life": "SIGN_OF_LIFE", "note": "NOTE", "genesis": "GENESIS"}


def test_the_checker_reads_a_kept_log() -> None:
    """Goal: `notary check` counts what the kept lines hold. Method: check no history against the log."""
    found = check([], kept_log("logs/format-2"), scope=Scope(complete=False))
    kept = _lines("logs/format-2/judged-by-rules-3.jsonl")
    outcomes = Counter(str(line["outcome"]).upper() for line in kept if "outcome" in line)
    outcomes["STATE_CONFLICT"] = outcomes.pop("CONFLICT")
    others = Counter(name for line in kept for key, name in COUNTED.items() if key in line)
    assert not found.findings
    assert found.summary.outcomes == outcomes | others


def _eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_the_kept_logs_have_every_outcome_and_every_reason() -> None:
    """Goal: the golden logs are worth keeping. Method: count what their lines name."""
    kept = _lines("logs/format-2/judged-by-rules-3.jsonl")
    outcomes = {"notarised", "tx_id_reused", "conflict", "time_window_closed", "deduplicated", "command_id_reused"}
    assert {line["outcome"] for line in kept if "outcome" in line} == outcomes
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
    changed, removed = tmp_path / "records/format-2/barrier.msgpack", tmp_path / "vectors/merkle.json"
    changed.write_bytes(b"other")
    removed.unlink()
    with pytest.raises(WouldOverwrite, match=r"records/format-2/barrier\.msgpack"):
        make(tmp_path)
    assert changed.read_bytes() == b"other"
    assert not removed.exists()


def kept_log(folder: str) -> list[tuple[int, bytes]]:
    """A kept log."""
    return [(line["offset"], bytes.fromhex(line["value"])) for line in _lines(f"{folder}/log.jsonl")]


def _lines(path: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in (FOLDER / path).read_bytes().splitlines()]
