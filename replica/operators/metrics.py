"""The replica's metrics in Prometheus' text form, collected when they are asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ha.election.driver import Election, Role
from ha.lock.interface import LockOwner, ServerLease
from replica.active.derived_ledger import LedgerState
from replica.following.scrub import Scrubber
from replica.log.interface import RoundTrip
from replica.notary.outcomes import CODE_OF
from replica.notary.reading import VoidReason
from replica.participant import Participant, SessionT
from replica.store.neighbours import Neighbours

_OUTCOMES = dict.fromkeys(CODE_OF.values(), 0)  # shown from the start, so that the first event of a kind is an increase
_VOIDS = dict.fromkeys((reason.value for reason in VoidReason), 0)
_INDEX_TEXTS = {
    "entries": "Entries of the index",
    "write_stopped": "1 while RocksDB refuses writes",
    "running_compactions": "Compactions that RocksDB runs",
    "running_flushes": "Memory tables that RocksDB writes to disk",
    "waiting_memtables": "Full memory tables that are not on disk yet",
    "delayed_write_bytes_per_second": "What RocksDB slows writes down to; 0 while it does not",
    "filter_answers": "1 while a filter answers for most absent keys",
    "filter_false_absences": "Entries that the filter called absent, since the start; it is out of use after the first",
    "background_errors": "Errors of RocksDB's flushes and compactions since it was opened",
}


class CoreMetrics(Collector, Generic[SessionT]):
    """Role, position, and what became of submissions. `peers`: the names of all replicas."""

    def __init__(
        self,
        participant: Participant[SessionT],
        election: Election[SessionT],
        version: str,
        peers: Collection[str],
    ) -> None:
        self._participant = participant
        self._election = election
        self._version = version
        self._peers = peers

    def collect(self) -> Iterator[Metric]:
        participant, election = self._participant, self._election
        info = GaugeMetricFamily("notary_build_info", "Constant 1; the release as a label", labels=["version"])
        info.add_metric([self._version], 1)
        yield info
        role = GaugeMetricFamily("notary_role", "1 for the role that the replica is in", labels=["role"])
        for candidate in Role:
            role.add_metric([candidate.value], float(election.role is candidate))
        yield role
        yield _gauge("notary_epoch", "Newest epoch the replica knows of", participant.epoch)
        yield _gauge("notary_leading", "1 while the replica may call itself active", float(election.is_leading()))
        serving = participant.standing().active
        yield _gauge("notary_serving", "1 while the replica takes requests", float(serving))
        all_serve = float(participant.serving.all_serve)
        yield _gauge("notary_all_serve", "1 where every replica is to serve, whoever leads", all_serve)
        age_s = election.status()["lock_answer_age_s"]
        if age_s is not None:
            yield _gauge("notary_lock_heartbeat_age_seconds", "Since the last answered statement was sent", age_s)
        yield from _lease_metrics(election.server_lease)
        yield _foreign_holder(election.owner, self._peers)
        yield _gauge(
            "notary_applied_offset", "Log offset of the newest applied record", participant.follower.applied_offset
        )
        yield _gauge(
            "notary_log_end_offset", "Offset after the newest known record", participant.follower.log_end_offset
        )
        yield _gauge("notary_lag_records", "Records in the log and not applied here", participant.follower.lag_records)
        hazards = float(len(participant.follower.hazards))
        yield _gauge("notary_log_hazards", "Broken rules of the topic's contract, lost first records included", hazards)
        yield _gauge("notary_log_reached", "1 while the log answers", float(participant.reaches_log()))
        skew_s = election.status()["clock_skew_s"]
        yield _gauge("notary_clock_skew_seconds", "Own wall clock minus the database's", skew_s)
        yield from self._intake_metrics()
        yield from self._activation_metrics()
        counters = participant.counters
        yield _counter("notary_judged", "Requests judged, by code", "code", _OUTCOMES | counters.outcomes)
        yield _counter("notary_void_records", "Records without effect, by reason", "reason", _VOIDS | counters.voids)
        failed = CounterMetricFamily("notary_failed_submissions", "Submissions that the core failed on, each alone")
        failed.add_metric([], participant.failures.count)
        yield failed
        yield _counter(
            "notary_step_downs", "Ends of this replica's activations, by cause", "cause", counters.step_downs
        )
        failovers = CounterMetricFamily("notary_failovers", "Activations of any replica, read in the log")
        failovers.add_metric([], counters.barriers)
        yield failovers
        activations = CounterMetricFamily("notary_activations", "Activations of this process that have ended")
        activations.add_metric([], counters.activations)
        yield activations

    def _intake_metrics(self) -> Iterator[Metric]:
        """Of a replica that takes requests, or has taken some that are not finished."""
        participant = self._participant
        server = participant.server
        if server is None:
            return
        yield _gauge("notary_in_flight_submissions", "Taken and not finished", participant.in_flight)
        yield _gauge("notary_in_flight_states", "States of those submissions", participant.states_in_flight)
        yield _gauge("notary_admission_queue", "Submissions that wait to be admitted", server.intake.queued)
        text = "Longest time to answer a request that comes now, as estimated for clients"
        yield _gauge("notary_eta_seconds", text, participant.estimate_s)

    def _activation_metrics(self) -> Iterator[Metric]:
        activation = self._participant.activation
        if activation is None:
            return
        published = -1 if activation.publisher.position is None else activation.publisher.position.offset
        unpublished = max(0, self._participant.follower.applied_offset - published)
        yield _gauge("notary_unpublished_records", "Applied records whose completions are not published", unpublished)
        budget = activation.budget
        yield _gauge("notary_unpublished_completions", "Completions that wait for the database", budget.unpublished)
        text = "So many may wait; further submissions are refused as OVERLOADED"
        yield _gauge("notary_unpublished_completions_max", text, budget.unpublished_max)
        yield _gauge("notary_ledger_end", "Newest ledger offset", activation.publisher.ledger_end)
        steps = GaugeMetricFamily("notary_activation_step_seconds", "Steps of this activation", labels=["step"])
        for step, took_s in activation.steps_s.items():
            steps.add_metric([step], took_s)
        yield steps


def _lease_metrics(lease: ServerLease | None) -> Iterator[Metric]:
    """What frees the lock of a frozen holder: on Postgres our own setting, on Oracle the server's."""
    if lease is None:
        return
    yield _gauge("notary_lock_lease_verified", "1 if all of the server's lease could be read", float(lease.verified))
    if lease.frees_after_s is not None:
        text = "Silence after which the server frees the lock; absent while nothing is known to"
        yield _gauge("notary_lock_lease_seconds", text, lease.frees_after_s)


