"""Each alert's condition over recorded series: two notaries in one Prometheus, of which one fails at a time."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.promql import Labels, fires, labels

ROOT = Path(__file__).parents[3]
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD = json.loads((ROOT / "monitoring/dashboards/notary.json").read_text())
END_S, STEP_S = 50_000.0, 5.0
CLUSTERS = ("london", "paris")
Samples = dict[tuple[str, Labels], Callable[[float], float]]


def healthy() -> Samples:
    """What two notaries of three replicas show when nothing is wrong: r1 leads, the others follow."""
    shown: Samples = {}
    for cluster in CLUSTERS:
        for name in ("r1", "r2", "r3"):
            where = {"cluster": cluster, "instance": f"{cluster}-{name}:8082"}
            leads = float(name == "r1")
            for metric, value in {
                "notary_leading": leads,
                "notary_serving": leads,
                "notary_all_serve": 0.0,
                "notary_epoch": 7.0 if cluster == "london" else 900.0,
                "notary_log_reached": 1.0,
                "notary_log_hazards": 0.0,
                "notary_ledger_copies": 0.0,
                "notary_name_borrowers": 0.0,
                "notary_failover_paused": 0.0,
                "notary_service_paused": 0.0,
                "notary_trail_broken": 0.0,
                "notary_marks_foreign": 0.0,
                "notary_seen_file_faulty": 0.0,
                "notary_exposed_records": 0.0,
                "notary_site_term_left_seconds": 25.0,
                "notary_lock_heartbeat_age_seconds": 0.4,
                "notary_unpublished_records": 10.0,
                "notary_unpublished_completions": 10.0,
                "notary_ledger_lag_records": 10.0,
                "notary_unpublished_completions_max": 100_000.0,
                "notary_clock_skew_seconds": 0.01,
                "notary_lag_records": 5.0,
                "notary_void_records_total": 3.0,
                "notary_failed_submissions_total": 0.0,
                "notary_disk_free_bytes": 50e9,
                "notary_disk_size_bytes": 100e9,
                "notary_api_certificate_left_seconds": 7_000_000.0,
                "notary_index_quarantined": 0.0,
                "notary_index_write_stopped": 0.0,
                "notary_scrub_age_seconds": 100.0,
                "notary_scrub_within_seconds": 86_400.0,
            }.items():
                shown[metric, labels(**where)] = lambda _, value=value: value
            shown["up", labels(**where, job="notary")] = lambda _: 1.0
            shown["notary_role", labels(**where, role="active" if leads else "passive")] = lambda _: 1.0
            shown["notary_broker_round_trip_mean_seconds", labels(**where, broker="1")] = lambda _: 0.003
            shown["notary_lock_foreign", labels(**where, holder="", user="")] = lambda _: 0.0
            # what was read at the same offsets: equal within a notary, and never between two
            shown["notary_index_digest", labels(**where, records="4096")] = lambda _, c=cluster: float(len(c))
            for cause in ("no_answer", "log_stalled", "signer"):
                shown["notary_step_downs_total", labels(**where, cause=cause)] = lambda _: 2.0
            shown["notary_api_answers_total", labels(**where, code="OVERLOADED")] = lambda _: 5.0
            shown["notary_api_signature_checks_total", labels(**where, result="bad")] = lambda _: 5.0
            for bound in ("0.1", "1", "2.5", "+Inf"):
                bucket = labels(**where, route="/v1/submissions", le=bound)
                shown["notary_api_request_seconds_bucket", bucket] = lambda at_s: at_s
            shown["notary_scrub_wanted_records_per_second", labels(**where)] = lambda _: 10.0
            shown["notary_scrub_records_total", labels(**where)] = lambda at_s: 10.0 * at_s
        balancer = {"cluster": cluster, "instance": f"{cluster}-lb:9101"}
        shown["up", labels(**balancer, job="notary-haproxy")] = lambda _: 1.0
        shown["haproxy_server_status", labels(**balancer, proxy="replicas", server="r1", state="UP")] = lambda _: 1.0
        for proxy in ("replicas", "watched"):
            taken_out = labels(**balancer, proxy=proxy, server="r1")
            shown["haproxy_server_check_up_down_total", taken_out] = lambda _: 3.0
        archiver = {"cluster": cluster, "instance": f"{cluster}-archive:9103"}
        shown["up", labels(**archiver, job="notary-archive")] = lambda _: 1.0
        shown["notary_archive_age_seconds", labels(**archiver)] = lambda _: 30.0
        shown["notary_archive_lag_records", labels(**archiver)] = lambda _: 100_000.0
        copier = {"cluster": cluster, "instance": f"{cluster}-archive:9106"}
        shown["up", labels(**copier, job="notary-log-copy")] = lambda _: 1.0
        shown["notary_log_copy_age_seconds", labels(**copier)] = lambda _: 3.0
        shown["notary_log_copy_lag_seconds", labels(**copier)] = lambda _: 2.0
        tables = {"cluster": cluster, "instance": f"{cluster}-archive:9105"}
        shown["up", labels(**tables, job="notary-tables")] = lambda _: 1.0
        shown["notary_tables_age_seconds", labels(**tables)] = lambda _: 5.0
        shown["notary_tables_lag_records", labels(**tables)] = lambda _: 30_000.0
        shown["notary_tables_failures_total", labels(**tables, code="LOG_UNAVAILABLE")] = lambda at_s: at_s / 60
        shown["notary_tables_failures_total", labels(**tables, code="CATALOGUE_UNAVAILABLE")] = lambda _: 3.0
    return shown


def of(cluster: str, metric: str, value: Callable[[float], float], **wanted: str) -> Callable[[Samples], None]:
    """A change: from here on the series of one notary, with these labels, have another value."""

    def change(shown: Samples) -> None:
        found = [
            key for key in shown if key[0] == metric and {"cluster": cluster, **wanted}.items() <= dict(key[1]).items()
        ]
        assert found, (metric, wanted)
        for key in found:
            shown[key] = value

    return change


def late(value: float, before: float = 0.0, since_s: float = 60.0) -> Callable[[float], float]:
    return lambda at_s: value if at_s >= END_S - since_s else before


def rising(per_s: float) -> Callable[[float], float]:
    return lambda at_s: per_s * at_s


def paris_is_gone(shown: Samples) -> None:
    """No replica of one notary answers: Prometheus has nothing of it but that."""
    for name, found in list(shown):
        if dict(found)["cluster"] == "paris" and name.startswith("notary_"):
            del shown[name, found]
        elif dict(found)["cluster"] == "paris" and dict(found).get("job") == "notary":
            shown[name, found] = lambda _: 0.0


def slow(shown: Samples) -> None:
    """Half of one notary's answers take between one second and two and a half."""
    for bound in ("0.1", "1"):
        of("paris", "notary_api_request_seconds_bucket", lambda at_s: 0.5 * at_s, le=bound)(shown)


