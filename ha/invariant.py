"""The one error that means a bug. The module imports nothing, so that every package can raise the same error."""

from __future__ import annotations

from typing import ClassVar


class InvariantBroken(Exception):
    """A bug or bad data: the process ends.

    It derives from neither `HaError` nor `NotaryError`, so that no handler of those catches it by accident. A handler
    that names it says why it may: it reports the error, or answers the one caller, and hides nothing.
    """

    code: ClassVar[str] = "INTERNAL"  # in the error catalogue

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(f"{self.code}: {detail}")
