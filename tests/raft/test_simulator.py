"""The simulator: seeds in which all promises hold, mutants that it notices, and runs that replay."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.few import few_quick
from tests.raft.mutants import MUTANTS
from tests.raft.mutants.pins import pins
from tests.raft.scenarios import Scenario, ScenarioFailed, commands
from tests.raft.shrink import problem_of, shrink
from tests.raft.simulator import simulate

CHUNK = 25
QUICK_SEEDS = 200
SEEDS_MAX = 2_000  # seeds within which each pinned mutant is noticed

# The bugs of "Smart Casual Verification of CCF", NSDI 2025, in its order.
PAPER = (
    "union_tally",
    "commits_earlier_views",
    "refusal_moves_match",
    "truncates_without_conflict",
    "acknowledges_its_last",
    "premature_retirement",
)


@pytest.mark.parametrize("first", few_quick(range(0, QUICK_SEEDS, CHUNK), 2))
def test_promises_hold_in_any_weather(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run = simulate(seed)
        assert run.problem is None, f"{run.problem}\n{run.scenario()}"


@pytest.mark.parametrize("name", sorted(pins()))
def test_the_simulator_notices(name: str) -> None:
    """`python -m tests.raft.mutants --write` finds the seeds again when the weather changes."""
    with MUTANTS[name].applied():
        assert simulate(pins()[name]).problem is not None


@pytest.mark.thorough
def test_nothing_is_wrong_with_the_seeds_that_notice() -> None:
    """Goal: a seed that fails without any mutant notices nothing. Seed 481 once stood for 16 mutants."""
    for seed in sorted(set(pins().values())):
        run = simulate(seed)
        assert run.problem is None, f"{run.problem}\n{run.scenario()}"


def test_enough_is_noticed_and_soon() -> None:
    assert set(PAPER) <= pins().keys() <= MUTANTS.keys()
    assert len(pins()) >= len(PAPER) + 20
    assert max(pins().values()) < SEEDS_MAX


def test_a_view_is_kept_by_entries_whose_hard_state_is_torn() -> None:
    """Goal: seed 1102092 was blamed for a lone leader that came back with entries, and without its newest view."""
    assert simulate(1_102_092).problem is None


def test_a_silent_node_that_the_bound_holds_back_gets_new_entries() -> None:
    """Goal: seed 3012247 found a node that had committed more than its leader counted as sent, and got nothing more."""
    assert simulate(3_012_247).problem is None
    with MUTANTS["held_back_for_good"].applied():
        assert simulate(3_012_247).problem is not None


def test_a_seed_plays_the_same_run_again() -> None:
    assert simulate(7).lines == simulate(7).lines


def test_a_failing_run_is_a_scenario_that_replays_it() -> None:
    """It fails at the same command, and so does what the shrinker leaves of it, which is a small part."""
    name = "union_tally"
    with MUTANTS[name].applied():
        run = simulate(pins()[name])
        assert run.problem is not None
        lines = commands(run.scenario())
        scenario = Scenario()
        with pytest.raises(ScenarioFailed) as error:
            for line in lines:
                scenario.run(line)
        assert str(error.value) == run.problem
        assert problem_of(lines[-1:]) != problem_of(lines)


def test_a_shrunk_scenario_fails_in_the_same_way() -> None:
    lines = ["start_node,0", "emit_signature,2", "periodic_one,0,10", "replicate,2,a", "periodic_one,0,10"]
    lines += ["assert_commit_idx,0,3"]
    assert shrink(lines) == ["start_node,0", "assert_commit_idx,0,3"]  # figures do not count


@pytest.mark.thorough
def test_every_misfortune_strikes() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1_000, 1_060):
        counts += simulate(seed).counts
    wanted = {
        "deliver",
        "drop",
        "repeat",
        "cut",
        "mend",
        "crash",
        "restart",
        "lose_disk",
        "disk_full",
        "create",
        "teach",
    }
    wanted |= {"nominate_successor", "offer_configuration", "lost", "stalled", "rivals", "switched off", "committed"}
    wanted |= {
        "winners cut off",
        "voters struck",
        "writers struck",
        "answered",
        "cores silent",
        "leader_ended",
        "ends feared",
        "disks lied",
        "stranger_says",
    }
    assert wanted <= counts.keys()


def test_an_election_among_many_that_cannot_win_takes_its_time() -> None:
    """Goal: seed 4001079 was blamed for a core that is slow. Without pre-vote, 14 nodes stand in turn; one can win."""
    assert simulate(4_001_079).problem is None
