"""Settings of front ends and link, what is counted, and when a client tries again."""

from __future__ import annotations

import prometheus_client
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric

from ledger_api.client import RetryPolicy
from ledger_api.server.logs import LogLimit
from ledger_api.server.settings import ApiSettings
from replica.link.settings import LinkSettings
from replica.notary.errors import ConfigError
from replica.telemetry.counts import ApiCounts, Latency, metric_families


@pytest.mark.parametrize(
    "values",
    [
        {"bodies_max_bytes": 2**20},
        {"in_flight_max": 10},
        {"colour": "red"},
        {"port": 65_536},
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, object]) -> None:
    """Goal: a front end does not start on a contradiction. Method: one contradiction each."""
    with pytest.raises(pydantic.ValidationError):
        ApiSettings.model_validate(values)


def test_the_link_tolerates_late_words() -> None:
    """Goal: one late keep-alive does not make a replica passive. Method: an age of two intervals is refused."""
    with pytest.raises(pydantic.ValidationError, match="keep_alive_s"):
        LinkSettings(keep_alive_s=0.5, standing_max_age_s=1.0)


def test_the_metrics_page_has_every_count() -> None:
    """Goal: operators see what front ends counted. Method: render the sum of two as Prometheus text."""
    counts, other = ApiCounts(), ApiCounts()
    counts.add(ApiCounts(requests={"/v1/submissions 200": 2}, answers={"NOTARISED": 2}, signatures_good=2, in_flight=1))
    latency = Latency()
    for duration_s in (0.0005, 0.02, 99.0):
        latency.observe(duration_s)
    other.add(ApiCounts(requests={"/v1/submissions 200": 1}, latency={"/v1/submissions": latency}, signatures_bad=3))
    counts.add(other)

    class Collector:
        def collect(self) -> list[Metric]:
            return list(metric_families(counts))

    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())  # type: ignore[arg-type]
    text = prometheus_client.generate_latest(registry).decode()
    for line in (
        'notary_api_requests_total{route="/v1/submissions",status="200"} 3.0',
        'notary_api_answers_total{code="NOTARISED"} 2.0',
        'notary_api_request_seconds_bucket{le="0.001",route="/v1/submissions"} 1.0',
        'notary_api_request_seconds_bucket{le="0.025",route="/v1/submissions"} 2.0',
        'notary_api_request_seconds_bucket{le="+Inf",route="/v1/submissions"} 3.0',
        'notary_api_request_seconds_count{route="/v1/submissions"} 3.0',
        'notary_api_signature_checks_total{result="good"} 2.0',
        'notary_api_signature_checks_total{result="bad"} 3.0',
        "notary_api_in_flight 1.0",
        "notary_api_connections 0.0",
    ):
        assert line in text


@given(st.integers(0, 1_000), st.floats(0, 1e4), st.floats(0, 1, exclude_max=True))
def test_retry_delays_are_bounded_and_the_server_s_estimate_takes_their_place(
    attempt: int, estimate_s: float, random: float
) -> None:
    """Goal: never sooner than the server's estimate, exactly then if that is longer, else bounded. Method: any
    attempt."""
    policy = RetryPolicy()
    delay_s = policy.delay_s(attempt, estimate_s, random)
    own_max_s = policy.delay_max_s * (1 + policy.jitter)
    assert max(estimate_s, policy.timeout_s) <= delay_s
    assert delay_s == estimate_s if estimate_s > own_max_s else delay_s <= own_max_s


@pytest.mark.parametrize("told", [float("nan"), float("inf"), float("-inf"), -1.0, 1e300])
def test_an_absurd_estimate_holds_up_nobody(told: float) -> None:
    """Goal: no broken server makes a client wait for ever. Method: figures that are none, and that are too large."""
    policy = RetryPolicy()
    assert policy.timeout_s <= policy.delay_s(0, told, 0.5) <= policy.estimate_max_s
    assert 0 <= policy.believed_s(told) <= policy.estimate_max_s


def test_a_corda_node_s_retry_windows_come_out() -> None:
    """Goal: the seed's timer. Method: its settings, the first and the last moment of each window, in whole seconds."""
    node = RetryPolicy(timeout_s=30.0, backoff_base=1.8, max_restart_count=6, jitter=0.5)
    windows = [(30, 45), (54, 81), (97, 145), (174, 261), (314, 471), (566, 849), (1020, 1530), (1020, 1530)]
    for attempt, (first_s, last_s) in enumerate(windows):
        assert int(node.delay_s(attempt, 0.0, 0.0)) == first_s
        assert abs(node.delay_s(attempt, 0.0, 1.0) - last_s) < 1.5  # a node drops the fraction before the jitter
    assert node.delay_s(0, 29.0, 0.0) == 30.0  # a shorter estimate changes nothing, a longer one is kept to exactly
    assert node.delay_s(0, 61.5, 0.7) == 61.5


def test_a_policy_that_would_hammer_is_refused() -> None:
    """Goal: no pause of nothing. Method: each bad figure."""
    for bad in ({"timeout_s": 0.0}, {"backoff_base": 0.5}, {"max_restart_count": -1}, {"jitter": -0.1}):
        with pytest.raises(ConfigError):
            RetryPolicy(**bad)  # type: ignore[arg-type]


async def test_a_flood_of_problems_is_not_a_flood_of_log_lines() -> None:
    """Goal: lines a second are bounded, and what was withheld is counted. Method: the loop's clock moved by hand."""
    limit = LogLimit(2)
    limit._loop = _Clock()  # type: ignore[assignment]
    assert [limit.take() for _ in range(5)] == [0, 0, None, None, None]
    limit._loop.now_s = 11.0  # type: ignore[attr-defined]
    assert [limit.take() for _ in range(3)] == [3, 0, None]


class _Clock:
    now_s = 10.0

    def time(self) -> float:
        return self.now_s
