"""`notary trail export`, as a SIEM's timer runs it: from a cursor, on to the next one, and when the two do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replica.store.trail import head_of
from tests.unit.cli.test_codes_that_people_see import told
from tests.unit.cli.test_what_people_see import folder, see  # noqa: F401  (fixtures)
from tests.worlds.trails import PEOPLE, KeptHere, kept_here, line_after, trail_of

LINES = trail_of(
    {"act": "pause"},
    {"act": "resume"},
    {"act": "prune", "details": {"to": "100"}},
    {"act": "switchover", "who": "ben"},
)
CURSOR = "siem.cursor"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptHere:
    """The trail that the command reads."""
    return kept_here(monkeypatch, LINES[:3])


def numbers(text: str) -> list[int]:
    return [json.loads(line)["number"] for line in text.splitlines()]


def test_each_entry_comes_once_and_the_cursor_goes_on(folder: Path, see, kept: KeptHere) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: a timer needs its cursor alone. Method: the first export, one with nothing new, one after another act;
    the same by --after."""
    first = see("trail", "export", "--cursor-file", CURSOR)
    assert (first.code, numbers(first.out), first.err.strip()) == (0, [1, 2, 3], f"cursor {head_of(LINES[2])}")
    assert (folder / CURSOR).read_text() == f"{head_of(LINES[2])}\n"
    again = see("trail", "export", "--cursor-file", CURSOR)
    assert (again.code, again.out, again.err) == (0, "", first.err)
    kept.lines.append(LINES[3])
    second = see("trail", "export", "--cursor-file", CURSOR)
    assert (second.code, numbers(second.out)) == (0, [4])
    by_hand = see("trail", "export", "--after", first.err.split()[1])
    assert (by_hand.out, by_hand.err) == (second.out, second.err)
    assert see("trail", "export").out == first.out + second.out
    (folder / "whole.jsonl").write_text(first.out + second.out)
    keys = [word for name in ("anna", "ben") for word in ("--key", f"{name}={bytes(PEOPLE[name].verify_key).hex()}")]
    whole = see("trail", "verify", "whole.jsonl", "--head", first.err.split()[1], *keys)
    assert (whole.code, "4 entries are whole" in whole.out) == (0, True), whole.err


@pytest.mark.parametrize(
    "changed",
    [LINES[:2], [], [*LINES[:2], line_after(head_of(LINES[1]), act="resume", who="ben")]],
    ids=["the newest is gone", "another notary without one", "another one in its place"],
)
def test_a_cursor_of_another_trail_exports_nothing(folder: Path, see, kept: KeptHere, changed: list[bytes]) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: a SIEM never mixes two histories, and its alert says both causes. Method: the trail lost or changed what
    the cursor names; the cursor's file stays."""
    assert see("trail", "export", "--cursor-file", CURSOR).code == 0
    before = (folder / CURSOR).read_text()
    kept.lines[:] = changed
    seen = see("trail", "export", "--cursor-file", CURSOR)
    assert (seen.code, seen.out, told(seen.err, "TRAIL_BROKEN")) == (1, "", True), seen.err
    assert "entry 3" in seen.err and "unless the cursor is of another notary's trail" in seen.err
    assert (folder / CURSOR).read_text() == before


def test_a_trail_that_breaks_later_is_exported_up_to_there(folder: Path, see, kept: KeptHere) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: what is whole is not held back, and a change is not put down to the cursor. Method: the fourth entry
    follows on another third one."""
    (folder / CURSOR).write_text(f"{head_of(LINES[0])}\n")
    kept.lines[:] = [*LINES[:3], line_after(head_of(LINES[1]), act="resume").replace(b'"number":3', b'"number":4')]
    seen = see("trail", "export", "--cursor-file", CURSOR)
    assert (seen.code, numbers(seen.out), told(seen.err, "TRAIL_BROKEN")) == (1, [2, 3], True), seen.err
    assert "another notary" not in seen.err


@pytest.mark.parametrize("text", ["", "x", "3", f"3:{'0' * 64}", f"-1:{'ab' * 32}", "\xff\xfe", f"3:{'AB' * 32}"])
def test_a_damaged_cursor_is_named(folder: Path, see, kept: KeptHere, text: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one knows which file to look at, and what happens without it. Method: files that no export wrote."""
    (folder / CURSOR).write_text(text, encoding="latin-1")
    seen = see("trail", "export", "--cursor-file", CURSOR)
    assert (seen.code, seen.out, told(seen.err, "CONFIG_INVALID")) == (2, "", True), seen.err
    assert f"the cursor {CURSOR}: " in seen.err and "without the file all is exported anew" in seen.err


def test_a_cursor_that_cannot_be_kept_is_named_after_the_lines(folder: Path, see, kept: KeptHere) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: no traceback, and nothing is lost. Method: a folder that is not there; a folder in the cursor's place."""
    seen = see("trail", "export", "--cursor-file", f"nowhere/{CURSOR}")
    assert (seen.code, numbers(seen.out), told(seen.err, "CONFIG_INVALID")) == (2, [1, 2, 3], True), seen.err
    assert f"nowhere/{CURSOR} cannot be written" in seen.err and f"--after {head_of(LINES[2])}" in seen.err
    (folder / CURSOR).mkdir()
    seen = see("trail", "export", "--cursor-file", CURSOR)
    assert (seen.code, seen.out, f"the cursor {CURSOR} cannot be read" in seen.err) == (2, "", True), seen.err
