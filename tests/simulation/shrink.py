"""Makes a failing plan small: drops faults, clients, operations and replicas while the run still fails the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tests.simulation.kinds import play
from tests.simulation.plan import Operation, Plan

_T = TypeVar("_T")
_RUNS_MAX = 600


def kind_of(violation: str) -> str:
    """The kind of a violation, without the names and numbers of this run."""
    return re.sub(r"'[^']*'|\bR\d\b|\d+(\.\d+)?", "*", violation.split("{", 1)[0])[:80]


def failure_of(plan: Plan) -> str:
    """The kind of the first violation of a run, or what broke the simulator; empty when the run is fine."""
    try:
        violations = play(plan).violations
    except Exception as error:
        return f"broke the simulator: {type(error).__name__}"
    return kind_of(violations[0]) if violations else ""


def shrink(plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Plan:
    """A smaller plan that fails as this one does."""
    wanted = failure_of(plan)
    if not wanted:
        raise ValueError("this plan does not fail")
    runs = 0

    def fails(candidate: Plan) -> bool:
        nonlocal runs
        runs += 1
        return runs <= _RUNS_MAX and failure_of(candidate) == wanted

    size = -1
    while size != (size := _size(plan)):
        plan = _with_fewer(plan.faults, plan, lambda p, kept: replace(p, faults=kept), fails)
        plan = _with_fewer(plan.clients, plan, lambda p, kept: replace(p, clients=kept), fails)
        plan = _with_fewer(
            plan.replicas, plan, lambda p, kept: replace(p, replicas=kept) if len(kept) > 1 else p, fails
        )
        for place in range(len(plan.clients)):
            plan = _with_fewer(
                plan.clients[place],
                plan,
                lambda p, kept, at=place: replace(p, clients=(*p.clients[:at], kept, *p.clients[at + 1 :])),
                fails,
            )
        plan = _single_transactions(plan, fails)
        tell(f"{runs} runs: {len(plan.faults)} faults, {plan.operations_count} operations")
    return _without_unused(plan)


def _size(plan: Plan) -> int:
    return len(plan.faults) + len(plan.clients) + len(plan.replicas) + plan.operations_count


def _with_fewer(
    items: Sequence[_T],
    plan: Plan,
    put: Callable[[Plan, tuple[_T, ...]], Plan],
    fails: Callable[[Plan], bool],
) -> Plan:
    """Leave out runs of items, long ones first."""
    kept = tuple(items)
    length = len(kept)
    while length:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + length :]
            candidate = put(plan, fewer)
            if candidate != plan and fails(candidate):
                plan, kept = candidate, fewer
            else:
                start += length
        length //= 2
    return plan


def _single_transactions(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Submissions of one transaction instead of a batch."""
    for place in range(len(plan.clients)):
        for at in range(len(plan.clients[place])):
            operations, operation = plan.clients[place], plan.clients[place][at]
            for number in range(len(operation.transactions) if len(operation.transactions) > 1 else 0):
                single = _only(operation, number)
                client = (*operations[:at], single, *operations[at + 1 :])
                candidate = replace(plan, clients=(*plan.clients[:place], client, *plan.clients[place + 1 :]))
                if fails(candidate):
                    plan = candidate
                    break
    return plan


def _without_unused(plan: Plan) -> Plan:
    """Leave out transactions that no client submits any more; changes nothing else."""
    used = sorted({number for client in plan.clients for operation in client for number in operation.transactions})
    place = {number: at for at, number in enumerate(used)}
    clients = tuple(
        tuple(replace(operation, transactions=tuple(place[n] for n in operation.transactions)) for operation in client)
        for client in plan.clients
    )
    return replace(plan, transactions=tuple(plan.transactions[number] for number in used), clients=clients)


def _only(operation: Operation, number: int) -> Operation:
    return replace(operation, transactions=(operation.transactions[number],), command=operation.command + number)
