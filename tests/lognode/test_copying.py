"""Whole segments copied from peers: the same log afterwards, whatever a peer sends, and wherever the disk stops."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from ha.raft.core import LogIncomplete, Raft
from ha.raft.messages import Entry, HardState, Kind
from replica.log.raft.copying import SegmentRefused, _Copy
from replica.log.raft.notes import Seal
from replica.log.raft.opening import Opening
from replica.log.raft.records import decode_file_header, encode, root_of
from replica.log.raft.segments import Job, SegmentLog, fresh, segment_name
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.signing import SignedLog, encode_keys, public_key_of
from replica.notary.errors import LogUnavailable
from replica.notary.words import UNSAID, NewWord, Word, encode_word, fold
from tests.lognode.sim_files import Crash, SimFiles
from tests.lognode.test_signing import AT_MS, KEYS, Writer, replaced

NEW, NEW_SEED = "r9.z", b"9" * 32
SEGMENT_BYTES = 4_096


def written(turns: int = 60) -> list[Entry]:
    """A log over two views, with members that change: r3 joins, and leads the second view."""
    writer = Writer()
    for turn in range(turns):
        writer.write(*(b"%d/%d" % (turn, at) * 9 for at in range(turn % 7)))
    keys = KEYS | {"r3.c": public_key_of(b"3" * 32)}
    writer.sign([Entry(2, len(writer.log) + 1, Kind.RECONFIGURATION, encode_keys(keys), tuple(keys))])
    third = SignedLog("g", "r3.c", b"3" * 32)
    third.append(writer.log)
    log = list(writer.log)
    for turn in range(turns):
        entries = [Entry(4, idx, body=b"%d" % turn * 40) for idx in range(len(log) + 1, len(log) + 5)]
        entries[1] = said(entries[1], f"name-{turn % 4}", log) if turn % 3 else entries[1]
        log += [*entries, third.sign(entries, 4, AT_MS)]
    return log


def said(instead_of: Entry, name: str, before: Sequence[Entry]) -> Entry:
    """A word in place of that record, which replaces the one in force."""
    word = NewWord(name, words_of(before).get(name, UNSAID).version, b"%d" % instead_of.idx)
    return Entry(instead_of.view, instead_of.idx, Kind.WORD, encode_word(word))


def words_of(log: Sequence[Entry]) -> dict[str, Word]:
    """The words in force after a log that is committed."""
    words: dict[str, Word] = {}
    for entry in log:
        if entry.kind is Kind.WORD:
            fold(words, entry.idx, entry.body)
    return words


LOG = written()


class Peer:
    """A node with sealed segments, asked without a network. `lies` may change an answer; it dies after `pieces`."""

    def __init__(self, log: Sequence[Entry] = LOG, *, segment_bytes: int = SEGMENT_BYTES, together: int = 10) -> None:
        self.files = SimFiles()
        fresh(self.files)
        self.log = SegmentLog(self.files, segment_bytes)
        for at in range(0, len(log), together):
            self.log.carry_out(Job(HardState(log[at].view, None, 0), [list(log[at : at + together])], at))
        while (segment := self.log.to_seal(len(log))) is not None:
            self.log.seal(segment)
        self.pieces_left = 1_000
        self.seal_of: Callable[[Seal], Seal] = lambda seal: seal
        self.data_of: Callable[[Seal, bytes], bytes] = lambda _, data: data

    async def find_sealed(self, idx: int) -> Seal | None:
        seal = self.log.sealed_with(idx)
        return None if seal is None else self.seal_of(seal)

    async def read_sealed(self, first_idx: int, at: int, size: int) -> bytes:
        self.pieces_left -= 1
        if self.pieces_left < 0:
            raise LogUnavailable("gone")
        seal = self.log.sealed_with(first_idx)
        assert seal is not None
        return self.data_of(seal, self.log.read_sealed(first_idx, 0, 2**30))[at : at + size]

    def last_sealed_idx(self) -> int:
        return max(seal.last_idx for idx in range(1, self.log.last_idx) if (seal := self.log.sealed_with(idx)))


class Joiner:
    """A new node's disk."""

    def __init__(self, files: SimFiles | None = None) -> None:
        self.files = files or SimFiles()
        if not self.files.names():
            fresh(self.files)
        self.opened = Opening("g", NEW, NEW_SEED, self.files, SEGMENT_BYTES).finished()

    async def copy(self, peer: Peer, first: Entry = LOG[0]) -> None:
        copy = _Copy(self.files, self.opened, first, peer, 5.0)  # type: ignore[arg-type]
        await copy.run()

    def check(self, last_idx: int) -> None:
        """What it has is the log up to there: now, for a core, and opened again."""
        again = Joiner(SimFiles({name: bytes(found.data) for name, found in self.files.now.items()}))
        want = SignedLog("g", NEW, NEW_SEED)
        want.append(LOG[:last_idx])
        for opened in (self.opened, again.opened):
            assert list(opened.log.entries()) == LOG[:last_idx]
            assert opened.signed.root() == want.root()
            assert opened.log.hard_state.commit_idx == last_idx
            raws = [entry.idx for entry in LOG[:last_idx] if entry.kind is Kind.RAW]
            assert opened.log.raw_upto(last_idx) == len(raws)
            assert [opened.log.idx_of_raw(at, last_idx) for at in range(len(raws))] == raws
            settings = LogNodeSettings(group="g", name="r9", listen="127.0.0.1:1", data_dir=Path("."))
            raft = Raft.restored(NEW, settings.raft(), lambda: 0.0, opened.log.hard_state, opened.shape)
            whole = Raft.restored(NEW, settings.raft(), lambda: 0.0, opened.log.hard_state, LOG[:last_idx])
            assert raft.details() == whole.details()
            assert (raft.last_idx, raft.commit_idx) == (last_idx, whole.commit_idx)
            assert raft.view_history() == whole.view_history()
            assert opened.words.under("") == words_of(LOG[:last_idx])
        self.opened.signed.extended()
        assert self.opened.signed.keys == want.keys


