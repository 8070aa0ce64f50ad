"""What the operators' trail must say before an act is carried out; four eyes: that a second operator confirms. Pure.

One operator proposes the act with its arguments, in the trail; another one carries it out and names the proposal. Both
sign with keys of their own: the name of an OS user proves nothing about a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

from replica.notary.codes import Code
from replica.notary.errors import ConfigError, NotaryError
from replica.notary.parties import PartyNote
from replica.notary.records import RegistrationRecord
from replica.store.trail import DETAIL_MAX, Entry

EARLY_MAX = timedelta(minutes=5)  # a proposal may be so far ahead of the confirming machine's clock


class NotInTrail(NotaryError):
    """The operators' trail does not have the beginning of this act. Nothing was done."""

    default_code = Code.NOT_IN_TRAIL


class FourEyesRefused(NotaryError):
    """The act needs a second person's consent, and does not have it. Nothing was done."""

    default_code = Code.FOUR_EYES_NEEDED


def check_confirmed(
    entries: Sequence[Entry],
    proposal: int,
    *,
    act: str,
    details: Mapping[str, str],
    operator: str,
    now: datetime,
    within_s: float,
) -> None:
    """Raises FourEyesRefused unless `operator` may carry the act out now, by the proposal of that number.

    `entries`: the trail from the proposal to its end, each of them signed by a known operator or by the notary. A
    proposal is used up by the first act that names it, whatever became of that act.
    """
    proposed = next((entry for entry in entries if entry.number == proposal), None)
    if proposed is None or proposed.phase != "proposed" or proposed.signer != "operator":
        raise _invalid(f"entry {proposal} is no proposal of an operator's")
    if proposed.operator == operator:
        raise FourEyesRefused(f"{operator} proposed it: another operator confirms", Code.FOUR_EYES_SAME_PERSON)
    if proposed.act != act or proposed.details != dict(details):
        raise _invalid(f"proposal {proposal} is of another act, or of other arguments")
    age = now - proposed.at
    if not -EARLY_MAX <= age < timedelta(seconds=within_s):
        raise _invalid(f"proposal {proposal} is of {proposed.at:%Y-%m-%d %H:%M:%S} UTC; it counts for {within_s:g} s")
    user = next((entry for entry in entries if entry.phase == "begun" and entry.of == proposal), None)
    if user is not None:
        raise _invalid(f"proposal {proposal} was used by entry {user.number}")


def check_begun(
    entries: Sequence[Entry],
    begun: int,
    *,
    act: str,
    details: Mapping[str, str],
    now: datetime,
    reason_required: bool,
    two_people: bool,
    within_s: float,
) -> None:
    """Raises NotInTrail unless the entry of that number began this act, just now, and has not ended; ConfigError
    (REASON_MISSING); and where two people must want it, FourEyesRefused.

    `entries`: the trail from the entry, or from the proposal that it confirms, to its end. For the replica that carries
    the act out: whoever calls it has no other proof.
    """
    entry = next((entry for entry in entries if entry.number == begun), None)
    if entry is None or entry.phase != "begun":
        raise NotInTrail(f"entry {begun} of the operators' trail does not begin an act")
    if entry.act != act or entry.details != dict(details):
        raise NotInTrail(f"entry {begun} begins another act, or has other arguments")
    if abs(now - entry.at) > EARLY_MAX:
        raise NotInTrail(f"entry {begun} is of {entry.at:%Y-%m-%d %H:%M:%S} UTC, which is not now")
    if any(one.of == begun and one.phase in ("done", "failed") for one in entries):
        raise NotInTrail(f"the act of entry {begun} has ended")
    if reason_required and not entry.reason:
        raise ConfigError(f"entry {begun} of the operators' trail says no reason", Code.REASON_MISSING)
    if not two_people:
        return
    if entry.signer != "operator" or entry.of is None:
        raise FourEyesRefused(f"{act} needs a second operator's consent: --propose, then --confirm")
    before = [one for one in entries if one.number < begun]
    check_confirmed(
        before, entry.of, act=act, details=details, operator=entry.operator, now=entry.at, within_s=within_s
    )


def switchover_details(to: str | None) -> dict[str, str]:
    """The arguments of a hand-over as the trail has them: the command and the active must write the same."""
    return {} if to is None else {"to": to}


def prune_details(up_to: int | None, keep_s: float) -> dict[str, str]:
    """Those of pruning, likewise."""
    return ({} if up_to is None else {"up_to": str(up_to)}) | {"keep_s": str(float(keep_s))}


def notes_details(notes: Sequence[PartyNote]) -> dict[str, str]:
    """Those of notes about officers and parties, likewise. The officer's signature is over all of each note."""
    first, keys = notes[0], {"keys": str(len(notes))}
    if isinstance(first, RegistrationRecord):
        return {**keys, "party": first.party[:DETAIL_MAX], "key": first.party_key.hex()}
    return {"sha256": sha256(first.body).hexdigest()}


def _invalid(detail: str) -> FourEyesRefused:
    return FourEyesRefused(detail, Code.PROPOSAL_INVALID)
