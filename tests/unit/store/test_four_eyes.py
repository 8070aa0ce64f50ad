"""Four eyes: who may confirm what, and when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from replica.notary.errors import Code
from replica.store.four_eyes import FourEyesRefused, check_confirmed
from replica.store.trail import follow
from tests.worlds.trails import NOW, trail_of

PROPOSED = {"act": "prune", "phase": "proposed", "details": {"up_to": "9"}}
AFTER = {"who": "ben", "act": "resume"}


def confirmed(*entries: dict[str, Any], proposal: int = 1, now: datetime = NOW, **changes: Any) -> Code | None:
    """The code of the refusal; None: it may be done."""
    values: dict[str, Any] = {"act": "prune", "details": {"up_to": "9"}, "operator": "ben", "within_s": 60.0} | changes
    try:
        check_confirmed(follow(trail_of(*entries)).entries, proposal, now=now, **values)
    except FourEyesRefused as refusal:
        return refusal.code
    return None


def test_another_operator_confirms_what_was_proposed() -> None:
    """Goal: two people stand behind the act. Method: the other one, also later in the trail; then the same person."""
    assert confirmed(PROPOSED) is None
    assert confirmed({}, PROPOSED, AFTER, proposal=2) is None
    assert confirmed(PROPOSED, operator="anna") is Code.FOUR_EYES_SAME_PERSON


@pytest.mark.parametrize(
    ("entries", "changes"),
    [
        ([PROPOSED], {"proposal": 2}),
        ([{"act": "prune", "details": {"up_to": "9"}}], {}),  # begun, not proposed
        ([PROPOSED | {"who": "notary"}], {}),  # the notary's key is nobody
        ([PROPOSED], {"act": "restore-adopt"}),
        ([PROPOSED], {"details": {"up_to": "10"}}),
        ([PROPOSED], {"details": {}}),
        ([PROPOSED], {"now": NOW + timedelta(seconds=60)}),  # on the bound counts as too old
        ([PROPOSED], {"now": NOW - timedelta(minutes=5, seconds=1)}),
        ([PROPOSED, {"who": "ben", "act": "prune", "of": 1}], {"operator": "carl"}),  # used
    ],
)
def test_a_proposal_permits_one_act_for_a_while(entries: list[dict[str, Any]], changes: dict[str, Any]) -> None:
    """Goal: nothing else, no later and not twice. Method: one thing differs."""
    assert confirmed(*entries, **changes) is Code.PROPOSAL_INVALID


def test_a_proposal_counts_up_to_its_bounds() -> None:
    """Goal: clocks of two machines differ a little. Method: just inside both bounds; another proposal was used."""
    assert confirmed(PROPOSED, now=NOW + timedelta(seconds=59)) is None
    assert confirmed(PROPOSED, now=NOW - timedelta(minutes=5)) is None
    used = {"who": "ben", "act": "prune", "of": 1}
    assert confirmed(PROPOSED, PROPOSED, used, proposal=2) is None
