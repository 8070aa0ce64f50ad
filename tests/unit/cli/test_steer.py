"""What is printed for a switchover and for the history, case by case."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ha.election.driver import SwitchoverReport
from ha.election.states import Handover
from replica.cli import steer
from replica.cli.history import _cause_of, why_it_ended
from replica.cli.steer import judge, why_not
from replica.config.load import load_config
from replica.health import ReplicaHealth
from replica.notary.errors import ConfigError, NotActive
from replica.operators.admin import PruneCall, Steering, SteeringRefused, SwitchoverAnswer, SwitchoverCall
from replica.store.bulletin import PastActivation
from replica.store.interface import Pruned
from tests.steering import NOBODY, Trail

AT = datetime(2026, 1, 1, tzinfo=UTC)


def health(name: str, **changes: Any) -> ReplicaHealth:
    facts: dict[str, Any] = {
        "replica": name, "version": "1", "role": "passive", "active": False, "ready": True,
        "epoch": 1, "applied_offset": 1, "lag_records": 0,
        "reaches_log": True, "front_ends": 2, "lock_owner": "r1", "hold_down_s": 0.0,
        "ledger_end": None, "activation_steps_s": {},
    }  # fmt: skip
    return ReplicaHealth(**facts | changes)


FOUR_REPLICAS = """
data_dir = "data"
notary_key_file = "notary.key"
endpoint = {port = 8080}
database = {conninfo = "host=127.0.0.1 dbname=notary", scope = "notary"}
log = {kafka = {bootstrap_servers = "127.0.0.1:9092"}}
""" + "".join(
    f'[[replicas]]\nname = "r{n}"\nhost = "127.0.0.1"\napi_port = 80{n}1\nhealth_port = 80{n}2\n' for n in (1, 2, 3, 4)
)
HEALTHS = {
    "r1": health("r1", active=True),
    "r2": health("r2"),
    "r3": health("r3", ready=False),
    "r4": None,
}


@pytest.mark.parametrize(
    ("to", "refusal"),
    [
        (None, None),
        ("r2", None),
        ("r1", "r1 is active already"),
        ("r3", "r3 is not ready to take over; ready are: r2"),
        ("r4", "r4 is not ready to take over; ready are: r2"),
    ],
)
def test_a_switchover_is_tried_only_when_it_can_succeed(to: str | None, refusal: str | None) -> None:
    """Goal: no outage for nothing. Method: one active, one ready, one not ready, one down."""
    assert why_not(HEALTHS, "r1", to) == refusal


NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-05-01T12:30Z", "2026-05-01T14:30+02:00", "2026-05-08T12:00Z"])
def test_a_switchover_may_wait_for_a_moment(text: str) -> None:
    """Goal: hand over at night without a night shift. Method: moments to come, in two zones, up to a week ahead."""
    assert steer.read_time(text, NOW) > NOW


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("tonight", "give a time such as"),
        ("2026-05-01T14:30", "which time zone"),
        ("2026-05-01T11:59Z", "it is 2026-05-01T12:00Z now"),
        ("2026-05-08T12:01Z", "within the next 7 days"),
        ("0001-01-01T00:00+23:59", "now"),
    ],
)
def test_a_moment_that_cannot_be_meant_is_refused(text: str, what: str) -> None:
    """Goal: no switchover at noon instead of midnight. Method: no time, no zone, past, far away."""
    with pytest.raises(ConfigError, match=what):
        steer.read_time(text, NOW)


@pytest.mark.parametrize("paused", [False, True])
def test_what_would_be_refused_is_named_before_the_wait(
    paused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: nobody goes home before a switchover that a pause will refuse. Method: a moment that is over at once, with
    and without a pause."""
    (tmp_path / "notary.toml").write_text(FOUR_REPLICAS)
    told: list[str] = []

    async def found(*_: object) -> dict[str, ReplicaHealth | None]:
        return HEALTHS | {"r2": health("r2", failover_paused=paused)}

    monkeypatch.setattr(steer, "healths_of", found)
    monkeypatch.setattr(steer.err, "print", lambda text, **_: told.append(text))
    asyncio.run(steer._wait_until(NOW, load_config(tmp_path / "notary.toml"), None))
    (line,) = told
    assert ("it would not be done: fail-over is paused: notary resume" in line) is paused
    assert "2026-05-01 12:00:00 UTC" in line


