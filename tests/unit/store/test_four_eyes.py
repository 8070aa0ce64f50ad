"""Four eyes: who may confirm what, and when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from replica.notary.codes import Code
from replica.store.four_eyes import FourEyesRefused, NotInTrail, check_begun, check_confirmed, prune_details
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


BEGUN = {"who": "ben", "act": "prune", "of": 1, "details": {"up_to": "9"}}


def begun(*entries: dict[str, Any], entry: int = 2, now: datetime = NOW, **changes: Any) -> Code | None:
    """The code with which the active refuses; None: it carries the act out."""
    values: dict[str, Any] = {"act": "prune", "details": {"up_to": "9"}, "within_s": 60.0}
    values |= {"reason_required": False, "two_people": True} | changes
    try:
        check_begun(follow(trail_of(*entries)).entries, entry, now=now, **values)
    except (FourEyesRefused, NotInTrail) as refusal:
        return refusal.code
    return None


def test_the_active_wants_a_confirmed_beginning() -> None:
    """Goal: a call of the admin listener needs both signatures. Method: proposed, confirmed; each part missing."""
    assert begun(PROPOSED, BEGUN) is None
    assert begun(PROPOSED, BEGUN, AFTER) is None
    assert begun(PROPOSED, entry=1) is Code.NOT_IN_TRAIL
    assert begun(PROPOSED, BEGUN, entry=3) is Code.NOT_IN_TRAIL
    assert begun({}, {"act": "prune", "details": {"up_to": "9"}}) is Code.FOUR_EYES_NEEDED
    assert begun(PROPOSED, BEGUN | {"who": "notary"}) is Code.FOUR_EYES_NEEDED
    assert begun(PROPOSED, BEGUN | {"who": "anna"}) is Code.FOUR_EYES_SAME_PERSON


@pytest.mark.parametrize(
    ("entries", "changes"),
    [
        ([PROPOSED, BEGUN], {"details": {"up_to": "10"}}),
        ([PROPOSED, BEGUN], {"act": "restore-adopt"}),
        ([PROPOSED, BEGUN | {"details": {"up_to": "10"}}], {"details": {"up_to": "10"}}),  # not what was proposed
        ([PROPOSED, BEGUN | {"details": {"up_to": "10"}}], {}),  # nor what the call asks for, which was proposed
        ([PROPOSED, BEGUN | {"act": "resume"}], {}),
        ([PROPOSED, BEGUN], {"now": NOW + timedelta(minutes=5, seconds=2)}),
        ([PROPOSED, BEGUN], {"now": NOW - timedelta(minutes=5)}),
        ([PROPOSED, BEGUN, {"who": "ben", "act": "prune", "phase": "done", "of": 2}], {}),
        ([PROPOSED, BEGUN, BEGUN], {"entry": 3}),  # the proposal was used by entry 2
        ([PROPOSED, BEGUN], {"within_s": 1.0}),
        ([{}, BEGUN], {}),
    ],
)
def test_a_beginning_permits_one_act_now(entries: list[dict[str, Any]], changes: dict[str, Any]) -> None:
    """Goal: an old number opens nothing. Method: one thing differs."""
    assert begun(*entries, **changes) in (Code.PROPOSAL_INVALID, Code.NOT_IN_TRAIL)


def test_the_arguments_of_pruning_are_exact() -> None:
    """Goal: what was confirmed is what is done. Method: numbers that round to one another, and none."""
    assert prune_details(9, 86_400) == {"up_to": "9", "keep_s": "86400.0"}
    assert prune_details(None, 0) == {"keep_s": "0.0"}
    assert prune_details(9, 86_400.001) != prune_details(9, 86_400)
