"""A store in memory, and one that fails as object stores do: a refusal for the moment, before or after the deed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from typing import TypeVar

from pipeline.places.store import ObjectExists, ObjectMissing, Store
from replica.notary.errors import PlaceAccessDenied, PlaceUnavailable

AnswerT = TypeVar("AnswerT")


@dataclass
class MemoryStore:
    """See Store. `locked`: objects are kept for good."""

    objects: dict[str, bytes] = field(default_factory=dict)
    locked: bool = False
    _lock: Lock = field(default_factory=Lock)

    def names(self, under: str) -> list[str]:
        return sorted(name for name in self.objects if name.startswith(under))

    def size(self, name: str) -> int:
        return len(self.read(name))

    def read(self, name: str) -> bytes:
        try:
            return self.objects[name]
        except KeyError:
            raise ObjectMissing(name) from None

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self.read(name)[start : start + length]

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        content = b"".join(parts)  # others may write meanwhile
        with self._lock:
            if name in self.objects:
                raise ObjectExists(name)
            self.objects[name] = content

    def send(self, name: str, file: Path) -> None:
        self.create(name, [file.read_bytes()])

    def replace(self, name: str, file: Path) -> None:
        if self.locked and name in self.objects:
            raise PlaceAccessDenied(f"{name} is kept for good")
        self.objects[name] = file.read_bytes()

    def remove(self, name: str) -> bool:
        if not self.locked:
            self.objects.pop(name, None)
        return not self.locked


@dataclass
class FaultyStore:
    """A store whose calls fail by chance: before anything was done, or after all was done and the answer was lost.

    `before` follows each call's fate and may do anything, such as let another writer go first.
    """

    inner: Store
    random: Random
    refused: float = 0.0  # the share of calls that do nothing
    lost: float = 0.0  # the share of calls that are done and not answered
    before: Callable[[str], None] = lambda call: None

    def _fate(self, call: str) -> bool:
        """Whether the answer will be lost. Raises PlaceUnavailable if the call is refused."""
        self.before(call)
        drawn = self.random.random()
        if drawn < self.refused:
            raise PlaceUnavailable(f"{call}: 503 Slow Down")
        return drawn < self.refused + self.lost

    def names(self, under: str) -> list[str]:
        lost = self._fate("names")
        return self._answered(lost, self.inner.names(under))

    def size(self, name: str) -> int:
        lost = self._fate("size")
        return self._answered(lost, self.inner.size(name))

    def read(self, name: str) -> bytes:
        lost = self._fate("read")
        return self._answered(lost, self.inner.read(name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        lost = self._fate("read_range")
        return self._answered(lost, self.inner.read_range(name, start, length))

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        lost = self._fate("create")
        self._answered(lost, self.inner.create(name, parts))

    def send(self, name: str, file: Path) -> None:
        lost = self._fate("send")
        self._answered(lost, self.inner.send(name, file))

    def replace(self, name: str, file: Path) -> None:
        lost = self._fate("replace")
        self._answered(lost, self.inner.replace(name, file))

    def remove(self, name: str) -> bool:
        lost = self._fate("remove")
        return self._answered(lost, self.inner.remove(name))

    @staticmethod
    def _answered(lost: bool, answer: AnswerT) -> AnswerT:
        if lost:
            raise PlaceUnavailable("the connection was closed before the answer")
        return answer
