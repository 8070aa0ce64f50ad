"""Proof of a record's place in the log, verified without the log and without any node. Pure.

The verifier knows the log's id, which is that of its first entry. That entry has the first node's key. Each later
configuration that counts is under a signature by a key that was trusted before, and so its members' keys are trusted;
the record is under a signature by one of them. A node proves committed records only, but the proof itself shows what
a leader signed: a leader that lies could sign what was never committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from ha.raft.messages import Entry, Kind, TxId
from replica.log.raft.records import leaf_of_entry
from replica.log.raft.signing import LogDiffers, LogSignature, decode_keys, decode_signature, signed_text
from replica.notary.merkle import root_from_path, tree_levels
from replica.notary.signatures import signature_holds

LOG_ID_DIGITS = 32
_Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Path = Annotated[tuple[_Hash, ...], msgspec.Meta(max_length=64)]


class Head(msgspec.Struct, frozen=True):
    """A signature entry: the root over all entries before it."""

    view: int
    idx: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    signature: LogSignature


class Proven(msgspec.Struct, frozen=True):
    """An entry, and its path to a signed root."""

    entry: Entry
    path: _Path
    head: Head


class LogProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that shows where a record stands. In JSON, bytes are in base64."""

    group: str
    log_id: str
    offset: int  # for people; what is proven is the record's place among all entries, view.idx
    first: Entry
    members: Annotated[tuple[Proven, ...], msgspec.Meta(max_length=4_096)]  # later configurations, in log order
    record: Proven


def log_id_of(first: Entry) -> str:
    """The id of the log that begins with this entry."""
    return leaf_of_entry(first).hex()[:LOG_ID_DIGITS]


def problem_of(proof: LogProof, log_id: str) -> str | None:
    """Why this does not prove that the record stands in the log with this id; None: it does."""
    first = proof.first
    if (first.idx, first.kind) != (1, Kind.RECONFIGURATION) or log_id_of(first) != log_id:
        return "it is of another log"
    try:
        trusted = decode_keys(first)
        for proven in proof.members:
            if proven.entry.kind is not Kind.RECONFIGURATION:
                return f"entry {proven.entry.idx} is no configuration"
            if (why := _problem(proof.group, proven, trusted)) is not None:
                return why
            trusted = decode_keys(proven.entry) | trusted  # an id has one key for ever
    except LogDiffers as error:
        return error.detail
    if proof.record.entry.kind is not Kind.RAW:
        return f"entry {proof.record.entry.idx} is no record"
    return _problem(proof.group, proof.record, trusted)


def _problem(group: str, proven: Proven, trusted: dict[str, bytes]) -> str | None:
    entry, head, signature = proven.entry, proven.head, proven.head.signature
    if root_from_path(leaf_of_entry(entry), entry.idx - 1, head.idx - 1, proven.path) != signature.root:
        return f"entry {entry.view}.{entry.idx} does not lead to the root that was signed at {head.view}.{head.idx}"
    text = signed_text(group, TxId(head.view, head.idx), signature)
    if not signature_holds(trusted.get(signature.node_id, b""), text, signature.signature):
        return f"the signature at {head.view}.{head.idx} is not by a node that is known to belong to the log"
    return None


class Prover:
    """Reads the log from its first entry on, and gives the proof of one record as soon as a signature covers it."""

    def __init__(self, group: str, record_idx: int, offset: int) -> None:
        self._group, self._record_idx, self._offset = group, record_idx, offset
        self._leaves: list[bytes] = []
        self._first: Entry | None = None
        self._trusted: dict[str, bytes] = {}
        self._pending: list[Entry] = []  # configurations that no signature covers yet
        self._members: list[Proven] = []
        self._record: Entry | None = None

    @property
    def next_idx(self) -> int:
        """The entry to be read next."""
        return len(self._leaves) + 1

    def read(self, entries: Iterable[Entry]) -> LogProof | None:
        """Take the next entries; the proof, once it is complete. Raises LogDiffers where an entry cannot be read."""
        for entry in entries:
            if entry.kind is Kind.SIGNATURE and (proof := self._signed(entry)) is not None:
                return proof
            if entry.kind is Kind.RECONFIGURATION:
                self._configured(entry)
            if entry.idx == self._record_idx:
                self._record = entry
            self._leaves.append(leaf_of_entry(entry))
        return None

    def _configured(self, entry: Entry) -> None:
        if self._first is None:
            self._first, self._trusted = entry, decode_keys(entry)
        else:
            self._pending.append(entry)

    def _signed(self, entry: Entry) -> LogProof | None:
        head = Head(entry.view, entry.idx, decode_signature(entry))
        if head.signature.node_id not in self._trusted or self._first is None:
            return None
        if self._pending or self._record is not None:
            levels = tree_levels(self._leaves)
            for configuration in self._pending:
                self._members.append(Proven(configuration, path_in(levels, configuration.idx - 1), head))
                self._trusted = decode_keys(configuration) | self._trusted
            self._pending = []
            if self._record is not None:
                record = Proven(self._record, path_in(levels, self._record.idx - 1), head)
                members, log_id = tuple(self._members), log_id_of(self._first)
                return LogProof(self._group, log_id, self._offset, self._first, members, record)
        return None


def path_in(levels: Sequence[Sequence[bytes]], at: int) -> tuple[bytes, ...]:
    """The sibling hashes of the leaf `at` up to the root; `levels` as of `tree_levels`."""
    path: list[bytes] = []
    for level in levels[:-1]:
        sibling = at ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        at >>= 1
    return tuple(path)
