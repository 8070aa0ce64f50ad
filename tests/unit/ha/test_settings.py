"""The safety argument in the settings, and the time budget that follows from them."""

from __future__ import annotations

import pytest

from ha.errors import SettingsError
from ha.settings import ElectionSettings, EndSeen, Fault, detection_budget


def test_the_defaults_are_those_of_the_manual() -> None:
    """Goal: a changed default is noticed. Method: the published ones."""
    settings = ElectionSettings()
    assert (settings.lease_s, settings.heartbeat_s, settings.margin_s, settings.grace_s) == (3.0, 0.4, 0.5, 0.0)
    assert settings.confirmed_age_max_s == 2.5


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"heartbeat_s": 0.61}, "heartbeat_s"),
        ({"answer_max_s": 2.11}, "answer_max_s"),
        ({"drain_max_s": 2.11}, "drain_max_s"),
        ({"margin_s": 0.049}, "tick_s"),
        ({"statement_max_s": 2.0}, "statement_max_s"),
        ({"lease_s": 2.8}, "answer_max_s"),
        ({"retry_s": 2.0}, "polls"),
        ({"retry_jitter": 1.1}, "retry_jitter"),
        ({"switchover_wait_s": 1.0}, "switchover_wait_s"),
        ({"lease_s": 0.0}, "lease_s"),
        ({"grace_s": -0.1}, "grace_s"),
        ({"tick_s": 0.0}, "tick_s"),
    ],
)
def test_each_rule_of_the_argument_is_checked(changed: dict[str, float], named: str) -> None:
    """Goal: settings that break the argument do not start. Method: break one rule at a time, just so."""
    with pytest.raises(SettingsError, match=named) as refused:
        ElectionSettings(**changed)
    assert not refused.value.retry


@pytest.mark.parametrize(
    ("fault", "first", "total_s"), [(Fault.STOPPED, 2.0, 3.35), (Fault.KILLED, 1.0, 2.85), (Fault.FROZEN, 3.0, 4.85)]
)
def test_the_budget_adds_up(fault: Fault, first: float, total_s: float) -> None:
    """Goal: the worst case per fault, grace only where it applies. Method: poll every 0.2 s, grace of half a second."""
    steps = detection_budget(ElectionSettings(tick_s=0.05, retry_s=0.2, grace_s=0.5), fault)
    assert steps[0].worst_s == first
    assert sum(step.worst_s for step in steps) == pytest.approx(total_s)
    assert all(step.name and step.setting for step in steps)


ON_ONE_MACHINE = EndSeen(0.05, 0.2, "message_timeout_ms")
ON_THREE = EndSeen(0.05, None, "message_timeout_ms")


@pytest.mark.parametrize(
    ("fault", "seen", "first"),
    [
        (Fault.STOPPED, ON_THREE, 2.0),
        (Fault.KILLED, ON_THREE, 0.05),
        (Fault.KILLED_WITH_NODE, ON_ONE_MACHINE, 0.2),
        (Fault.KILLED_WITH_NODE, ON_THREE, 3.4),
        (Fault.FROZEN, ON_ONE_MACHINE, 3.4),
    ],
)
def test_log_nodes_see_a_process_end_but_not_one_that_is_frozen(fault: Fault, seen: EndSeen, first: float) -> None:
    """Goal: the budget says who sees which end. Method: the first step, with nodes on one machine and on three."""
    assert detection_budget(ElectionSettings(kind="lease"), fault, seen)[0].worst_s == first


@pytest.mark.parametrize(("fault", "first"), [(Fault.STOPPED, 2.0), (Fault.KILLED, 3.4), (Fault.FROZEN, 3.4)])
def test_a_lease_over_the_log_finds_a_dead_holder_by_its_silence(fault: Fault, first: float) -> None:
    """Goal: the budget of a lease is not that of a database's lock. Method: the first step of each fault."""
    assert detection_budget(ElectionSettings(kind="lease"), fault)[0].worst_s == first


def test_there_are_two_kinds_of_leadership() -> None:
    """Goal: a misspelt kind does not start. Method: another word."""
    with pytest.raises(SettingsError, match="kind"):
        ElectionSettings(kind="etcd")  # type: ignore[arg-type]