async def test_a_peers_segments_are_the_same_log_here() -> None:
    """Goal: entries, offsets, tree, keys and core as if all had come one by one. Method: copy all, open again."""
    joiner, peer = Joiner(), Peer()
    await joiner.copy(peer)
    joiner.check(peer.last_sealed_idx())
    rest = LOG[peer.last_sealed_idx() :]
    joiner.opened.log.carry_out(Job(None, [rest], len(LOG)))
    joiner.opened.signed.append(rest)
    joiner.opened.log.committed(len(LOG))
    assert list(joiner.opened.log.entries()) == LOG


@pytest.mark.parametrize("pieces", range(0, 12, 2))
async def test_another_peer_goes_on_where_one_ended(pieces: int) -> None:
    """Goal: a peer that dies costs nothing that came whole. Method: it ends mid-copy; another has other boundaries."""
    joiner, first, second = Joiner(), Peer(), Peer(segment_bytes=3_000, together=7)
    first.pieces_left = pieces
    with pytest.raises(LogUnavailable):
        await joiner.copy(first)
    assert joiner.opened.log.last_idx < first.last_sealed_idx()
    await joiner.copy(second)
    joiner.check(second.last_sealed_idx())


def forged_file(seal: Seal, peer: Peer, change: Callable[[list[Entry]], list[Entry]]) -> bytes:
    """A peer's file with other entries, and CRCs that are right."""
    data = peer.log.read_sealed(seal.first_idx, 0, 2**30)
    header = decode_file_header(data)
    assert header is not None
    entries = change(peer.log.read(seal.first_idx, seal.last_idx))
    return header.encode() + b"".join(encode(header.seed, entry) for entry in entries)


class Forger(Peer):
    """Its files have other entries; its seals fit them."""

    def __init__(self, change: Callable[[list[Entry]], list[Entry]], log: Sequence[Entry] = LOG) -> None:
        super().__init__(log)
        self.data_of = lambda seal, _: forged_file(seal, self, change)
        self.seal_of = self._fitting
        self._change = change

    def _fitting(self, seal: Seal) -> Seal:
        data = forged_file(seal, self, self._change)
        entries = self._change(self.log.read(seal.first_idx, seal.last_idx))
        return Seal(seal.first_idx, entries[-1].idx, len(data), sha256(data).digest(), root_of(entries))


def one_body(entries: list[Entry]) -> list[Entry]:
    at = next(place for place, entry in enumerate(entries) if entry.kind is Kind.RAW)
    return [*entries[:at], replaced(entries[at], body=b"forged" * 9), *entries[at + 1 :]]


def usurped() -> list[Entry]:
    """A log that goes on with a member whom nobody made one, and who signs that."""
    log, seed = LOG[:40], b"7" * 32
    while log[-1].kind is not Kind.SIGNATURE:
        log = log[:-1]
    signed = SignedLog("g", "r7.x", seed)
    signed.append(log)
    keys = KEYS | {"r7.x": signed.public_key}
    added = [Entry(2, len(log) + 1, Kind.RECONFIGURATION, encode_keys(keys), tuple(keys))]
    log = [*log, *added, signed.sign(added, 2, AT_MS)]
    for _ in range(60):
        entries = [Entry(2, len(log) + 1, body=b"forged" * 20)]
        log += [*entries, signed.sign(entries, 2, AT_MS)]
    return log


