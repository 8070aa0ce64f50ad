"""The small interface between front ends and core: what a front end may ask, and what it is told.

Tests run both sides in one process; a replica has the Unix-socket form between its processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from replica.notary.answers import Answer
from replica.notary.requests import Submission


class Standing(msgspec.Struct, frozen=True):
    """The core's word on its role. A front end serves only while `active`; `epoch` is the newest it knows of."""

    active: bool
    epoch: int
    retry_after_s: float


class Participant(Protocol):
    """The core as a front end sees it."""

    @property
    def standing(self) -> Standing:
        """The newest word of the core; passive when the core is not heard."""

    async def submit(self, submissions: Sequence[Submission]) -> list[Answer]:
        """Notarise checked submissions; one answer each, in order. Never raises: what is not known is a NotNow."""

    async def look_up(self, tx_id: bytes) -> Answer:
        """Whether a transaction was notarised: Notarised, Refused with TX_NOT_FOUND, or NotNow."""
