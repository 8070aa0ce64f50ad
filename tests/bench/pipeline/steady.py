"""A process that appends ready-made records at a steady rate, each when it is due; and the lag of what follows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from time import monotonic, sleep

from confluent_kafka import Producer

from replica.log.kafka.librdkafka import PARTITION
from replica.log.kafka.settings import KafkaSettings

RATE_PER_S = 5_000
TOGETHER_MAX = 10_000  # the producer's queue has room for more
_TICK_S = 0.01


def generate(
    settings: KafkaSettings, values: Sequence[bytes], told: Connection, rate_per_s: float = RATE_PER_S
) -> None:
    """Append each record when it is due. Sends when the first one was, and at the end how late one was at most."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "acks": "all", "linger.ms": 5})
    told.recv()
    began_s, sent, late_s = monotonic(), 0, 0.0
    told.send(began_s)
    while sent < len(values):
        due = min(int((monotonic() - began_s) * rate_per_s) + 1, len(values))
        if sent < due:
            late_s = max(late_s, monotonic() - began_s - sent / rate_per_s)
        due = min(due, sent + TOGETHER_MAX)
        for value in values[sent:due]:
            while True:
                try:
                    producer.produce(settings.topic, value, partition=PARTITION)
                    break
                except BufferError:  # the broker is behind
                    producer.poll(_TICK_S)
        sent = due
        producer.poll(0)
        sleep(_TICK_S)
    if producer.flush(60):
        sys.exit("the broker does not answer")
    told.send(late_s)


def lags_s(commits: list[tuple[float, int]], began_s: float) -> list[float]:
    """For each commit, how long ago its first record was due."""
    firsts = [0, *[offset + 1 for _, offset in commits[:-1]]]
    return [at_s - began_s - first / RATE_PER_S for (at_s, _), first in zip(commits, firsts, strict=True)]
