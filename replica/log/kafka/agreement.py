"""What most brokers say: where a partition ends, and whether a payload is lost. Asks each broker by itself.

A broker that is cut off from its peers goes on to call itself the leader, and shows the log as it was.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from replica.log.kafka.brokers import Brokers
from replica.log.kafka.librdkafka import PARTITION, client_config, connect, says_no_topic
from replica.log.kafka.pointers import Pointer, name_payload, payload_topic
from replica.log.kafka.settings import KafkaSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable
from replica.notary.tasks import cancelled

_NO_LEADER, _NO_PARTITION = -1, -2


@dataclass(frozen=True, slots=True)
class View:
    """What one broker reports: its id, the partition's leader, and the addresses of all brokers by id.

    The leader is -1 while there is none, and -2 where the broker knows no such partition.
    """

    broker: int
    leader: int
    brokers: Mapping[int, str]


def agreed(views: Sequence[View]) -> View:
    """A view whose leader is named by most of all known brokers. Pure.

    Raises LogUnavailable when there is no such leader: brokers are cut off from one another, or from us.
    """
    known = {broker for view in views for broker in (view.broker, *view.brokers)}
    by_broker = {view.broker: view for view in views}
    votes = Counter(view.leader for view in by_broker.values() if view.leader >= 0)
    leader, count = votes.most_common(1)[0] if votes else (-1, 0)
    if 2 * count <= len(known):
        said = ", ".join(f"{view.broker} says {view.leader}" for view in by_broker.values()) or "none answers"
        raise LogUnavailable(f"the brokers do not agree who leads: of {len(known)}, {said}")
    return next(view for view in by_broker.values() if view.leader == leader)


def most_lack(payload: Sequence[View], log: Sequence[View]) -> bool:
    """Whether most of all known brokers know the log's partition, and no partition of payloads by that name. Pure.

    Brokers learn of topics in the order of their creation, so a broker that knows only the older one proves nothing.
    """
    known = {broker for view in (*payload, *log) for broker in (view.broker, *view.brokers)}
    knows_log = {view.broker for view in log if view.leader != _NO_PARTITION}
    lacks_payload = {view.broker for view in payload if view.leader == _NO_PARTITION}
    return 2 * len(knows_log & lacks_payload) > len(known)


async def agreed_end_offset(settings: KafkaSettings) -> int:
    """The log's end according to the leader that most brokers name. Asks each broker over a connection of its own.

    Raises LogUnavailable.
    """
    servers = len(settings.bootstrap_servers.split(","))
    asked = await _ask_all(settings, settings.topic, PARTITION, lambda views: settles(views, servers))
    return await _end_by(asked, settings, settings.topic, PARTITION)


async def refuse_lost_payload(settings: KafkaSettings, pointer: Pointer) -> None:
    """Raise LogRefused (LOG_PAYLOAD_MISSING) if most brokers prove that a payload is not late, but lost.

    It was acknowledged before its pointer was written. So its partition is there, and ends after it. Raises
    LogUnavailable where that cannot be known now.
    """
    topic, partition = payload_topic(settings.topic), pointer.partition
    where = name_payload(topic, partition, pointer.offset)
    asked = await _ask_all(settings, topic, partition)
    if most_lack(asked.views, (await _ask_all(settings, settings.topic, PARTITION)).views):
        raise LogRefused(f"{where} is gone: brokers know no such partition", Code.LOG_PAYLOAD_MISSING)
    end = await _end_by(asked, settings, topic, partition)
    if end <= pointer.offset:
        raise LogRefused(f"{where} is gone: the partition ends at {end}", Code.LOG_PAYLOAD_MISSING)


@dataclass(frozen=True, slots=True)
class _Asked:
    views: Sequence[View]  # of the brokers that answer
    addresses: Mapping[int, str]  # of all known brokers, by id


async def _end_by(asked: _Asked, settings: KafkaSettings, topic: str, partition: int) -> int:
    brokers = Brokers(_only(settings, asked.addresses[agreed(asked.views).broker]))
    try:
        return await brokers.end_of(topic, partition)
    finally:
        await brokers.close()


async def _ask_all(
    settings: KafkaSettings, topic: str, partition: int, enough: Callable[[Sequence[View]], bool] = lambda _: False
) -> _Asked:
    """What each known broker says of a partition; once it is `enough`, the brokers that are silent are not awaited."""

    async def ask(broker: int, address: str) -> View | None:
        return await asyncio.to_thread(_ask_view, _only(settings, address), broker, topic, partition)

    known: dict[int, str] = {}
    views: dict[int, View] = {}
    asking = {asyncio.create_task(ask(-1, at)) for at in settings.bootstrap_servers.split(",")}
    try:
        while asking and not enough(list(views.values())):
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            for view in filter(None, (task.result() for task in done)):
                if view.broker >= 0:
                    views[view.broker] = view
                new = {number: address for number, address in view.brokers.items() if number not in known}
                known |= new
                asking |= {asyncio.create_task(ask(number, address)) for number, address in new.items()}
    finally:
        await cancelled(*asking)
    return _Asked(list(views.values()), known)


def settles(views: Sequence[View], servers: int) -> bool:
    """Whether these views agree on a leader whatever the other brokers say, of which the settings name `servers`. Pure.

    A broker that was cut off may know of fewer brokers than there are.
    """
    try:
        leader = agreed(views).leader
    except LogUnavailable:
        return False
    return 2 * sum(view.leader == leader for view in views) > servers


def _only(settings: KafkaSettings, address: str) -> KafkaSettings:
    return settings.model_copy(update={"bootstrap_servers": address})


def _ask_view(settings: KafkaSettings, broker: int, topic: str, partition: int) -> View | None:
    """What the broker at the settings' address says; None when it does not answer."""
    alone = {"enable.sparse.connections": True, "log_level": 0}  # connects only to the broker that it asks
    client = connect(AdminClient, client_config(settings) | alone)
    try:
        found = client.list_topics(topic, timeout=settings.answer_max_s)
    except KafkaException:
        return None
    told = found.topics[topic]
    at = told.partitions.get(partition)
    brokers = {number: f"{one.host}:{one.port}" for number, one in found.brokers.items()}
    if at is not None:
        return View(broker, at.leader, brokers)
    unknown = told.error is None or says_no_topic(told.error)
    return View(broker, _NO_PARTITION if unknown else _NO_LEADER, brokers)