def _foreign_holder(owner: LockOwner | None, peers: Collection[str]) -> Metric:
    """A foreign holder of the lock, by its session's own name. Any login may take it; then no replica can lead."""
    text = "1 while the lock's holder was last seen to be none of the replicas, with its name and user"
    foreign = GaugeMetricFamily("notary_lock_foreign", text, labels=["holder", "user"])
    if owner is not None and owner.is_foreign(peers):
        foreign.add_metric([owner.name, owner.user], 1)
    else:
        foreign.add_metric(["", ""], 0)
    return foreign


class IndexMetrics(Collector):
    """The index, and how many damaged ones were set aside."""

    def __init__(self, sizes: Callable[[], Mapping[str, int]], quarantined: Callable[[], int]) -> None:
        self._sizes = sizes
        self._quarantined = quarantined

    def collect(self) -> Iterator[Metric]:
        sizes = dict(self._sizes())
        yield _gauge("notary_index_quarantined", "Damaged indexes that lie aside", self._quarantined())
        for name, text in _INDEX_TEXTS.items():
            if name in sizes:
                yield _gauge(f"notary_index_{name}", text, sizes.pop(name))
        kinds = GaugeMetricFamily("notary_index_size_bytes", "Size of the index, by kind", labels=["kind"])
        for name, value in sizes.items():
            kinds.add_metric([name.removesuffix("_bytes")], value)
        yield kinds


class ScrubMetrics(Collector):
    """The comparison of the index with the log."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber

    def collect(self) -> Iterator[Metric]:
        scrubber = self._scrubber
        records = CounterMetricFamily("notary_scrub_records", "Records that the index was compared with")
        records.add_metric([], scrubber.records)
        yield records
        walks = CounterMetricFamily("notary_scrubs", "Times that all of the index was compared with the log")
        walks.add_metric([], scrubber.complete_walks)
        yield walks
        yield _gauge("notary_scrub_left_records", "Records that this pass has not compared yet", scrubber.left_records)
        yield _gauge("notary_scrub_age_seconds", "Since this pass began; 0 between two passes", scrubber.age_s)
        within_s = scrubber.within_s
        yield _gauge("notary_scrub_within_seconds", "What a whole pass may take, as the settings say", within_s)
        text = "Records a second that it would take to end this pass in time; 0 between two passes"
        yield _gauge("notary_scrub_wanted_records_per_second", text, scrubber.pace.wanted_per_s)
        text = "First 48 bits of the digest of all entries that the first so many records made"
        digests = GaugeMetricFamily("notary_index_digest", text, labels=["records"])
        for at, digest in scrubber.digests().items():
            digests.add_metric([str(at)], int.from_bytes(digest[:6], "big"))
        yield digests


class PauseMetrics(Collector):
    """Whether operators have paused fail-over, or service."""

    def __init__(self, is_paused: Callable[[], bool], is_service_paused: Callable[[], bool]) -> None:
        self._is_paused = is_paused
        self._is_service_paused = is_service_paused

    def collect(self) -> Iterator[Metric]:
        yield _gauge("notary_failover_paused", "1 while operators have paused fail-over", float(self._is_paused()))
        text = "1 while service is paused, as the barrier in force says"
        yield _gauge("notary_service_paused", text, float(self._is_service_paused()))


class TrailMetrics(Collector):
    """The operators' trail."""

    def __init__(self, is_broken: Callable[[], bool], entries: Callable[[], int]) -> None:
        self._is_broken = is_broken
        self._entries = entries

    def collect(self) -> Iterator[Metric]:
        text = "1 while the operators' trail lacks or changed an entry that this replica has seen"
        yield _gauge("notary_trail_broken", text, float(self._is_broken()))
        yield _gauge("notary_trail_entries", "Entries of the operators' trail, as last read", self._entries())


