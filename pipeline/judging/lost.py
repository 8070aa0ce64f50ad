"""Lost records: what their salvage has of them, as claims and commands of requests that are known to have been
notarised, and as registrations that had an effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from pipeline.judging.claims import CLAIM, CONSUMES, LOST
from pipeline.judging.columns import UNDECODABLE, Columns
from pipeline.judging.commands import COMMAND
from pipeline.judging.cursor import Array
from replica.notary.acceptances import decode_acceptance
from replica.notary.outcomes import NOTARISED
from replica.notary.requests import format_state_ref
from replica.notary.rules import TX_KEY
from replica.notary.salvage import (
    OF_COMMANDS,
    OF_PARTIES,
    OF_STATES,
    LostEntry,
    Salvage,
    Salvages,
    of_kinds,
    salvage_named,
    transaction_in,
)

_KEY_BYTES = 37  # of a claim


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
    tx_id, digest, states = transaction_in(of_kinds(entries, OF_STATES))
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
    offsets = [entry.offset for entry in salvage.entries_between(one.first, one.last) if entry.key[:1] == TX_KEY]
    unknown = sum(offset > salvage.header.applied for offset in offsets)
    return Lost(one.first, one.last, one.digest.hex(), len(offsets), unknown)


def lost_with(key: bytes, ranges: Iterable[LostRange], salvages: Salvages) -> Iterator[dict[str, Any]]:
    """The lost records that gave the index an entry with this key, by offset; see `lost_record_of`."""
    for one in ranges:
        salvage = salvages.of(one.digest, one.first, one.last)
        for entry in salvage.entries_between(one.first, one.last):
            if entry.key == key:
                yield lost_record_of(entry.offset, salvage.entries_at(entry.offset), salvage)


def _entries(ranges: Iterable[LostRange], salvages: Salvages, kinds: bytes) -> Iterator[LostEntry]:
    for one in ranges:
        salvage = salvages.of(one.digest, one.first, one.last)
        yield from (entry for entry in salvage.entries_between(one.first, one.last) if entry.key[:1] in kinds)


def lost_claims(ranges: Iterable[LostRange], salvages: Salvages) -> Array:
    """The claims of lost records on states and transaction ids. Raises SalvageMissing, and IndexMismatch for a range
    that is not its salvage's."""
    role = bytes([CONSUMES | LOST])
    packed = b"".join(
        entry.key.ljust(_KEY_BYTES, b"\0") + entry.value[32:] + role + entry.value[:32]
        for entry in _entries(ranges, salvages, OF_STATES)
    )
    return np.frombuffer(packed, CLAIM)


def lost_commands(ranges: Iterable[LostRange], salvages: Salvages) -> Array:
    """The acceptances of lost records, as commands that are accepted: no earlier one counts for them, as none did when
    they were judged. Raises as `lost_claims` does."""
    entries = list(_entries(ranges, salvages, OF_COMMANDS))
    made = np.zeros(len(entries), COMMAND)
    for at, entry in enumerate(entries):
        accepted = decode_acceptance(entry.value)
        *of_request, offset = accepted
        made[at] = (entry.key[1:33], offset, *of_request, 0, accepted.ledger_offset, 0)
    return made


def lost_parties(ranges: Iterable[LostRange], salvages: Salvages) -> dict[bytes, bytes]:
    """What lost records did about officers and registrations. Raises as `lost_claims` does."""
    return {entry.key: entry.value for entry in _entries(ranges, salvages, OF_PARTIES)}
