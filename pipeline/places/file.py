"""An object of a store as a file that can be read from anywhere: pyarrow reads only the parts that it needs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import BinaryIO, cast

from pipeline.places.store import RANGE_BYTES, ObjectMissing, Store, again

BUFFER_BYTES = 1 << 20


class _ObjectFile(io.RawIOBase):
    def __init__(self, store: Store, name: str, sleep: Callable[[float], None]) -> None:
        self._store = store
        self._name = name
        self._sleep = sleep
        self._size = again(lambda: store.size(name), sleep)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._at, RANGE_BYTES)
        if wanted <= 0:
            return 0
        try:
            found = again(lambda: self._store.read_range(self._name, self._at, wanted), self._sleep)
        except ObjectMissing:
            raise FileNotFoundError(f"{self._name} was removed while it was read") from None
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def open_object(store: Store, name: str, sleep: Callable[[float], None]) -> BinaryIO:
    """The object as a file. Raises FileNotFoundError, and PlaceUnavailable, which reads may raise as well."""
    try:
        return cast(BinaryIO, io.BufferedReader(_ObjectFile(store, name, sleep), BUFFER_BYTES))
    except ObjectMissing:
        raise FileNotFoundError(f"{name} is missing") from None
