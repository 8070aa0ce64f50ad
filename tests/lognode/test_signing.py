"""Signatures over the log: what is compared, what is verified, and what a node does that finds another log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.raft.core import LogIncomplete
from ha.raft.messages import AppendEntries, Entry, HardState, Kind, Message, NodeId, Outgoing, TxId
from replica.cli import log_node_members
from replica.log.raft import wire
from replica.log.raft.members import objection, standing
from replica.log.raft.node import LogNode
from replica.log.raft.opening import Opening
from replica.log.raft.operating import Membership
from replica.log.raft.outbox import Questions
from replica.log.raft.records import merkle_root
from replica.log.raft.segments import Job, SegmentLog, fresh
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.signing import LogDiffers, LogSignature, SignedLog, encode_keys, public_key_of, signed_text
from replica.log.raft.tree import LogTree
from replica.notary.signatures import signature_holds
from tests.lognode.sim_files import SimFiles

AT_MS = 1_700_000_000_000
SEEDS = {"r1.a": b"1" * 32, "r2.b": b"2" * 32}
KEYS = {node: public_key_of(seed) for node, seed in SEEDS.items()}


def leaf(number: int) -> bytes:
    return sha256(number.to_bytes(8, "big")).digest()


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_the_growing_tree_is_the_whole_tree(seed: int, steps: int) -> None:
    """Goal: the same root as RFC 6962's, whatever was cut off in between. Method: random growth, cuts and commits."""
    dice, tree, leaves, committed = Random(seed), LogTree(), list[bytes](), 0
    for _ in range(steps):
        match dice.choice(("grow", "grow", "keep", "cut", "forget")):
            case "grow":
                more = [leaf(dice.getrandbits(30)) for _ in range(dice.randint(0, 9))]
                tree.grow(more)
                leaves += more
            case "keep":
                tree.keep()
            case "cut":
                size = dice.randint(committed, len(leaves))
                tree.cut(size)
                del leaves[size:]
            case "forget":
                committed = dice.randint(committed, len(leaves))
                tree.forget(committed)
        assert tree.size == len(leaves)
        assert tree.root() == (merkle_root(leaves) if leaves else sha256(b"").digest())
    assert len(tree._leaves) <= len(leaves)


def test_what_is_committed_costs_no_memory() -> None:
    """Goal: a log of any length is signed in bounded memory. Method: grow, keep and forget; count what is left."""
    tree = LogTree()
    for number in range(1_000):
        tree.grow([leaf(number), leaf(-number % 7)])
        tree.keep()
        tree.forget(tree.size)
    assert (len(tree._leaves), len(tree._kept)) == (0, 1)


@dataclass
class Writer:
    """A leader's signed log."""

    node_id: str = "r1.a"
    log: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signed = SignedLog("g", self.node_id, SEEDS[self.node_id])
        self.sign([Entry(2, 1, Kind.RECONFIGURATION, encode_keys(KEYS), tuple(KEYS))])

    def sign(self, entries: Sequence[Entry], view: int = 2) -> None:
        self.log += [*entries, self.signed.sign(entries, view, AT_MS)]

    def write(self, *bodies: bytes, view: int = 2) -> None:
        self.sign([Entry(view, idx, body=body) for idx, body in enumerate(bodies, len(self.log) + 1)], view)


def reader(node_id: str = "r2.b") -> SignedLog:
    return SignedLog("g", node_id, SEEDS[node_id])


def test_another_node_verifies_what_one_signed() -> None:
    """Goal: roots and signatures hold, one by one, together, after a cut, and from the next leader. Method: each."""
    writer = Writer()
    writer.write(b"a", b"b")
    writer.write(b"c")
    for step in (1, 3, len(writer.log)):
        follower = reader()
        for at in range(0, len(writer.log), step):
            follower.append(writer.log[at : at + step])
        assert follower.root() == writer.signed.root()
    follower.append([Entry(2, len(writer.log) + 1, body=b"unsigned")])
    follower.cut(len(writer.log))
    next_signature = follower.sign([], 3, AT_MS)
    writer.signed.append([next_signature])
    assert msgspec.msgpack.decode(next_signature.body, type=LogSignature).node_id == "r2.b"
    assert list(reader().opened([*writer.log, next_signature], 5)) == [*writer.log, next_signature]


def replaced(entry: Entry, **fields: object) -> Entry:
    return msgspec.structs.replace(entry, **fields)


def other_signature(log: list[Entry], **fields: object) -> Entry:
    found = msgspec.msgpack.decode(log[-1].body, type=LogSignature)
    return replaced(log[-1], body=msgspec.msgpack.encode(msgspec.structs.replace(found, **fields)))