def test_only_the_active_hands_over_before_its_pod_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Goal: the hook of a pod that does not lead is a success, and changes nothing. Method: each replica's turn;
    r1 is active, and alone goes on to look for a taker, and there is none."""
    (tmp_path / "notary.toml").write_text(FOUR_REPLICAS)
    config = load_config(tmp_path / "notary.toml")
    healths = HEALTHS | {"r2": health("r2", ready=False)}

    async def found(*_: object) -> dict[str, ReplicaHealth | None]:
        return healths

    monkeypatch.setattr(steer, "healths_of", found)
    for name in ("r2", "r3", "r4"):
        outcome = asyncio.run(steer._switch_over(config, None, name, 1))
        assert (outcome.done, outcome.text) == (True, f"{name} is not active: nothing to do")
    outcome = asyncio.run(steer._switch_over(config, None, "r1", 1))
    assert (outcome.done, outcome.text) == (False, "no other replica is ready to take over; nothing was done")


def test_a_former_active_that_cannot_see_the_lock_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a changed password is no switchover of a quarter of an hour. Method: r1 never reports; r2 is active."""
    (tmp_path / "notary.toml").write_text(FOUR_REPLICAS)

    async def found(*_: object) -> dict[str, ReplicaHealth | None]:
        return HEALTHS

    async def seen(*_: object) -> str:
        return "r2"

    async def silent(*_: object, **__: object) -> None:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(steer, "healths_of", found)
    monkeypatch.setattr(steer, "_watch_for_active", seen)
    monkeypatch.setattr(steer, "REPORT_MAX_S", 0.01)
    monkeypatch.setattr("replica.acting.admin_calls.ask_admin", silent)
    outcome = asyncio.run(steer._switch_over(load_config(tmp_path / "notary.toml"), None, None, 1))
    assert (outcome.done, outcome.active) == (True, "r2")
    assert outcome.text.startswith("r2 took over from r1")


def test_no_switchover_without_an_active_or_without_a_peer() -> None:
    """Goal: the two that stand before all others. Method: nobody active; nobody else ready."""
    assert why_not(HEALTHS, None, None) == "no replica is active (if none takes over soon: notary failover)"
    assert why_not({"r1": HEALTHS["r1"], "r3": HEALTHS["r3"]}, "r1", None) == "no other replica is ready to take over"


@pytest.mark.parametrize(
    ("outcome", "taker", "to", "active", "done", "says"),
    [
        ("taken over", "r2", None, "r2", True, "r2 took over from r1, 0.30 s"),
        ("taken over", "r2", "r2", "r2", True, "r2 took over from r1"),
        ("taken over", "r3", "r2", "r3", False, "r3 took over instead of r2"),
        ("taken over", "r2", "r2", "r1", False, "undone: r2 could not activate, r1 is active again"),
        ("taken over", "r2", "r2", None, False, "r2 took the lock and is not active after"),
        ("undone", None, None, "r1", False, "undone: nobody took over, r1 is active again"),
        ("failed", None, None, None, False, "it failed"),
    ],
)
def test_the_word_on_a_switchover_is_what_happened(
    outcome: str, taker: str | None, to: str | None, active: str | None, done: bool, says: str
) -> None:
    """Goal: success is reported only for the wanted replica, once it is active. Method: every ending."""
    told = judge(SwitchoverAnswer(outcome, taker, 0.1), "r1", to, active, 0.3)
    assert told.done is done
    assert told.text.startswith(says)


def activation(**changes: Any) -> PastActivation:
    facts: dict[str, Any] = {
        "epoch": 4, "replica": "r1", "granted_at": AT, "succeeded_at": AT + timedelta(1),
        "ended_at": None, "end_reason": None,
        "found_over_at": None, "found_over_by": None,
    }  # fmt: skip
    return PastActivation(**facts | changes)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, ""),
        ({"ended_at": AT, "end_reason": "stop"}, "stop"),
        ({"found_over_by": "r2"}, "not recorded: killed, crashed or cut off; r2 found the lock free"),
        ({"found_over_by": "r1"}, "not recorded; r1 took another epoch itself"),
        ({"found_over_by": "r2", "end_reason": "no answer on the lock session"}, "no answer on the lock session"),
    ],
)
def test_the_holders_own_word_goes_before_what_others_saw(facts: dict[str, Any], says: str) -> None:
    """Goal: the best account there is. Method: none, its own, the successor's, both."""
    assert why_it_ended(activation(**facts)) == says


def test_the_history_gives_the_cause_as_a_value() -> None:
    """Goal: programs need no sentence, and people know what to read. Method: an exception's end; an older release's."""
    config = profile(embedded=False, kind="kafka")
    told = _cause_of(activation(end_reason="failed INDEX_UNREADABLE: block 7"), config)
    assert told == {"cause": "failed", "code": "INDEX_UNREADABLE", "runbook": "runbooks/replica-replacement.md"}
    assert set(_cause_of(activation(end_reason="the server ended the session"), config).values()) == {None}


def profile(embedded: bool, kind: str) -> Any:
    """What the history reads of a configuration: whether there is a database, and the kind of log."""
    return SimpleNamespace(database=SimpleNamespace(is_embedded=embedded), log=SimpleNamespace(kind=kind))


