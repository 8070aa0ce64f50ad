"""Makes a failing scenario short: leaves out commands as long as it still fails in the same way.

python -m tests.raft.shrink FILE      # prints what is left
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.raft.scenarios import Scenario, ScenarioFailed, commands


def problem_of(lines: Sequence[str]) -> str | None:
    """How these commands fail, without line numbers and figures; None: not at all."""
    scenario = Scenario()
    try:
        for line in lines:
            scenario.run(line)
    except ScenarioFailed as error:
        return re.sub(r"\d+", "#", str(error).split(": ", 2)[-1])
    return None


def shrink(lines: Sequence[str]) -> list[str]:
    """Leave out halves, quarters, and so on down to single commands; what is left fails as the whole did."""
    kept, problem = list(lines), problem_of(lines)
    assert problem is not None, "it does not fail"
    size = len(kept) // 2
    while size:
        start, before = 0, len(kept)
        while start < len(kept):
            shorter = kept[:start] + kept[start + size :]
            if problem_of(shorter) == problem:
                kept = shorter
            else:
                start += size
        size = size if size == 1 and len(kept) < before else size // 2
    return kept


if __name__ == "__main__":
    print("\n".join(shrink(commands(Path(sys.argv[1]).read_text()))))
