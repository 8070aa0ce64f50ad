"""What Prometheus sees of a job that follows the log: the archiver, and the writer of the tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.web_hosts import WebHosts


class FollowerMetrics(Collector):
    """Lag and age, worked out when they are asked for, so that a job that hangs shows as one that lags."""

    def __init__(
        self,
        job: str,
        log_end: Callable[[], int],
        now_s: Callable[[], float],
        lag_s: Callable[[int], float] | None = None,
    ) -> None:
        """`job` is in the metrics' names; `log_end`: the log's end now, raises NotaryError when it is not to be had;
        `now_s`: any clock, seconds; `lag_s`: seconds since the oldest record after an offset came into the log, raises
        NotaryError likewise."""
        self._job = job
        self._log_end = log_end
        self._now_s = now_s
        self._lag_s = lag_s
        self._began_s = now_s()
        self._last: int | None = None
        self._failures: Counter[str] = Counter()

    @property
    def knows_offset(self) -> bool:
        """Whether anybody has said how far the job is."""
        return self._last is not None

    def resumed(self, last: int, age_s: float) -> None:
        """Note how far the job had come before this process, and how long ago, unless it has come further since.

        Without this a job that is started again and again, and never succeeds, would look young.
        """
        if self._last is None:
            self._began_s = self._now_s() - max(0.0, age_s)
            self._last = last

    def succeeded(self, last: int) -> None:
        """Note a success that ended with this offset of the log, -1 for an empty one."""
        self._began_s = self._now_s()
        self._last = last

    def failed(self, code: Code) -> None:
        """Note a failure after which the job tries again."""
        self._failures[code.name] += 1

    def collect(self) -> Iterable[Metric]:
        name = f"notary_{self._job}"
        yield GaugeMetricFamily(
            f"{name}_age_seconds",
            f"Time since the {self._job} had all of the log, or a run of it; before that, since the job started.",
            value=self._now_s() - self._began_s,
        )
        failures = CounterMetricFamily(
            f"{name}_failures", "Failures after which the job tried again, by code.", labels=["code"]
        )
        for code, count in sorted(self._failures.items()):
            failures.add_metric([code], count)
        yield failures
        if self._last is None:
            return
        yield GaugeMetricFamily(f"{name}_offset", f"Last offset of the log in the {self._job}.", value=self._last)
        try:
            lag = max(0, self._log_end() - 1 - self._last)
            lag_s = None if self._lag_s is None else self._lag_s(self._last)
        except NotaryError:
            return  # the log does not answer; the age goes on
        yield GaugeMetricFamily(
            f"{name}_lag_records", f"Records that the log has and the {self._job} has not.", value=lag
        )
        if lag_s is not None:
            yield GaugeMetricFamily(
                f"{name}_lag_seconds",
                f"Age of the oldest record that the {self._job} has not; 0 without one.",
                value=lag_s,
            )


def metrics_of(job: str, log_end: Callable[[], int], lag_s: Callable[[int], float] | None = None) -> FollowerMetrics:
    """The metrics of a job of this process, by a clock that nobody sets."""
    return FollowerMetrics(job, log_end, time.monotonic, lag_s)


def serve_metrics(
    metrics: Collector, host: str, port: int, names: Iterable[str] = (), further: Iterable[Collector] = ()
) -> WSGIServer:
    """Serve /metrics until the process ends, or the server that is returned is shut down. Raises OSError.

    `names`: those by which it may be asked for, beside loopback names and addresses (replica/notary/web_hosts.py).
    """
    registry = CollectorRegistry()
    for one in (metrics, *further):
        registry.register(one)
    hosts, exposition = WebHosts((host, *names), addresses=True), make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not hosts.takes_host(environ.get("HTTP_HOST")):
            start("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"WRONG_HOST: host_names in the configuration takes further names\n"]
        answered: Iterable[bytes] = exposition(environ, start)
        return answered

    server = make_server(host, port, answer, _Server, handler_class=_Silent)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Standard error is for errors."""
