"""Runs scenarios: files of commands in the language of CCF's consensus tests, one command a line.

    python -m tests.raft.scenarios FILE...      # or RAFT_SCENARIOS=folder pytest tests/raft

Every run ends with `loop_until_sync`, and all invariants are checked after every command. Beside CCF's commands there
are some of our own, below: they are for what CCF's nodes cannot do, such as coming back from a disk, and for one-way
cuts, duplicates and reordering.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ha.raft.core import LogIncomplete
from ha.raft.messages import AppendEntries, Kind, Message, NodeId, RequestPreVote, RequestVote
from ha.raft.quorums import majority
from ha.raft.settings import RaftSettings
from tests.raft.invariants import Unchecked, Violated, answered
from tests.raft.world import SCENARIO, STRANGER, Node, World

SYNC_ROUNDS_MAX = 20
DISPATCH_ROUNDS_MAX = 5


class ScenarioFailed(AssertionError):
    """A command failed, an assertion did not hold, or a promise was broken."""


class Scenario:
    """Carries commands out on a world. Each `do_NAME` is the command of that name."""

    def __init__(self, settings: RaftSettings = SCENARIO, seed: int | None = None) -> None:
        self.world = World(settings, seed)
        self.lines: list[str] = []
        self._shuffle = random.Random(seed or 0)

    def run(self, line: str) -> None:
        """Carry one command out. Raises ScenarioFailed."""
        self.lines.append(line)
        name, *arguments = line.split(",")
        command = COMMANDS.get(name)
        if command is None:
            raise ScenarioFailed(f"line {len(self.lines)}: unknown command {name}")
        try:
            command(self, *arguments)
        except (ScenarioFailed, Violated) as error:
            raise ScenarioFailed(f"line {len(self.lines)}: {line}: {error}") from error
        except Exception as error:
            raise ScenarioFailed(f"line {len(self.lines)}: {line}: {type(error).__name__}: {error}") from error

    # --------------------------------------------------------------------------------------------------------- nodes

    def do_pre_vote_enabled(self, value: str) -> None:
        self.do_switch("pre_vote", value)

    def do_start_node(self, node_id: str) -> None:
        _demand(not self.world.nodes, "a node exists already")
        self.world.start(node_id)

    def do_nodes(self, *node_ids: str) -> None:
        self.world.create_members(list(node_ids))

    def do_create_new_node(self, node_id: str) -> None:
        self.world.create(node_id)

    def do_trust_node(self, view: str, node_id: str) -> None:
        self.do_trust_nodes(view, node_id)

    def do_trust_nodes(self, view: str, *node_ids: str) -> None:
        for node_id in node_ids:
            self.world.create_linked(node_id)
        self._reconfigure(view, self.world.nodes)

    def do_swap_node(self, view: str, out: str, node_id: str) -> None:
        self.do_swap_nodes(view, "in", node_id, "out", out)

    def do_swap_nodes(self, view: str, *words: str) -> None:
        lists: dict[str, list[str]] = {"in": [], "out": []}
        _demand(words[:1] in {("in",), ("out",)}, "neither in nor out")
        for word in words:
            if word in lists:
                current = lists[word]
            else:
                current.append(word)
        for node_id in lists["in"]:
            self.world.create_linked(node_id)
        self._reconfigure(view, self.world.nodes.keys() - set(lists["out"]))

    def do_replicate_new_configuration(self, view: str, *node_ids: str) -> None:
        self._reconfigure(view, node_ids)

    def do_cleanup_nodes(self, view: str, *node_ids: str) -> None:
        self._replicate(view, Kind.RETIRED_COMMITTED, nodes=node_ids)

    def do_replicate(self, view: str, data: str) -> None:
        self._replicate(view, Kind.RAW, data.encode())

    def do_emit_signature(self, view: str) -> None:
        self._replicate(view, Kind.SIGNATURE)

    def do_nominate_successor(self, node_id: str) -> None:
        self.world.nominate(self._node(node_id))

    def _reconfigure(self, view: str, node_ids: Iterable[NodeId]) -> None:
        self._replicate(view, Kind.RECONFIGURATION, nodes=tuple(sorted(node_ids)))

    def _replicate(self, view: str, kind: Kind, body: bytes = b"", nodes: tuple[NodeId, ...] = ()) -> None:
        leader = self._leader(view)
        if leader is not None:
            _demand(self.world.replicate(leader, kind, body, nodes), f"{leader.node_id} did not take the entry")

    def _leader(self, view: str) -> Node | None:
        """The leader that a command means; `latest` may be nobody, and then the command does nothing."""
        if view == "latest":
            return self.world.leader()
        leader = self.world.leader(int(view))
        _demand(leader is not None, f"nobody leads view {view}")
        return leader

    def _node(self, node_id: str) -> Node:
        node = self.world.nodes.get(node_id)
        if node is None:
            raise ScenarioFailed(f"there is no node {node_id}")
        return node

    # --------------------------------------------------------------------------------------------------------- links

    def do_connect(self, one: str, other: str) -> None:
        self.world.linked |= {(one, other), (other, one)}

    def do_disconnect(self, one: str, other: str) -> None:
        self.world.linked -= {(one, other), (other, one)}

    def do_disconnect_node(self, node_id: str) -> None:
        for other in self.world.nodes.keys() - {node_id}:
            self.do_disconnect(node_id, other)

    def do_reconnect_node(self, node_id: str) -> None:
        for other in self.world.nodes.keys() - {node_id}:
            self.do_connect(node_id, other)

    # ---------------------------------------------------------------------------------------------- time and delivery

    def do_periodic_one(self, node_id: str, ms: str) -> None:
        self.world.tick(self._node(node_id), int(ms))

    def do_periodic_all(self, ms: str) -> None:
        for node_id in sorted(self.world.nodes):
            self.do_periodic_one(node_id, ms)

    def do_dispatch_one(self, node_id: str) -> None:
        outbox = self._node(node_id).outbox
        while outbox:
            self.world.deliver(node_id, outbox.pop(0))

    def do_dispatch_all_once(self) -> None:
        lengths = [(node_id, len(self.world.nodes[node_id].outbox)) for node_id in sorted(self.world.nodes)]
        for node_id, length in lengths:
            outbox, sent = self.world.nodes[node_id].outbox, 0
            while outbox and sent < length:
                sent += self.world.deliver(node_id, outbox.pop(0))

    def do_dispatch_all(self) -> None:
        for _ in range(DISPATCH_ROUNDS_MAX):
            if not any(node.outbox for node in self.world.nodes.values()):
                return
            self.do_dispatch_all_once()

    def do_dispatch_single(self, src: str, dst: str) -> None:
        self.do_deliver(src, dst, "0")

    def do_drop_pending(self, src: str) -> None:
        self._node(src).outbox.clear()

    def do_drop_pending_to(self, src: str, dst: str) -> None:
        node = self._node(src)
        node.outbox[:] = [letter for letter in node.outbox if letter.to != dst]

    def do_shuffle_one(self, node_id: str) -> None:
        self._shuffle.shuffle(self._node(node_id).outbox)

    def do_shuffle_all(self) -> None:
        for node_id in sorted(self.world.nodes):
            self.do_shuffle_one(node_id)

    # ----------------------------------------------------------------------------------------------------- assertions

    def do_assert_detail(self, node_id: str, name: str, value: str) -> None:
        self._assert_detail(node_id, name, value, equal=True)

    def do_assert_no_detail(self, node_id: str, name: str, value: str) -> None:
        self._assert_detail(node_id, name, value, equal=False)

    def _assert_detail(self, node_id: str, name: str, value: str, *, equal: bool) -> None:
        details = self._node(node_id).raft.details()
        _demand(name in details, f"there is no {name}")
        found = details[name]
        text = str(found).lower() if isinstance(found, bool) else str(found)
        _demand((text == value) is equal, f"{name} is {text}")

    def do_assert_commit_idx(self, node_id: str, idx: str) -> None:
        found = self._node(node_id).raft.commit_idx
        _demand(found == int(idx), f"committed is {found}")

    def do_assert_last_txid(self, node_id: str, txid: str) -> None:
        raft = self._node(node_id).raft
        found = f"{raft.state.log.view_of(raft.last_idx)}.{raft.last_idx}"
        _demand(found == txid, f"the last is {found}")

    def do_assert_config(self, node_id: str, idx: str, *node_ids: str) -> None:
        found = self._configurations(node_id).get(int(idx))
        _demand(found == frozenset(node_ids), f"the configuration at {idx} is {found and sorted(found)}")

    def do_assert_absent_config(self, node_id: str, idx: str) -> None:
        _demand(int(idx) not in self._configurations(node_id), f"a configuration at {idx} is active")

    def _configurations(self, node_id: str) -> dict[int, frozenset[NodeId]]:
        return {c.idx: c.nodes for c in self._node(node_id).raft.state.members.configurations}

    def do_assert_state_sync(self) -> None:
        problem = _difference(list(self.world.nodes.values()))
        _demand(problem is None, str(problem))

    def do_assert_commit_safety(self, node_id: str) -> None:
        node = self._node(node_id)
        idx = node.raft.commit_idx
        for configuration_idx, members in self._configurations(node_id).items():
            if configuration_idx <= idx:
                known = [self.world.nodes[member].chain for member in members if member in self.world.nodes]
                holders = sum(len(chain) > idx and chain[idx] == node.chain[idx] for chain in known)
                _demand(holders >= majority(len(members)), f"{idx} is on {holders} of {len(members)} nodes")

    def do_loop_until_sync(self) -> None:
        """The highest leader signs and heals the links of the active nodes; then they must come to agree."""
        leader = self.world.leader()
        if leader is None:
            raise ScenarioFailed("nobody leads")
        active = [
            node for node in self.world.nodes.values() if node.is_up and node.raft.state.members.retirement is None
        ]
        self._replicate(str(leader.raft.view), Kind.SIGNATURE)
        for node in active:
            self.do_reconnect_node(node.node_id)
        for _ in range(SYNC_ROUNDS_MAX):
            self.world.tick(leader, self.world.settings.message_timeout_ms)
            self._sync_disks()
            self.do_dispatch_all()
            self._sync_disks()
            problem = _difference(active)
            if problem is None:
                return
        raise ScenarioFailed(f"the active nodes do not agree: {problem}")

    def _sync_disks(self) -> None:
        for node in self.world.nodes.values():
            self.world.sync(node)

    # ---------------------------------------------------------------------------------------------------- our own

    def do_switch(self, name: str, value: str) -> None:
        """A setting, for nodes created afterwards."""
        _demand(name in {setting.name for setting in fields(RaftSettings)}, f"there is no setting {name}")
        parsed: Any = value == "true" if value in {"true", "false"} else int(value)
        changed: dict[str, Any] = {name: parsed}
        self.world.settings = replace(self.world.settings, **changed)

    def do_disks(self, value: str) -> None:
        """Nodes created afterwards have disks, which sync on command, and survive a crash."""
        self.world.durable = value == "true"
        self.do_switch("durable", value)

    def do_seed(self, value: str) -> None:
        """The seed of all jitter, for nodes created afterwards."""
        self.world.seed = int(value)

    def do_create(self, node_id: str) -> None:
        """A node that is linked to all, and in no configuration yet."""
        self.world.create_linked(node_id)

    def do_teach(self, src: str, node_id: str) -> None:
        self.world.teach(self._node(src), node_id)

    def do_offer_configuration(self, node_id: str, *members: str) -> None:
        """Replicate a configuration on this node; it may refuse."""
        self.world.replicate(self._node(node_id), Kind.RECONFIGURATION, nodes=tuple(members))

    def do_offer(self, node_id: str, kind: str, data: str = "") -> None:
        """Replicate on this node, whatever it is; it may refuse."""
        nodes = tuple(data.split()) if kind == "retired_committed" else ()
        self.world.replicate(self._node(node_id), Kind[kind.upper()], b"" if nodes else data.encode(), nodes)

    def do_flush(self, node_id: str) -> None:
        self.world.flush(self._node(node_id))

    def do_ask_end(self, node_id: str) -> None:
        """Ask this node where the log ends."""
        self.world.ask_end(self._node(node_id))

    def do_heard_core(self, node_id: str) -> None:
        """The core beside this node shows that it is alive."""
        self._node(node_id).raft.heard_core()

    def do_leader_ended(self, node_id: str) -> None:
        """This node learns that its leader's process has ended, or believes so."""
        self.world.leader_ended(self._node(node_id))

    def do_stranger_says(self, dst: str, kind: str, view: str) -> None:
        """A node that no configuration names sends a heartbeat, or asks for a vote with the longest log of all."""
        messages: dict[str, Message] = {
            "heartbeat": AppendEntries(int(view), 0, 0, 0, 0, 0),
            "vote": RequestVote(int(view), 1_000_000, int(view)),
            "pre_vote": RequestPreVote(int(view), 1_000_000, int(view)),
        }
        self.world.hear(self._node(dst), STRANGER, messages[kind])

    def do_assert_answered(self, node_id: str, value: str) -> None:
        """Whether its newest question is answered."""
        _demand(answered(self._node(node_id)) is (value == "true"), f"the question is not answered: {value}")

    def do_nominate(self, src: str, to: str) -> None:
        self.world.nominate(self._node(src), to)

    def do_cut(self, src: str, dst: str) -> None:
        """One way only."""
        self.world.linked.discard((src, dst))

    def do_mend(self, src: str, dst: str) -> None:
        self.world.linked.add((src, dst))

    def do_deliver(self, src: str, dst: str, place: str) -> None:
        """The message at this place of those from src to dst, counted from 0."""
        outbox = self._node(src).outbox
        letters = [letter for letter in outbox if letter.to == dst]
        if int(place) < len(letters):
            letter = letters[int(place)]
            outbox.remove(letter)
            self.world.deliver(src, letter)

    def do_repeat(self, src: str, dst: str, place: str) -> None:
        """As `deliver`, but the message stays under way as well."""
        letters = [letter for letter in self._node(src).outbox if letter.to == dst]
        if int(place) < len(letters):
            self.world.deliver(src, letters[int(place)])

    def do_drop(self, src: str, dst: str, place: str) -> None:
        outbox = self._node(src).outbox
        letters = [letter for letter in outbox if letter.to == dst]
        if int(place) < len(letters):
            outbox.remove(letters[int(place)])

    def do_sync(self, node_id: str) -> None:
        self.world.sync(self._node(node_id))

    def do_sync_unreported(self, node_id: str) -> None:
        """The disk syncs, and the node does not know it before `report_sync`."""
        self.world.sync_unreported(self._node(node_id))

    def do_report_sync(self, node_id: str) -> None:
        self.world.report_sync(self._node(node_id))

    def do_crash(self, node_id: str, kept: str, hard_state: str) -> None:
        """`kept`: how many of the writes since the last sync survive; `hard_state`: true or false, whether it does."""
        self.world.crash(self._node(node_id), int(kept), keep_hard_state=hard_state == "true")

    def do_restart(self, node_id: str) -> None:
        self.world.restart(self._node(node_id))

    def do_sync_all(self) -> None:
        self._sync_disks()

    def do_cut_disk(self, node_id: str, idx: str) -> None:
        """A node that is down loses the end of its log, which had been synced."""
        node = self._node(node_id)
        assert node.disk is not None and not node.is_up
        del node.disk.log[int(idx) :]

    def do_set_back(self, node_id: str, idx: str) -> None:
        """A node that is down gets an older copy of its disk, with the log up to idx and the commit of that time."""
        node = self._node(node_id)
        assert node.disk is not None and not node.is_up
        del node.disk.log[int(idx) :]
        signed = max((entry.idx for entry in node.disk.log if entry.kind is Kind.SIGNATURE), default=0)
        node.disk.hard_state = node.disk.hard_state._replace(commit_idx=signed)
        self.world.invariants.lost.add(node_id)
        self.world.invariants.crashed(node)

    def do_promises_broken(self) -> None:
        """A disk was set back in a way that breaks promises: from now on only what the scenario asserts is checked."""
        self.world.invariants = Unchecked(self.world.nodes)

    def do_assert_withdrawn(self, node_id: str, value: str) -> None:
        found = self._node(node_id).raft.withdrawn
        _demand(str(found) == value, f"it is {found}")

    def do_restart_refused(self, node_id: str) -> None:
        """The node finds its own disk too short, and does not come back."""
        try:
            self.world.restart(self._node(node_id))
        except LogIncomplete:
            self.world.lose_disk(self._node(node_id))
            return
        raise ScenarioFailed("it came back")

    def do_lose_disk(self, node_id: str) -> None:
        self.world.lose_disk(self._node(node_id))

    def do_disk_full(self, node_id: str, value: str) -> None:
        node = self._node(node_id)
        assert node.disk is not None
        node.disk.is_full = value == "true"

    def do_assert_recovered(self) -> None:
        """Somebody leads, nothing is pending, and all members whose disks are not lost agree on all."""
        problem = self.unrecovered()
        _demand(problem is None, f"no recovery: {problem}")

    def unrecovered(self) -> str | None:
        """What `assert_recovered` finds wrong; None: nothing."""
        leader = self.world.leader()
        if leader is None:
            return "nobody leads"
        configurations = leader.raft.state.members.configurations
        if len(configurations) > 1:
            return f"{len(configurations) - 1} configurations are pending on {leader.node_id}"
        if leader.raft.commit_idx < leader.raft.last_idx:
            return f"{leader.node_id} has {leader.raft.last_idx} entries, {leader.raft.commit_idx} committed"
        members = sorted(configurations[0].nodes - self.world.invariants.lost)
        return _difference([self.world.nodes[member] for member in members])

    def do_assert_match(self, node_id: str, peer: str, idx: str) -> None:
        found = self._node(node_id).raft.state.peers[peer].match_idx
        _demand(found == int(idx), f"the match of {peer} is {found}")

    def do_assert_vote(self, node_id: str, voted_for: str) -> None:
        found = self._node(node_id).raft.state.voted_for
        _demand(str(found) == voted_for, f"voted for {found}")

    def do_assert_pending(self, src: str, dst: str, count: str) -> None:
        """This many messages are under way."""
        found = sum(letter.to == dst for letter in self._node(src).outbox)
        _demand(found == int(count), f"{found} messages are under way")

    def do_assert_should_sign(self, node_id: str, value: str) -> None:
        found = self._node(node_id).raft.should_sign
        _demand(found is (value == "true"), f"it is {found}")

    def do_assert_removable(self, node_id: str, *nodes: str) -> None:
        found = self._node(node_id).raft.removable_nodes
        _demand(found == nodes, f"removable are {found}")

    def do_assert_cleanup(self, node_id: str, *nodes: str) -> None:
        """The nodes that this leader last asked to be named in a retired_committed entry."""
        found = self._node(node_id).cleanup
        _demand(found == nodes, f"to clean up are {found}")

    def do_assert_peer(self, node_id: str, peer: str, value: str) -> None:
        found = peer in self._node(node_id).raft.state.peers
        _demand(found is (value == "true"), f"it is {found}")

    def do_print(self, *_: str) -> None:
        """Commands that only print: the state is in the failure's text here."""


