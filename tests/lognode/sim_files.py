"""A folder in memory that crashes at a chosen call, and then keeps what was synced and some of the rest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

PAGE = 64  # bytes: small, so that small files tear


class Crash(Exception):
    """The machine stops here."""


@dataclass(slots=True)
class Content:
    """A file: as it is, and as it was when it was last synced."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class SimFiles:
    """`Files` in memory. `steps_left`: the crash comes before the call after so many that change something."""

    def __init__(self, files: dict[str, bytes] | None = None, steps_left: int | None = None) -> None:
        self.now = {name: Content(bytearray(data), data) for name, data in (files or {}).items()}
        self.synced_names = dict(self.now)
        self._renames: list[dict[str, Content]] = []  # each name change since they were synced, in order
        self.steps_left = steps_left

    def step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Crash

    def crashed(self, dice: random.Random) -> SimFiles:
        """What the next start finds: names as of some moment since their sync, pages as they were or are."""
        names = dice.choice([self.synced_names, *self._renames])
        return SimFiles({name: _torn(content, dice) for name, content in names.items()})

    def copy(self) -> SimFiles:
        return SimFiles({name: bytes(content.data) for name, content in self.now.items()})

    # -------------------------------------------------------------------------------------------------------- Files

    def names(self) -> list[str]:
        return sorted(self.now)

    def read(self, name: str) -> bytes:
        return bytes(self._data(name))

    def read_at(self, name: str, at: int, size: int) -> bytes:
        return bytes(self._data(name)[at : at + size])

    def create(self, name: str) -> None:
        self.step()
        self.now[name] = Content()
        self._renamed()

    def reserve(self, name: str, size: int) -> None:
        self.step()
        data = self._data(name)
        data += bytes(max(size - len(data), 0))

    def write(self, name: str, at: int, data: bytes) -> None:
        file = self._data(name)
        if self.steps_left == 0:
            data = data[: len(data) // 2]
        file += bytes(max(at + len(data) - len(file), 0))
        file[at : at + len(data)] = data
        self.step()

    def sync(self, name: str) -> None:
        self.step()
        self.now[name].synced = bytes(self._data(name))

    def cut(self, name: str, size: int) -> None:
        self.step()
        data = self._data(name)
        data[size:] = bytes(max(size - len(data), 0))

    def rename(self, old: str, new: str) -> None:
        self.step()
        self._data(old)
        self.now[new] = self.now.pop(old)
        self._renamed()

    def remove(self, name: str) -> None:
        self.step()
        self._data(name)
        del self.now[name]
        self._renamed()

    def sync_names(self) -> None:
        self.step()
        self.synced_names, self._renames = dict(self.now), []

    def close(self) -> None:
        pass

    def _data(self, name: str) -> bytearray:
        if name not in self.now:
            raise FileNotFoundError(name)
        return self.now[name].data

    def _renamed(self) -> None:
        self._renames.append(dict(self.now))


def _torn(content: Content, dice: random.Random) -> bytes:
    """A length of then or now, and each page of then or now; a page that was never synced may be zeros."""
    old, new = content.synced, bytes(content.data)
    size = dice.choice([len(old), len(new)])
    pages = []
    for at in range(0, size, PAGE):
        page = dice.choice([old, new])[at : at + PAGE][: size - at]
        pages.append(page.ljust(min(PAGE, size - at), b"\x00"))
    return b"".join(pages)
