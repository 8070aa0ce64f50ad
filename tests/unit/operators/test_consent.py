"""The active asks the operators' trail before it carries out any act."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from replica.active.noting import Noted
from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.parties import PartyNote
from replica.notary.records import encode_record
from replica.operators.admin import NotesCall, PartyAct, PruneCall, Steering, SteeringRefused, SwitchoverCall
from replica.operators.consent import TrailConsent
from replica.settings import OperatorsSettings
from replica.store.four_eyes import notes_details, prune_details
from tests.steering import NOBODY
from tests.unit.cli.test_steer import Elector, Handover, Pruner
from tests.worlds.signed_notes import ANNA, officers_act, registration
from tests.worlds.trails import KNOWN, KeptHere, trail_of

TWO_PEOPLE: dict[str, Any] = {"four_eyes": ("prune",), "keys_file": "operators.toml"}


def trail(**changes: Any) -> list[bytes]:
    """A pause, a proposal, and its confirmation of just now; `changes` are of the confirmation."""
    now, details = datetime.now(UTC), prune_details(9, 0.0)
    proposed = {"act": "prune", "phase": "proposed", "details": details, "at": now}
    return trail_of({}, proposed, {"who": "ben", "act": "prune", "of": 2, "details": details, "at": now} | changes)


def begun(act: str, details: dict[str, str], **changes: Any) -> list[bytes]:
    """One act that has begun just now, by the notary's own key."""
    return trail_of({"who": "notary", "act": act, "details": details, "at": datetime.now(UTC)} | changes)


def consent(lines: list[bytes], known: Any = KNOWN, **settings: Any) -> TrailConsent:
    @asynccontextmanager
    async def board() -> AsyncIterator[Any]:
        yield KeptHere(lines)

    return TrailConsent(board, lambda: known, OperatorsSettings(**settings))


async def code_of(asked: TrailConsent, entry: int | None = 3, up_to: int = 9) -> Code | None:
    """The code of the refusal."""
    try:
        await asked.check("prune", prune_details(up_to, 0.0), entry)
    except NotaryError as error:
        return error.code
    return None


async def test_the_trail_says_whether_two_people_want_it() -> None:
    """Goal: two signatures of known people, of now, over these arguments. Method: whole; each part is missing."""
    assert await code_of(consent(trail(), **TWO_PEOPLE)) is None
    assert await code_of(consent(trail(), **TWO_PEOPLE), None) is Code.NOT_IN_TRAIL
    assert await code_of(consent(trail(), **TWO_PEOPLE), 4) is Code.NOT_IN_TRAIL
    assert await code_of(consent([], **TWO_PEOPLE), 1) is Code.NOT_IN_TRAIL
    assert await code_of(consent(trail(), **TWO_PEOPLE), up_to=10) is Code.NOT_IN_TRAIL
    assert await code_of(consent(trail(of=None), **TWO_PEOPLE)) is Code.FOUR_EYES_NEEDED
    assert await code_of(consent(trail(who="anna"), **TWO_PEOPLE)) is Code.FOUR_EYES_SAME_PERSON
    only_anna = {key: one for key, one in KNOWN.items() if one.name == "anna"}
    assert await code_of(consent(trail(), only_anna, **TWO_PEOPLE)) is Code.TRAIL_BROKEN


async def test_every_act_stands_in_the_trail_first_and_once() -> None:
    """Goal: nothing is done that the trail does not tell. Method: no entry; another's; an old one; ended; twice."""
    details = prune_details(9, 0.0)
    whole = consent(begun("prune", details))
    assert await code_of(whole, 1) is None
    assert await code_of(whole, 1) is Code.NOT_IN_TRAIL
    assert await code_of(consent(begun("prune", details)), None) is Code.NOT_IN_TRAIL
    assert await code_of(consent(begun("switchover", details)), 1) is Code.NOT_IN_TRAIL
    assert await code_of(consent(begun("prune", details, phase="recorded")), 1) is Code.NOT_IN_TRAIL
    old = datetime.now(UTC) - timedelta(minutes=6)
    assert await code_of(consent(begun("prune", details, at=old)), 1) is Code.NOT_IN_TRAIL
    ended = trail_of(
        {"act": "prune", "details": details, "at": datetime.now(UTC)}, {"act": "prune", "phase": "done", "of": 1}
    )
    assert await code_of(consent(ended), 1) is Code.NOT_IN_TRAIL
    assert await code_of(consent(begun("prune", details), {}), 1) is Code.TRAIL_BROKEN


async def test_the_active_wants_the_reason_itself() -> None:
    """Goal: a command with another configuration changes nothing. Method: required or not, given or not."""
    details = prune_details(9, 0.0)
    assert await code_of(consent(begun("prune", details), reason_required=True), 1) is Code.REASON_MISSING
    assert await code_of(consent(begun("prune", details, reason="the disk is full"), reason_required=True), 1) is None


class Registrar:
    """Logs whatever comes."""

    async def note(self, notes: Sequence[PartyNote]) -> list[Noted]:
        return [Noted(7, True) for _ in notes]


def steering(elector: Elector, consent: TrailConsent) -> Steering:
    beside: dict[str, Any] = {"registrar": Registrar(), "book": NOBODY, "consent": consent}
    return Steering("r1", ("r1", "r2"), elector, lambda: False, Pruner(), **beside)


async def test_a_call_without_its_entry_does_nothing() -> None:
    """Goal: the admin listener refuses whoever goes round the command. Method: each act, with its entry and without."""
    elector, note = Elector(Handover.TAKEN_OVER), registration(ANNA)
    hexed = (encode_record(note).hex(),)
    cases: list[tuple[str, dict[str, str], Any]] = [
        ("prune", prune_details(9, 0.0), lambda one, entry: one.prune(PruneCall("r1", 9, 0.0, entry))),
        ("switchover", {"to": "r2"}, lambda one, entry: one.switchover(SwitchoverCall("r1", "r2", entry))),
        ("party-add", notes_details([note]), lambda one, entry: one.note(NotesCall("r1", hexed, "party-add", entry))),
    ]
    for act, details, call in cases:
        with pytest.raises(SteeringRefused) as refused:
            await call(steering(elector, consent(begun(act, details))), None)
        assert (refused.value.code, elector.asked) == ("NOT_IN_TRAIL", []), act
        assert await call(steering(Elector(Handover.TAKEN_OVER), consent(begun(act, details))), 1) is not None


async def test_registrations_do_not_go_in_as_another_act() -> None:
    """Goal: what the trail says is what was logged. Method: registrations, called a list of officers; a list, called
    registrations."""
    officers, party = encode_record(officers_act(ANNA, 0, ANNA)).hex(), encode_record(registration(ANNA)).hex()
    wrong: list[tuple[tuple[str, ...], PartyAct]] = [
        ((party,), "party-officers"),
        ((officers,), "party-add"),
        ((officers, officers), "party-officers"),
    ]
    for notes, act in wrong:
        with pytest.raises(SteeringRefused) as refused:
            await steering(Elector(Handover.UNDONE), consent([])).note(NotesCall("r1", notes, act, 1))
        assert refused.value.code == "MALFORMED_REQUEST"
