"""What Prometheus sees of a job that follows the log: lag and age go on when nothing else does."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection

from prometheus_client import CollectorRegistry, generate_latest

from pipeline.metrics import FollowerMetrics, metrics_of, serve_metrics
from replica.notary.codes import Code
from replica.notary.errors import LogUnavailable


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(metrics: FollowerMetrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def test_an_archiver_that_hangs_shows_as_one_that_lags() -> None:
    """Goal: the alert does not depend on the work that fails. Method: one success, then only log and clock move."""
    end, clock = [11], Clock()
    metrics = FollowerMetrics("archive", lambda: end[0], clock)
    clock.now_s = 105.0
    assert shown(metrics) == {"notary_archive_age_seconds": 5.0}
    metrics.succeeded(10)
    assert shown(metrics) == {
        "notary_archive_age_seconds": 0.0,
        "notary_archive_offset": 10.0,
        "notary_archive_lag_records": 0.0,
    }
    end[0], clock.now_s = 61, 165.0
    found = shown(metrics)
    assert (found["notary_archive_age_seconds"], found["notary_archive_lag_records"]) == (60.0, 50.0)


def test_a_log_that_does_not_answer_hides_no_age() -> None:
    """Goal: brokers down, and the age is still there. Method: the question for the log's end fails."""

    def gone() -> int:
        raise LogUnavailable("no broker answers")

    clock = Clock()
    metrics = FollowerMetrics("archive", gone, clock)
    metrics.succeeded(10)
    clock.now_s = 400.0
    assert shown(metrics) == {"notary_archive_age_seconds": 300.0, "notary_archive_offset": 10.0}


def test_failures_are_counted_by_their_code() -> None:
    """Goal: an alert can name what fails. Method: two failures of one code, one of another."""
    metrics = FollowerMetrics("tables", lambda: 0, Clock())
    for code in (Code.PLACE_UNAVAILABLE, Code.LOG_UNAVAILABLE, Code.PLACE_UNAVAILABLE):
        metrics.failed(code)
    assert shown(metrics) == {
        "notary_tables_age_seconds": 0.0,
        'notary_tables_failures_total{code="LOG_UNAVAILABLE"}': 1.0,
        'notary_tables_failures_total{code="PLACE_UNAVAILABLE"}': 2.0,
    }


def test_metrics_are_for_prometheus_and_no_foreign_page() -> None:
    """Goal: a page that lets its name resolve here reads nothing. Method: by names of ours, by an address, by its."""
    server = serve_metrics(metrics_of("archive", lambda: 0), "127.0.0.1", 0, ("notary-1.example",))
    port = server.server_port

    def status(host: str) -> int:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics", headers={"Host": host})
        with closing(connection), connection.getresponse() as answer:
            return answer.status

    for host in (f"127.0.0.1:{port}", "localhost", "notary-1.example:9102", "10.0.0.7:9102"):
        assert status(host) == 200, host
    assert status("evil.example") == 403
    server.shutdown()
    server.server_close()
