"""Signature entries: each is its leader's Ed25519 signature over the Merkle root of all entries before it.

It also has the time at its leader, which is the append time of the records since the signature before.

Whoever appends an entry adds it to the tree, and compares each signature with its own root before it writes or
acknowledges anything: two logs that share a signature are the same, byte by byte. A node's key is made with its disk.
Its public half is in the configuration that makes the node a member, so a log has all that it takes to verify it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated

import msgspec
from nacl.signing import SigningKey

from ha.raft.core import LogIncomplete
from ha.raft.messages import Entry, Kind, NodeId, TxId
from replica.log.raft.records import leaf_of_entry
from replica.log.raft.tree import LogTree
from replica.notary.signatures import signature_holds
from replica.notary.untrusted import UNREADABLE

SEED_BYTES = 32
KEY_BYTES = 32
_DOMAIN = b"notary log signature 1\n"
_OPENED_TOGETHER = 1_024
_Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class LogDiffers(LogIncomplete):
    """The leader signed another log than this node has, with the same views and indices: one of the two is damaged."""

    code = "HA_LOG_DIFFERS"
    remedy = (
        "Start the node again: it first verifies its own disk. If it goes on, compare the roots that the nodes print."
    )
    retry = True


class LogSignature(msgspec.Struct, frozen=True, array_like=True):
    """The body of a signature entry; the entry itself has view and index."""

    node_id: Annotated[str, msgspec.Meta(max_length=128)]
    root: _Digest  # over all entries before this one
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # when it was signed, milliseconds UTC, by its leader's clock
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


_signatures = msgspec.msgpack.Decoder(LogSignature)
_keys = msgspec.msgpack.Decoder(dict[NodeId, _Digest])


def encode_keys(keys: Mapping[NodeId, bytes]) -> bytes:
    """The body of a configuration: its members' public keys."""
    return msgspec.msgpack.encode(dict(sorted(keys.items())))


def signed_text(group: str, at: TxId, signature: LogSignature) -> bytes:
    """What is signed: the root, where it stands, by whom, and when."""
    return _DOMAIN + msgspec.msgpack.encode((group, *at, signature.node_id, signature.root, signature.at_ms))


def decode_signature(entry: Entry) -> LogSignature:
    """The body of a signature entry. Raises LogDiffers."""
    try:
        return _signatures.decode(entry.body)
    except UNREADABLE:
        raise LogDiffers(f"the signature at {entry.view}.{entry.idx} cannot be read") from None


def decode_keys(configuration: Entry) -> dict[NodeId, bytes]:
    """The members' public keys. Raises LogDiffers where one is missing or cannot be read."""
    try:
        keys = _keys.decode(configuration.body)
        return {node: keys[node] for node in configuration.nodes}
    except (*UNREADABLE, KeyError):
        at = f"{configuration.view}.{configuration.idx}"
        raise LogDiffers(f"the configuration at {at} has no key that can be read for each member") from None


def public_key_of(seed: bytes) -> bytes:
    """The public half of a node's key."""
    return bytes(SigningKey(seed).verify_key)


