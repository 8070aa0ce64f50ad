"""A store of objects: named, written once and whole, listed, read. Nothing is renamed, appended to or overwritten.

That is what object stores have in common, and a local folder as well. An archive needs no more: its segments are named
by their content, and each line of its manifest is kept once, in objects named by the number of their first line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from replica.notary.errors import Code, NotaryError

ATTEMPTS = 6
PAUSE_S = 0.2  # after the first attempt; doubles with each, so that all attempts take about 6 s

ResultT = TypeVar("ResultT")


class PlaceUnavailable(NotaryError):
    """The store did not answer, or not now. A write may have been done nevertheless; ask again."""

    default_code = Code.PLACE_UNAVAILABLE


class ObjectExists(Exception):
    """There is an object of this name already; it was left as it is."""


class ObjectMissing(Exception):
    """There is no object of this name."""


class Store(Protocol):
    """One place. Names are relative, their parts are divided by `/`. Every call may raise PlaceUnavailable."""

    def names(self, under: str) -> list[str]:
        """The names of all whole objects that begin with `under`, sorted. An object that was created is listed."""

    def read(self, name: str) -> bytes:
        """A whole object. Raises ObjectMissing."""

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        """Keep a new object, made of these parts; it is durable when this returns.

        Two writers of one name: at most one succeeds. Unless this returns, no object appears, with one exception: after
        PlaceUnavailable there is either the whole object or none. Raises ObjectExists, and whatever `parts` raises.
        """

    def remove(self, name: str) -> bool:
        """Remove an object if it is there; returns False when the store keeps it for good (object lock)."""


def keep(store: Store, name: str, content: bytes, sleep: Callable[[float], None]) -> None:
    """Return once the store has an object of this name and content, whoever wrote it.

    An answer may be lost, so an object of the same content counts as ours: two writers of the same bytes may both go
    on, and nothing differs. Raises ObjectExists when the content is another one, and PlaceUnavailable after ATTEMPTS.
    """

    def attempt() -> None:
        try:
            store.create(name, [content])
        except ObjectExists:
            if store.read(name) != content:
                raise

    again(attempt, sleep)


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
