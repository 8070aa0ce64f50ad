"""Lost records: what their salvage has of them, as claims of requests that are known to have been notarised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.judging.claims import CLAIM, CLAIM_BYTES, CONSUMES, LOST
from pipeline.judging.columns import UNDECODABLE, Columns
from pipeline.judging.cursor import Array
from replica.notary.outcomes import NOTARISED
from replica.notary.requests import format_state_ref
from replica.notary.rules import TX_KEY
from replica.notary.salvage import Salvage, Salvages, salvage_named, transaction_in

_ROW_BYTES = 77  # of a salvage (docs/formats.md): offset 8, key 37, what it stands for 32
_KEY = slice(8, 45)


class LostRange(msgspec.Struct, frozen=True, array_like=True):
    """Lost records next to each other, and the digest of the salvage that they name."""

    first: int
    last: int
    digest: bytes


def lost_ranges(columns: Columns) -> list[LostRange]:
    """The lost records of a slice. Raises IndexMismatch for one that was made for another offset."""
    found: list[LostRange] = []
    for row in np.flatnonzero(columns.kind == UNDECODABLE).tolist():
        offset = columns.first_offset + row
        digest = salvage_named(offset, columns.value(row))
        if digest is None:
            continue
        if found and (found[-1].last, found[-1].digest) == (offset - 1, digest):
            found[-1] = LostRange(found[-1].first, offset, digest)
        else:
            found.append(LostRange(offset, offset, digest))
    return found


class Lost(msgspec.Struct, frozen=True):
    """A lost range, for people: how many transactions its salvage has there, and of how many nobody knows the states.

    `salvage`: its digest, in hexadecimal.
    """

    first: int
    last: int
    salvage: str
    transactions: int
    states_unknown: int

    @property
    def records(self) -> int:
        """How many records are lost."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        unknown = f"; the states of {self.states_unknown:,} of these are unknown" if self.states_unknown else ""
        return (
            f"offsets {self.first} to {self.last} are lost, {self.records:,} records. Salvage {self.salvage[:12]} has"
            f" {self.transactions:,} transactions notarised there{unknown}. Not known: who sent what there, with which"
            " signature, and what was refused"
        )


def lost_record_of(offset: int, entries: Mapping[bytes, bytes], salvage: Salvage) -> dict[str, Any]:
    """What is known of a lost record that notarised something, as a trace shows it. `inputs`: None if unknown."""
    tx_id, digest, states = transaction_in(entries)
    known = offset <= salvage.header.applied
    inputs = [format_state_ref(state) for state in states] if known else None
    return lost_entry(offset, salvage.digest.hex(), tx_id, digest, inputs)


def lost_entry(
    offset: int, salvage: str, tx_id: bytes, content_digest: bytes, inputs: list[str] | None
) -> dict[str, Any]:
    """A lost record that notarised this transaction, as a trace shows it."""
    return {
        "offset": offset,
        "lost": True,
        "salvage": salvage,
        "tx_id": tx_id.hex(),
        "content_digest": content_digest.hex(),
        "inputs": inputs,
        "outcome": NOTARISED,
        "notarised_offset": offset,
    }


def joined_ranges(ranges: Iterable[LostRange]) -> list[LostRange]:
    """Lost ranges of slices, in any order, as those of the whole log."""
    found: list[LostRange] = []
    for one in sorted(ranges, key=lambda one: one.first):
        if found and (found[-1].last, found[-1].digest) == (one.first - 1, one.digest):
            found[-1] = LostRange(found[-1].first, one.last, one.digest)
        else:
            found.append(one)
    return found


def described(one: LostRange, salvages: Salvages) -> Lost:
    """A lost range for people. Raises as `lost_claims` does."""
    salvage = salvages.of(one.digest, one.first, one.last)
    raw = _rows(one, salvages)
    is_tx = raw[:, 8] == TX_KEY[0]
    offsets = np.ascontiguousarray(raw[is_tx, :8]).view(">i8")
    unknown = int(np.count_nonzero(offsets > salvage.header.applied))
    return Lost(one.first, one.last, one.digest.hex(), len(offsets), unknown)


def lost_with(key: bytes, ranges: Iterable[LostRange], salvages: Salvages) -> Iterator[dict[str, Any]]:
    """The lost records that gave the index an entry with this key, by offset; see `lost_record_of`."""
    wanted = np.frombuffer(key.ljust(_KEY.stop - _KEY.start, b"\0"), np.uint8)
    for one in ranges:
        salvage = salvages.of(one.digest, one.first, one.last)
        raw = _rows(one, salvages)
        found = np.ascontiguousarray(raw[np.all(raw[:, _KEY] == wanted, axis=1), :8])
        for offset in found.view(">u8").ravel().tolist():
            yield lost_record_of(offset, salvage.entries_at(offset), salvage)


def _rows(one: LostRange, salvages: Salvages) -> Array:
    rows = salvages.of(one.digest, one.first, one.last).rows(one.first, one.last)
    return np.frombuffer(rows, np.uint8).reshape(-1, _ROW_BYTES)


def lost_claims(ranges: Iterable[LostRange], salvages: Salvages) -> Array:
    """The claims of lost records. Raises SalvageMissing, and IndexMismatch for a range that is not its salvage's."""
    raw = np.concatenate([np.zeros((0, _ROW_BYTES), np.uint8), *(_rows(one, salvages) for one in ranges)])
    packed = np.empty((len(raw), CLAIM_BYTES), np.uint8)
    packed[:, :37] = raw[:, _KEY]
    packed[:, 37:45] = raw[:, :8]
    packed[:, 45] = CONSUMES | LOST
    packed[:, 46:] = raw[:, 45:]
    return packed.view(CLAIM).reshape(-1)
