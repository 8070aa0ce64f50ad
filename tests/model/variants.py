"""Tempting designs, each without one rule of ours, and the schedules that break them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.explore import Found, explore
from tests.model.protocol import State, Violation, violations
from tests.model.reading import AnswersOn, Design, Fencing, Scenario, Submission

OURS = Design()
FIRST, SECOND = Submission("s1", "T1"), Submission("s2", "T2")
EARLY, IN_TIME = Submission("s1", "T1", early=True), Submission("s2", "T1")

RACE = Scenario((FIRST, SECOND), losses=2)
RESTART = Scenario((FIRST, SECOND), losses=1, restarts=1)
WINDOW = Scenario((EARLY, IN_TIME), publishes=True, losses=1)
FORGETFUL = Scenario((FIRST, SECOND), publishes=True, failovers=1)
REPEATS = Scenario((FIRST,), publishes=True, losses=1, repeats=1)


@dataclass(frozen=True, slots=True)
class Variant:
    """A design that goes wrong in `scenario`, in `steps` at the least, in a way that a client or auditor sees."""

    name: str
    design: Design
    scenario: Scenario
    violation: Violation
    steps: int


UNSAFE = (
    Variant(
        "lock only, decided in memory",
        Design(decides_in_memory=True, barriers=False, answers_on=AnswersOn.SEND),
        RACE,
        Violation.DOUBLE_SPEND,
        7,
    ),
    Variant(
        "lock re-checked right before produce",
        Design(decides_in_memory=True, checks_lock_before_send=True, barriers=False, answers_on=AnswersOn.SEND),
        RACE,
        Violation.DOUBLE_SPEND,
        9,
    ),
    Variant(
        "index loaded before fencing",
        Design(decides_in_memory=True, fencing=Fencing.AFTER_LOADING, barriers=False, answers_on=AnswersOn.ACK),
        RACE,
        Violation.DOUBLE_SPEND,
        11,
    ),
    Variant(
        "reply on broker ack, behind an epoch barrier",
        Design(decides_in_memory=True, answers_on=AnswersOn.ACK),
        RACE,
        Violation.DOUBLE_SPEND,
        13,
    ),
    Variant(
        "barrier in force not saved with the position",
        Design(saves_barrier=False),
        RESTART,
        Violation.ANSWER_NOT_IN_LOG,
        19,
    ),
    Variant(
        "old records re-judged on a newer index",
        Design(judges_by_offset=False),
        WINDOW,
        Violation.COMPLETION_NOT_IN_LOG,
        13,
    ),
    Variant(
        "epochs without activation ids",
        Design(activation_ids=False),
        FORGETFUL,
        Violation.ANSWER_NOT_IN_LOG,
        16,
    ),
    Variant(
        "submissions without numbers",
        Design(numbers_submissions=False),
        REPEATS,
        Violation.COMPLETED_TWICE,
        9,
    ),
)
FENCED_THEN_LOADED = Design(
    decides_in_memory=True, fencing=Fencing.BEFORE_LOADING, barriers=False, answers_on=AnswersOn.ACK
)
SCENARIOS = {
    "race": RACE,
    "restart": RESTART,
    "window": WINDOW,
    "forgetful": FORGETFUL,
    "repeats": REPEATS,
}


def break_it(variant: Variant) -> Found:
    """The shortest schedule that ends in the variant's violation."""
    wanted = variant.violation
    return explore(variant.design, variant.scenario, lambda state: _named(state, variant.design, {wanted}))


def break_ours(scenario: Scenario) -> Found:
    """Any violation of our design; there should be none in the whole space."""
    return explore(OURS, scenario, lambda state: _named(state, OURS, set(Violation)))


def _named(state: State, design: Design, wanted: set[Violation]) -> str | None:
    return next((violation.value for violation in violations(state, design) if violation in wanted), None)


def main() -> None:
    """Print every schedule, and how much of each space was looked at."""
    for variant in UNSAFE:
        print(f"UNSAFE {variant.name}: {break_it(variant)}")
    for name, scenario in SCENARIOS.items():
        print(f"OURS, {name}: {break_ours(scenario)}")


if __name__ == "__main__":
    main()
