"""The time budget of a fail-over: sums, and what goes on beside."""

from __future__ import annotations

import pytest

from ha.lock.interface import ServerLease
from ha.settings import ElectionSettings, Fault, detection_budget
from haproxy.render import Endpoint, HaproxySettings, ReplicaAddress
from ledger_api.client.retry import RetryPolicy
from replica.cli.budget import END_SEEN_S, FAULTS, end_seen_by, failover_budget, faults_of, retry_max_s
from replica.log.kafka.settings import KafkaSettings
from replica.log.raft.log_settings import RaftLogSettings

HAPROXY = HaproxySettings(
    bind=Endpoint(port=1), replicas=(ReplicaAddress(name="r1", host="127.0.0.1", api_port=2, health_port=3),)
)
NO_RETRY = RetryPolicy(timeout_s=1e-9, backoff_base=1.0, jitter=0.0)
STEPS = {"epoch": 0.01, "barrier": 0.02}


@pytest.mark.parametrize("fault", list(Fault))
def test_the_sum_is_detection_activation_and_mark_up(fault: Fault) -> None:
    """Goal: the total is what a person would add up. Method: add the parts by hand, with a client that never waits."""
    election = ElectionSettings()
    budget = failover_budget(election, HAPROXY, NO_RETRY, fault, STEPS)
    detection_s = sum(step.worst_s for step in detection_budget(election, fault))
    assert budget.complete
    assert budget.known_s == pytest.approx(detection_s + 0.03 + HAPROXY.mark_up_max_s)


def test_giving_the_old_active_up_counts_only_if_it_takes_longest() -> None:
    """Goal: what goes on meanwhile is not added. Method: make HAProxy's checks slower than all the rest."""
    slow = HAPROXY.model_copy(update={"check_interval_s": 60.0})
    budget = failover_budget(ElectionSettings(), slow, NO_RETRY, Fault.KILLED, STEPS)
    assert budget.known_s == pytest.approx(slow.refused_max_s)
    frozen = failover_budget(ElectionSettings(), slow, NO_RETRY, Fault.FROZEN, STEPS)
    assert frozen.known_s == pytest.approx(slow.mark_down_max_s)


def test_an_activation_that_nobody_measured_leaves_the_sum_open() -> None:
    """Goal: no invented figure. Method: give no measurement."""
    budget = failover_budget(ElectionSettings(), HAPROXY, NO_RETRY, Fault.KILLED, None)
    assert not budget.complete
    assert [step.name for step in budget.steps if step.worst_s is None] == [
        "activation: epoch, log writer, barrier, publishing"
    ]


@pytest.mark.parametrize("frees_after_s", [120.0, None])
def test_the_server_s_own_lease_counts_where_a_session_cannot_set_one(frees_after_s: float | None) -> None:
    """Goal: a frozen active on Oracle costs the server's idle limit, or an unknown time. Method: both."""
    settings, patient = (
        ElectionSettings(),
        HAPROXY.model_copy(update={"check_timeout_s": 0.1}),
    )  # what is known is longer
    lease = ServerLease(frees_after_s, frees_after_s is not None, "IDLE_TIME")
    frozen, killed = (
        failover_budget(settings, patient, NO_RETRY, fault, STEPS, lease=lease)
        for fault in (Fault.FROZEN, Fault.KILLED)
    )
    usual = failover_budget(settings, patient, NO_RETRY, Fault.FROZEN, STEPS)
    assert (frozen.steps[0].setting, frozen.steps[0].worst_s) == ("server: IDLE_TIME", frees_after_s)
    assert frozen.complete is (frees_after_s is not None)
    assert frozen.known_s == pytest.approx(usual.known_s - settings.lease_s + (frees_after_s or 0.0))
    assert killed == failover_budget(settings, HAPROXY, NO_RETRY, Fault.KILLED, STEPS)


@pytest.mark.parametrize(
    ("hosts", "with_node_s"),
    [(("127.0.0.1",) * 3, 0.05 + 0.05 + 0.05 + 0.01 + 0.015), (("notary-1", "notary-2", "notary-3"), None)],
)
def test_only_log_nodes_on_one_machine_see_a_replica_end_with_its_node(
    hosts: tuple[str, ...], with_node_s: float | None
) -> None:
    """Goal: no promise for three machines that only one machine can keep. Method: both, and a log without nodes."""
    nodes = ",".join(f"r{number}={host}:{7400 + number}" for number, host in enumerate(hosts, 1))
    seen = end_seen_by(RaftLogSettings(group="g", nodes=nodes))
    assert seen is not None
    assert seen.alone_s == END_SEEN_S
    assert seen.with_node_s == (None if with_node_s is None else pytest.approx(with_node_s))
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    assert end_seen_by(kafka) is None
    assert Fault.KILLED_WITH_NODE not in faults_of(kafka)
    assert faults_of(RaftLogSettings(group="g", nodes=nodes)) == list(FAULTS)


def test_every_kind_of_fault_has_words() -> None:
    """Goal: `config check` prints all of them. Method: compare with the enumeration."""
    assert set(FAULTS) == set(Fault)


@pytest.mark.parametrize(
    ("outage_s", "expected_s"),
    [(0.0, 0.05), (0.2, 0.21), (60.0, 0.05 * 1.8**3)],  # the first pause; grown with the outage; the policy's bound
)
def test_a_client_waits_at_most_as_long_as_it_has_waited(outage_s: float, expected_s: float) -> None:
    """Goal: the last pause is bounded by the outage. Method: three lengths, no jitter."""
    assert retry_max_s(RetryPolicy(jitter=0.0), outage_s) == pytest.approx(expected_s)


def test_no_run_of_pauses_exceeds_the_bound() -> None:
    """Goal: the bound holds for the policy itself. Method: walk its pauses at the largest random number."""
    policy, waited_s = RetryPolicy(), 0.0
    for attempt in range(20):
        pause_s = policy.delay_s(attempt, 0.0, 1.0)
        assert pause_s <= retry_max_s(policy, waited_s) + 1e-9
        waited_s += pause_s
