"""Failures that no second try forgives: a promise of the notary was seen broken, however seldom that happens.

A finding of the checker, a lost answer, a double spend, a process that ended unasked, an outage beyond its goal.
`tests/conftest.py` notes the tests that met one, and `scripts/test.sh` does not repeat them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from replica.local.process import ServerEnded

NEVER_REPEATED = Path("build/never-repeated")  # one node id a line; from the folder that pytest was started in


class PromiseBroken(AssertionError):
    """The notary did what it promises never to do."""


def promised(holds: bool, what: object) -> None:
    """Assert a promise. Raises PromiseBroken."""
    if not holds:
        raise PromiseBroken(what)


def breaks_a_promise(error: BaseException) -> bool:
    """Whether an error is one, or was raised in groups, from or while handling one."""
    return any(isinstance(one, PromiseBroken | ServerEnded) for one in _behind(error))


def _behind(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def note_never_repeated(node_id: str) -> None:
    """Report to `scripts/test.sh` that a test's failure is final."""
    NEVER_REPEATED.parent.mkdir(exist_ok=True)
    with NEVER_REPEATED.open("a") as file:
        file.write(f"{node_id}\n")
