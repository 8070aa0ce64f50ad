"""Plans on which the notary once failed, kept for ever. A seed's plan may change; these do not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Plan
from tests.simulation.shrink import failure_of
from tests.simulation.world import simulate

FILES = sorted(Path(__file__).with_name("regressions").glob("*.json"))


class Regression(msgspec.Struct):
    """What went wrong, in a sentence, and the shrunk plan. `mutant`: the defect that brings it back, if any does."""

    sentence: str
    plan: Plan
    mutant: str = ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_failed_once_does_not_fail_again(file: Path) -> None:
    """Goal: a defect that was found stays repaired. Method: run its plan; and once more with the defect put back."""
    regression = msgspec.json.decode(file.read_bytes(), type=Regression)
    assert simulate(regression.plan).violations == [], regression.sentence
    for mutant in MUTANTS:
        if mutant.name == regression.mutant:
            with pytest.MonkeyPatch.context() as patch:
                mutant.apply(patch)
                assert failure_of(regression.plan), f"the plan no longer shows that {mutant.sentence}"