class MarksMetrics(Collector):
    """The marks, and what is exposed."""

    def __init__(self, participant: Participant[SessionT]) -> None:
        self._marks = participant.marks
        self._exposed_records: Callable[[], int] = participant.count_exposed

    def collect(self) -> Iterator[Metric]:
        """How far answers run ahead, and what is wrong with marks."""
        yield _gauge(
            "notary_exposed_records",
            "Applied records that a power cut could take without a trace",
            self._exposed_records(),
        )
        yield _gauge("notary_marks_foreign", "Peers whose marks are not of this log", len(self._marks.strangers))
        text = "Whether the seen file was damaged at the start, or cannot be written"
        yield _gauge("notary_seen_file_faulty", text, self._marks.is_file_faulty)


class SiteMetrics(Collector):
    """The site's term; nothing where no other site may take over."""

    def __init__(self, left_s: Callable[[], float | None]) -> None:
        self._left_s = left_s

    def collect(self) -> Iterator[Metric]:
        """Nothing where no site is configured."""
        left_s = self._left_s()
        if left_s is not None:
            text = "For so long may this replica serve if the witness of its site's term is silent; 0 if it may not"
            yield _gauge("notary_site_term_left_seconds", text, left_s)


class NeighboursMetrics(Collector):
    """Counts only, no names: any login may choose its name, and one with the right to make schemas a schema's name."""

    def __init__(self, found: Callable[[], Neighbours]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        found = self._found()
        text = "Schemas with a ledger's tables that our search path does not lead to"
        yield _gauge("notary_ledger_copies", text, len(found.copies))
        text = "Sessions that go by this replica's name and may not write the ledger"
        yield _gauge("notary_name_borrowers", text, len(found.strangers))


class OwnLedgerMetrics(Collector):
    """The ledger that a replica derives by itself; nothing where replicas share a database."""

    def __init__(self, state: Callable[[], LedgerState | None]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        if state is None:
            return
        text = "Log offset that the replica's own ledger covers on disk"
        yield _gauge("notary_ledger_written_offset", text, state.written_offset)
        yield _gauge("notary_ledger_lag_records", "Applied records that this ledger does not cover", state.lag_records)
        text = "Completions that wait for this ledger's disk"
        yield _gauge("notary_ledger_backlog_completions", text, state.backlog_completions)
        yield _gauge("notary_ledger_size_bytes", "Size of this ledger's file and its journal", state.size_bytes)


class DiskMetrics(Collector):
    """The disk with the replica's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        usage = shutil.disk_usage(self._folder)
        yield _gauge("notary_disk_free_bytes", "Free on the data folder's file system", usage.free)
        yield _gauge("notary_disk_size_bytes", "Size of the data folder's file system", usage.total)


class BrokersMetrics(Collector):
    """How long the log's servers take to answer."""

    def __init__(self, round_trips: Callable[[], Mapping[str, RoundTrip]]) -> None:
        self._round_trips = round_trips

    def collect(self) -> Iterator[Metric]:
        text = "Until a broker answered the active's writes, wait for copies included, over five seconds: "
        mean = GaugeMetricFamily("notary_broker_round_trip_mean_seconds", f"{text}the mean", labels=["broker"])
        p99 = GaugeMetricFamily("notary_broker_round_trip_p99_seconds", f"{text}all but 1 %", labels=["broker"])
        for broker, found in sorted(self._round_trips().items()):
            mean.add_metric([broker], found.mean_s)
            p99.add_metric([broker], found.p99_s)
        yield from (mean, p99)


class ApiMetrics(Collector):
    """The front ends' families."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()


def make_metrics(*collectors: Collector) -> Callable[[], bytes]:
    """A function that renders what these find, and the process' own metrics."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    return lambda: generate_latest(registry)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
