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
from prometheus_client.parser import text_string_to_metric_families

from ha.election.driver import Election
from ledger_api.server.api import BATCH, SUBMISSIONS
from replica.core import causes
from replica.core.metrics import make_metrics
from replica.core.scrub import Scrubber
from replica.core.walk import begin_walk
from replica.link.counts import ApiCounts, Latency, metric_families
from replica.log.round_trips import RoundTrip
from tests.simulation.virtual import run_virtually
from tests.unit.core_world import World

ROOT = Path(__file__).parents[2]
ALERTS = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "monitoring/dashboards/notary.json").read_text())
OF_OTHERS = {"up", "haproxy_server_status", "process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Metrics that Prometheus, HAProxy and the Prometheus client bring."""


def exposition() -> str:
    """What an active replica shows on /metrics, with one count of everything that is counted."""
    counts = ApiCounts({f"{SUBMISSIONS} 200": 1}, {"NOTARISED": 1}, {SUBMISSIONS: Latency()})

    async def story() -> str:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            sizes = {"entries": 1, "write_stopped": 0, "table_bytes": 1}
            election = cast(Election[Any], replica.election)
            scrubber = Scrubber(
                replica.log,
                replica.index,
                replica.participant.follower,
                world.shared.clock,
                world.shared.core,
                bookmark=Path("nowhere"),
                entry_count=int,
                is_busy=bool,
            )
            scrubber.walk = msgspec.structs.replace(begin_walk("topic"), marks=((4_096, bytes(32)),))
            metrics = make_metrics(
                replica.participant,
                election,
                "1.0",
                lambda: metric_families(counts),
                index_sizes=lambda: sizes,
                scrubber=scrubber,
                round_trips=lambda: {"1": RoundTrip(0.001, 0.002)},
            )
            return metrics().decode()

    return run_virtually(story())


@pytest.fixture(scope="module")
def samples() -> set[str]:
    """Names of all time series of a replica."""
    families = text_string_to_metric_families(exposition())
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
    """Goal: whoever is woken up knows where to read. Method: the file, the summary, and who is to be called."""
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
    assert asked <= set(causes.ALL)


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
    ("reason", "cause"),
    [
        ("stop", "stop"),
        ("switchover to r2", "switchover"),
        ("activation failed: HA_LOCK_LOST: x", "activation_failed"),
        ("no answer on the lock session for 2.512 s", "no_answer"),
        ("the clock differs from the database's by +1.200 s", "clock"),
        ("record 7 did not read back for 2.0 s", "log_stalled"),
        ("the log took no record: full", "log_stalled"),
        ("a higher barrier is in force", "superseded"),
        ("the server ended the session: terminating connection", "lock_lost"),
    ],
)
def test_a_reason_has_one_of_few_causes(reason: str, cause: str) -> None:
    """Goal: no number or name in a label. Method: one reason of each kind, as the code words it."""
    assert causes.cause_of(reason) == cause
    assert cause in causes.ALL


def test_prometheus_asks_the_jobs_that_the_rules_name() -> None:
    """Goal: `up{job="..."}` is about something. Method: jobs of the example against those in the queries."""
    jobs = {
        job["job_name"] for job in yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    }
    asked = {job for _, query in QUERIES for job in re.findall(r'job="([^"]+)"', query)}
    assert asked <= jobs
