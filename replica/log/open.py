"""Opens the request log that a configuration names: the only place where an adapter is built by name."""

from __future__ import annotations

from replica.log.kafka.log import KafkaLog
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import TopicAdmin


def open_log(settings: KafkaSettings) -> KafkaLog:
    """The request log (RequestLog). It connects when first asked."""
    return KafkaLog(settings)


def open_log_admin(settings: KafkaSettings) -> TopicAdmin:
    """What tools ask of that log (LogAdmin). It connects when first asked."""
    return TopicAdmin(settings)
