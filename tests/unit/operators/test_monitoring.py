"""Alerts, dashboard and metrics agree: every query parses, every metric and every alert's runbook exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ha.election.driver import Election
from ha.ending import Cause, Ending, read_ending
from ledger_api.server.submission_routes import BATCH, SUBMISSIONS
from pipeline.metrics import FollowerMetrics
from replica.active.derived_ledger import LedgerState
from replica.cli.history import RUNBOOK_OF
from replica.following.index_check import begin_check
from replica.following.scrub import Scrubber
from replica.index.rocks import _SIZES
from replica.log.kafka.round_trips import RoundTrip
from replica.notary.codes import Code
from replica.operators import metrics as metrics_of
from replica.store.neighbours import Neighbours
from replica.telemetry.counts import ApiCounts, Latency, metric_families
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import World

ROOT = Path(__file__).parents[3]
ALERTS = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "monitoring/dashboards/notary.json").read_text())
JMX = yaml.safe_load((ROOT / "monitoring/kafka-jmx.yml").read_text())
OF_BROKERS = {rule["name"] for rule in JMX["rules"]}
OF_HAPROXY = {f"haproxy_server_{name}" for name in ("status", "check_up_down_total", "check_failures_total")}
OF_OTHERS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"} | OF_HAPROXY | OF_BROKERS
"""Metrics that Prometheus, HAProxy, the Prometheus client and the brokers' JMX exporter bring."""
MBEANS = """
kafka.server<type=ReplicaManager, name=UnderReplicatedPartitions><>Value
kafka.server<type=ReplicaManager, name=UnderMinIsrPartitionCount><>Value
kafka.server<type=ReplicaManager, name=IsrShrinksPerSec><>Count
kafka.controller<type=KafkaController, name=OfflinePartitionsCount><>Value
kafka.controller<type=KafkaController, name=ActiveControllerCount><>Value
kafka.server<type=BrokerTopicMetrics, name=BytesInPerSec><>Count
kafka.server<type=BrokerTopicMetrics, name=BytesOutPerSec><>Count
kafka.server<type=BrokerTopicMetrics, name=MessagesInPerSec><>Count
kafka.network<type=RequestMetrics, name=TotalTimeMs, request=Produce><>99thPercentile
kafka.network<type=RequestMetrics, name=TotalTimeMs, request=FetchFollower><>99thPercentile
kafka.log<type=LogFlushStats, name=LogFlushRateAndTimeMs><>99thPercentile
kafka.server<type=KafkaRequestHandlerPool, name=RequestHandlerAvgIdlePercent><>OneMinuteRate
"""
"""Beans of a broker of Apache Kafka 4, as its manual names them and the exporter spells them."""


def exposition() -> str:
    """What an active replica shows on /metrics, with one count of everything that is counted."""
    counts = ApiCounts(
        {f"{SUBMISSIONS} 200": 1}, {"NOTARISED": 1}, {SUBMISSIONS: Latency()}, certificate_expires_s=1e12
    )

    async def story() -> str:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            sizes = dict.fromkeys(("entries", *_SIZES), 1)
            election = cast(Election[Any], replica.election)
            scrubber = Scrubber(
                replica.log,
                replica.index,
                replica.participant.follower,
                world.shared.clock,
                world.shared.core,
                bookmark=Path("nowhere"),
                is_busy=bool,
            )
            scrubber.check = msgspec.structs.replace(begin_check("topic"), marks=((4_096, bytes(32)),))
            metrics = metrics_of.make_metrics(
                metrics_of.IndexMetrics(lambda: sizes, int),
                metrics_of.ScrubMetrics(scrubber),
                metrics_of.TrailMetrics(bool, int),
                metrics_of.MarksMetrics(replica.participant),
                metrics_of.SiteMetrics(lambda: 27.0),
                metrics_of.DiskMetrics(Path()),
                metrics_of.NeighboursMetrics(Neighbours),
                metrics_of.OwnLedgerMetrics(lambda: LedgerState(7, 0, 0, 4_096)),
                metrics_of.BrokersMetrics(lambda: {"1": RoundTrip(0.001, 0.002)}),
                metrics_of.PauseMetrics(bool, bool),
                metrics_of.CoreMetrics(replica.participant, election, "1.0", ["R1"]),
                metrics_of.ApiMetrics(lambda: metric_families(counts)),
            )
            return metrics().decode()

    return run_virtually(story())


@pytest.fixture(scope="module")
def samples() -> set[str]:
    """Names of all time series of a replica, and of the jobs that follow the log."""
    jobs = CollectorRegistry()
    for job, lag_s in (("archive", None), ("log_copy", lambda last: 0.0), ("tables", None)):
        metrics = FollowerMetrics(job, lambda: 1, lambda: 0.0, lag_s)
        metrics.succeeded(0)
        metrics.failed(Code.CATALOGUE_UNAVAILABLE)
        jobs.register(metrics)
    families = text_string_to_metric_families(exposition() + generate_latest(jobs).decode())
    return {sample.name for family in families for sample in family.samples}