class SignedLog:
    """The tree over one node's log, and the keys that the log names."""

    def __init__(self, group: str, node_id: NodeId, seed: bytes) -> None:
        self.keys: dict[NodeId, bytes] = {}
        self.public_key = public_key_of(seed)
        self._group = group
        self._node_id = node_id
        self._signing_key = SigningKey(seed)
        self._tree = LogTree()
        self._unsigned: list[Entry] = []  # configurations of `extend` that no signature covers yet

    @property
    def last_idx(self) -> int:
        """The newest entry that the tree has."""
        return self._tree.size

    def root(self) -> bytes:
        """Over all entries so far."""
        return self._tree.root()

    def append(self, entries: Sequence[Entry]) -> None:
        """Add the next entries, which others may have signed. Raises LogDiffers, and this log is of no more use.

        Each root is compared. Of several signatures only the last one is verified: its root covers the others.
        """
        last: tuple[Entry, LogSignature] | None = None
        for entry in self._grow(entries):
            last = entry, self._compared(entry)
        if last is not None:
            self._verify(*last)

    def extend(self, leaves: Sequence[bytes], marks: Sequence[Entry]) -> None:
        """Add the next entries at once, from a source that is not trusted. Raises LogDiffers; then nothing is changed.

        `leaves`: of all of them; `marks`: those of other kinds than RAW, and perhaps some more. What comes after the
        last signature is verified with the next one. A configuration's keys count once a node known before signed it.
        """
        before, keys, unsigned = self._tree.size, dict(self.keys), list(self._unsigned)
        self._tree.keep()
        try:
            last_idx = max((entry.idx for entry in marks if entry.kind is Kind.SIGNATURE), default=0)
            for entry in marks:
                if entry.kind is Kind.RECONFIGURATION:
                    self._unsigned.append(entry)
                    if entry.idx == 1:
                        self.extended()
                elif entry.kind is Kind.SIGNATURE and (self._unsigned or entry.idx == last_idx):
                    self._tree.grow(leaves[self._tree.size - before : entry.idx - 1 - before])
                    self._verify(entry, self._compared(entry))
                    self.extended()
            self._tree.grow(leaves[self._tree.size - before :])
            self._tree.keep()
        except LogDiffers:
            self._tree.cut(before)
            self.keys, self._unsigned = keys, unsigned
            raise

    def extended(self) -> None:
        """No more comes by `extend`, or what came is signed: learn the keys of its configurations."""
        for entry in self._unsigned:
            self._learn(entry)
        self._unsigned = []

    def opened(self, entries: Iterable[Entry], commit_idx: int) -> Iterator[Entry]:
        """Pass a whole log on, verifying it on the way; `commit_idx` is known to be committed. Raises LogDiffers."""
        left = iter(entries)
        while chunk := list(islice(left, _OPENED_TOGETHER)):
            self.append(chunk)
            self.committed(min(commit_idx, self.last_idx))
            yield from chunk

    def sign(self, entries: Sequence[Entry], view: int, at_ms: int) -> Entry:
        """Add this leader's own next entries, and the signature of all so far, which is returned."""
        for _ in self._grow(entries):
            raise ValueError("the signature is added here")
        idx = self.last_idx + 1
        unsigned = LogSignature(self._node_id, self._tree.root(), at_ms, bytes(64))
        signed = self._signing_key.sign(signed_text(self._group, TxId(view, idx), unsigned)).signature
        body = msgspec.msgpack.encode(msgspec.structs.replace(unsigned, signature=signed))
        signature = Entry(view, idx, Kind.SIGNATURE, body)
        for _ in self._grow([signature]):
            pass
        return signature

    def cut(self, idx: int) -> None:
        """Entries above `idx` are gone. Keys stay: an id names one disk, and with it one key."""
        self._tree.cut(idx)

    def committed(self, idx: int) -> None:
        """Nothing up to `idx` will ever be cut."""
        self._tree.forget(idx)

    # --------------------------------------------------------------------------------------------------------- inside

    def _grow(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Add entries; each signature is handed out when all before it are in the tree."""
        leaves: list[bytes] = []
        for entry in entries:
            if entry.kind is Kind.SIGNATURE:
                self._tree.grow(leaves)
                leaves = []
                yield entry
                self._tree.grow([leaf_of_entry(entry)])
                self._tree.keep()
            else:
                if entry.kind is Kind.RECONFIGURATION:
                    self._learn(entry)
                leaves.append(leaf_of_entry(entry))
        self._tree.grow(leaves)

    def _learn(self, entry: Entry) -> None:
        try:
            keys = _keys.decode(entry.body)
        except UNREADABLE:
            raise LogDiffers(f"the configuration at {entry.view}.{entry.idx} has no keys that can be read") from None
        for node in entry.nodes:
            key = keys.get(node)
            if key is None or self.keys.setdefault(node, key) != key:
                raise LogDiffers(f"the configuration at {entry.view}.{entry.idx} has another key for {node}, or none")

    def _compared(self, entry: Entry) -> LogSignature:
        found, root = decode_signature(entry), self._tree.root()
        if found.root != root:
            raise LogDiffers(
                f"{found.node_id} signed {found.root.hex()[:16]} at {entry.view}.{entry.idx}, "
                f"the log before it has {root.hex()[:16]}"
            )
        return found

    def _verify(self, entry: Entry, found: LogSignature) -> None:
        text = signed_text(self._group, TxId(entry.view, entry.idx), found)
        if not signature_holds(self.keys.get(found.node_id, b""), text, found.signature):
            raise LogDiffers(f"the signature at {entry.view}.{entry.idx} is not {found.node_id}'s")
