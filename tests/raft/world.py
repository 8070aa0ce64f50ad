"""Nodes, links and disks, moved one command at a time; nothing happens by itself, so every run can be replayed.

A sender has one queue over all destinations. A message on a cut link is lost when it is dispatched, not when it is
sent; entries are read from the sender's log at dispatch, and a message whose entries are gone by then is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ha.raft.core import Raft
from ha.raft.membership import Configuration
from ha.raft.messages import AppendEntries, Effects, Entry, HardState, Kind, Message, NodeId, Outgoing, TxId
from ha.raft.settings import RaftSettings
from ha.raft.state import Leadership, Peer
from tests.raft.invariants import Invariants, chained

STRANGER = "stranger"
SCENARIO = RaftSettings(message_timeout_ms=10, election_timeout_ms=100)


@dataclass(slots=True, eq=False)
class Letter:
    """A message under way. `serial` names it when deliveries are scheduled."""

    to: NodeId
    message: Message
    serial: int


@dataclass(slots=True)
class Disk:
    """What survives a crash: the log and hard state as last synced, and perhaps some of what was written since."""

    log: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=lambda: HardState(0, None, 0))
    unsynced: list[int | Entry] = field(default_factory=list)  # a number cuts the log after it
    unsynced_hard_state: HardState | None = None
    is_full: bool = False

    def write(self, effects: Effects) -> None:
        if effects.hard_state is not None:
            self.unsynced_hard_state = effects.hard_state
        if effects.truncated_to is not None:
            self.unsynced.append(effects.truncated_to)
        self.unsynced += effects.appended

    def sync(self) -> None:
        self.crash(len(self.unsynced), keep_hard_state=True)

    def crash(self, kept: int, *, keep_hard_state: bool) -> None:
        """Lose all but the first `kept` writes since the last sync."""
        for write in self.unsynced[:kept]:
            if isinstance(write, int):
                del self.log[write:]
            else:
                self.log.append(write)
        if keep_hard_state and self.unsynced_hard_state is not None:
            self.hard_state = self.unsynced_hard_state
        self.unsynced, self.unsynced_hard_state = [], None


@dataclass(frozen=True, slots=True)
class Question:
    """Where the log ends, asked of a leader: its view and commit then, and the highest commit of anybody."""

    view: int
    round: int
    commit_idx: int
    committed_idx: int


class Node:
    """A core with its log, its outbox and its disk."""

    def __init__(self, node_id: NodeId, raft: Raft, disk: Disk | None) -> None:
        self.node_id = node_id
        self.raft = raft
        self.disk = disk  # None: all is durable at once, as in CCF, where nothing ever comes back
        self.is_up = True
        self.log: list[Entry] = []
        self.chain: list[int] = [0]  # item i stands for the whole log up to i
        self.outbox: list[Letter] = []
        self.held: list[Outgoing] = []  # not before the next sync
        self.cleanup: tuple[NodeId, ...] = ()
        self.question: Question | None = None  # the newest
        self.synced: TxId | None = None  # the end of the log at the newest sync

    @property
    def has_to_sync(self) -> bool:
        """Whether something waits for the disk."""
        disk = self.disk
        waits = disk is not None and (disk.unsynced or disk.unsynced_hard_state is not None or self.held)
        return bool(waits) and disk is not None and not disk.is_full

    def reload(self, raft: Raft, log: list[Entry]) -> None:
        self.raft, self.is_up, self.log, self.chain, self.synced = raft, True, [], [0], None
        self.extend(log)

    def extend(self, entries: list[Entry]) -> None:
        self.log += entries
        for entry in entries:
            self.chain.append(chained(self.chain[-1], entry))


class World:
    """All nodes. `seed` None: no jitter at all; else the draws of every node follow from it."""

    def __init__(self, settings: RaftSettings = SCENARIO, seed: int | None = None) -> None:
        self.settings = settings
        self.seed = seed
        self.durable = False
        self.nodes: dict[NodeId, Node] = {}
        self.linked: set[tuple[NodeId, NodeId]] = set()
        self.invariants = Invariants(self.nodes)
        self.serial = 0
        self.restarts = 0
        self.on_sent: Callable[[NodeId, Letter], None] = lambda src, letter: None

    # --------------------------------------------------------------------------------------------------------- nodes

    def create(self, node_id: NodeId) -> Node:
        if node_id in self.nodes:
            raise ValueError(f"node {node_id} exists")
        raft = Raft(node_id, self.settings, self._jitter(node_id), ticking=not self.durable)
        node = self.nodes[node_id] = Node(node_id, raft, Disk() if self.durable else None)
        return node

    def create_linked(self, node_id: NodeId) -> Node:
        """A node that is linked to all; one that exists is only linked."""
        for other in self.nodes.keys() - {node_id}:
            self.linked |= {(node_id, other), (other, node_id)}
        return self.nodes.get(node_id) or self.create(node_id)

    def _jitter(self, node_id: NodeId) -> Callable[[], float]:
        return (lambda: 0.0) if self.seed is None else random.Random(f"{self.seed}/{node_id}/{self.restarts}").random

    def leader(self, view: int | None = None) -> Node | None:
        """The leader of `view`; None: of the highest view that has one."""
        leaders = [
            node
            for node in self.nodes.values()
            if node.is_up and node.raft.leadership is Leadership.LEADER and view in {None, node.raft.view}
        ]
        return max(leaders, key=lambda node: node.raft.view, default=None)

    def create_members(self, node_ids: list[NodeId]) -> None:
        """Nodes that agree on a configuration before the first entry; nobody leads, and no link is made."""
        for node_id in node_ids:
            self.create(node_id)
        for node_id in node_ids:
            state = self.nodes[node_id].raft.state
            state.members.configurations = [Configuration(0, frozenset(node_ids))]
            state.peers = {other: Peer(sent_idx=0) for other in node_ids if other != node_id}

    # ----------------------------------------------------------------------- commands: a node that is down does nothing

    def start(self, node_id: NodeId) -> None:
        node = self.create(node_id)
        node.raft.force_become_leader()
        self.carry_out(node)
        self.replicate(node, Kind.RECONFIGURATION, nodes=(node_id,))

    def replicate(self, node: Node, kind: Kind, body: bytes = b"", nodes: tuple[NodeId, ...] = ()) -> bool:
        if not node.is_up:
            return False
        raft = node.raft
        taken = raft.replicate([Entry(raft.view, raft.last_idx + 1, kind, body, nodes)], raft.view)
        self.carry_out(node)
        return taken

    def tick(self, node: Node, ms: int) -> None:
        if node.is_up:
            led = node.raft.leadership is Leadership.LEADER
            node.raft.tick(ms)
            self.carry_out(node)
            if led:
                self.invariants.led_on(node)

    def leader_ended(self, node: Node) -> None:
        if node.is_up:
            node.raft.leader_ended()
            self.carry_out(node)

    def nominate(self, node: Node, to: NodeId | None = None) -> None:
        if node.is_up:
            node.raft.nominate(to)
            self.carry_out(node)

    def teach(self, node: Node, joiner: NodeId) -> None:
        if node.is_up:
            node.raft.teach(joiner)
            self.carry_out(node)

    def ask_end(self, node: Node) -> None:
        """Ask where the log ends; a node that does not know forgets its last question."""
        node.question = None
        if node.is_up and (number := node.raft.ask_end()) is not None:
            raft = node.raft
            node.question = Question(raft.view, number, raft.commit_idx, self.invariants.committed_idx)
            self.carry_out(node)

    def flush(self, node: Node) -> None:
        if node.is_up:
            node.raft.flush()
            self.carry_out(node)

    def deliver(self, src: NodeId, letter: Letter) -> bool:
        """Hand a letter over, if the link is whole and its entries are still there."""
        message, target = letter.message, self.nodes.get(letter.to)
        if target is None or not target.is_up or (src, letter.to) not in self.linked:
            return False
        if isinstance(message, AppendEntries) and message.idx > message.prev_idx:
            log = self.nodes[src].log
            if len(log) < message.idx:
                return False
            entries = tuple(log[message.prev_idx : message.idx])
            message = msgspec.structs.replace(message, entries=entries)
        self.hear(target, src, message)
        return True

    def hear(self, target: Node, src: NodeId, message: Message) -> None:
        if target.is_up:
            target.raft.receive(src, message)
            self.carry_out(target)

    def sync(self, node: Node) -> None:
        """Sync the disk, and send what waited for it. A full disk syncs nothing."""
        if node.disk is None or not node.is_up or node.disk.is_full:
            return
        self.sync_unreported(node)
        self._report_sync(node)
        held, node.held = node.held, []
        self._send(node, held)
        self.carry_out(node)

    def sync_unreported(self, node: Node) -> None:
        """Sync the disk; the core gets to know of it with `report_sync`, perhaps after what was synced is cut."""
        assert node.disk is not None and node.is_up
        node.disk.sync()
        node.synced = TxId(node.log[-1].view, node.log[-1].idx) if node.log else None

    def report_sync(self, node: Node) -> None:
        """Report the newest sync to the core."""
        self._report_sync(node)
        self.carry_out(node)

    def _report_sync(self, node: Node) -> None:
        if node.synced is not None:
            node.raft.synced(node.synced)

    def crash(self, node: Node, kept: int, *, keep_hard_state: bool) -> None:
        assert node.disk is not None, "nodes without a disk do not come back"
        node.disk.crash(kept, keep_hard_state=keep_hard_state)
        node.reload(node.raft, list(node.disk.log))
        node.is_up, node.held, node.disk.is_full = False, [], False  # what was sent is still under way
        self.invariants.crashed(node)

    def restart(self, node: Node) -> None:
        """Come back with what the disk has. Raises LogIncomplete."""
        assert node.disk is not None and not node.is_up
        self.restarts += 1
        jitter = self._jitter(node.node_id)
        raft = Raft.restored(node.node_id, self.settings, jitter, node.disk.hard_state, node.disk.log)
        node.reload(raft, list(node.disk.log))
        self.carry_out(node)

    def lose_disk(self, node: Node) -> None:
        """The node is gone for good: its id never comes back."""
        node.is_up, node.held, node.disk = False, [], Disk()
        node.log, node.chain = [], [0]
        self.invariants.lost.add(node.node_id)

    # ------------------------------------------------------------------------------------------------------- effects

    def carry_out(self, node: Node) -> None:
        """Do what the core wants, in the order that it demands, and look whether all promises still hold."""
        effects = node.raft.take()
        if effects.truncated_to is not None:
            self.invariants.truncating(node, effects.truncated_to)
            del node.log[effects.truncated_to :], node.chain[effects.truncated_to + 1 :]
        node.extend(effects.appended)
        if effects.cleanup:
            node.cleanup = effects.cleanup
        if node.disk is None:
            self._send(node, effects.messages)
        else:
            node.disk.write(effects)
            if node.disk.unsynced_hard_state is None and not node.held:
                self._send(node, [out for out in effects.messages if not _waits(node.disk, out)])
                node.held += [out for out in effects.messages if _waits(node.disk, out)]
            else:
                node.held += effects.messages
        self.invariants.look(node, effects)

    def _send(self, node: Node, messages: list[Outgoing]) -> None:
        for out in messages:
            if out.to == STRANGER:  # it reads nothing
                continue
            self.serial += 1
            letter = Letter(out.to, out.message, self.serial)
            node.outbox.append(letter)
            self.on_sent(node.node_id, letter)


def _waits(disk: Disk, out: Outgoing) -> bool:
    return out.durable_idx > 0 and bool(disk.unsynced)
