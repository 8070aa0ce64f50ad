"""When a fail-over is forced, what is ended for it, and when it is refused."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from ha.lock.interface import LockOwner
from replica.cli import failover
from replica.cli.failover import Plan, Refused, plan_failover
from replica.health import ReplicaHealth
from replica.store.bulletin import Pause
from tests.unit.cli.test_steer import health

PAUSE = Pause("r1", "work on the network", datetime(2026, 1, 1, tzinfo=UTC))
GONE = LockOwner(4711, "r1", "notary", "10.0.0.1")
FOLLOWING = {"r2": health("r2"), "r3": health("r3", ready=False)}


@pytest.mark.parametrize(
    ("owner", "pause", "end_session", "end_pause"),
    [(GONE, None, GONE, False), (None, PAUSE, None, True), (GONE, PAUSE, GONE, True)],
    ids=["its session holds the lock", "fail-over is paused for it", "both"],
)
def test_what_a_dead_active_left_is_ended(
    owner: LockOwner | None, pause: Pause | None, end_session: LockOwner | None, end_pause: bool
) -> None:
    """Goal: the two that take over by nobody. Method: r1 is down; it left its session, a pause, or both."""
    plan = plan_failover({"r1": None, **FOLLOWING}, owner, pause)
    assert isinstance(plan, Plan)
    assert (plan.end_session, plan.end_pause) == (end_session, end_pause)
    assert ("session 4711" in plan.text, "work on the network" in plan.text) == (end_session is not None, end_pause)


CUT_OFF: dict[str, ReplicaHealth | None] = {"r1": None, "r2": health("r2", reaches_log=False), "r3": None}


@pytest.mark.parametrize(
    ("healths", "owner", "pause", "why"),
    [
        ({"r1": health("r1", active=True), **FOLLOWING}, GONE, None, "run notary switchover"),
        (
            {"r1": health("r1", active=True), **FOLLOWING},
            GONE,
            PAUSE,
            "run notary resume, as fail-over is paused (work",
        ),
        ({"r1": health("r1"), **FOLLOWING}, GONE, None, "holds the lock and answers"),
        ({"r1": health("r1"), **FOLLOWING}, None, PAUSE, "paused for r1, which answers"),
        ({"r1": None, **FOLLOWING}, LockOwner(1, "psql", "mallory"), None, "is no replica"),
        ({"r1": None, **FOLLOWING}, None, None, "the lock is free"),
        (CUT_OFF, GONE, None, "reaches the log"),
        ({"r1": None, "r2": None, "r3": None}, GONE, PAUSE, "reaches the log"),
    ],
)
def test_a_fail_over_that_is_not_needed_or_would_not_help_is_refused(
    healths: dict[str, ReplicaHealth | None], owner: LockOwner | None, pause: Pause | None, why: str
) -> None:
    """Goal: no session is ended for nothing. Method: each state in which another step is the right one."""
    refused = plan_failover(healths, owner, pause)
    assert isinstance(refused, Refused)
    assert why in refused.text


def test_it_asks_with_all_that_it_will_do_and_ends_without_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whoever says yes has read what to. Method: both steps in a terminal of 80 columns; the answer is no."""
    shown = io.StringIO()
    plan = plan_failover({"r1": None, **FOLLOWING}, GONE, PAUSE)
    assert isinstance(plan, Plan)

    def found(work: Any) -> Plan:
        work.close()
        return plan

    monkeypatch.setattr(failover, "err", Console(file=shown, width=80, soft_wrap=True, highlight=False))
    monkeypatch.setattr(failover, "find_config", lambda _: Path("notary.toml"))
    monkeypatch.setattr(failover, "load", lambda _: None)
    monkeypatch.setattr(failover, "run", found)
    monkeypatch.setattr("typer.confirm", no)
    with pytest.raises(typer.Abort):
        failover.failover()
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(f"- {step}" in " ".join(shown.getvalue().split()) for step in plan.steps), lines


def no(text: str, *, abort: bool, err: bool) -> None:
    """A person's answer to it."""
    assert (text, abort, err) == ("Go on?", True, True)
    raise typer.Abort
