"""Lost records: what their salvage has of them, as claims of requests that are known to have been notarised."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from pipeline.judging.claims import CLAIM, CLAIM_BYTES, CONSUMES, LOST
from pipeline.judging.columns import UNDECODABLE, Columns
from pipeline.judging.cursor import Array
from replica.notary.salvage import Salvages, salvage_named

_ROW_BYTES = 77  # of a salvage (docs/formats.md): offset 8, key 37, what it stands for 32


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


def lost_claims(ranges: Iterable[LostRange], salvages: Salvages) -> Array:
    """The claims of lost records. Raises SalvageMissing, and IndexMismatch for a range that is not its salvage's."""
    rows = b"".join([salvages.of(one.digest, one.first, one.last).rows(one.first, one.last) for one in ranges])
    raw = np.frombuffer(rows, np.uint8).reshape(-1, _ROW_BYTES)
    packed = np.empty((len(raw), CLAIM_BYTES), np.uint8)
    packed[:, :37] = raw[:, 8:45]
    packed[:, 37:45] = raw[:, :8]
    packed[:, 45] = CONSUMES | LOST
    packed[:, 46:] = raw[:, 45:]
    return packed.view(CLAIM).reshape(-1)
