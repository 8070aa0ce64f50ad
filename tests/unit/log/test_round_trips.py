"""What is kept of librdkafka's statistics."""

from __future__ import annotations

import json

from replica.log.kafka.round_trips import RoundTrip, RoundTrips


def broker(nodeid: int, cnt: int, avg: int) -> dict[str, object]:
    window = {"min": 1, "max": 9, "avg": avg, "sum": 5, "cnt": cnt, "stddev": 0, "p50": 3, "p99": 2 * avg}
    return {"name": f"b:9092/{nodeid}", "nodeid": nodeid, "state": "UP", "rtt": window, "throttle": window}


def test_the_newest_round_trip_of_each_broker_is_kept_in_seconds() -> None:
    """Goal: units, and no gap while a broker is idle. Method: two reports; one address is no broker, one was idle."""
    trips = RoundTrips()
    for brokers in ([broker(1, 4, 1_500), broker(2, 1, 250)], [broker(1, 2, 3_000), broker(2, 0, 0), broker(-1, 1, 7)]):
        trips(json.dumps({"name": "notary#producer-1", "type": "producer", "brokers": {b["name"]: b for b in brokers}}))
    assert trips.by_broker == {"1": RoundTrip(0.003, 0.006), "2": RoundTrip(0.00025, 0.0005)}
    trips.clear()
    assert trips.by_broker == {}
