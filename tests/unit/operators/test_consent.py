"""The active asks the operators' trail before it carries out what two people must want."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from replica.notary.errors import Code, NotaryError
from replica.operators.admin import PruneCall, Steering, SteeringRefused
from replica.operators.consent import TrailConsent
from replica.store.four_eyes import prune_details
from tests.steering import NOBODY
from tests.unit.cli.test_steer import Elector, Handover, Pruner
from tests.worlds.trails import KNOWN, KeptHere, trail_of


def trail(**changes: Any) -> list[bytes]:
    """A pause, a proposal, and its confirmation of just now; `changes` are of the confirmation."""
    now, details = datetime.now(UTC), prune_details(9, 0.0)
    proposed = {"act": "prune", "phase": "proposed", "details": details, "at": now}
    return trail_of({}, proposed, {"who": "ben", "act": "prune", "of": 2, "details": details, "at": now} | changes)


def consent(lines: list[bytes], known: Any = KNOWN, acts: tuple[str, ...] = ("prune",)) -> TrailConsent:
    @asynccontextmanager
    async def board() -> AsyncIterator[Any]:
        yield KeptHere(lines)

    return TrailConsent(board, lambda: known, acts, 60.0)


async def code_of(asked: TrailConsent, entry: int | None = 3, up_to: int = 9) -> Code | None:
    """The code of the refusal."""
    try:
        await asked.check("prune", prune_details(up_to, 0.0), entry)
    except NotaryError as error:
        return error.code
    return None


async def test_the_trail_says_whether_two_people_want_it() -> None:
    """Goal: two signatures of known people, of now, over these arguments. Method: whole; each part is missing."""
    assert await code_of(consent(trail())) is None
    assert await code_of(consent(trail()), None) is Code.FOUR_EYES_NEEDED
    assert await code_of(consent(trail()), 4) is Code.FOUR_EYES_NEEDED
    assert await code_of(consent([]), 1) is Code.FOUR_EYES_NEEDED
    assert await code_of(consent(trail()), up_to=10) is Code.PROPOSAL_INVALID
    assert await code_of(consent(trail(who="anna"))) is Code.FOUR_EYES_SAME_PERSON
    only_anna = {key: one for key, one in KNOWN.items() if one.name == "anna"}
    assert await code_of(consent(trail(), only_anna)) is Code.TRAIL_BROKEN
    assert await code_of(consent([], acts=()), None) is None


async def test_a_call_without_consent_moves_nothing() -> None:
    """Goal: the admin listener refuses what the command would refuse. Method: the same call with and without."""
    steering = Steering(
        "r1",
        ("r1",),
        Elector(Handover.TAKEN_OVER),
        lambda: False,
        Pruner(),
        registrar=NOBODY,
        book=NOBODY,
        consent=consent(trail()),
    )
    with pytest.raises(SteeringRefused) as refused:
        await steering.prune(PruneCall("r1", 9))
    assert refused.value.code == "FOUR_EYES_NEEDED"
    assert await steering.prune(PruneCall("r1", 9, 0.0, 3)) is not None