FORGERIES: dict[str, tuple[Callable[[list[Entry]], list[Entry]], str]] = {
    "another body": (lambda log: [*log[:-2], replaced(log[-2], body=b"B"), log[-1]], "the log before it has"),
    "another kind": (
        lambda log: [*log[:-2], replaced(log[-2], kind=Kind.RETIRED_COMMITTED, nodes=("r9.z",)), log[-1]],
        "the log before it has",
    ),
    "another view": (lambda log: [*log[:-1], replaced(log[-1], view=3)], "is not r1.a's"),
    "another signer": (lambda log: [*log[:-1], other_signature(log, node_id="r2.b")], "is not r2.b's"),
    "a stranger": (lambda log: [*log[:-1], other_signature(log, node_id="r9.z")], "is not r9.z's"),
    "another time": (lambda log: [*log[:-1], other_signature(log, at_ms=AT_MS + 1)], "is not r1.a's"),
    "another signature": (lambda log: [*log[:-1], other_signature(log, signature=bytes(64))], "is not r1.a's"),
    "no signature": (lambda log: [*log[:-1], replaced(log[-1], body=b"")], "cannot be read"),
    "no keys": (lambda log: [replaced(log[0], body=b""), *log[1:]], "no keys that can be read"),
    "a key is missing": (lambda log: [replaced(log[0], nodes=("r1.a", "r9.z")), *log[1:]], "another key for r9.z"),
    "a key changes": (
        lambda log: [
            *log[:-2],
            replaced(log[-2], kind=Kind.RECONFIGURATION, body=encode_keys({"r1.a": KEYS["r2.b"]}), nodes=("r1.a",)),
            log[-1],
        ],
        "another key for r1.a",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_log_that_was_not_signed_is_refused(what: str) -> None:
    """Goal: nothing in a log can be changed. Method: each change, appended at once and entry by entry."""
    writer = Writer()
    writer.write(b"a", b"b")
    change, why = FORGERIES[what]
    forged = change(writer.log)
    with pytest.raises(LogDiffers, match=why):
        reader().append(forged)
    with pytest.raises(LogDiffers, match=why):
        list(reader().opened(forged, 0))


def test_a_signature_is_of_its_group_and_place() -> None:
    """Goal: no signature serves elsewhere. Method: the text, with each part changed."""
    writer = Writer()
    found = msgspec.msgpack.decode(writer.log[-1].body, type=LogSignature)
    here = TxId(2, 2)
    texts = [
        signed_text("g", here, found),
        signed_text("h", here, found),
        signed_text("g", TxId(3, 2), found),
        signed_text("g", TxId(2, 3), found),
        signed_text("g", here, msgspec.structs.replace(found, node_id="r2.b")),
        signed_text("g", here, msgspec.structs.replace(found, root=bytes(32))),
        signed_text("g", here, msgspec.structs.replace(found, at_ms=found.at_ms + 1)),
    ]
    assert [signature_holds(KEYS["r1.a"], text, found.signature) for text in texts] == [True] + [False] * 6


# --------------------------------------------------------------------------------------------------------- in the node


def node_with(tmp_path: Path, log: list[Entry], commit_idx: int = 0) -> LogNode:
    files = SimFiles()
    fresh(files)
    segments = SegmentLog(files, 2**16)
    steps: list[int | list[Entry]] = [log] if log else []
    segments.carry_out(Job(HardState(2, None, 0), steps, commit_idx))
    settings = LogNodeSettings(group="g", name="r2", listen="127.0.0.1:1", data_dir=tmp_path)
    return LogNode(settings, Opening("g", "r2.b", SEEDS["r2.b"], files, 2**16).finished())


def message_of(log: list[Entry], prev_idx: int = 0) -> AppendEntries:
    return AppendEntries(2, prev_idx, 2 if prev_idx else 0, len(log), 2, 0, tuple(log[prev_idx:]))


async def test_a_node_acknowledges_nothing_that_differs_from_what_was_signed(tmp_path: Path) -> None:
    """Goal: the root is compared before anything is written or acknowledged. Method: a true message, a false one."""
    writer = Writer()
    writer.write(b"a")
    node = node_with(tmp_path, [])
    node.receive("r1.a", message_of(writer.log))
    assert (node._failure, node._job.steps) == (None, [writer.log])
    before = len(writer.log)
    writer.write(b"b")
    forged = [*writer.log[:before], replaced(writer.log[before], body=b"B"), writer.log[-1]]
    node.receive("r1.a", message_of(forged, before))
    assert isinstance(node._failure, LogDiffers)
    assert node._job.steps == [writer.log[:before]]
    assert node._outbox.done(1)[-1].durable_idx == before


async def test_a_disk_with_another_log_than_was_signed_is_refused(tmp_path: Path) -> None:
    """Goal: what was changed on disk, checksums and all, is noticed at the start. Method: write a changed log, open."""
    writer = Writer()
    writer.write(b"a")
    assert node_with(tmp_path, writer.log, 4).raft.last_idx == 4
    with pytest.raises(LogIncomplete, match="another log than was signed"):
        node_with(tmp_path, [*writer.log[:2], replaced(writer.log[2], body=b"A"), writer.log[3]])


class Sending:
    """Links that keep what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.connected = ()

    def can_send(self, to: NodeId) -> bool:
        return True

    def send(self, to: NodeId, frame: bytes) -> bool:
        self.sent.append(wire.decode(wire.messages, frame[4:]))
        return True


async def test_a_node_that_lags_does_not_keep_a_leader_from_its_heartbeats(tmp_path: Path) -> None:
    """Goal: old entries are read between other duties, and in order. Method: a burst, and what each turn sends."""
    writer = Writer()
    for number in range(30):
        writer.write(b"%d" % number)
    node, links = node_with(tmp_path, writer.log), Sending()
    node.links = links  # type: ignore[assignment]
    burst = [message_of(writer.log[:idx], idx - 3) for idx in range(3, 60, 3)]
    for message in burst:
        node._send(Outgoing("r1.a", message))
    heartbeat = AppendEntries(2, 60, 2, 60, 2, 0)
    node._send(Outgoing("r1.a", heartbeat))
    node._send(Outgoing("r3.c", heartbeat))
    assert links.sent == [heartbeat]  # to the node that does not lag
    for turn in range(1, len(burst) + 2):
        await asyncio.sleep(0)
        assert len(links.sent) == 1 + turn
    assert links.sent[1:] == [*burst, heartbeat]
    await asyncio.sleep(0)
    assert len(links.sent) == 2 + len(burst)


# ----------------------------------------------------------------------------------------------- members and questions


def test_how_many_more_may_fail() -> None:
    """Goal: the figures that operators see. Method: memberships, with who answers."""
    assert [standing("abc", set(live)).spare for live in ("abc", "ab", "a")] == [1, 0, -1]
    assert [standing("abcd", set(live)).spare for live in ("abcd", "abc")] == [1, 0]
    assert standing("a", {"a"}).spare == 0


def test_operators_see_the_old_and_the_new_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a change under way needs a majority of both. Method: what `notary log members` prints, in each state."""
    old, new, lost = standing("abc", set("abc")), standing("abde", set("abd")), standing("abc", set("a"))
    log_node_members._show(Membership("a", 4, (old, new), tuple("abde"), ()), False)
    printed = capsys.readouterr().out
    assert "in force: 3 of 3 answer; 1 more may fail" in printed
    assert "pending: 3 of 4 answer; 0 more may fail" in printed
    log_node_members._show(Membership("a", 4, (lost,), tuple("abc"), ()), False)
    assert "in force: 1 of 3 answer; nothing can be committed until 1 more answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("present", "nodes", "live", "why"),
    [
        (["abc"], "ab", "ab", None),  # the dead one leaves
        (["abc"], "ab", "bc", "only 1 answer, and 2 are needed; silent: a"),
        (["abc"], "abd", "abd", None),
        (["abc"], "a", "abc", None),
        (["abc"], "", "abc", "at least one"),
        (["abc", "abd"], "ab", "bc", "only 1 answer"),
        (["ab"], "abc", "ab", None),
        (["a"], "abc", "a", "silent: b, c"),
    ],
)
def test_a_change_that_nothing_could_commit_is_refused(
    present: list[str], nodes: str, live: str, why: str | None
) -> None:
    """Goal: nobody retires the majority. Method: memberships before and after, with who answers."""
    found = objection(present, nodes, set(live))
    assert found is None if why is None else why in str(found)


def test_a_question_is_answered_by_a_round_that_began_after_it() -> None:
    """Goal: no answer from before the question, none by a deposed leader. Method: questions, rounds, views."""
    questions: Questions[str] = Questions()
    questions.add("a")
    questions.begin(2, 1, 10)
    questions.add("b")
    assert questions.settle(2, 0, 99) == []
    assert questions.settle(2, 1, 9) == []  # not on this disk yet
    assert questions.settle(2, 1, 10) == [("a", 10)]
    questions.begin(2, 2, 12)
    questions.add("c")
    assert questions.settle(4, 9, 99) == [("b", None)]  # it leads again, but it did not in between
    assert questions.wait
    assert questions.settle(None, 0, 99) == [("c", None)]
    assert (len(questions), questions.wait) == (0, False)
