"""A runbook as the tests read it: four sections, each with fenced `sh` blocks that are run as they stand.

    ```sh               must end with code 0
    ```sh exit=1        must end with code 1: a check that finds what the runbook is about
    ```sh exit=0,1      either

Blocks of another language are shown to people and not run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUNBOOKS = Path(__file__).parents[2] / "runbooks"
SECTIONS = ("Symptoms", "Checks", "Steps", "Verification")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """Commands of one fence. `part` is the heading of the third level above it, empty if there is none."""

    section: str
    part: str
    line: int
    text: str
    exit_codes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Page:
    """One runbook."""

    name: str
    sections: tuple[str, ...]
    blocks: tuple[Block, ...]
    variables: frozenset[str]  # the capital names that its commands use


def read_page(name: str) -> Page:
    """The runbook `runbooks/NAME.md`. Raises ValueError for a fence that is not closed, or has a strange exit code."""
    sections: list[str] = []
    blocks: list[Block] = []
    part, fence, start = "", None, 0
    text: list[str] = []
    for number, line in enumerate((RUNBOOKS / f"{name}.md").read_text().splitlines(), 1):
        found = _FENCE.match(line)
        if fence is None and found:
            fence, start, text = found, number, []
        elif fence is not None and found:
            if fence["info"].split()[:1] == ["sh"]:
                blocks.append(Block(sections[-1], part, start, "\n".join(text), _exit_codes(fence["info"])))
            fence = None
        elif fence is not None:
            text.append(line.removeprefix(fence["indent"]))
        elif line.startswith("## "):
            sections.append(line.removeprefix("## "))
            part = ""
        elif line.startswith("### "):
            part = line.removeprefix("### ")
    if fence is not None:
        raise ValueError(f"{name}.md: the fence of line {start} is not closed")
    used = {name for block in blocks for name in re.findall(r"\$\{?([A-Z][A-Z_0-9]*)", block.text)}
    return Page(name, tuple(sections), tuple(blocks), frozenset(used))


def names() -> list[str]:
    """Every runbook but the page that explains the form."""
    return sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README")


def _exit_codes(info: str) -> frozenset[int]:
    for word in info.split()[1:]:
        if word.startswith("exit="):
            return frozenset(int(code) for code in word.removeprefix("exit=").split(","))
        raise ValueError(f"what is {word!r} in a fence?")
    return frozenset({0})
