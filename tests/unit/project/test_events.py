"""Every event that the code logs is in docs/events.md, and every event there is logged."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("replica", "ha", "ledger_api", "haproxy")
LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
LEVEL_FIRST = "log"  # log.log(level, event)


@cache
def logged() -> list[tuple[str, str, str]]:
    """Event, level and file of every log call; a call whose event is no literal is named as such."""
    return [
        (*found, str(path.relative_to(ROOT)))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and (found := _event(node))
    ]


def _event(call: ast.Call) -> tuple[str, str] | None:
    """Event and level of `log.level(event, …)`, and of `write(log.level, event, …)`, which a limit lets through."""
    if level := _level(call.func):
        event = call.args[1 if level == LEVEL_FIRST else 0]
    elif len(call.args) > 1 and (level := _level(call.args[0])):
        event = call.args[1]
    else:
        return None
    return (event.value if isinstance(event, ast.Constant) else "not a literal"), level


def _level(function: ast.expr) -> str | None:
    """The level that a log's method is for; None if it is no log's method."""
    if not (isinstance(function, ast.Attribute) and function.attr in LEVELS and isinstance(function.value, ast.Name)):
        return None
    return function.attr if function.value.id in {"log", "_log"} else None


def documented() -> dict[str, str]:
    """Event and level of each line of the list."""
    rows = re.findall(r"^- `([a-z_]+)` \((\w+)\): ", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    return dict(rows)


def test_every_event_is_documented_and_every_documented_one_exists() -> None:
    """Goal: names that log searches rest on do not change unseen. Method: all log calls of the code, by its syntax."""
    found = {event for event, _, _ in logged()}
    assert "not a literal" not in found
    assert found - documented().keys() == set(), "add them to docs/events.md"
    assert documented().keys() - found == set()


def test_the_levels_are_those_of_the_code() -> None:
    """Goal: an alarm on a level means what the page describes. Method: compare each event's level."""
    levels: dict[str, set[str]] = {}
    for event, level, _ in logged():
        levels.setdefault(event, set()).add(level)
    wrong = {
        event: (documented()[event], level)
        for event, level in levels.items()
        if level != {LEVEL_FIRST} and {documented()[event]} != level
    }
    assert wrong == {}
