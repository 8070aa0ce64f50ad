"""The salvages of a replica: read from its folder at the start, and checked against its index before it serves.

They are stored beside the index and not in it, because a rebuilt index needs them again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from replica.index.interface import Index
from replica.notary.errors import SalvageDamaged
from replica.notary.salvage import (
    SALVAGES_NAME,
    LostEntry,
    Salvage,
    Salvages,
    decode_salvage,
)

_LOOK_UPS_TOGETHER = 1_000  # about a millisecond of the event loop


def salvage_path(replica_folder: Path, salvage: Salvage) -> Path:
    """Where a replica keeps a salvage: by its digest."""
    return replica_folder / SALVAGES_NAME / f"{salvage.digest.hex()}.salvage"


def keep_salvage(replica_folder: Path, salvage: Salvage, raw: bytes) -> Path:
    """Store a verified salvage in a replica's folder, whole or not at all; returns its path. May be repeated."""
    path = salvage_path(replica_folder, salvage)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _read(path)
    return path


def read_salvages(replica_folder: Path) -> Salvages:
    """What was imported into this replica. Raises SalvageDamaged when a file is not the one that was imported."""
    return Salvages(_read(path) for path in sorted((replica_folder / SALVAGES_NAME).glob("*.salvage")))


def _read(path: Path) -> Salvage:
    try:
        salvage = decode_salvage(path.read_bytes())
    except OSError as error:
        raise SalvageDamaged(f"{path} cannot be read: {error}") from None
    except SalvageDamaged as error:
        raise SalvageDamaged(f"{path}: {error.detail}") from None
    if salvage.digest.hex() != path.stem:
        raise SalvageDamaged(f"{path} is another salvage than its name says: {salvage.digest.hex()}")
    return salvage


class SalvagesFound:
    """Which salvages an index has. Each is looked for until it is found once, because an index never loses entries.

    A large salvage has millions of entries, and an activation should not wait for them each time.
    """

    def __init__(self, index: Index, salvages: Salvages) -> None:
        self._index = index
        self._missing = dict(salvages.held)
        self._found: set[str] = set()

    async def found(self, applied_offset: int) -> frozenset[str]:
        """See `salvages_in`."""
        found = await salvages_in(self._index, applied_offset, Salvages(self._missing.values()))
        self._found |= found
        self._missing = {digest: one for digest, one in self._missing.items() if digest.hex() not in found}
        return frozenset(self._found)


async def salvages_in(index: Index, applied_offset: int, salvages: Salvages) -> frozenset[str]:
    """Digests, in hexadecimal, of the salvages that the index has as far as it is applied.

    The index gets entries beyond `applied_offset` as it reads on, from the lost records. If another release led the
    index past a lost range, the entries are missing, and the salvage is not returned. Raises IndexUnreadable.
    """
    return frozenset(
        [s.digest.hex() for s in salvages.held.values() if await _is_in(index, applied_offset, s.entries())]
    )


async def _is_in(index: Index, applied_offset: int, entries: Iterable[LostEntry]) -> bool:
    due_entries = (entry for entry in entries if entry.offset <= applied_offset)
    while due := list(islice(due_entries, _LOOK_UPS_TOGETHER)):
        if index.lookup([entry.key for entry in due]) != [entry.value for entry in due]:
            return False
        await asyncio.sleep(0)  # let heartbeat and front ends in between
    return True
