"""Questions about the request log that a job asks before it reads it, for code without an event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from replica.log.open import open_log_admin
from replica.log.settings import LogSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused
from replica.notary.position import BEGIN, Position
from replica.notary.records import record_digest


@dataclass(frozen=True, slots=True)
class TopicView:
    """A log at one moment: its id, the oldest offset it has, and the offset that the next record will get."""

    topic_id: str
    first: int
    end: int


def look_at(settings: LogSettings, *, any_contract: bool = False) -> TopicView:
    """The log as it reports itself. Raises LogRefused when it breaks its contract, LogMissing, LogUnavailable.

    `any_contract`: accept a broken contract, when only its records matter.
    """

    async def ask() -> TopicView:
        admin = open_log_admin(settings)
        try:
            found = await admin.survey()
            if found.violations and not any_contract:
                raise LogRefused(f"topic {settings.label}: {'; '.join(found.violations)}", Code.TOPIC_UNSAFE)
            return TopicView(found.log_id, found.first_offset, found.end_offset)
        finally:
            await admin.close()

    return asyncio.run(ask())


def value_at(settings: LogSettings, offset: int) -> bytes:
    """The record at an offset that the topic has. Raises LogUnavailable."""
    (stretch,) = open_log_admin(settings).stretch(offset, offset + 1)
    return stretch.values[0] or b""


def refuse_other_log(settings: LogSettings, position: Position) -> None:
    """Raise LogRefused unless the log has, at the position, the record that the position was read from."""
    if position.offset == BEGIN:
        return
    if record_digest(value_at(settings, position.offset)) != position.digest:
        raise LogRefused(f"the log's record at offset {position.offset} is not the one that was read before")
