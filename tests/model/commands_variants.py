"""Designs that decide commands in the log, each without one rule of ours, and the schedules that break them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.commands import (
    OURS,
    Rules,
    Scenario,
    State,
    Submission,
    Violation,
    successors,
    violations,
)
from tests.model.explore import Found, search

FIRST = Submission("s1", "c1", "T1", period=1)
AGAIN, LATER = Submission("s2", "c1", "T1", period=1), Submission("s3", "c1", "T1", period=1)
OTHER, THIRD = Submission("s2", "c1", "T2", period=1), Submission("s3", "c1", "T3", period=1)
SAME_TX, NEXT_TX = Submission("s2", "c2", "T1", period=1), Submission("s3", "c2", "T2", period=1)
BETWEEN = Submission("s2", "c2", "T2", period=0)

RETRIED = Scenario((FIRST, AGAIN, LATER), many_writers=True, failovers=0)
REUSED = Scenario((FIRST, OTHER, THIRD), many_writers=True, failovers=0)
TWO_COMMANDS = Scenario((FIRST, SAME_TX, NEXT_TX), clock_max=1, many_writers=True)
LAGGING_CLOCK = Scenario((FIRST, BETWEEN, THIRD), lag=2)
DEPOSED = Scenario((FIRST, OTHER, Submission("s3", "c1", "T2", period=3)), unnoticed=True)
AFTER = Scenario(
    (FIRST, Submission("s2", "c1", "T2", 9, after=1), Submission("s3", "c1", "T3", 9, after=1)),
    failovers=0,
    clock_max=0,
)
PERIODS = Scenario((Submission("s1", "c1", "T1", 0), OTHER), many_writers=True, clock_max=1)
FAILED_OVER = Scenario((FIRST, OTHER), failovers=2, clock_max=1)


@dataclass(frozen=True, slots=True)
class Variant:
    """Rules that go wrong in `scenario`, in `steps` at the least, in a way that a client or auditor sees."""

    name: str
    rules: Rules
    scenario: Scenario
    violation: Violation
    steps: int


UNSAFE = (
    Variant("acceptance forgotten", Rules(indexes_acceptances=False), REUSED, Violation.ACCEPTED_TWICE, 8),
    Variant("period by the reader's clock", Rules(by_log_time=False), REUSED, Violation.ACCEPTED_TWICE, 10),
    Variant("newest taken before filtering", Rules(filters_first=False), REUSED, Violation.OTHER_COMPLETION, 16),
    Variant("expired acceptance believed", Rules(expires=False), REUSED, Violation.REFUSED_FREE, 10),
    Variant(
        "deduplicated verdict remembered", Rules(deduplicated_adds_none=False), RETRIED, Violation.REFUSED_FREE, 12
    ),
    Variant(
        "accepted only where the transaction is new",
        Rules(repeats_add_one=False),
        TWO_COMMANDS,
        Violation.ACCEPTED_TWICE,
        10,
    ),
    Variant("offset of the acceptance answered", Rules(first_offset=False), RETRIED, Violation.OTHER_OFFSET, 12),
    Variant("refused from the index", Rules(refuses_by_log=False), DEPOSED, Violation.WRONG_ANSWER, 12),
    Variant("first acceptance decides for ever", Rules(takes_newest=False), REUSED, Violation.ACCEPTED_TWICE, 12),
    Variant("acceptance at the named offset counts", Rules(above_after=False), AFTER, Violation.REFUSED_FREE, 9),
    Variant("judged by the record's own stamp", Rules(highest_stamp=False), LAGGING_CLOCK, Violation.REFUSED_FREE, 20),
    Variant("period of the accepted one", Rules(own_period=False), PERIODS, Violation.ACCEPTED_TWICE, 9),
    Variant(
        "refused from the index by the own clock alone",  # a success is true whatever the clock
        Rules(looks_up_by_log_time=False, refuses_by_log=False),
        LAGGING_CLOCK,
        Violation.WRONG_ANSWER,
        19,
    ),
)
SCENARIOS = {
    "retried": RETRIED,
    "reused": REUSED,
    "two commands": TWO_COMMANDS,
    "lagging clock": LAGGING_CLOCK,
    "failed over": FAILED_OVER,
    "deposed": DEPOSED,
    "after an offset": AFTER,
    "periods": PERIODS,
}


def break_it(variant: Variant) -> Found:
    """The shortest schedule that ends in the variant's violation."""
    return _explore(variant.rules, variant.scenario, {variant.violation})


def break_ours(scenario: Scenario) -> Found:
    """Any violation of our rules; there should be none in the whole space."""
    return _explore(OURS, scenario, set(Violation))


def _explore(rules: Rules, scenario: Scenario, wanted: set[Violation]) -> Found:
    def looks_for(state: State) -> str | None:
        return next((violation.value for violation in violations(state, rules) if violation in wanted), None)

    return search(State(), lambda state: successors(state, rules, scenario), looks_for)


def main() -> None:
    """Print every schedule, and how much of each space was looked at."""
    for variant in UNSAFE:
        print(f"UNSAFE {variant.name}: {break_it(variant)}")
    for name, scenario in SCENARIOS.items():
        print(f"OURS, {name}: {break_ours(scenario)}")


if __name__ == "__main__":
    main()
