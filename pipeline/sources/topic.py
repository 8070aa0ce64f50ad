"""What a job asks about the request log's topic before it reads it, for code without an event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pipeline.sources.kafka_python import read_stretch
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import refuse_unsafe
from replica.log.open import open_log_admin
from replica.notary.errors import LogRefused
from replica.notary.position import BEGIN, Position
from replica.notary.records import record_digest


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic at one moment: its id, the oldest offset it has, and the offset that the next record will get."""

    topic_id: str
    first: int
    end: int


def look_at(settings: KafkaSettings, *, any_contract: bool = False) -> TopicView:
    """The topic as the brokers tell. Raises LogRefused when it breaks the contract, TopicMissing, LogUnavailable.

    `any_contract`: look at it all the same, when only its records matter.
    """

    async def ask() -> TopicView:
        admin = open_log_admin(settings)
        try:
            facts = await admin.facts()
            if not any_contract:
                refuse_unsafe(settings.topic, facts, settings.single_broker)
            return TopicView(facts.topic_id, await admin.first_offset(), await admin.end_offset())
        finally:
            await admin.close()

    return asyncio.run(ask())


def value_at(settings: KafkaSettings, offset: int) -> bytes:
    """The record at an offset that the topic has. Raises LogUnavailable."""
    (batch,) = read_stretch(settings, offset, offset + 1)
    return batch.column("value")[0].as_py() or b""


def refuse_other_log(settings: KafkaSettings, position: Position) -> None:
    """Raise LogRefused unless the log has, where the position is, the very record that the position was read from."""
    if position.offset == BEGIN:
        return
    if record_digest(value_at(settings, position.offset)) != position.digest:
        raise LogRefused(f"the log's record at offset {position.offset} is not the one that was read before")
