"""The committed-state index on RocksDB (first form)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch

from replica.index.interface import POSITION_KEY
from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position, decode_position, encode_position


class RocksIndex:
    """See Index."""

    def __init__(self, folder: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        try:
            self._db: Any = Rdict(str(folder), options)
        except Exception as error:
            raise IndexUnreadable(str(error)) from None

    def position(self) -> Position | None:
        """See Index."""
        raw = self._db.get(POSITION_KEY)
        return None if raw is None else decode_position(raw)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index."""
        return self._db.get(list(keys))

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Index."""
        batch = WriteBatch(raw_mode=True)
        for key, value in entries.items():
            batch.put(key, value)
        batch.put(POSITION_KEY, encode_position(position))
        self._db.write(batch)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """See Index."""
        for key, value in self._db.items():
            if key != POSITION_KEY:
                yield key, value

    def checkpoint(self, folder: Path) -> None:
        """See Index."""
        raise NotImplementedError

    def close(self) -> None:
        """See Index."""
        self._db.close()
