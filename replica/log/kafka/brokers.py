"""Questions to the brokers, over a client that is kept: asked again where the wrong broker got them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from replica.log.kafka.librdkafka import (
    WrongBroker,
    answer,
    client_config,
    connect,
    error_in,
    in_words,
    is_refusal,
    meaning_of,
    says_nothing,
)
from replica.log.kafka.settings import KafkaSettings
from replica.notary.errors import LogUnavailable

LOOK_AGAIN_S = 0.05

_T = TypeVar("_T")


class Brokers:
    """Asks the brokers, without blocking.

    Each question raises TopicMissing, and LogUnavailable when no answer comes within `answer_max_s`. The latter names
    what kept the client from the brokers: a refused log-in, a certificate, an address. The client connects with the
    first question and is kept from then on, because dropping it fails every question in progress.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._kept: AdminClient | None = None
        self._answered = False  # whether the kept client has had an answer
        self._trouble: KafkaError | None = None  # the client's error since the last question

    async def end_of(self, topic: str, partition: int) -> int:
        """The offset that the next record of this partition will get."""
        return (await self.offset(topic, partition, OffsetSpec.latest())).offset  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Drop the client. May be repeated; the next question makes another client."""
        dropped, self._kept, self._trouble = [self._kept], None, None
        await asyncio.to_thread(dropped.clear)  # waits for the client's own threads

    async def offset(self, topic: str, number: int, spec: OffsetSpec) -> ListOffsetsResultInfo:
        """An offset of a partition, such as its oldest, with the leader's epoch."""
        if not self._answered:
            await asyncio.to_thread(self._wait_for_a_broker, topic)
        partition = TopicPartition(topic, number)

        def ask(client: AdminClient) -> Future[ListOffsetsResultInfo]:
            level, max_s = IsolationLevel.READ_COMMITTED, self._settings.answer_max_s
            return client.list_offsets({partition: spec}, isolation_level=level, request_timeout=max_s)[partition]

        found = await self.read(ask, f"reading an offset of topic {topic}")
        if found.offset < 0:  # the result when a broker does not answer in time; no error is raised
            raise LogUnavailable(f"reading an offset of topic {topic}: the leader did not answer")
        return found

    def _wait_for_a_broker(self, topic: str) -> None:
        """Wait until a new client is connected: asked for an offset before, it may wait for the whole time, and fail.

        Any broker answers this. Others of our questions wait for the controller, which an offset does not need.
        """
        try:
            self.client().list_topics(topic, timeout=self._settings.answer_max_s)
        except KafkaException as exception:
            raise meaning_of(error_in(exception), f"looking for the leader of topic {topic}") from None
        self._answered = True

    async def read(self, ask: Callable[[AdminClient], Future[_T]], doing: str) -> _T:
        """The answer to a question that changes nothing: asked again while the wrong broker gets it."""
        until_s = time.monotonic() + self._settings.answer_max_s
        while True:
            try:
                return await self.answered(ask(self.client()), doing)
            except WrongBroker:
                if time.monotonic() >= until_s:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)

    async def answered(self, future: Future[_T], doing: str) -> _T:
        """Raises WrongBroker, LogUnavailable with what the client met, and the other errors of `meaning_of`."""
        try:
            found = await answer(future, doing, self._settings.answer_max_s)
        except WrongBroker:
            raise
        except LogUnavailable as error:
            if self._kept is not None:
                self._kept.poll(0)
            if self._trouble is None:
                raise
            raise LogUnavailable(f"{error.detail}; {in_words(self._trouble)}") from None
        self._trouble, self._answered = None, True
        return found

    def client(self) -> AdminClient:
        if self._kept is None:
            quiet = {"error_cb": self._note_trouble, "log_level": 0}  # our exception has what it would log
            self._kept, self._answered = connect(AdminClient, client_config(self._settings) | quiet), False
        self._kept.poll(0)  # processes what the client has reported since the last question
        return self._kept

    def _note_trouble(self, error: KafkaError) -> None:
        """Called by `poll`. A question that fails because of this error only times out: this keeps the cause.

        It is kept until a question is answered: the client does not repeat what it has reported.
        """
        if self._trouble is None or is_refusal(error) or says_nothing(self._trouble):
            self._trouble = error
