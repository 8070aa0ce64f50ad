"""Decides which requests lose a contested key: the only part of judging that needs the log's order, for few requests.

"The first request that names a state gets it" is wrong. A request gets all its states or none: when it is refused for
one, the others stay free for later requests. `A{x} B{x,y} C{y}`: B loses x to A, so C gets y.

A key is contested if one request wants to consume it and another, of another id or content, names it. Requests that
name contested keys are decided in log order by these keys alone, because no other request names their other keys.

Two more kinds of request are decided in log order:
- All that share a transaction id, those outside their windows included: whether one repeats what was notarised depends
  on the earlier ones. The states of a request outside its window still do not matter: it adds nothing in any case.
- All that share a command (commands.py): what one of them is, depends on which were accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from pipeline.judging.claims import CLOSED, CONSUMES, groups, joined, kinds, near, prefixes, taken
from pipeline.judging.commands import Command
from pipeline.judging.cursor import Array
from pipeline.judging.reasons import ACCEPTING, CONFLICT, DEDUPLICATED, DUPLICATE, NO_KEY, OTHER_COMMAND, REUSED, WINDOW
from replica.notary.acceptances import Acceptance, counts
from replica.notary.errors import InvariantBroken
from replica.notary.rules import TX_KEY


def contested(claims: Array, order: Array) -> Array:
    """The claims on states that are contested; those outside their window are passed over. Also all claims on each
    transaction id that several requests name, in whatever window. `order`: `in_order`."""
    claims = taken(claims, order[near(prefixes(claims)[order])])  # no other request names the key of any other claim
    inside = taken(claims, claims["role"] & CLOSED == 0)
    states = taken(inside, kinds(inside) != TX_KEY[0])
    return joined(_rivals(states), _shared(taken(claims, kinds(claims) == TX_KEY[0])))


def _shared(claims: Array) -> Array:
    """Of claims by key, those on keys that several requests name."""
    group, starts = groups(claims["key"])
    is_shared = np.diff(np.append(starts, len(claims))) > 1
    return taken(claims, is_shared[group])


def _rivals(claims: Array) -> Array:
    """Of claims by key, those on keys that are contested."""
    group, starts = groups(claims["key"])
    if not len(starts):
        return claims
    rivals = claims["stands"] != claims["stands"].take(starts)[group]
    consumed = claims["role"] & CONSUMES != 0
    is_contested = np.logical_or.reduceat(rivals, starts) & np.logical_or.reduceat(consumed, starts)
    return taken(claims, is_contested[group])


Claim = tuple[bytes, int, bytes]
"""Key, role, and what the key would stand for."""


class Contender(NamedTuple):
    """What is contested of one request: its claims, and its command if that is shared."""

    offset: int
    claims: Sequence[Claim]
    command: Command | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the request is outside its window."""
        return any(role & CLOSED for _, role, _ in self.claims) or (self.command is not None and self.command.is_closed)


class Resolver:
    """Decides requests of which something is contested, given in log order: all that is contested of each together.

    Holds what is taken of that: memory for contested keys and shared commands, not for the log.
    """

    def __init__(self) -> None:
        self._consumed: set[bytes] = set()
        self._notarised: dict[bytes, tuple[bytes, int]] = {}  # by key: content digest, and where
        self._newest: dict[bytes, Acceptance] = {}
        self._last = -1

    def decide(self, one: Contender) -> tuple[int | None, int]:
        """The reason against a request, None if it is notarised at its own offset; and where its transaction was first
        notarised, if the reason is that it was. Raises InvariantBroken when the offset does not ascend."""
        if one.offset <= self._last:
            raise InvariantBroken(f"contested records out of order: {one.offset} after {self._last}")
        self._last = one.offset
        reason = None if one.command is None else self._against_command(one.command)
        if one.command is not None and one.command.is_barred:
            return (DEDUPLICATED if reason == DEDUPLICATED else NO_KEY), self._first_of(one.command)
        if reason is None:
            reason = self._against_claims(one)
        if reason is None:
            self._consumed.update(key for key, role, _ in one.claims if role & CONSUMES and key[:1] != TX_KEY)
            self._notarised.update((key, (digest, one.offset)) for key, _, digest in one.claims if key[:1] == TX_KEY)
        if one.command is not None and reason in ACCEPTING:
            self._newest[one.command.change_id] = one.command.acceptance
        first = next((self._notarised[key] for key, _, _ in one.claims if key in self._notarised), None)
        return reason, one.offset if first is None else first[1]

    def _first_of(self, command: Command) -> int:
        """Where the transaction was notarised first that the command was accepted with. A request whose key is not in
        force claims nothing, so a transaction that one other request names is not contested."""
        newest = self._newest.get(command.change_id, command.acceptance)
        notarised = self._notarised.get((TX_KEY + newest.tx_id).rstrip(b"\0"))  # as numpy returns keys
        return newest.offset if notarised is None else notarised[1]

    def _against_command(self, command: Command) -> int | None:
        """What is judged before all else."""
        newest, own = self._newest.get(command.change_id), command.acceptance
        if newest is None:
            return None
        if not counts(newest, own.judged_us, command.deduplication_us, command.after):
            return None
        if (newest.tx_id, newest.content_digest) == (own.tx_id, own.content_digest):
            return DEDUPLICATED
        return None if command.is_named_after_tx and newest.tx_id == own.tx_id else OTHER_COMMAND

    def _against_claims(self, one: Contender) -> int | None:
        for key, _, digest in one.claims:
            if key in self._notarised:
                return DUPLICATE if self._notarised[key][0] == digest else REUSED
        if any(key in self._consumed for key, _, _ in one.claims):
            return CONFLICT
        return WINDOW if one.is_closed else None


class Resolved(NamedTuple):
    """What became of all contenders, as offsets. `dropped`: those that get nothing. `unusual`: accepted though outside
    the window, or not accepted though inside. `by_command`: rows of EXCEPTION. `seen`: how many claims they had."""

    dropped: list[int]
    unusual: list[int]
    by_command: list[tuple[int, int, int]]
    seen: int


def resolve(found: Iterable[tuple[int, Claim | Command]]) -> Resolved:
    """Decide requests from all that is contested, in log order: (offset, claim or command)."""
    resolver, seen = Resolver(), 0
    dropped: list[int] = []
    unusual: list[int] = []
    by_command: list[tuple[int, int, int]] = []
    for offset, together in groupby(found, key=itemgetter(0)):
        one = _contender(offset, together)
        seen += len(one.claims)
        reason, notarised_offset = resolver.decide(one)
        if reason is not None:
            dropped.append(offset)
        if (reason in ACCEPTING) == one.is_closed:
            unusual.append(offset)
        if reason in (DEDUPLICATED, OTHER_COMMAND):
            by_command.append((offset, reason, notarised_offset))
    return Resolved(dropped, unusual, by_command, seen)


def _contender(offset: int, found: Iterable[tuple[int, Claim | Command]]) -> Contender:
    claims: list[Claim] = []
    command = None
    for _, one in found:
        if isinstance(one, Command):
            command = one
        else:
            claims.append(one)
    return Contender(offset, claims, command)
