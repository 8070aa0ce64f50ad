"""A manifest's lines in a store of objects. Two archivers cannot both add to it.

Each `append` is one object, named by the number of its first line. An archiver that knows all lines knows the next
number; one that lags finds that name taken. Signatures, chain and the head in the database protect the lines as in a
file (manifest.py): an object that is missing, edited, doubled or moved breaks the chain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pipeline.places.store import ObjectExists, ObjectMissing, Store, again, keep
from replica.notary.codes import Code
from replica.notary.errors import ArchiveContended, ArchiveDamaged, ConfigError

FOLDER = "manifest/"
READ_AT_ONCE = 16  # each append is an object, and a store answers after milliseconds
_NAME = re.compile(r"manifest/\d{19}\.jsonl")


class ObjectLines:
    """The lines, read as one text in which each line ends in a newline."""

    def __init__(self, store: Store, sleep: Callable[[float], None]) -> None:
        self._store = store
        self._sleep = sleep

    def read(self) -> bytes:
        """All lines; empty for a new archive. Raises ArchiveDamaged for an object that is no part, PlaceUnavailable.

        A part that is missing is not found here: the number and the hash of the line after it show it.
        """
        names = again(lambda: self._store.names(FOLDER), self._sleep)
        with ThreadPoolExecutor(READ_AT_ONCE) as readers:
            return b"".join(readers.map(self._part, names))

    def _part(self, name: str) -> bytes:
        try:
            part = again(lambda: self._store.read(name), self._sleep)
        except ObjectMissing:
            raise ArchiveDamaged(f"{name} was removed while the manifest was read") from None
        if not _NAME.fullmatch(name) or not part.endswith(b"\n"):
            raise ArchiveDamaged(f"{name} is no part of a manifest")
        return part

    def refuse_unsafe(self) -> None:
        """Raise ConfigError (PLACE_UNSAFE) when the store overwrites: two archivers could both append.

        Some servers accept the condition and ignore it. The first part is created again, with its own bytes, so nothing
        is lost either way. Call it when the manifest was opened. Raises PlaceUnavailable.
        """
        first = f"{FOLDER}{0:019d}.jsonl"
        part = again(lambda: self._store.read(first), self._sleep)
        try:
            again(lambda: self._store.create(first, [part]), self._sleep)
        except ObjectExists:
            return
        raise ConfigError(f"{first} was created a second time", Code.PLACE_UNSAFE)

    def append(self, number: int, text: bytes) -> None:
        """Keep whole lines, the first of which has this number; durable on return.

        Raises ArchiveContended when there are other lines, and PlaceUnavailable; ask again with the very same lines.
        """
        try:
            keep(self._store, f"{FOLDER}{number:019d}.jsonl", text, self._sleep)
        except ObjectExists:
            raise ArchiveContended(f"line {number + 1} of the manifest was written by another archiver") from None
