"""The contract of the request log's topics, and the checks of it: it fixes the order and keeps the records. Pure.

    setting                         required          because
    partitions                      1                 requests have one order
    replication factor              3 or more         a record outlives the loss of a broker:
    min.insync.replicas             2 or more         no broker acknowledges it alone,
    unclean.leader.election.enable  false             and none that missed it ever leads
    cleanup.policy                  delete            compaction would drop records,
    retention.ms, retention.bytes   -1                and so would age or size
    flush.messages                  1                 a record is on disk before a broker acknowledges or copies it
    max.message.bytes               see below         every record that a replica makes fits

The setting `single_broker` allows development on one broker: it relaxes the two counts, and nothing else. With
`durability = "replicated"` records need not be on any disk, so flush.messages may have any value. The topic of
payloads, where there is one, keeps the same contract with as many partitions as are written to, or more. It is checked
whether payloads are still written or not, because the log points to those that were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replica.log.kafka.librdkafka import MESSAGE_MAX_BYTES
from replica.log.kafka.pointers import payload_topic
from replica.log.kafka.settings import KafkaSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated

REPLICATION_FACTOR = 3
MIN_INSYNC = 2

Count = tuple[str, Callable[[str], bool]]
"""A requirement for people, and whether a value fulfils it."""


class Broken(NamedTuple):
    """A setting that breaks the contract."""

    name: str
    found: str
    required: str


_ONE: Count = ("1", "1".__eq__)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the brokers report of a topic. Each creation of a topic makes a new `topic_id` (in Kafka's text form)."""

    topic_id: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LogTopics:
    """The topics of a log, and where each partition begins."""

    log: TopicFacts
    first_offset: int
    payloads: TopicFacts | None = None  # None: there is no such topic, or none that we may see
    payloads_begin: Sequence[int] = ()  # by partition


def violations(facts: TopicFacts, settings: KafkaSettings) -> list[str]:
    """Every way in which the log's topic breaks the contract: setting, found, required. Empty when it is kept."""
    return _in_words(_broken(facts, settings, _ONE))


def corrections(facts: TopicFacts, settings: KafkaSettings) -> dict[str, str]:
    """The settings of a topic, the log's or that of payloads, that break the contract, with a value that keeps it.

    Nobody can correct the number of partitions or of copies by a setting.
    """
    kept = topic_config(settings)
    return {one.name: kept[one.name] for one in _broken(facts, settings, _ONE) if one.name in kept}


def all_violations(found: LogTopics, settings: KafkaSettings) -> list[str]:
    """The same for all topics of a log."""
    return violations(found.log, settings) + _payload_violations(found.payloads, settings)


def losses(found: LogTopics, settings: KafkaSettings) -> list[str]:
    """Every partition that has lost its beginning."""
    topic = payload_topic(settings.topic)
    return ([_lost_records(found.first_offset)] if found.first_offset else []) + [
        f"partition {partition} of topic {topic} begins at offset {first}: the payloads before are gone"
        for partition, first in enumerate(found.payloads_begin)
        if first
    ]


def refuse_unsafe(found: LogTopics, settings: KafkaSettings) -> None:
    """Raise LogRefused (TOPIC_UNSAFE), which names every violation of the contract, if there is one."""
    if broken := all_violations(found, settings):
        raise LogRefused(f"topic {settings.topic}: {'; '.join(broken)}", Code.TOPIC_UNSAFE)


def refuse_lost(found: LogTopics, settings: KafkaSettings) -> None:
    """Raise LogTruncated when the log's first records are gone, LogRefused (LOG_PAYLOAD_MISSING) when payloads are."""
    if found.first_offset:
        raise LogTruncated(f"topic {settings.topic}: {_lost_records(found.first_offset)}")
    if lost := losses(found, settings):
        raise LogRefused("; ".join(lost), Code.LOG_PAYLOAD_MISSING)


def topic_config(settings: KafkaSettings) -> dict[str, str]:
    """The settings that a topic is created with."""
    return {
        "min.insync.replicas": "1" if settings.single_broker else str(MIN_INSYNC),
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(MESSAGE_MAX_BYTES),
        # A broker refuses records that a client stamps an hour ahead; our clock must not decide what can be logged.
        "message.timestamp.type": "LogAppendTime",
    } | ({"flush.messages": "1"} if settings.survives_power_loss else {})


def _lost_records(first_offset: int) -> str:
    return f"it begins at offset {first_offset}: the records before are gone"


def _payload_violations(facts: TopicFacts | None, settings: KafkaSettings) -> list[str]:
    topic, written = payload_topic(settings.topic), settings.payload_partitions
    if facts is None:
        return [f"topic {topic} is not there, and payloads are to be written to it"] if written else []
    least = max(1, written)
    broken = _in_words(_broken(facts, settings, (f"{least} or more", _at_least(least))))
    return [f"{violation} (topic {topic})" for violation in broken]


def _in_words(broken: Sequence[Broken]) -> list[str]:
    return [f"{name} is {found}, required is {required}" for name, found, required in broken]


def _broken(facts: TopicFacts, settings: KafkaSettings, partitions: Count) -> list[Broken]:
    copies, insync = (1, 1) if settings.single_broker else (REPLICATION_FACTOR, MIN_INSYNC)
    contract: list[tuple[str, str, Callable[[str], bool]]] = [
        ("partitions", *partitions),
        ("replication factor", f"{copies} or more", _at_least(copies)),
        ("min.insync.replicas", f"{insync} or more", _at_least(insync)),
        ("unclean.leader.election.enable", "false", "false".__eq__),
        ("cleanup.policy", "delete", "delete".__eq__),
        ("retention.ms", "-1", "-1".__eq__),
        ("retention.bytes", "-1", "-1".__eq__),
        ("max.message.bytes", f"{MESSAGE_MAX_BYTES} or more", _at_least(MESSAGE_MAX_BYTES)),
    ]
    if settings.survives_power_loss:
        contract.append(("flush.messages", "1", "1".__eq__))
    counts = {"partitions": str(facts.partitions), "replication factor": str(facts.replication_factor)}
    found = {**facts.settings, **counts}
    return [
        Broken(name, found.get(name, "not known"), required)
        for name, required, holds in contract
        if not holds(found.get(name, ""))
    ]


def _at_least(minimum: int) -> Callable[[str], bool]:
    return lambda text: text.isdecimal() and int(text) >= minimum
