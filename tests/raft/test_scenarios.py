"""Every scenario holds, with fixed and adaptive batches and under jitter, and fails under the mutant of its rule."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.raft.mutants import MUTANTS
from tests.raft.scenarios import COMMANDS, PRINTING, ScenarioFailed, commands, run_in_all_variants, run_scenario

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.iterdir())
NAMED = os.environ.get("RAFT_SCENARIOS")
OTHERS = sorted(file for file in Path(NAMED).rglob("*") if file.is_file()) if NAMED else []
IN_UNIT_TESTS = {
    "truncates_twice",  # no messages of correct nodes can show it: see the mutant
    "invalid_in_same_view",
    "invalid_once_cut",
    "committed_by_index",
    "committed_once_here",
}

CCF_COMMANDS = set(
    """
    pre_vote_enabled start_node trust_node trust_nodes swap_node swap_nodes cleanup_nodes replicate emit_signature
    nominate_successor connect disconnect reconnect disconnect_node reconnect_node periodic_one periodic_all
    dispatch_one dispatch_all_once dispatch_all dispatch_single drop_pending drop_pending_to shuffle_one shuffle_all
    assert_detail assert_!detail assert_commit_idx assert_last_txid assert_config assert_absent_config
    assert_state_sync assert_commit_safety loop_until_sync state_one state_all summarise_log summarise_logs_all
    summarise_messages nodes create_new_node replicate_new_configuration
