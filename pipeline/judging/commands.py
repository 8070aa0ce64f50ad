"""The command of each counting request: what is judged first, and what becomes an acceptance if it is notarised.

Commands are rows of their own, beside the claims: most have no other of their key, so they meet only where they are
needed. Keys are digests, so ranges of equal width have equal shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipeline.judging.claims import CLOSED, content_digests, groups, inside_window, near, prefixes, taken
from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array
from pipeline.judging.marks import is_marked
from pipeline.judging.plan import Counted
from replica.notary.acceptances import COMMAND_KEY, Acceptance

COMMAND = np.dtype(
    [
        ("key", "S32"),  # change id
        ("offset", ">u8"),
        ("tx_id", "V32"),
        ("content_digest", "V32"),
        ("judged_us", ">u8"),
        ("ledger_offset", ">u8"),
        ("deduplication_us", ">i8"),
        ("named_offset", ">i8"),  # see Columns.named_offsets
        ("role", "u1"),
    ]
)
COMMAND_BYTES = COMMAND.itemsize
NAMED_AFTER_TX, BARRED = 8, 16
"""Bits of a role, besides CLOSED. NAMED_AFTER_TX: the command id is that of its
transaction. BARRED: the request's key is not in force (keys.py); CLOSED is set as well, as it adds nothing either."""

_OFFSET, _ACCEPTED = slice(32, 40), slice(40, 120)
_BLOCK_ROWS = 1 << 14


class Command(NamedTuple):
    """A command that is shared. `acceptance`: what it becomes, if its request is accepted."""

    change_id: bytes
    acceptance: Acceptance
    deduplication_us: int
    after: int | None
    role: int

    @property
    def is_named_after_tx(self) -> bool:
        """See `replica.notary.rules.is_named_after_transaction`."""
        return bool(self.role & NAMED_AFTER_TX)

    @property
    def is_barred(self) -> bool:
        """Whether the request's key is not in force."""
        return bool(self.role & BARRED)

    @property
    def is_closed(self) -> bool:
        """Whether the request is outside its window, or its key is not in force."""
        return bool(self.role & CLOSED)


def commands_of(columns: Columns, found: Counted, barred: Array) -> Array:
    """The commands of a slice's counting requests, in log order; `barred`: see keys.py."""
    pick = found.requests
    made = np.zeros(len(pick), COMMAND)
    tx_ids = columns.tx_ids()[pick]
    named = list(columns.commands(pick))
    made["key"] = np.frombuffer(b"".join(change_id for change_id, _ in named), "S32")
    made["offset"] = columns.first_offset + columns.rows[pick]
    made["tx_id"], made["content_digest"] = tx_ids, content_digests(columns, pick)
    made["judged_us"], made["ledger_offset"] = found.judged_us, found.ledger_offsets
    made["deduplication_us"] = columns.deduplication_us[pick]
    made["named_offset"] = columns.named_offsets(pick)
    after_tx = [command_id == tx_id.hex() for (_, command_id), tx_id in zip(named, tx_ids.tolist(), strict=True)]
    made["role"] = np.where(inside_window(columns, found), 0, CLOSED)
    made["role"] |= np.where(after_tx, NAMED_AFTER_TX, 0).astype(np.uint8)
    made["role"] |= np.where(barred, BARRED | CLOSED, 0).astype(np.uint8)
    return made


def by_width(commands: Array, ranges: int) -> tuple[Array, Array]:
    """The commands range by range, and where each range begins, the end of the last one after them."""
    numbers = prefixes(commands) >> np.uint64(48)
    number_of = (numbers * np.uint64(ranges) >> np.uint64(16)).astype(np.uint16)
    order = np.argsort(number_of, kind="stable")
    starts = np.searchsorted(number_of, np.arange(ranges + 1), sorter=order)
    return taken(commands, order), starts


def shared(commands: Array) -> Array:
    """Of commands in order, those that several requests have."""
    commands = taken(commands, near(prefixes(commands)))
    group, starts = groups(commands["key"])
    if not len(starts):
        return commands
    several = np.diff(np.append(starts, len(commands))) > 1
    return taken(commands, several[group])


def rows(commands: Array) -> Iterator[tuple[int, Command]]:
    """Offset and command, for the resolver."""
    for key, offset, tx_id, digest, judged_us, ledger_offset, deduplication_us, named_offset, role in commands.tolist():
        acceptance = Acceptance(tx_id, digest, judged_us, ledger_offset, offset)
        after = named_offset if named_offset >= 0 else None
        yield offset, Command(key.ljust(32, b"\0"), acceptance, deduplication_us, after, role)


def acceptances(commands: Array, unusual: Array) -> Array:
    """Of commands in order, those that are acceptances. `unusual`: accepted though outside the window, or not accepted
    though inside, as `offsets_marked` has them; all others are accepted if and only if they are inside."""
    return taken(commands, (commands["role"] & CLOSED == 0) != is_marked(unusual, commands["offset"]))


def key_values(accepted: Array) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of acceptances, in order, as an index stores them (replica.notary.acceptances)."""
    before = b""
    for start in range(0, len(accepted), _BLOCK_ROWS):
        packed = accepted[start : start + _BLOCK_ROWS].view(np.uint8).reshape(-1, COMMAND_BYTES)
        values = np.concatenate((packed[:, _ACCEPTED], packed[:, _OFFSET]), axis=1).view("V88").ravel().tolist()
        change_ids = np.ascontiguousarray(packed[:, :32]).view("V32").ravel().tolist()
        for change_id, value in zip(change_ids, values, strict=True):
            key = COMMAND_KEY + change_id
            yield (key if change_id != before else key + value[-8:]), value
            before = change_id