P = "paris"
R2 = {"instance": "paris-r2:8082"}
FAULTS: dict[str, Callable[[Samples], None]] = {
    "NotaryNoActiveReplica": of(P, "notary_serving", lambda _: 0.0),
    "NotaryNobodyLeads": of(P, "notary_leading", lambda _: 0.0),
    "NotaryWorkerOutOfRotation": of(P, "notary_all_serve", lambda _: 1.0, **R2),
    "NotaryTwoReplicasClaimToLead": of(P, "notary_leading", lambda _: 1.0, **R2),
    "NotaryLockHeldByAStranger": of(P, "notary_lock_foreign", lambda _: 1.0, **R2),
    "NotaryLedgerCopied": of(P, "notary_ledger_copies", lambda _: 1.0),
    "NotaryReplicaNameBorrowed": of(P, "notary_name_borrowers", lambda _: 1.0),
    "NotaryFailedOver": of(P, "notary_epoch", late(901.0, 900.0)),
    "NotaryFailsOverAgainAndAgain": of(P, "notary_epoch", late(904.0, 900.0)),
    "NotaryLogUnsafe": of(P, "notary_log_hazards", lambda _: 1.0),
    "NotaryNoReplicaCouldTakeOver": of(P, "notary_log_reached", lambda _: 0.0),
    "NotaryReplicaDown": of(P, "up", lambda _: 0.0, job="notary", **R2),
    "NotaryFailoverPaused": of(P, "notary_failover_paused", lambda _: 1.0),
    "NotaryTrailBroken": of(P, "notary_trail_broken", lambda _: 1.0, **R2),
    "NotarySiteOutOfTerm": of(P, "notary_site_term_left_seconds", lambda _: 0.0, **R2),
    "NotaryMarkForeign": of(P, "notary_marks_foreign", lambda _: 1.0, **R2),
    "NotarySeenFileFaulty": of(P, "notary_seen_file_faulty", lambda _: 1.0, **R2),
    "NotaryAnswersExposed": of(P, "notary_exposed_records", lambda _: 15_000.0, **R2),
    "NotaryHeartbeatLate": of(P, "notary_lock_heartbeat_age_seconds", lambda _: 2.0),
    "NotaryLocksLost": of(P, "notary_step_downs_total", late(5.0, 2.0), cause="no_answer"),
    "NotaryCompletionsLag": of(P, "notary_unpublished_records", lambda _: 60_000.0),
    "NotaryOwnLedgerLags": of(P, "notary_ledger_lag_records", lambda _: 60_000.0, **R2),
    "NotaryCompletionsNearBound": of(P, "notary_unpublished_completions", lambda _: 71_000.0),
    "NotaryClockOff": of(P, "notary_clock_skew_seconds", lambda _: -0.7, **R2),
    "NotaryLogUnreachable": of(P, "notary_log_reached", lambda _: 0.0, **R2),
    "NotaryReplicaLags": of(P, "notary_lag_records", lambda _: 60_000.0, **R2),
    "NotaryLogStalls": of(P, "notary_step_downs_total", late(3.0, 2.0), cause="log_stalled"),
    "NotaryBrokersSlow": of(P, "notary_broker_round_trip_mean_seconds", lambda _: 0.5),
    "NotaryVoidRecordsUnexpected": of(P, "notary_void_records_total", rising(1.0)),
    "NotaryCertificateExpires": of(P, "notary_api_certificate_left_seconds", lambda _: 500_000.0, **R2),
    "NotaryKeyUnusable": of(P, "notary_step_downs_total", late(3.0, 2.0), cause="signer", **R2),
    "NotarySlow": slow,
    "NotaryOverloaded": of(P, "notary_api_answers_total", rising(1.0)),
    "NotaryBadSignatures": of(P, "notary_api_signature_checks_total", rising(2.0)),
    "NotarySubmissionsFail": of(P, "notary_failed_submissions_total", late(1.0)),
    "NotaryDiskFillsUp": of(P, "notary_disk_free_bytes", lambda _: 9e9, **R2),
    "NotaryDiskFull": of(P, "notary_disk_free_bytes", lambda _: 1e9, **R2),
    "NotaryIndexQuarantined": of(P, "notary_index_quarantined", lambda _: 1.0, **R2),
    "NotaryIndexDigestsDiffer": of(P, "notary_index_digest", lambda _: 99.0, **R2),
    "NotaryScrubLate": of(P, "notary_scrub_age_seconds", lambda _: 90_000.0, **R2),
    "NotaryScrubTooSlow": of(P, "notary_scrub_records_total", rising(4.0), **R2),
    "NotaryIndexStopsWriting": of(P, "notary_index_write_stopped", lambda _: 1.0, **R2),
    "NotaryArchiveLate": of(P, "notary_archive_age_seconds", lambda _: 3_700.0),
    "NotaryArchiveLags": of(P, "notary_archive_lag_records", lambda _: 2e6),
    "NotaryArchiverDown": of(P, "up", lambda _: 0.0, job="notary-archive"),
    "NotaryLogCopyLate": of(P, "notary_log_copy_age_seconds", lambda _: 400.0),
    "NotaryLogCopyLags": of(P, "notary_log_copy_lag_seconds", lambda _: 90.0),
    "NotaryLogCopyDown": of(P, "up", lambda _: 0.0, job="notary-log-copy"),
    "NotaryTablesLate": of(P, "notary_tables_age_seconds", lambda _: 700.0),
    "NotaryTablesLag": of(P, "notary_tables_lag_records", lambda _: 2e6),
    "NotaryTablesUnregistered": of(P, "notary_tables_failures_total", rising(1.0), code="CATALOGUE_UNAVAILABLE"),
    "NotaryTablesDown": of(P, "up", lambda _: 0.0, job="notary-tables"),
    "NotaryBalancerHasNoReplica": of(P, "haproxy_server_status", lambda _: 0.0),
    "NotaryBalancerFlaps": of(P, "haproxy_server_check_up_down_total", late(7.0, 3.0), proxy="watched"),
    "NotaryBalancerCutTheActive": of(P, "haproxy_server_check_up_down_total", late(4.0, 3.0), proxy="replicas"),
    "NotaryBalancerDown": of(P, "up", lambda _: 0.0, job="notary-haproxy"),
}