def changed_seal(**fields: object) -> Peer:
    peer = Peer()
    peer.seal_of = lambda seal: msgspec.structs.replace(seal, **fields)
    return peer


def changed_data(change: Callable[[bytes], bytes]) -> Peer:
    peer = Peer()
    peer.data_of = lambda _, data: change(data)
    return peer


def other_log() -> list[Entry]:
    writer = Writer.__new__(Writer)
    writer.node_id, writer.log = "r1.a", []
    writer.signed = SignedLog("g", "r1.a", b"8" * 32)
    keys = {"r1.a": writer.signed.public_key}
    writer.sign([Entry(2, 1, Kind.RECONFIGURATION, encode_keys(keys), tuple(keys))])
    for _ in range(60):
        writer.write(b"of another log" * 9)
    return writer.log


def zeroed() -> Peer:
    peer = changed_data(lambda data: bytes(len(data)))
    peer.seal_of = lambda seal: msgspec.structs.replace(seal, file_digest=sha256(bytes(seal.size)).digest())
    return peer


LIARS: dict[str, tuple[Callable[[], Peer], str]] = {
    "a bit flipped": (lambda: changed_data(lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:]), "SHA-256"),
    "cut short": (lambda: changed_data(lambda data: data[:-9]), "bytes at 0 of a file"),
    "another body, all digests right": (lambda: Forger(one_body), "signed"),
    "entries left out": (lambda: Forger(lambda entries: [*entries[:3], *entries[4:]]), "entry 4 is damaged"),
    "a log with other keys": (lambda: Peer(other_log()), "begins with another entry"),
    "a member that nobody added": (lambda: Peer(usurped()), "is not r7.x's"),
    "another segment": (lambda: changed_seal(first_idx=50, last_idx=60), "asked for entry 1"),
    "a wrong root": (lambda: changed_seal(root=bytes(32)), "Merkle root"),
    "no size": (lambda: changed_seal(size=0), "asked for entry 1"),
    "a size beyond all": (lambda: changed_seal(size=2**40), "asked for entry 1"),
    "zeros": (zeroed, "no header"),
}


@pytest.mark.parametrize("lie", LIARS)
async def test_a_peer_that_lies_changes_nothing(lie: str) -> None:
    """Goal: nothing of it gets into the log, its tree or its keys; another peer gives all. Method: many lies."""
    joiner, (liar, why) = Joiner(), LIARS[lie]
    with pytest.raises(SegmentRefused, match=why):
        await joiner.copy(liar())
    entries = list(joiner.opened.log.entries())
    assert entries == LOG[: len(entries)]
    honest = Peer()
    await joiner.copy(honest)
    joiner.check(honest.last_sealed_idx())


@pytest.mark.parametrize("seed", range(60))
async def test_a_crash_at_any_step_leaves_a_log(seed: int) -> None:
    """Goal: segments exist as a whole or not at all. Method: the disk stops at a step; open; copy the rest if all of
    it is committed."""
    dice = random.Random(seed)
    joiner, peer = Joiner(), Peer()
    joiner.files.steps_left = seed * 2
    with suppress(Crash):
        await joiner.copy(peer)
    torn = joiner.files.crashed(dice)
    again = Joiner(torn)
    found = list(again.opened.log.entries())
    assert found == LOG[: len(found)]
    assert not [name for name in torn.names() if name.endswith(".new")]
    if again.opened.log.hard_state.commit_idx == len(found):
        await again.copy(peer)
        again.check(peer.last_sealed_idx())


async def test_a_copied_segment_is_protected_like_an_own_one() -> None:
    """Goal: damage after the copy is seen at the next start, and repaired from a peer's entries. Method: flip a bit."""
    joiner, peer = Joiner(), Peer()
    await joiner.copy(peer)
    content = joiner.files.now[segment_name(1)]
    content.data[700] ^= 4
    damaged = SegmentLog(joiner.files.copy(), SEGMENT_BYTES)
    (seal,) = damaged.damaged
    assert damaged.repair(seal, LOG[seal.first_idx - 1 : seal.last_idx])
    assert list(damaged.entries()) == LOG[: peer.last_sealed_idx()]
    with pytest.raises(LogIncomplete):
        SegmentLog(joiner.files.copy(), SEGMENT_BYTES).read(1, 2)
