"""A store of objects: named, written whole, listed, read. Nothing is renamed or appended to.

That is what object stores have in common, and a local folder as well. An archive needs no more, and writes each object
once: its segments are named by their content, and each line of its manifest is kept in an object named by the number of
its first line. Only a report's files are replaced by those of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeVar

from replica.notary.errors import PlaceUnavailable

ATTEMPTS = 6
PAUSE_S = 0.2  # after the first attempt; doubles with each, so that all attempts take about 6 s
RANGE_BYTES = 16 << 20  # most that is asked for at once, so that a large object needs no more memory than this

ResultT = TypeVar("ResultT")


class ObjectExists(Exception):
    """There is an object of this name already; it was left as it is."""


class ObjectMissing(Exception):
    """There is no object of this name."""


class Store(Protocol):
    """One place. Names are relative, their parts are divided by `/`.

    Every call may raise PlaceUnavailable, and PlaceAccessDenied when the credentials do not suffice.
    """

    def names(self, under: str) -> list[str]:
        """The names of all whole objects that begin with `under`, sorted. An object that was created is listed."""

    def size(self, name: str) -> int:
        """Bytes of an object. Raises ObjectMissing."""

    def read(self, name: str) -> bytes:
        """A whole object. Raises ObjectMissing."""

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """At most `length` bytes (1 or more) from `start` on, which is below the size. Raises ObjectMissing."""

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        """Keep a new object, made of these parts; it is durable when this returns. The parts fit into memory.

        Two writers of one name: at most one succeeds. Unless this returns, no object appears, with one exception: after
        PlaceUnavailable there is either the whole object or none. Raises ObjectExists, and whatever `parts` raises.
        """

    def send(self, name: str, file: Path) -> None:
        """Keep a local file of any size as a new object; it is durable when this returns. Memory is bounded.

        Unlike with `create`, two writers of one name at the same time may both succeed, and the later object stays:
        give it a name that no other content has. Raises ObjectExists.
        """

    def replace(self, name: str, file: Path) -> None:
        """Keep a local file of any size as this object, in the place of one that may be there. Memory is bounded.

        Durable when it returns; until then whoever reads has the object before, or this one whole.
        """

    def remove(self, name: str) -> bool:
        """Remove an object if it is there; returns False when it stays: by object lock, or for want of the right."""


def keep(store: Store, name: str, content: bytes, sleep: Callable[[float], None]) -> None:
    """Return once the store has an object of this name and content, whoever wrote it.

    An answer may be lost, so an object of the same content counts as ours: two writers of the same bytes may both go
    on, and nothing differs. Raises ObjectExists when the content is another one, and PlaceUnavailable after ATTEMPTS.
    """
    again(lambda: _settle(name, lambda: store.create(name, [content]), lambda: store.read(name) == content), sleep)


def keep_file(store: Store, name: str, file: Path, digest: str, sleep: Callable[[float], None]) -> None:
    """Return once the store has a file's content under this name, which includes its SHA-256 in hexadecimal.

    Raises ObjectExists when the content under this name is another one, and PlaceUnavailable.
    """

    def is_ours() -> bool:  # the size is asked for once, so an outage takes no longer
        return store.size(name) == file.stat().st_size and digest_of(store, name, sleep) == digest

    again(lambda: _settle(name, lambda: store.send(name, file), is_ours), sleep)


def _settle(name: str, write: Callable[[], None], is_ours: Callable[[], bool]) -> None:
    """Write an object, unless the same is there. Raises ObjectExists, and PlaceUnavailable when it is not known.

    A server may refuse a name before it has read the content, and close the connection: whoever still sends loses that
    answer, each time. So who got no answer looks, and does not only write again.
    """
    try:
        write()
        return
    except ObjectExists:
        failed = PlaceUnavailable(f"{name} was removed meanwhile")
    except PlaceUnavailable as error:
        failed = error
    try:
        ours = is_ours()
    except ObjectMissing:
        raise failed from None
    if not ours:
        raise ObjectExists(name)


def fetch(store: Store, name: str, file: Path, sleep: Callable[[float], None]) -> None:
    """Read an object into a new local file. Raises ObjectMissing, and PlaceUnavailable after ATTEMPTS for a range."""
    ranges = _ranges(store, name, sleep)
    with file.open("xb") as written:
        for part in ranges:
            written.write(part)


def digest_of(store: Store, name: str, sleep: Callable[[float], None]) -> str:
    """SHA-256 of an object, in hexadecimal. Raises as `fetch` does."""
    digest = sha256()
    for part in _ranges(store, name, sleep):
        digest.update(part)
    return digest.hexdigest()


def _ranges(store: Store, name: str, sleep: Callable[[float], None]) -> Iterator[bytes]:
    """The content of an object that is there, piece by piece. Raises ObjectMissing at once."""
    size = again(lambda: store.size(name), sleep)
    starts = range(0, size, RANGE_BYTES)
    return (again(partial(store.read_range, name, start, RANGE_BYTES), sleep) for start in starts)


def again(call: Callable[[], ResultT], sleep: Callable[[float], None]) -> ResultT:
    """What a call returns, made up to ATTEMPTS times. Raises PlaceUnavailable of the last attempt; others at once.

    `sleep` gets seconds. The call must be one that may be repeated.
    """
    for number in range(ATTEMPTS - 1):
        try:
            return call()
        except PlaceUnavailable:
            sleep(PAUSE_S * 2**number)
    return call()
