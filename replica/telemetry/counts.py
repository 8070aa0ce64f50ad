"""The counts of front ends. They report them to the core, so that a replica has one page of metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Annotated

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from replica.telemetry.log_lines import lines_dropped

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BUCKETS = len(LATENCY_BOUNDS_S) + 1  # the last one has no upper bound


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Latency(msgspec.Struct):
    """A histogram of seconds: one count per bucket, not cumulative, and the sum."""

    buckets: Annotated[list[Count], msgspec.Meta(min_length=_BUCKETS, max_length=_BUCKETS)] = msgspec.field(
        default_factory=lambda: [0] * _BUCKETS
    )
    sum_s: Annotated[float, msgspec.Meta(ge=0, le=1e18)] = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    def add(self, other: Latency) -> None:
        """Add the counts of the other histogram."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.sum_s += other.sum_s


class ApiCounts(msgspec.Struct):
    """Counts of one front end since its start, or the sum of several.

    `connections`, `in_flight` and `streams` are present values. `requests` counts by "route status", `answers` counts
    submissions and look-ups by code, and `latency` is by route.
    """

    requests: dict[str, Count] = msgspec.field(default_factory=dict)
    answers: dict[str, Count] = msgspec.field(default_factory=dict)
    latency: dict[str, Latency] = msgspec.field(default_factory=dict)
    signatures_good: Count = 0
    signatures_bad: Count = 0
    connections: Count = 0
    in_flight: Count = 0
    streams: Count = 0
    lines_dropped: Count = 0
    certificate_expires_s: Annotated[float, msgspec.Meta(ge=0, le=1e18)] = 0.0  # Unix time; 0: there is no TLS

    def add(self, other: ApiCounts) -> None:
        """Add the counts of another front end."""
        for mine, theirs in ((self.requests, other.requests), (self.answers, other.answers)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        for route, latency in other.latency.items():
            self.latency.setdefault(route, Latency()).add(latency)
        self.signatures_good += other.signatures_good
        self.signatures_bad += other.signatures_bad
        self.connections += other.connections
        self.in_flight += other.in_flight
        self.streams += other.streams
        self.lines_dropped += other.lines_dropped
        expiries = {self.certificate_expires_s, other.certificate_expires_s} - {0.0}
        self.certificate_expires_s = min(expiries, default=0.0)


def metric_families(counts: ApiCounts) -> Iterator[Metric]:
    """The counts for a Prometheus registry's collector."""
    requests = CounterMetricFamily("notary_api_requests", "HTTP requests answered", labels=["route", "status"])
    for key, count in sorted(counts.requests.items()):
        route, _, status = key.rpartition(" ")
        requests.add_metric([route, status], count)
    yield requests
    answers = CounterMetricFamily("notary_api_answers", "Submissions and look-ups answered", labels=["code"])
    for code, count in sorted(counts.answers.items()):
        answers.add_metric([code], count)
    yield answers
    seconds = HistogramMetricFamily("notary_api_request_seconds", "Time to answer an HTTP request", labels=["route"])
    for route, latency in sorted(counts.latency.items()):
        seconds.add_metric([route], _cumulative(latency), latency.sum_s)
    yield seconds
    signatures = CounterMetricFamily("notary_api_signature_checks", "Request signatures checked", labels=["result"])
    signatures.add_metric(["good"], counts.signatures_good)
    signatures.add_metric(["bad"], counts.signatures_bad)
    yield signatures
    yield GaugeMetricFamily("notary_api_connections", "Client connections open", value=counts.connections)
    yield GaugeMetricFamily("notary_api_in_flight", "Submissions and look-ups under way", value=counts.in_flight)
    yield GaugeMetricFamily("notary_api_streams", "Streams of completions and updates open", value=counts.streams)
    if counts.certificate_expires_s:
        yield GaugeMetricFamily(
            "notary_api_certificate_left_seconds",
            "For how long the certificate is valid that the API presents; the first to end of the front ends'",
            value=counts.certificate_expires_s - time.time(),
        )
    dropped = counts.lines_dropped + lines_dropped()  # the front ends', and this process's own
    yield CounterMetricFamily("notary_log_lines_dropped", "Log lines that nobody took in time", value=dropped)


def _cumulative(latency: Latency) -> list[tuple[str, float]]:
    bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
    return [(bound, sum(latency.buckets[: at + 1])) for at, bound in enumerate(bounds)]