""".split()  # noqa: SIM905
)

THREE = """switch,resends,true
start_node,0
emit_signature,2
trust_nodes,2,1,2
emit_signature,2
periodic_one,0,10
dispatch_all
periodic_one,0,10
dispatch_all"""


def mutants_of(file: Path) -> list[str]:
    found = re.search("^# mutant: (.*)$", file.read_text(), re.MULTILINE)
    assert found is not None, f"{file.name} does not name a mutant"
    return found[1].split(", ")


PAIRS = [(file, name) for file in FILES for name in mutants_of(file)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_scenario(file: Path) -> None:
    run_in_all_variants(file.read_text())


@pytest.mark.parametrize(("file", "name"), PAIRS, ids=[f"{file.name}-{name}" for file, name in PAIRS])
def test_scenario_fails_under_the_mutant_of_its_rule(file: Path, name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises(ScenarioFailed):
        run_in_all_variants(file.read_text())


@pytest.mark.skipif(not NAMED, reason="RAFT_SCENARIOS names no folder")
@pytest.mark.parametrize("file", OTHERS or [Path(NAMED or ".")], ids=lambda file: file.name)
def test_scenario_of_others(file: Path) -> None:
    run_in_all_variants(file.read_text())


def test_every_mutant_is_paired_with_a_file_or_a_unit_test() -> None:
    assert {name for _, name in PAIRS} | IN_UNIT_TESTS == set(MUTANTS)


def test_the_language_is_whole() -> None:
    assert set(COMMANDS) >= CCF_COMMANDS
    assert set(PRINTING) <= CCF_COMMANDS


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("frobnicate,1", "unknown command frobnicate"),
        ("do_print", "unknown command"),
        ("assert_detail,0,retirement_phase,Ordered", "there is no retirement_phase"),
        ("assert_!detail,0,retirement_phase,Ordered", "there is no retirement_phase"),
        ("assert_!detail,0,current_view,2", "current_view is 2"),
        ("assert_detail,0,current_view,3", "current_view is 2"),
        ("assert_detail,7,current_view,3", "there is no node 7"),
        ("assert_commit_idx,0,3", "committed is 4"),
        ("assert_last_txid,0,2.5", "the last is 2.4"),
        ("assert_config,0,3,0,1", "the configuration at 3 is"),
        ("assert_config,0,2,0,1", "the configuration at 2 is None"),
        ("assert_absent_config,0,3", "is active"),
        ("replicate,3,x", "nobody leads view 3"),
        ("emit_signature,x", "ValueError"),
        ("start_node,7", "a node exists already"),
        ("create_new_node,1", "node 1 exists"),
        ("periodic_one,0", "TypeError"),
        ("swap_nodes,2,3,4", "neither in nor out"),
        ("switch,frobnicate,true", "there is no setting"),
    ],
)
def test_a_command_that_fails_fails_the_file(line: str, problem: str) -> None:
    with pytest.raises(ScenarioFailed, match=re.escape(problem)):
        run_scenario(f"{THREE}\n{line}")


def test_what_only_prints_and_what_only_looks() -> None:
    run_scenario(
        THREE
        + "\nstate_one,0\nstate_all\nsummarise_log,0\nsummarise_logs_all\nsummarise_messages,0,1"
        + "\nassert_state_sync\nassert_commit_safety,0\nassert_config,0,3,0,1,2\nassert_!detail,0,current_view,3"
    )


def test_comments_blanks_and_the_end_line() -> None:
    assert commands("a,1 # b\n\n  # c\nd,2  \n====\nunknown") == ["a,1", "d,2"]
    assert commands("a") == ["a"]  # no final newline


def test_every_run_ends_in_sync_or_fails() -> None:
    run_scenario(THREE + "\ndisconnect_node,2\nreplicate,2,a\nreplicate,latest,b")  # the links are healed
    with pytest.raises(ScenarioFailed, match="nobody leads"):
        run_scenario(THREE + "\ndisconnect_node,0\nperiodic_one,0,100")
    with pytest.raises(ScenarioFailed, match="nobody leads"):
        run_scenario("nodes,0,1\nreplicate,latest,skipped")


def test_dispatch_all_once_delivers_what_was_there_when_it_began() -> None:
    scenario = run_scenario(THREE)
    for line in ("disconnect,0,1", "periodic_one,0,10", "periodic_one,0,10", "dispatch_all_once"):
        scenario.run(line)
    assert scenario.world.nodes["0"].outbox == []
    assert len(scenario.world.nodes["2"].outbox) == 2  # its answers came too late for this round
    assert scenario.world.nodes["1"].outbox == []  # lost on the cut link


def test_an_entry_that_is_gone_at_dispatch_is_not_sent() -> None:
    scenario = run_scenario(THREE)
    scenario.run("replicate,2,dead")
    scenario.run("periodic_one,0,10")
    leader, follower = scenario.world.nodes["0"], scenario.world.nodes["2"]
    before = follower.raft.last_idx
    leader.raft.state.rollback(before)
    scenario.world.carry_out(leader)
    scenario.run("dispatch_single,0,2")
    assert follower.raft.last_idx == before


def test_nodes_without_a_start_elect_a_leader() -> None:
    run_scenario(
        "nodes,0,1,2\nconnect,0,1\nconnect,1,2\nconnect,0,2\nperiodic_one,1,100\ndispatch_all\nassert_detail,1,current_view,1"
        "\nreplicate,1,a\nemit_signature,1\nperiodic_one,1,10\ndispatch_all\nassert_commit_idx,1,2"
    )


def test_deprecated_creation_and_shuffling() -> None:
    run_scenario(
        THREE + "\ncreate_new_node,3\nreconnect_node,3\nreplicate_new_configuration,2,0,1,2,3\nemit_signature,2"
        "\nperiodic_all,10\nshuffle_one,0\nshuffle_all\ndispatch_all"
    )


@pytest.mark.parametrize(
    "command", ["offer,1,signature", "offer_configuration,1,1", "teach,1,9", "flush,1", "nominate,1,2"]
)
def test_a_node_that_is_switched_off_does_nothing(command: str) -> None:
    """Goal: seed 1002260 offered a signature to a leader that it had just switched off. Method: each such command."""
    scenario = run_scenario(THREE + "\nnominate_successor,0\ndispatch_all\nassert_detail,1,leadership_state,Leader")
    node = scenario.world.nodes["1"]
    scenario.run("create,9")
    scenario.run("lose_disk,1")
    node.outbox.clear()
    scenario.run(command)
    assert (node.log, node.outbox) == ([], [])
