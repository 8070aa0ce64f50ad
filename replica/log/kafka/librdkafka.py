"""What all our librdkafka clients share: properties, log lines, and the meaning of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException

from replica.log.interface import LogMissing
from replica.log.kafka.settings import KafkaSettings
from replica.notary.errors import ConfigError, LogRefused, LogUnavailable, NotaryError
from replica.notary.records import RECORD_MAX_BYTES

log = structlog.get_logger()

PARTITION = 0
MESSAGE_MAX_BYTES = RECORD_MAX_BYTES + 1_024  # the record batch around a record has about 80 bytes

_T = TypeVar("_T")
_ANSWER_SLACK_S = 0.5  # the client has time limits of its own; ours acts only if they fail

# The offset, or its topic, is gone. A retry cannot help.
_OFFSET_GONE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
_ANOTHER_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_ID, KafkaError.INCONSISTENT_TOPIC_ID})
_NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_WRONG_BROKER = frozenset(
    {KafkaError._DESTROY_BROKER, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
)
_REFUSALS = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
# One connection or look-up failed: the client continues by itself, and reports when no broker is left. Or it lacks the
# right to its consumer group. The setting is compulsory but the group is never used, so no right to it is needed.
_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError.GROUP_AUTHORIZATION_FAILED}
)


class TopicMissing(LogMissing):
    """The brokers know no topic of this name."""


class TopicHidden(LogUnavailable):
    """We have no right to ask this about the topic."""


class WrongBroker(LogUnavailable):
    """The client gave up the broker that it had asked, as it learned of others; or that one does not lead the partition
    any more, or not yet. The question may be asked again."""


class ClientLog:
    """Turns the client's own log lines into the event `kafka_client`. They name brokers and states, never secrets."""

    def log(self, level: int, template: str, *parts: object) -> None:
        """Called by the client library in the thread that serves it, with a level of `logging`."""
        log.log(level, "kafka_client", detail=template % parts)


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """Properties of every client. They may include the password: never log them. Raises ConfigError."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "notary",
        "logger": ClientLog(),
        "enable.metrics.push": False,
        "allow.auto.create.topics": False,  # else a broker with Kafka's defaults creates what a client asks for
        # Connect to every broker at once, not when it is first needed. A new client then has its metadata after 3 ms
        # instead of 55 ms, and is connected already when the leader moves.
        "enable.sparse.connections": False,
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        "socket.connection.setup.timeout.ms": ms(settings.connect_timeout_s),
        "socket.timeout.ms": ms(settings.answer_max_s),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        # A leader may move without an error that reaches us: one that is cut off from its peers still answers every
        # request, with old data. Each refresh asks a random broker, and the client ignores an older leader's epoch. So
        # one refresh from any other broker is enough.
        "topic.metadata.refresh.interval.ms": 1_000,
        **settings.security.client_config(),
    }


def consumer_config(settings: KafkaSettings) -> dict[str, Any]:
    """Properties of everyone who reads the log: committed records only, and an error where an offset is gone."""
    return client_config(settings) | {
        "group.id": "notary",  # must be given, but nothing is subscribed or committed
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "check.crcs": True,
        "max.poll.interval.ms": 86_400_000,  # the core decides how often we read
        "fetch.wait.max.ms": 500,  # a record ends the wait at once, so this costs no latency
        "fetch.min.bytes": 1,
        "fetch.message.max.bytes": 4 * 1_048_576,
        "fetch.error.backoff.ms": 50,
        # No fetch while records wait to be read. A passive reads twenty times a second, and fetches no more often.
        "fetch.queue.backoff.ms": 1,
        "queued.min.messages": 1,
        "queued.max.messages.kbytes": settings.read_ahead_mib * 1_024,
    }


def producer_config(settings: KafkaSettings) -> dict[str, Any]:
    """Properties of everyone who appends: acknowledged by all in-sync brokers, bounded in records, bytes and time."""
    return client_config(settings) | {
        "acks": "all",
        "enable.idempotence": False,
        "linger.ms": settings.append_linger_s * 1_000,
        "compression.type": settings.compression,
        "message.max.bytes": MESSAGE_MAX_BYTES,
        "message.timeout.ms": ms(settings.append_timeout_s),
        "request.timeout.ms": ms(min(settings.append_timeout_s, settings.answer_max_s)),
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 500,
        "queue.buffering.max.messages": settings.append_queue_max,
        "queue.buffering.max.kbytes": settings.append_queue_max_mib * 1_024,
    }


def connect(kind: Callable[[dict[str, Any]], _T], config: dict[str, Any]) -> _T:
    """A client of this kind, connecting in the background. Raises ConfigError when it refuses its properties."""
    try:
        return kind(config)
    except KafkaException as exception:
        raise ConfigError(f"the Kafka client refuses its settings: {error_in(exception).str()}") from None


def passes_by_itself(error: KafkaError) -> bool:
    """Whether the client recovers from this error by itself."""
    return error.code() in _PASSING


def meaning_of(error: KafkaError, doing: str) -> NotaryError:
    """Our error for a librdkafka error: LogRefused or TopicMissing if offset or topic are gone, else LogUnavailable.

    TopicHidden, where a right is missing, and WrongBroker are LogUnavailable.
    """
    detail = f"{doing}: {error.name()}, {error.str()}"
    if error.code() in _NO_TOPIC:
        return TopicMissing(f"{detail}. Create it if this notary is new; if not, its records must be restored first")
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return TopicHidden(detail)
    if error.code() in _WRONG_BROKER:
        return WrongBroker(detail)
    return LogRefused(detail) if error.code() in _OFFSET_GONE | _ANOTHER_TOPIC else LogUnavailable(detail)


def says_no_topic(error: KafkaError) -> bool:
    """Whether a broker knows no such topic or partition."""
    return error.code() in _NO_TOPIC


def offset_is_gone(error: KafkaError) -> bool:
    """Whether the broker that we take for the leader does not have the requested offset."""
    return error.code() in _OFFSET_GONE


def is_refusal(error: KafkaError) -> bool:
    """Whether authentication failed: the brokers refuse our credentials, or we refuse theirs."""
    return error.code() in _REFUSALS


def says_nothing(error: KafkaError) -> bool:
    """Whether this error only sums up others, which name the cause."""
    return bool(error.code() == KafkaError._ALL_BROKERS_DOWN)


def in_words(error: KafkaError) -> str:
    """Why the client could not reach the brokers."""
    kind = "authentication failed" if error.code() == KafkaError._AUTHENTICATION else error.name()
    return f"{kind}: {error.str()}"


def error_in(exception: KafkaException) -> KafkaError:
    """The KafkaError that an exception carries."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


async def answer(future: Future[_T], doing: str, max_s: float) -> _T:
    """The result of an AdminClient's future. Raises the error of `meaning_of`; LogUnavailable without an answer."""
    try:
        async with asyncio.timeout(max_s + _ANSWER_SLACK_S):
            return await asyncio.wrap_future(future)
    except KafkaException as exception:
        raise meaning_of(error_in(exception), doing) from None
    except TimeoutError:
        raise LogUnavailable(f"{doing}: no answer within {max_s:g} s") from None


def ms(duration_s: float) -> int:
    """Seconds as the whole milliseconds that librdkafka is configured in."""
    return round(duration_s * 1_000)
