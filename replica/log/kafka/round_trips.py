"""How long brokers take to answer the active's writes, from the Kafka client's own statistics."""

from __future__ import annotations

import msgspec

from replica.log.interface import RoundTrip

STATISTICS_EVERY_S = 5.0
_US_PER_S = 1_000_000


class _Window(msgspec.Struct):
    cnt: int
    avg: int
    p99: int


class _Broker(msgspec.Struct):
    nodeid: int
    rtt: _Window


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker]


_decoder = msgspec.json.Decoder(_Statistics)


class RoundTrips:
    """Receives the client's statistics, and keeps the newest of each broker, by the broker's id.

    Each covers the last STATISTICS_EVERY_S in which that broker answered.
    """

    def __init__(self) -> None:
        self.by_broker: dict[str, RoundTrip] = {}

    def __call__(self, statistics: str) -> None:
        for broker in _decoder.decode(statistics).brokers.values():
            window = broker.rtt  # in microseconds
            if broker.nodeid >= 0 and window.cnt:  # below 0: a bootstrap address, asked only for the list of brokers
                self.by_broker[str(broker.nodeid)] = RoundTrip(window.avg / _US_PER_S, window.p99 / _US_PER_S)

    def clear(self) -> None:
        """Forget everything: the writer is closed."""
        self.by_broker.clear()