@pytest.mark.parametrize("cause", ["no_answer", "lock_lost", "store_refused", "log_stalled", "fragmented"])
@pytest.mark.parametrize(
    ("config", "of_lock", "of_log"),
    [
        (profile(False, "kafka"), "database-failover", "broker-loss"),
        (profile(False, "postgres"), "database-failover", "postgres-log"),
        (profile(False, "raft"), "database-failover", "log-node-loss"),
        (profile(True, "raft"), "log-node-loss", "log-node-loss"),
    ],
    ids=["reference", "postgres", "raft", "embedded"],
)
def test_the_history_names_a_page_about_what_this_cluster_has(
    cause: str, config: Any, of_lock: str, of_log: str
) -> None:
    """Goal: nobody is sent to a database or a broker that is not there. Method: each profile, each cause."""
    told = _cause_of(activation(end_reason=f"{cause}: it was so"), config)
    assert told["runbook"] == f"runbooks/{of_log if cause in ('log_stalled', 'fragmented') else of_lock}.md"


class Elector:
    """Reports what the test sets."""

    def __init__(self, outcome: Handover) -> None:
        self.outcome = outcome
        self.asked: list[str | None] = []

    async def switchover(self, to: str | None = None) -> SwitchoverReport:
        self.asked.append(to)
        return SwitchoverReport(self.outcome, None, 0.1)


class Pruner:
    """Prunes up to 70 at most; not at all when it is not active."""

    def __init__(self, *, active: bool = True) -> None:
        self.active = active

    async def prune(self, up_to: int | None, keep_s: float) -> Pruned:
        if not self.active:
            raise NotActive("only the active")
        return Pruned(70 if up_to is None else up_to if up_to <= 70 else 10, 70)


@pytest.mark.parametrize(
    ("call", "active", "code"),
    [
        (PruneCall("r2"), True, "WRONG_REPLICA"),
        (PruneCall("r1", 71), True, "UNSAFE_TO_PRUNE"),
        (PruneCall("r1", 7), False, "NOT_ACTIVE"),
    ],
)
async def test_pruning_is_refused_when_it_is_not_safe_or_not_ours(call: PruneCall, active: bool, code: str) -> None:
    """Goal: nothing is pruned by mistake, and the bound is printed. Method: each reason alone, then both good
    calls."""

    def steering(pruner: Pruner) -> Steering:
        elector = Elector(Handover.TAKEN_OVER)
        return Steering("r1", ("r1",), elector, lambda: False, pruner, registrar=NOBODY, book=NOBODY, consent=Trail())

    with pytest.raises(SteeringRefused) as caught:
        await steering(Pruner(active=active)).prune(call)
    assert caught.value.code == code
    assert code != "UNSAFE_TO_PRUNE" or "70" in str(caught.value)
    willing = steering(Pruner())
    assert (await willing.prune(PruneCall("r1", 5))).pruned_to == 5
    assert (await willing.prune(PruneCall("r1"))).pruned_to == 70


@pytest.mark.parametrize(
    ("call", "paused", "outcome", "code"),
    [
        (SwitchoverCall("r2"), False, Handover.TAKEN_OVER, "WRONG_REPLICA"),
        (SwitchoverCall("r1"), True, Handover.TAKEN_OVER, "FAILOVER_PAUSED"),
        (SwitchoverCall("r1", "r1"), False, Handover.TAKEN_OVER, "NO_SUCH_PEER"),
        (SwitchoverCall("r1", "r9"), False, Handover.TAKEN_OVER, "NO_SUCH_PEER"),
        (SwitchoverCall("r1", "r3"), False, Handover.TAKEN_OVER, "MAY_NOT_LEAD"),
        (SwitchoverCall("r1", "r2"), False, Handover.NOT_ACTIVE, "NOT_ACTIVE"),
    ],
)
async def test_a_replica_refuses_what_it_cannot_do(
    call: SwitchoverCall, paused: bool, outcome: Handover, code: str
) -> None:
    """Goal: a call that is not for this replica, or not now, changes nothing. Method: each reason alone."""
    elector = Elector(outcome)
    with pytest.raises(SteeringRefused) as caught:
        names = ("r1", "r2", "r3")
        beside: dict[str, Any] = {"registrar": NOBODY, "book": NOBODY, "consent": Trail()}
        steering = Steering("r1", names, elector, lambda: paused, Pruner(), **beside, barred={"r3"})
        await steering.switchover(call)
    assert caught.value.code == code
    assert elector.asked == (["r2"] if code == "NOT_ACTIVE" else [])
    if code == "MAY_NOT_LEAD":
        assert str(caught.value) == "r3 may not hold the lock (replicas.may_lead = false): name another one, or none"
