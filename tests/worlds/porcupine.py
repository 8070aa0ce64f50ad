"""Porcupine, a checker of linearisability that is not ours, on clients' histories; its model is in scripts/porcupine.

It reads the histories alone: neither the log, nor any code that the notary runs. `make judge` builds it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

PROGRAM = Path(__file__).parents[2] / ".tools" / "porcupine"
IS_BUILT = PROGRAM.exists()
NOT_BUILT = "NOT CHECKED: no Porcupine: make judge builds it"
DECIDE_MAX_S = 300.0
_CODES = {0: "linearisable", 1: "refused", 3: "undecided"}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What it said of a run. `left_out`: partitions that rest on clients without a history."""

    verdict: str
    operations: int
    judged: int
    partitions: int
    largest: int
    left_out: int
    took_s: float
    refused: list[list[str]] = []

    @property
    def linearisable(self) -> bool:
        """Whether some order of the operations explains every answer; false as well where none was found in time."""
        return self.verdict == "linearisable"

    @property
    def line(self) -> str:
        """For people."""
        left_out = f", {self.left_out:,} left out" if self.left_out else ""
        return (
            f"Porcupine: {self.verdict}: {self.judged:,} operations in {self.partitions:,} partitions of "
            f"{self.largest:,} at most{left_out}, {self.took_s:.1f} s"
        )


def verdict_on(histories: Sequence[Path], *, partial: bool = False) -> Verdict:
    """Ask Porcupine. Blocks. Raises ValueError for what is no history."""
    argv = [PROGRAM, *(["--partial"] if partial else []), *histories]
    ran = subprocess.run(argv, capture_output=True, timeout=DECIDE_MAX_S, check=False)
    if ran.returncode not in _CODES:
        raise ValueError(ran.stderr.decode(errors="replace"))
    verdict = msgspec.json.decode(ran.stdout, type=Verdict)
    assert verdict.verdict == _CODES[ran.returncode], (verdict.verdict, ran.returncode)
    return verdict
