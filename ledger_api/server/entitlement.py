"""Who may read what: one pure rule for completions, updates and the history of a state."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `user_id` None: any user's; `read_as` None: any party's."""

    user_id: str | None = None
    read_as: frozenset[str] | None = None


def everybody(_: object) -> Caller:
    """The caller of an API that asks nobody who he is: for a port that only the participant's own use."""
    return Caller()


def may_see(caller: Caller, user_id: str, act_as: Sequence[str]) -> bool:
    """Whether the caller may be told of a submission of this user for these parties: it is his, and of his parties."""
    if caller.user_id is not None and caller.user_id != user_id:
        return False
    return may_see_parties(caller, act_as)


def may_see_parties(caller: Caller, act_as: Sequence[str]) -> bool:
    """Whether the caller may be told what was notarised for these parties."""
    return caller.read_as is None or not caller.read_as.isdisjoint(act_as)
