"""Real runs against the model: what it accepts, and each line that it must refuse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.runs import Line, Verdict, judge, lines_in


def started(who: str) -> Line:
    return Line("", who, "replica_started", "started")


def role(who: str, role: str, epoch: int = 0) -> Line:
    return Line("", who, "role_changed", role, epoch)


def in_force(who: str, epoch: int, by: str) -> Line:
    return Line("", who, "barrier_in_force", "", epoch, by)


def activated(who: str, epoch: int) -> Line:
    return Line("", who, "activated", "", epoch)


def leads(who: str, epoch: int) -> list[Line]:
    return [role(who, "activating"), in_force(who, epoch, who), activated(who, epoch), role(who, "active", epoch)]


STARTED = [started("a"), started("b"), started("c")]
RUN = [*STARTED, *leads("a", 1), in_force("b", 1, "a"), in_force("c", 1, "a")]

ALLOWED: dict[str, list[Line]] = {
    "one leads, others read its barrier": RUN,
    "a crash": [*RUN, *leads("b", 2), started("a"), in_force("a", 2, "b")],
    "a switchover": [
        *RUN,
        role("a", "stepping_down", 1),
        *leads("c", 2),
        role("a", "passive", 2),
        in_force("a", 2, "c"),
    ],
    "a frozen leader is replaced, and says so late": [
        *RUN,
        *leads("b", 2),
        role("a", "stepping_down", 1),
        role("a", "passive"),
    ],
    "an activation fails after it raised the epoch": [
        *STARTED,
        role("a", "activating"),
        role("a", "stepping_down"),
        role("a", "passive"),
        *leads("b", 2),
    ],
    "a barrier arrives after its sender was replaced": [
        *STARTED,
        role("a", "activating"),
        role("b", "activating"),
        in_force("c", 1, "a"),
        in_force("b", 2, "b"),
        activated("b", 2),
        role("a", "stepping_down"),
        role("a", "passive"),
    ],
    "a barrier is void, and its sender takes a higher epoch": [
        *RUN,
        role("b", "activating"),
        role("c", "activating"),
        in_force("c", 3, "c"),
        activated("c", 3),
        Line("", "b", "barrier_void"),
        in_force("b", 4, "b"),
        activated("b", 4),
    ],
}
REFUSED: dict[str, list[Line]] = {
    "two lead in one epoch": [*RUN, *leads("b", 1)],
    "an epoch is used again": [*RUN, *leads("b", 2), *leads("c", 1)],
    "an epoch that nobody was granted": [*RUN, *leads("b", 7)],
    "who leads has not asked for the lock": [*RUN, in_force("b", 2, "b")],
    "it serves before its barrier": [*STARTED, role("a", "activating"), activated("a", 2)],
    "a barrier of another": [*RUN, in_force("c", 1, "b")],
    "it leads on although it read a higher barrier and gave up": [
        *RUN,
        *leads("b", 2),
        role("a", "stepping_down", 1),
        role("a", "passive"),
        activated("a", 1),
    ],
    "it leads again without a new activation": [*RUN, started("a"), role("a", "active", 1)],
    "it leads twice by one grant": [*RUN, role("a", "stepping_down"), role("a", "passive"), activated("a", 2)],
}


def at_times(lines: Sequence[Line]) -> list[Line]:
    """The same lines, one after the other."""
    return [Line(f"{at:06}", one.who, one.event, one.role, one.epoch, one.by) for at, one in enumerate(lines)]


@pytest.mark.parametrize("lines", ALLOWED.values(), ids=ALLOWED)
def test_it_explains_what_the_protocol_allows(lines: list[Line]) -> None:
    """Goal: no false alarm. Method: runs of few lines, each a way in which leadership may pass."""
    assert judge(at_times(lines)) == Verdict(len(lines))


@pytest.mark.parametrize("lines", REFUSED.values(), ids=REFUSED)
def test_it_refuses_a_line_that_no_run_has(lines: list[Line]) -> None:
    """Goal: a model that accepts all proves nothing. Method: each wrong line behind right ones; it is the one named."""
    timed = at_times(lines)
    verdict = judge(timed)
    assert verdict.refused is not None
    assert judge(timed[: verdict.allowed]) == Verdict(verdict.allowed)
    assert "does not allow" in str(verdict)


def test_lines_are_read_as_replicas_write_them(tmp_path: Path) -> None:
    """Goal: the writer is told from the replica of a barrier; what is cut or foreign is passed over. Method: files."""
    stamp = "2026-01-01T00:00:0"
    written = {
        "a": [
            {"event": "replica_started", "epoch": 0, "replica": "a", "timestamp": f"{stamp}1Z"},
            {"event": "barrier_in_force", "epoch": 1, "replica": "b", "timestamp": f"{stamp}4Z"},
        ],
        "b": [
            {"event": "replica_started", "epoch": 0, "replica": "b", "timestamp": f"{stamp}2Z"},
            {"event": "role_changed", "role": "activating", "epoch": 0, "replica": "b", "timestamp": f"{stamp}3Z"},
            {"event": "index_scrubbed", "replica": "b", "timestamp": f"{stamp}3Z"},
        ],
    }
    for name, documents in written.items():
        text = "".join(json.dumps(document) + "\n" for document in documents)
        (tmp_path / name).write_text(f'a word of a library\n["no", "line"]\n{text}{{"event": "role_ch')
    lines = lines_in(tmp_path / name for name in written)
    assert [(line.who, line.event, line.by) for line in lines] == [
        ("a", "replica_started", ""),
        ("b", "replica_started", ""),
        ("b", "role_changed", ""),
        ("a", "barrier_in_force", "b"),
    ]
    assert judge(lines) == Verdict(4)
