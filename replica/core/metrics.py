"""The replica's metrics in Prometheus' text form, collected when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ha.election.driver import Election, Role
from ha.lock.interface import ServerLease
from replica.core.participant import Participant, SessionT


class _CoreMetrics(Collector, Generic[SessionT]):
    def __init__(self, participant: Participant[SessionT], election: Election[SessionT], version: str) -> None:
        self._participant = participant
        self._election = election
        self._version = version

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
        age_s = election.status()["lock_answer_age_s"]
        if isinstance(age_s, float):
            yield _gauge("notary_lock_heartbeat_age_seconds", "Since the last answered statement was sent", age_s)
        yield from _lease_metrics(election.server_lease)
        yield _gauge(
            "notary_applied_offset", "Log offset of the newest applied record", participant.follower.applied_offset
        )
        yield _gauge("notary_lag_records", "Records in the log and not applied here", participant.follower.lag_records)
        yield from self._reign_metrics()
        tally = participant.tally
        yield _counter("notary_judged", "Requests judged, by code", "code", tally.outcomes)
        yield _counter("notary_void_records", "Records without effect, by reason", "reason", tally.voids)
        settled = CounterMetricFamily("notary_settled_commands", "Commands that a settlement rejected")
        settled.add_metric([], tally.settled_commands)
        yield settled
        activations = CounterMetricFamily("notary_activations", "Activations of this process that have ended")
        activations.add_metric([], tally.activations)
        yield activations

    def _reign_metrics(self) -> Iterator[Metric]:
        reign = self._participant.reign
        if reign is None:
            return
        yield _gauge("notary_in_flight_submissions", "Admitted and not yet published", reign.load.submissions)
        yield _gauge("notary_in_flight_states", "States of those submissions", reign.load.states)
        yield _gauge("notary_ledger_end", "Newest ledger offset", reign.publisher.ledger_end)
        steps = GaugeMetricFamily("notary_activation_step_seconds", "Steps of this activation", labels=["step"])
        for step, took_s in reign.steps_s.items():
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


class _Api(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()


def make_metrics(
    participant: Participant[SessionT],
    election: Election[SessionT],
    version: str,
    api_families: Callable[[], Iterable[Metric]],
) -> Callable[[], bytes]:
    """A function that renders all metrics of the replica, its front ends' included."""
    registry = CollectorRegistry()
    registry.register(_CoreMetrics(participant, election, version))
    registry.register(_Api(api_families))
    return lambda: generate_latest(registry)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
