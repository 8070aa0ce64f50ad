"""Files that may change while a front end runs: read again on SIGHUP, and within a minute of any change of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from replica.notary.changed_files import CHANGES_LOOK_S, Seen, seen
from replica.notary.errors import ConfigError

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Part:
    """Something that is read from files. `reload` returns what the log line shows, and raises ConfigError."""

    name: str
    files: Sequence[Path]
    reload: Callable[[], object]
    seen: Seen = field(init=False)

    def __post_init__(self) -> None:
        self.seen = seen(self.files)


class Reloading:
    """A bad file keeps its old content; the others take effect."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def all(self) -> None:
        """Read everything again."""
        for part in self._parts:
            _reload(part)

    def changed(self) -> None:
        """Read again what has other files than when it was last read. Half of a change brings another look."""
        for part in self._parts:
            if part.seen != seen(part.files):
                _reload(part)

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(CHANGES_LOOK_S)
            self.changed()


def _reload(part: Part) -> None:
    part.seen = seen(part.files)  # before it is read: what is written meanwhile is another change
    try:
        _log.info("reloaded", part=part.name, result=part.reload())
    except ConfigError as error:
        _log.error("reload_refused", part=part.name, code=error.code.name, detail=error.detail)
