"""The index with a filter in front: most look-ups are for absent keys, and the filter answers them from memory.

A filter that once says "absent" of an entry has a state spent twice. So:

- It answers only after it was filled from the index, was asked for every entry, and their number was that of the index.
- It gets the keys of each write batch, and is asked for them, before it answers anything after that batch.
- A single wrong "absent" ends its use until the next start (event `index_filter_disarmed`); RocksDB answers on.
- Its file is written by an orderly stop, and names the index's position and number of entries. A start reads and
  deletes it; what does not match is filled anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

import numpy as np
import structlog

from replica.index.filter import SEED_BYTES, Filter, restored
from replica.index.interface import BEFORE_KEY
from replica.index.rocks import RocksIndex
from replica.notary.position import Position, encode_position

log = structlog.get_logger()

FILTER = "filter"  # in the index's folder, as what belongs to that index
RUN_MIN = 32  # keys; fewer are looked up as fast without
PENDING_MAX = 500  # keys of batches; the first few cost as much as a hundred
SLICE_KEYS = 500  # about a millisecond of the event loop
KEYS_MIN = 4 << 20  # a new index: 8 MiB
ROOM_SHARE = 8  # an index that has entries: an eighth more than these
BLOCKS_MAX = 2  # a longer chain is not kept: a start makes one block of it
_VERSION = b"replicated-notary filter 1"


class FilteredIndex(RocksIndex):
    """See RocksIndex. Until somebody has gone through `fill_filter`, it is no faster."""

    def __init__(self, folder: Path) -> None:
        """See RocksIndex."""
        super().__init__(folder)
        self.false_absences = 0
        self._file = folder / FILTER
        self._pending: list[bytes] = []  # entries that the filter does not know yet
        self._filled_to = BEFORE_KEY
        self._filled = 0  # entries up to there
        kept = self._read_file()
        self._answers = kept is not None
        self._filter: Filter | None = kept or Filter(
            token_bytes(SEED_BYTES), max(KEYS_MIN, self.entry_count + self.entry_count // ROOM_SHARE)
        )

    @property
    def filter_answers(self) -> bool:
        """Whether look-ups of many keys ask the filter first."""
        return self._answers

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index."""
        if not self._answers or len(keys) < RUN_MIN:
            return super().lookup(keys)
        self._check_usable()
        self._add_pending()
        if self._filter is None:
            return super().lookup(keys)
        found: list[bytes | None] = [None] * len(keys)
        if perhaps := self._filter.perhaps(keys):
            for at, value in zip(perhaps, super().lookup([keys[at] for at in perhaps]), strict=True):
                found[at] = value
        return found

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Index."""
        super().write(entries, position)
        if self._filter is None:
            return
        self._pending += entries
        if not self._answers:
            self._filled += sum(key <= self._filled_to for key in entries)
        if len(self._pending) > PENDING_MAX:
            self._add_pending()

    def fill_filter(self) -> Iterator[None]:
        """Fill the filter from the index, a slice a step. Others may use the index between two steps."""
        while not self._answers and self._filter is not None:
            if keys := self.keys_after(self._filled_to, SLICE_KEYS):
                self._pending += keys
                self._add_pending()
                self._filled_to, self._filled = keys[-1], self._filled + len(keys)
                yield
            elif self._filled == self.entry_count:
                self._answers = True
            else:
                self._disarm(f"{self._filled} of {self.entry_count} entries were read")

    def distrust_filter(self) -> bool:
        """Somebody found a difference: RocksDB alone answers from now on. Whether the filter had answered."""
        answered = self._answers
        if answered:
            self._disarm("the index and the log differ")
        return answered

    def sizes(self) -> dict[str, int]:
        """See RocksIndex."""
        if not (found := super().sizes()):
            return found
        of_filter = 0 if self._filter is None else self._filter.byte_count
        return found | {
            "filter_bytes": of_filter,
            "filter_answers": int(self._answers),
            "filter_false_absences": self.false_absences,
        }

    def close(self) -> None:
        """See Index."""
        if self._failure is None and self._answers:
            self._add_pending()
            self._write_file()
        super().close()

    def _add_pending(self) -> None:
        """Add the entries that the filter does not know yet, and ask it for each of them."""
        if self._filter is None or not self._pending:
            return
        self._filter.add(self._pending)
        if missing := len(self._pending) - len(self._filter.perhaps(self._pending)):
            self.false_absences += missing
            self._disarm(f"it called {missing} of {len(self._pending)} entries absent")
        self._pending = []

    def _disarm(self, why: str) -> None:
        self._filter, self._answers = None, False
        log.error("index_filter_disarmed", detail=why, false_absences=self.false_absences)

    def _bound_to(self) -> bytes:
        """What a file must have been written for."""
        position = self.position()
        encoded = b"" if position is None else encode_position(position)
        return sha256(_VERSION + self.entry_count.to_bytes(8, "big") + encoded).digest()

    def _read_file(self) -> Filter | None:
        try:
            found = restored(np.fromfile(self._file, np.uint8), self._bound_to())
            self._file.unlink()  # it is older than the index from the next write on
        except OSError:
            return None
        return found if found is not None and found.block_count <= BLOCKS_MAX else None

    def _write_file(self) -> None:
        if self._filter is None:
            return
        partial = self._file.with_suffix(".partial")
        with suppress(OSError):  # without a file, the next start fills the filter anew
            with partial.open("wb") as file:
                file.writelines(self._filter.stored(self._bound_to()))
            partial.replace(self._file)
