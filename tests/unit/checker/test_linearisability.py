"""The checker against a brute-force search: what it passes must be linearisable.

The search knows nothing of the log. It tries every order of at most eight operations that respects real time, with
operations of unknown outcome present or absent, on a notary of four lines (Wing and Gong).
"""

from __future__ import annotations

from hashlib import sha256
from random import Random

import msgspec
import pytest

from replica.checker.history import ConflictText, Event, Invoke, Ok, Refused, Unknown
from tests.worlds.checker_world import World, good_world
from tests.worlds.notary_logs import tx

OPERATIONS_MAX = 8
State = tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]  # notarised (id, digest); consumed (state, id)
Answer = tuple[object, ...] | None


class Attempt(msgspec.Struct, frozen=True):
    """One operation of a small history."""

    sent: Invoke
    digest: str
    answer: Answer
    answered_ns: float


def operations_of(world: World) -> list[Attempt]:
    ends = {(e.process, e.op): e for e in world.history if not isinstance(e, Invoke)}
    return [_attempt(e, ends.get((e.process, e.op))) for e in world.history if isinstance(e, Invoke)]


def _attempt(sent: Invoke, end: Event | None) -> Attempt:
    digest = "" if sent.content is None else repr((sent.content.inputs, sent.content.references))
    match end:
        case Ok():
            return Attempt(sent, digest, ("NOTARISED",), end.at_ns)
        case Refused():
            conflicts = frozenset((c.state, c.consumed_by_hash, c.usage) for c in end.conflicts)
            return Attempt(sent, digest, (end.code, conflicts), end.at_ns)
        case _:
            return Attempt(sent, digest, None, float("inf"))


def _apply(state: State, attempt: Attempt) -> tuple[State, Answer]:
    """A notary, sequential and naive."""
    notarised, consumed = state
    sent, digests, owners = attempt.sent, dict(notarised), dict(consumed)
    if sent.content is None:
        return state, ("NOTARISED",) if sent.tx_id in digests else ("TX_NOT_FOUND", frozenset())
    if sent.tx_id in digests:
        return state, ("NOTARISED",) if digests[sent.tx_id] == attempt.digest else ("TX_ID_REUSED", frozenset())
    conflicts = frozenset(
        (ref, sha256(bytes.fromhex(owners[ref])).hexdigest(), usage)
        for usage, refs in (("input", sent.content.inputs), ("reference", sent.content.references))
        for ref in refs
        if ref in owners
    )
    if conflicts:
        return state, ("STATE_CONFLICT", conflicts)
    spent = consumed | {(ref, sent.tx_id) for ref in sent.content.inputs}
    return (notarised | {(sent.tx_id, attempt.digest)}, spent), ("NOTARISED",)


def is_linearisable(attempts: list[Attempt]) -> bool:
    """Whether some order explains every definite answer."""
    seen: set[tuple[frozenset[int], State]] = set()

    def explained(left: frozenset[int], state: State) -> bool:
        if all(attempts[at].answer is None for at in left):
            return True
        if (left, state) in seen:
            return False
        seen.add((left, state))
        first_answer = min(attempts[at].answered_ns for at in left)
        for at in left:
            attempt = attempts[at]
            if attempt.sent.at_ns > first_answer:
                continue  # another one was answered before this was sent
            after, answer = _apply(state, attempt)
            if attempt.answer in (None, answer) and explained(left - {at}, after):
                return True
        return False

    return explained(frozenset(range(len(attempts))), (frozenset(), frozenset()))


def small_world(seed: int) -> World | None:
    world = good_world(seed, steps=22, ids=4, states=4, windows=False, unlogged=False, repeats=False)
    return world if len(operations_of(world)) <= OPERATIONS_MAX else None


def lie_in(world: World, random: Random) -> None:
    """Make one answer, or the times of one operation, something else."""
    ends = [at for at, event in enumerate(world.history) if isinstance(event, Ok | Refused)]
    if not ends:
        return
    at = random.choice(ends)
    event = world.history[at]
    sent = next(n for n, e in enumerate(world.history) if isinstance(e, Invoke) and _name(e) == _name(event))
    match random.choice(["unknown", "refuse", "accept", "winner", "later", "earlier"]):
        case "unknown":
            world.history[at] = Unknown(event.process, event.op, event.at_ns, "TIMEOUT")
        case "refuse" if isinstance(event, Ok):
            conflict = ConflictText(f"{'ab' * 32}:0", sha256(tx(random.randrange(4))).hexdigest(), "input")
            world.history[at] = Refused(*_name(event), event.at_ns, "STATE_CONFLICT", event.record_offset, (conflict,))
        case "accept" if isinstance(event, Refused) and event.record_offset is not None:
            digest = next(row.content_digest for row in world.completions if row.log_offset == event.record_offset)
            offset = event.record_offset
            world.history[at] = Ok(*_name(event), event.at_ns, digest.hex(), offset, offset)
        case "winner" if isinstance(event, Refused) and event.conflicts:
            other = msgspec.structs.replace(
                event.conflicts[0], consumed_by_hash=sha256(tx(random.randrange(4))).hexdigest()
            )
            world.history[at] = msgspec.structs.replace(event, conflicts=(other, *event.conflicts[1:]))
        case "later":
            delay_ns = random.randint(1, 100)
            for place in (sent, at):
                moved = world.history[place]
                world.history[place] = msgspec.structs.replace(moved, at_ns=moved.at_ns + delay_ns)
        case "earlier":
            early_ns = random.randint(1, 100)
            for place in (sent, at):
                moved = world.history[place]
                world.history[place] = msgspec.structs.replace(moved, at_ns=max(0, moved.at_ns - early_ns))


def _name(event: Event) -> tuple[str, int]:
    return event.process, event.op


def test_good_runs_are_linearisable() -> None:
    """Goal: search and runs agree on what is right. Method: small good runs."""
    worlds = [world for seed in range(150) if (world := small_world(seed))]
    assert len(worlds) > 50
    assert all(is_linearisable(operations_of(world)) for world in worlds)


@pytest.mark.thorough
def test_what_is_not_linearisable_is_found() -> None:
    """Goal: the checker is sound. Method: one to three lies in small runs; whatever it passes, the search explains."""
    wrong = passed = 0
    for seed in range(2_500):
        world = small_world(seed)
        if world is None:
            continue
        random = Random(seed)
        for _ in range(random.randint(1, 3)):
            lie_in(world, random)
        found = bool(world.check().findings)
        linearisable = is_linearisable(operations_of(world))
        assert found or linearisable, seed
        wrong += not linearisable
        passed += not found
    assert wrong > 200
    assert passed > 100  # some lies are invisible, and then harmless
