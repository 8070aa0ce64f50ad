"""What Prometheus sees of an archiver that follows the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from replica.notary.errors import NotaryError


class ArchiverMetrics(Collector):
    """Lag and age, worked out when they are asked for, so that an archiver that hangs shows as one that lags."""

    def __init__(self, log_end: Callable[[], int], now_s: Callable[[], float]) -> None:
        """`log_end`: the log's end now, raises NotaryError when it is not to be had; `now_s`: any clock, seconds."""
        self._log_end = log_end
        self._now_s = now_s
        self._began_s = now_s()
        self._last: int | None = None

    def succeeded(self, last: int) -> None:
        """Note a success that ended with this offset of the log, -1 for an empty one."""
        self._began_s = self._now_s()
        self._last = last

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "notary_archive_age_seconds",
            "Time since the archive was last brought up to date, or since the archiver started.",
            value=self._now_s() - self._began_s,
        )
        if self._last is None:
            return
        yield GaugeMetricFamily("notary_archive_offset", "Last offset of the log that is archived.", value=self._last)
        try:
            lag = max(0, self._log_end() - 1 - self._last)
        except NotaryError:
            return  # the log does not answer; the age goes on
        yield GaugeMetricFamily(
            "notary_archive_lag_records", "Records that the log has and the archive has not.", value=lag
        )


def serve_metrics(host: str, port: int, log_end: Callable[[], int]) -> Callable[[int], None]:
    """Serve /metrics until the process ends; returns what to call after each success. Raises OSError."""
    registry = CollectorRegistry()
    metrics = ArchiverMetrics(log_end, time.monotonic)
    registry.register(metrics)
    start_http_server(port, host, registry)
    return metrics.succeeded
