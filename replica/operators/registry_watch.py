"""Where the log says which keys sign, nobody reads the registry file. Each replica looks whether it says otherwise.

Whoever edits that file under rules 3 would believe to have admitted or ended a key. So a difference is an alarm. It has
no effect on answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from replica.index.interface import OFFSET_END, Index
from replica.notary.errors import ConfigError, IndexUnreadable
from replica.notary.parties import Differences, Pair, PeriodUs, decode_registration, differences, registration_id
from replica.notary.rules import REGISTERED_FROM

log = structlog.get_logger()

LOOK_EVERY_S = 30.0
TOGETHER = 1_000  # pairs that are looked up at once


class RegistryWatch:
    """Compares, from `run` until that is cancelled. `differing`: pairs of the file; None: not compared."""

    def __init__(
        self,
        read_file: Callable[[], Mapping[Pair, PeriodUs]],
        index: Index,
        rules_in_force: Callable[[], int],
        wall_us: Callable[[], int],
    ) -> None:
        """`read_file` raises ConfigError; a file that cannot be read is another alarm."""
        self.differing: int | None = None
        self._read_file = read_file
        self._index = index
        self._rules_in_force = rules_in_force
        self._wall_us = wall_us

    async def run(self) -> None:
        """Look every `LOOK_EVERY_S`. An index that cannot be read ends the replica elsewhere."""
        while True:
            with suppress(IndexUnreadable):
                await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Compare once, if the rules in force judge keys by the log. Raises IndexUnreadable."""
        if self._rules_in_force() < REGISTERED_FROM:
            self.differing = None
            return
        try:
            file = await asyncio.to_thread(self._read_file)
        except ConfigError:
            self.differing = None
            return
        found = differences(file, await self._in_log(list(file)), self._wall_us())
        self._note(found)

    async def _in_log(self, pairs: list[Pair]) -> dict[Pair, PeriodUs]:
        """The newest registrations of those pairs that have one."""
        found: dict[Pair, PeriodUs] = {}
        for start in range(0, len(pairs), TOGETHER):
            some = pairs[start : start + TOGETHER]
            values = self._index.newest([registration_id(*pair) for pair in some], [OFFSET_END] * len(some))
            for pair, value in zip(some, values, strict=True):
                if value is not None:
                    registration = decode_registration(value)
                    found[pair] = registration.from_us, registration.until_us
            await asyncio.sleep(0)
        return found

    def _note(self, found: Differences) -> None:
        differing = len(found.missing) + len(found.other)
        if differing and differing != self.differing:
            party, key = [*found.missing, *found.other][0]
            detail = {"party": party, "key": key.hex()}  # one of them, to begin with
            log.warning("registry_differs", missing=len(found.missing), other=len(found.other), **detail)
        self.differing = differing
