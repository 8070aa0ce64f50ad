"""Defects where two primaries of the database live at one time."""

from __future__ import annotations

from pytest import MonkeyPatch

import replica.active.opening
from replica.active.lineage import Descent
from tests.simulation.mutants.registry import mutant


@mutant("a replica that reaches an old primary deposes the active on the new one")
def old_primary_not_refused(patch: MonkeyPatch) -> None:
    patch.setattr(replica.active.opening, "check_descent", lambda ours, barrier: Descent.CONTINUES)