PRINTING = ("state_one", "state_all", "summarise_log", "summarise_logs_all", "summarise_messages")
COMMANDS: dict[str, Callable[..., Any]] = {
    name.removeprefix("do_"): method for name, method in vars(Scenario).items() if name.startswith("do_")
}
COMMANDS |= {"reconnect": Scenario.do_connect, "assert_!detail": Scenario.do_assert_no_detail}
COMMANDS |= dict.fromkeys(PRINTING, Scenario.do_print)
del COMMANDS["assert_no_detail"], COMMANDS["print"]


def _demand(holds: bool, problem: str) -> None:
    if not holds:
        raise ScenarioFailed(problem)


def _difference(nodes: list[Node]) -> str | None:
    """What keeps these nodes from being in the same state; None: nothing."""
    first = nodes[0]
    for other in nodes[1:]:
        for name in ("view", "last_idx", "commit_idx"):
            ours, theirs = getattr(first.raft, name), getattr(other.raft, name)
            if ours != theirs:
                return f"{name}: {first.node_id} has {ours}, {other.node_id} has {theirs}"
        if first.chain != other.chain:
            return f"the logs of {first.node_id} and {other.node_id} differ"
    return None


def commands(text: str) -> list[str]:
    """The commands of a file: no comments, no blanks at the end, nothing after a line of `====`."""
    lines: list[str] = []
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        if raw.startswith("===="):
            break
        if line:
            lines.append(line)
    return lines


def run_scenario(text: str, settings: RaftSettings = SCENARIO, seed: int | None = None) -> Scenario:
    """Run a whole file. Raises ScenarioFailed."""
    scenario = Scenario(settings, seed)
    for line in commands(text):
        scenario.run(line)
    scenario.run("loop_until_sync")
    return scenario


VARIANTS = [
    (replace(SCENARIO, batch_is_fixed=is_fixed), seed) for is_fixed in (True, False) for seed in (None, *range(1, 11))
]


def run_in_all_variants(text: str) -> None:
    """Run a file with fixed and adaptive batches, without jitter and with ten seeds of it. Raises ScenarioFailed."""
    for settings, seed in VARIANTS:
        try:
            run_scenario(text, settings, seed)
        except ScenarioFailed as error:
            batches = "fixed" if settings.batch_is_fixed else "adaptive"
            raise ScenarioFailed(f"{batches} batches, jitter {seed}: {error}") from error


def main() -> int:
    """Run the files named; 1 if any fails."""
    failed = False
    for name in sys.argv[1:]:
        try:
            run_in_all_variants(Path(name).read_text())
        except ScenarioFailed as error:
            failed = True
            print(f"{name}: {error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