def recorded(shown: Samples, alert: str) -> dict[tuple[str, Labels], list[tuple[float, float]]]:
    """The samples of the metrics that one alert asks for."""
    names = set(RULES[alert]["expr"].replace("(", " ").replace("{", " ").replace(")", " ").replace("[", " ").split())
    step_s = 300.0 if alert == "NotaryScrubTooSlow" else STEP_S
    begin_s = END_S - (48_000.0 if alert == "NotaryScrubTooSlow" else 8_000.0)
    times = [begin_s + step * step_s for step in range(int((END_S - begin_s) / step_s) + 1)]
    return {key: [(at_s, value(at_s)) for at_s in times] for key, value in shown.items() if key[0] in names}


def firing(alert: str, shown: Samples) -> list[dict[str, str]]:
    step_s = 300.0 if alert == "NotaryScrubTooSlow" else STEP_S
    return fires(RULES[alert], recorded(shown, alert), END_S, step_s)


def test_every_alert_is_tried() -> None:
    """Goal: no alert without a test. Method: compare the names."""
    assert set(FAULTS) == set(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_for_the_notary_that_it_is_about_alone(alert: str) -> None:
    """Goal: two healthy notaries page nobody, and a fault names its cluster. Method: series of both, then one fault."""
    assert firing(alert, healthy()) == []
    shown = healthy()
    FAULTS[alert](shown)
    fired = firing(alert, shown)
    assert fired
    assert {one["cluster"] for one in fired} == {"paris"}


def test_a_notary_that_is_gone_altogether_is_not_hidden_by_another() -> None:
    """Goal: no series is an alert, too. Method: nothing of one notary but failed scrapes."""
    shown = healthy()
    paris_is_gone(shown)
    assert firing("NotaryNoActiveReplica", shown) == [{"cluster": "paris"}]


@pytest.mark.thorough
def test_a_planned_rebuild_raises_no_alert() -> None:
    """Goal: whoever rebuilds an index, or adds a replica, is not called. Method: a lag of minutes that shrinks all the
    time, for every alert; then one that stands still."""
    shown = healthy()
    of(P, "notary_lag_records", lambda at_s: 3e6 + 8_000.0 * (END_S - at_s), **R2)(shown)
    assert {alert: fired for alert in RULES if (fired := firing(alert, shown))} == {}
    of(P, "notary_lag_records", lambda at_s: 3e6 - (END_S - at_s), **R2)(shown)
    assert [one["cluster"] for one in firing("NotaryReplicaLags", shown)] == ["paris"]


SILENCE = re.compile(r"^ *amtool silence add (?:.*\\\n)*.*", re.MULTILINE)
SILENCES = [
    (page.stem, found[0])
    for page in sorted((ROOT / "runbooks").glob("*.md"))
    for found in SILENCE.finditer(page.read_text())
]
R2_IS_OUR_REPLICA = {"$ALERTMANAGER": "http://alerts", "$CLUSTER": P, "$HEALTH": R2["instance"], "$R": "r2"}
SILENCE_MAX_H = 4


def words_of(silence: str) -> tuple[dict[str, str], dict[str, str]]:
    """Options of a printed `amtool silence add`, and its matchers: label and value, of `=` alone."""
    text = silence.replace("\\\n", " ")
    for name in sorted(R2_IS_OUR_REPLICA, key=len, reverse=True):
        text = text.replace(name, R2_IS_OUR_REPLICA[name])
    words = shlex.split(text)[3:]
    pairs = [(word.startswith("--"), *word.removeprefix("--").split("=", 1)) for word in words]
    return {name: value for option, name, value in pairs if option}, {
        n: value for option, n, value in pairs if not option
    }


def silenced(fired: dict[str, str], alert: str, matchers: dict[str, str]) -> bool:
    """By Alertmanager's rule: an alert that has every label of the silence."""
    return matchers.items() <= {**fired, "alertname": alert}.items()


def stopped(cluster: str, name: str) -> Callable[[Samples], None]:
    """A replica's process ended long ago: Prometheus has nothing of it but the failed scrape."""
    where = {"cluster": cluster, "instance": f"{cluster}-{name}:8082"}

    def change(shown: Samples) -> None:
        for metric, found in list(shown):
            if metric != "up" and where.items() <= dict(found).items():
                del shown[metric, found]
        of(cluster, "up", lambda _: 0.0, job="notary", instance=where["instance"])(shown)

    return change


@pytest.mark.thorough
def test_a_planned_stop_raises_one_alert_only() -> None:
    """Goal: to silence that one is enough. Method: series of a replica that is stopped, for every alert."""
    shown = healthy()
    stopped(P, "r2")(shown)
    assert {alert for alert in RULES if firing(alert, shown)} == {"NotaryReplicaDown"}


@pytest.mark.parametrize(("page", "silence"), SILENCES, ids=[page for page, _ in SILENCES])
def test_a_planned_stop_is_silenced_and_nothing_else_is(page: str, silence: str) -> None:
    """Goal: planned work calls nobody, and hides no fault. Method: a runbook's silence for r2, over series of a stopped
    r2, of another replica, and of the same name in another notary; then each other alert about r2."""
    _, matchers = words_of(silence)
    shown = healthy()
    for cluster, name in ((P, "r2"), (P, "r3"), ("london", "r2")):
        stopped(cluster, name)(shown)
    fired = firing("NotaryReplicaDown", shown)
    assert len(fired) == 3
    hidden = [one["instance"] for one in fired if silenced(one, "NotaryReplicaDown", matchers)]
    assert hidden == [R2["instance"]]
    about_r2 = {"cluster": P, **R2, "job": "notary"}
    assert [alert for alert in RULES if silenced(about_r2, alert, matchers)] == ["NotaryReplicaDown"]


@pytest.mark.parametrize(("page", "silence"), SILENCES, ids=[page for page, _ in SILENCES])
def test_a_forgotten_silence_ends_by_itself(page: str, silence: str) -> None:
    """Goal: nobody has to remember it. Method: each printed silence has an end within hours, and a reason."""
    options, _ = words_of(silence)
    assert (hours := re.fullmatch(r"(\d+)h", options["duration"])), options
    assert 0 < int(hours[1]) <= SILENCE_MAX_H
    assert options["comment"]


def test_the_pages_where_a_replica_is_stopped_for_long_have_the_silence() -> None:
    """Goal: the tests above cannot pass by finding nothing, and who follows a page silences before the stop."""
    assert [page for page, _ in SILENCES] == ["index-loss", "index-mismatch", "switchover"]
    for page in ("index-loss", "index-mismatch"):
        text = (ROOT / f"runbooks/{page}.md").read_text()
        assert text.index("amtool silence add") < text.index("systemctl stop"), page


def aggregations(node: Any) -> Iterator[Any]:
    """Every aggregation and matching in an expression."""
    if getattr(node, "modifier", None) is not None or type(node).__name__ == "AggregateExpr":
        yield node
    for name in ("expr", "lhs", "rhs"):
        if (inner := getattr(node, name, None)) is not None:
            yield from aggregations(inner)
    for inner in getattr(node, "args", None) or ():
        yield from aggregations(inner)


@pytest.mark.parametrize("alert", RULES)
def test_no_rule_mixes_notaries(alert: str) -> None:
    """Goal: the same for whatever is added. Method: each aggregation and each matching keeps the cluster."""
    for node in aggregations(promql_parser.parse(RULES[alert]["expr"])):
        chosen = node.modifier if type(node).__name__ == "AggregateExpr" else node.modifier.matching
        if chosen is not None or type(node).__name__ == "AggregateExpr":  # without `on`, all labels match
            assert "cluster" in chosen.labels
    annotations = RULES[alert]["annotations"]
    assert annotations["summary"].startswith("{{ $labels.cluster }}: ")
    assert annotations["runbook_url"].endswith(annotations["runbook"].removeprefix("runbooks"))


def test_the_dashboard_shows_one_notary_at_a_time() -> None:
    """Goal: no panel adds two notaries up. Method: each of our selectors in each query has the variable."""
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for query in [*targets, *(one["expr"] for one in DASHBOARD["annotations"]["list"])]:
        selectors = re.findall(r"\b(?:notary|haproxy|process|kafka)_\w+(.{0,20})", query)
        assert selectors
        assert all(rest.startswith('{cluster=~"$cluster"') for rest in selectors), query