def queries() -> Iterator[tuple[str, str]]:
    """Where each PromQL expression comes from, and itself; Grafana's variables filled in."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m")
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


QUERIES = list(queries())


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[f"{n}-{where}" for n, (where, _) in enumerate(QUERIES)])
def test_every_query_parses_and_asks_for_what_exists(where: str, query: str, samples: set[str]) -> None:
    """Goal: no alert that can never fire. Method: PromQL's own parser; names against a real replica's exposition."""
    names = set(selected(promql_parser.parse(query)))
    assert names, where
    assert names - OF_OTHERS <= samples, f"{where}: {names - OF_OTHERS - samples}"


def selected(node: Any) -> Iterator[str]:
    """Names of the metrics that an expression selects."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from selected(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selected(inner)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_names_a_runbook_that_exists(rule: dict[str, Any]) -> None:
    """Goal: an operator who is called knows where to read. Method: the file, the summary, and who is to be called."""
    assert (ROOT / rule["annotations"]["runbook"]).is_file()
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_labels_that_alerts_ask_for_are_given() -> None:
    """Goal: a cause that is renamed is noticed. Method: every cause in a rule is one that is counted."""
    asked = {
        cause for rule in RULES for text in re.findall(r'cause=~?"([^"]+)"', rule["expr"]) for cause in text.split("|")
    }
    assert asked
    assert asked <= set(Cause)


def test_routes_that_are_asked_for_exist() -> None:
    """Goal: a path that is renamed is noticed. Method: every route in a query matches one that the API counts by."""
    asked = {route for _, query in QUERIES for route in re.findall(r'route=~?"([^"]+)"', query)}
    assert asked
    assert all(any(re.fullmatch(route, path) for path in (SUBMISSIONS, BATCH)) for route in asked)


def test_names_keep_prometheus_rules(samples: set[str]) -> None:
    """Goal: base units, no surprises. Method: units that a name may not have, counters that must end in _total."""
    assert {name for name in samples if re.search(r"_(ms|milliseconds|kib|mib|percent)(_|$)", name)} == set()
    families = list(text_string_to_metric_families(exposition()))
    counters = [s.name for family in families if family.type == "counter" for s in family.samples]
    assert [name for name in counters if not name.endswith(("_total", "_created"))] == []
    undocumented = [family.name for family in families if not family.documentation]
    assert undocumented == []


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending(Cause.STOP), "stop"),
        (Ending(Cause.SWITCHOVER, "switchover to r2"), "switchover to r2"),
        (Ending(Cause.ACTIVATION_FAILED, "x", "HA_LOCK_LOST"), "activation_failed HA_LOCK_LOST: x"),
        (Ending(Cause.NO_ANSWER, "for 2.512 s"), "no_answer: for 2.512 s"),
        (Ending(Cause.CLOCK, "it differs by +1.200 s"), "clock: it differs by +1.200 s"),
        (Ending(Cause.LOG_STALLED, "record 7: late\nagain"), "log_stalled: record 7: late\nagain"),
        (Ending(Cause.SUPERSEDED), "superseded"),
        (Ending(Cause.SIGNER, "", "SIGNER_UNAVAILABLE"), "signer SIGNER_UNAVAILABLE"),
        (Ending(Cause.FAILED, "failed to read", "INDEX_UNREADABLE"), "failed INDEX_UNREADABLE: failed to read"),
    ],
)
def test_an_ending_is_read_back_from_its_text(ending: Ending, text: str) -> None:
    """Goal: the history gives the cause as a value. Method: one ending of each form, there and back."""
    assert str(ending) == text
    assert read_ending(text) == ending


@pytest.mark.parametrize(
    "text", ["", "no answer on the lock session for 2.512 s", "record 7 did not read back", "activation failed: x"]
)
def test_words_of_another_release_have_no_cause(text: str) -> None:
    """Goal: a sentence is not taken for a cause. Method: what 0.1.0 wrote."""
    assert read_ending(text) is None


def test_an_alert_for_a_cause_names_the_page_that_the_history_names() -> None:
    """Goal: a dead token sends nobody to the database. Method: the runbook of each alert that asks for causes."""
    for rule in RULES:
        for text in re.findall(r'cause=~?"([^"]+)"', rule["expr"]):
            assert {RUNBOOK_OF[Cause(cause)] for cause in text.split("|")} == {rule["annotations"]["runbook"]}


def test_prometheus_asks_the_jobs_that_the_rules_name() -> None:
    """Goal: `up{job="..."}` is about something. Method: jobs of the example against those in the queries."""
    jobs = {
        job["job_name"] for job in yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    }
    asked = {job for _, query in QUERIES for job in re.findall(r'job="([^"]+)"', query)}
    assert asked <= jobs


def test_prometheus_sends_alerts_to_where_the_install_page_says() -> None:
    """Goal: an alert reaches somebody. Method: rules and Alertmanager of the example, and the page's command on it."""
    settings = yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text())
    assert settings["rule_files"] == ["alerts.yml"]
    (manager,) = settings["alerting"]["alertmanagers"]
    ((target,),) = (group["targets"] for group in manager["static_configs"])
    assert f"s/{target}/$ALERTMANAGER_ADDRESS/" in (ROOT / "docs/install.md").read_text()


def test_each_bean_of_a_broker_is_one_metric_and_each_metric_is_shown() -> None:
    """Goal: the exporter's file gives what the dashboard asks for, and nothing without a bound. Method: its patterns
    against the beans' names; one topic's or client's beans match none."""
    matched = [
        next((rule["name"] for rule in JMX["rules"] if re.fullmatch(rule["pattern"], bean)), None)
        for bean in MBEANS.split("\n")
        if bean
    ]
    assert None not in matched
    assert set(matched) == OF_BROKERS
    assert set(matched) <= {name for _, query in QUERIES for name in selected(promql_parser.parse(query))}
    of_a_topic = "kafka.server<type=BrokerTopicMetrics, name=BytesInPerSec, topic=notary-requests><>Count"
    assert not any(re.fullmatch(rule["pattern"], of_a_topic) for rule in JMX["rules"])
