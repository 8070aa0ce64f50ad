"""What a caller may do and read: one pure rule for submissions, completions, updates and the history of a state."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from replica.notary.codes import Code
from replica.notary.errors import BadRequest


class Revocations:
    """Tokens that are no longer accepted before they expire, by their `jti`. Shared with all their callers."""

    def __init__(self, ids: frozenset[str] = frozenset()) -> None:
        self.ids = ids

    def __contains__(self, token_id: str) -> bool:
        return token_id in self.ids


class Caller(msgspec.Struct, frozen=True):
    """A caller and its rights. None means any.

    `subject`: the user that the caller submits as. `user_id`: the user whose submissions it reads. `act_as`: the
    parties that it acts for, all of them also in `read_as`. `expires_at_s`: Unix time from which it has no rights any
    more. `token_id`, and the list that may revoke it: of a caller with a token, where such a list is kept.
    """

    user_id: str | None = None
    read_as: frozenset[str] | None = None
    subject: str | None = None
    act_as: frozenset[str] | None = None
    expires_at_s: float = math.inf
    token_id: str = ""
    revocations: Revocations | None = None

    def left_s(self, now_s: float) -> float:
        """How many seconds its rights last, by Unix time `now_s`; not positive when it has none any more."""
        is_revoked = self.revocations is not None and self.token_id in self.revocations
        return -math.inf if is_revoked else self.expires_at_s - now_s


EVERYBODY = Caller()
"""The caller of an API without tokens: for a port that only the participant's own programs reach."""


def holder_of(caller: Caller, connection: object) -> Hashable:
    """The holder that a call's use is charged to: the user's name, or else where its connection comes from."""
    return caller.subject or getattr(connection, "source", None) or id(connection)


def check_may_submit(caller: Caller, user_id: str, party: str, act_as: Iterable[str]) -> None:
    """Raises BadRequest when the caller may not submit this user's request of this party: PERMISSION_DENIED.

    The user is signed for, so nobody puts the token's in its place. The request's party is checked as well as `act_as`:
    a caller that may not act for a party cannot use what it signed.
    """
    if caller.subject is None:
        return
    if user_id != caller.subject:
        raise _denied(
            f"the request is of user {user_id!r}, the token of user {caller.subject!r}: "
            f"sign it with user_id {caller.subject!r}, or send it with a token of {user_id!r}"
        )
    _check_parties(caller, (party, *act_as))


def may_see(caller: Caller, user_id: str, act_as: Sequence[str]) -> bool:
    """Whether the caller may see a submission of this user for these parties."""
    if caller.user_id is not None and caller.user_id != user_id:
        return False
    return may_see_parties(caller, act_as)


def may_see_parties(caller: Caller, act_as: Sequence[str]) -> bool:
    """Whether the caller may see what was notarised for these parties."""
    return caller.read_as is None or not caller.read_as.isdisjoint(act_as)


def parties_shown(caller: Caller, act_as: tuple[str, ...]) -> tuple[str, ...]:
    """The parties that the caller may see, in their order. Who else acted stays hidden."""
    if caller.read_as is None or caller.read_as.issuperset(act_as):
        return act_as
    return tuple([party for party in act_as if party in caller.read_as])


def _check_parties(caller: Caller, parties: Iterable[str]) -> None:
    for party in parties:
        if caller.act_as is not None and party not in caller.act_as:
            raise _denied(f"the token does not grant to act as {party!r}")


def _denied(detail: str) -> BadRequest:
    return BadRequest(detail, Code.PERMISSION_DENIED)
