"""The judge that is not ours: what it passes, and what it must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from replica.checker.history import ConflictText, Content, Event, Invoke, Ok, Refused, Unknown, encode_event
from tests.unit.checker.test_linearisability import is_linearisable, lie_in, operations_of, small_world
from tests.worlds.porcupine import IS_BUILT, NOT_BUILT, Verdict, verdict_on

pytestmark = pytest.mark.skipif(not IS_BUILT, reason=NOT_BUILT)

SMALL_WORLDS = 300
A, B, C, D = (f"{name}" * 64 for name in "abcd")
S1, S2, S3 = (f"{number}" * 64 + ":0" for number in "123")


def sent(op: int, at_ns: int, tx: str, *inputs: str, references: tuple[str, ...] = ()) -> Invoke:
    return Invoke("p", op, at_ns, tx, Content("party", inputs, references) if inputs or references else None)


def ok(op: int, at_ns: int, offset: int, digest: str = "0" * 64) -> Ok:
    return Ok("p", op, at_ns, digest, offset, offset)


def conflict(op: int, at_ns: int, **spent_by: str) -> Refused:
    states = {"s1": S1, "s2": S2, "s3": S3}
    named = tuple(
        ConflictText(states[name], sha256(bytes.fromhex(tx)).hexdigest(), "input") for name, tx in spent_by.items()
    )
    return Refused("p", op, at_ns, "STATE_CONFLICT", op, named)


def judged(folder: Path, events: Sequence[Event], *, partial: bool = False) -> Verdict:
    path = folder / "history.jsonl"
    path.write_bytes(b"".join(map(encode_event, events)))
    return verdict_on([path], partial=partial)


RIGHT: dict[str, list[Event]] = {
    "the loser is told who won": [
        *(sent(1, 10, A, S1, S2), ok(1, 20, 5)),
        *(sent(2, 30, B, S1, S3), conflict(2, 40, s1=A)),
    ],
    "what was sent together may win in either order": [
        *(sent(1, 10, A, S1), sent(2, 11, B, S1)),
        *(conflict(1, 40, s1=B), ok(2, 50, 5)),
    ],
    "an attempt without an answer took effect, and its repetition is told where": [
        *(sent(1, 10, A, S1), Unknown("p", 1, 20, "OUTCOME_UNKNOWN")),
        *(sent(2, 30, B, S1), conflict(2, 40, s1=A)),
        *(sent(3, 50, A, S1), ok(3, 60, 5), sent(4, 70, A), ok(4, 80, 5)),
    ],
    "an attempt without an answer took effect after a later one": [
        *(sent(1, 10, A, S1), Unknown("p", 1, 20, "OUTCOME_UNKNOWN")),
        *(sent(2, 30, B, S2), ok(2, 40, 4)),
        *(sent(3, 50, C, S1, S2), conflict(3, 60, s2=B)),
        *(sent(4, 70, C, S1, S2), conflict(4, 80, s1=A, s2=B)),
    ],
    "a reference spends nothing": [
        *(sent(1, 10, A, S2, references=(S1,)), ok(1, 20, 5)),
        *(sent(2, 30, B, S1), ok(2, 40, 6), sent(3, 50, A, S2, references=(S1,)), ok(3, 60, 5)),
    ],
    "an id has one content": [
        *(sent(1, 10, A, S1), ok(1, 20, 5)),
        *(sent(2, 30, A, S2), Refused("p", 2, 40, "TX_ID_REUSED"), sent(3, 50, B, S2), ok(3, 60, 6)),
    ],
}
WRONG: dict[str, list[Event]] = {
    "spent twice": [sent(1, 10, A, S1), ok(1, 20, 5), sent(2, 30, B, S1), ok(2, 40, 6)],
    "spent twice, at the same time": [sent(1, 10, A, S1), sent(2, 11, B, S1), ok(1, 40, 5), ok(2, 50, 6)],
    "an answer was lost": [sent(1, 10, A, S1), ok(1, 20, 5), sent(2, 30, A), Refused("p", 2, 40, "TX_NOT_FOUND")],
    "two places for one success": [sent(1, 10, A, S1), ok(1, 20, 5), sent(2, 30, A, S1), ok(2, 40, 6)],
    "another content for one success": [sent(1, 10, A, S1), ok(1, 20, 5), sent(2, 30, A), ok(2, 40, 5, "1" * 64)],
    "the wrong winner": [
        *(sent(1, 10, A, S1), ok(1, 20, 5), sent(2, 30, B, S2), ok(2, 40, 6)),
        *(sent(3, 50, C, S1, S2), conflict(3, 60, s1=B, s2=B)),
    ],
    "a winner that was not sent yet": [
        *(sent(1, 10, B, S1), conflict(1, 20, s1=A)),
        *(sent(2, 30, A, S1), ok(2, 40, 5)),
    ],
    "a winner that nobody sent": [sent(1, 10, B, S1), conflict(1, 20, s1=A)],
    "a spent state that the refusal does not name": [
        *(sent(1, 10, A, S1), ok(1, 20, 5), sent(2, 30, B, S2), ok(2, 40, 6)),
        *(sent(3, 50, C, S1, S2), conflict(3, 60, s2=B)),
    ],
    "half of a transaction: its states are spent one after the other": [
        *(sent(1, 10, A, S1, S2), Unknown("p", 1, 20, "OUTCOME_UNKNOWN")),
        *(sent(2, 30, B, S1), conflict(2, 40, s1=A), sent(3, 50, C, S2, S3), ok(3, 60, 5)),
    ],
    "a reference that was spent": [
        sent(1, 10, A, S1),
        ok(1, 20, 5),
        sent(2, 30, B, S2, references=(S1,)),
        ok(2, 40, 6),
    ],
    "an id is said to be used, and was not": [sent(1, 10, A, S1), Refused("p", 1, 20, "TX_ID_REUSED")],
    "an attempt without an answer is forgotten again": [
        *(sent(1, 10, A, S1), Unknown("p", 1, 20, "OUTCOME_UNKNOWN")),
        *(sent(2, 30, B, S1), conflict(2, 40, s1=A), sent(3, 50, D, S1), ok(3, 60, 5)),
    ],
}


@pytest.mark.parametrize("events", RIGHT.values(), ids=RIGHT)
def test_it_passes_what_one_order_explains(tmp_path: Path, events: list[Event]) -> None:
    """Goal: no false alarm. Method: histories of few attempts, each right for one reason."""
    assert judged(tmp_path, events).linearisable


@pytest.mark.parametrize("events", WRONG.values(), ids=WRONG)
def test_it_refuses_a_corrupted_history(tmp_path: Path, events: list[Event]) -> None:
    """Goal: a judge that cannot say no proves nothing. Method: histories of few attempts, each wrong in one way."""
    verdict = judged(tmp_path, events)
    assert verdict.verdict == "refused" and verdict.refused


def test_it_leaves_out_what_others_spent_only_where_it_is_allowed_to(tmp_path: Path) -> None:
    """Goal: a history that is not the whole one is judged where it is. Method: a winner without a history."""
    events = [sent(1, 10, B, S1), conflict(1, 20, s1=A), sent(2, 30, C, S2), ok(2, 40, 5)]
    assert not judged(tmp_path, events).linearisable
    verdict = judged(tmp_path, events, partial=True)
    assert (verdict.verdict, verdict.left_out, verdict.partitions) == ("linearisable", 1, 1)
    assert not judged(tmp_path, [*events, sent(3, 50, D, S2), ok(3, 60, 6)], partial=True).linearisable


def test_a_broken_history_is_no_verdict(tmp_path: Path) -> None:
    """Goal: what was not read is not passed. Method: an answer to nothing, a cut line, an empty file."""
    for text in (encode_event(ok(1, 20, 5)), encode_event(sent(1, 10, A, S1))[:-9], b""):
        path = tmp_path / "history.jsonl"
        path.write_bytes(text)
        with pytest.raises(ValueError):
            verdict_on([path])


def test_it_agrees_with_the_search_by_brute_force(tmp_path: Path) -> None:
    """Goal: its model is the notary's. Method: small random runs, and the same with lies. It refuses all that the
    search cannot explain, and passes all that is right; it may refuse more, because the search knows no offsets."""
    refused = 0
    for seed in range(SMALL_WORLDS):
        world = small_world(seed)
        if world is None:
            continue
        assert judged(tmp_path, world.history).linearisable, seed
        random = Random(seed)
        for _ in range(random.randint(1, 3)):
            lie_in(world, random)
        verdict = judged(tmp_path, world.history)
        assert is_linearisable(operations_of(world)) or not verdict.linearisable, seed
        refused += not verdict.linearisable
    assert refused > SMALL_WORLDS / 15
