"""Compares two indexes entry by entry, in key order: bounded memory, whatever their size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

_OFFSET_BYTES = 8  # every value ends in the log offset that it was recorded at


class Difference(msgspec.Struct, frozen=True):
    """A key whose values differ between two indexes; None where the key is absent."""

    key: bytes
    left: bytes | None
    right: bytes | None

    @property
    def offset(self) -> int:
        """The lowest log offset that either side recorded: where they came apart for this key."""
        return min(recorded_at(value) for value in (self.left, self.right) if value is not None)


def recorded_at(value: bytes) -> int:
    """The log offset of an entry."""
    return int.from_bytes(value[-_OFFSET_BYTES:], "big")


def differences(
    left: Iterable[tuple[bytes, bytes]], right: Iterable[tuple[bytes, bytes]], until_offset: int
) -> Iterator[Difference]:
    """All differences between entries in key order that were recorded up to and including `until_offset`.

    Two indexes at different positions agree up to the lower of these positions: pass that one.
    """
    lefts, rights = _until(left, until_offset), _until(right, until_offset)
    a, b = next(lefts, None), next(rights, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            yield Difference(a[0], a[1], None)  # type: ignore[index]
            a = next(lefts, None)
        elif a is None or b[0] < a[0]:
            yield Difference(b[0], None, b[1])
            b = next(rights, None)
        else:
            if a[1] != b[1]:
                yield Difference(a[0], a[1], b[1])
            a, b = next(lefts, None), next(rights, None)


def _until(entries: Iterable[tuple[bytes, bytes]], offset: int) -> Iterator[tuple[bytes, bytes]]:
    return ((key, value) for key, value in entries if recorded_at(value) <= offset)
