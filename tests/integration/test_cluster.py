"""A whole cluster on loopback: real Postgres, Kafka, HAProxy and three replicas, and faults at the active one.

After each fault the whole history so far is checked against the log by `notary check`, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from ledger_api.client import Result, certifies
from replica.checker.history import HistoryWriter
from replica.cli.demo.kill import outage
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.process import ServerFailed, descendants
from replica.local.recording import RecordingClient
from replica.local.replica import ReplicaProcess
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.answers import Notarised
from replica.notary.receipts import receipt_to_document
from replica.notary.requests import Submission, format_state_ref, state_ref
from tests.ends import guarded
from tests.integration.feed_reader import HttpFollower, read_all
from tests.promises import promised
from tests.waiting import eventually
from tests.watched import RunningWatch, watched

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

CLIENTS = 8


@dataclass
class World:
    """The cluster, one client that writes everything down, and what was notarised."""

    cluster: LocalCluster
    client: RecordingClient
    history_path: Path
    history: Any
    notarised: dict[bytes, int] = field(default_factory=dict)
    success_ns: list[int] = field(default_factory=list)

    def fresh(self) -> Submission:
        """A signed submission that consumes a state of its own."""
        return self.cluster.parties[0].sign(os.urandom(32), [state_ref(os.urandom(32), 0)])

    async def notarise_one(self) -> Result:
        """Submit a fresh request until its answer is final; it must be notarised."""
        answer = await self.client.submit(self.fresh())
        assert isinstance(answer, Notarised), answer
        self.notarised[answer.tx_id] = answer.log_offset
        self.success_ns.append(monotonic_ns())
        return answer

    async def outage_of(self, fault: Callable[[ReplicaProcess], None]) -> float:
        """Seconds without a success around a fault at the active replica, while clients submit all the time.

        Every other replica may take over: one that was killed a moment ago would let the active itself, back, go first.
        """
        await self.cluster.wait_until_ready(list(self.cluster.replicas))
        stopping = asyncio.Event()

        async def submit() -> None:
            while not stopping.is_set():
                await self.notarise_one()

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(submit())
            await asyncio.sleep(0.5)
            active = await self.cluster.wait_for_active()
            fault_ns = monotonic_ns()
            fault(active)
            successor = await self.cluster.wait_for_active(other_than=active.name)
            await asyncio.sleep(0.5)
            stopping.set()
        assert successor.name != active.name
        return outage(self.success_ns, fault_ns)[0]

    async def check(self) -> dict[str, Any]:
        """What `notary check` finds in the whole history so far; it must be nothing."""
        self.history.flush()
        code, printed = await _notary(self, "check", str(self.history_path), "--json")
        report: dict[str, Any] = json.loads(printed)
        promised((code, report["findings"]) == (0, []), report["findings"])
        assert report["summary"]["outcomes"]["NOTARISED"] >= len(self.notarised)
        return report


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A cluster that the tests of this module share."""
    folder, log = servers_folder / "cluster", request.config.getoption("--log-kind")
    # no hold-down: faults follow one another closely here
    further: dict[str, Any] = {"election": {"hold_down_s": 0.0}}
    settings = ClusterSettings(folder=folder, parties=2, log=log, further=further)
    async with guarded(LocalCluster(settings)) as cluster:
        for replica in cluster.replicas.values():
            replica.restart_pause_s = 0.5
        path = folder / "history.jsonl"
        with path.open("wb") as history:
            async with RecordingClient(cluster.endpoint, HistoryWriter(history), "test") as client:
                yield World(cluster, client, path, history)


async def _notary(world: World, *words: str, configured: bool = True) -> tuple[int, bytes]:
    config = ["--config", str(world.cluster.config_path)] if configured else []
    argv = [sys.executable, "-m", "replica.cli", *words, *config]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed


async def test_one_request_through_haproxy(world: World) -> None:
    """Goal: the path works end to end. Method: one request through the endpoint, receipt verified, then looked up."""
    submission = world.fresh()
    answer = await world.client.submit(submission)
    assert isinstance(answer, Notarised)
    assert certifies(answer, submission, world.cluster.notary_key)
    found = await world.client.look_up(answer.tx_id)
    assert isinstance(found, Notarised)
    assert found.log_offset == answer.log_offset


async def test_a_changed_answer_is_found(world: World) -> None:
    """Goal: the check is no rubber stamp. Method: move one success by one offset in a copy of the history."""
    await world.notarise_one()
    await world.check()
    lines = world.history_path.read_bytes().splitlines()
    event = json.loads(lines[-1])
    assert event["type"] == "ok"
    lines[-1] = json.dumps(event | {"log_offset": event["log_offset"] - 1}).encode()
    tampered = world.history_path.with_suffix(".tampered")
    tampered.write_bytes(b"\n".join(lines) + b"\n")
    code, printed = await _notary(world, "check", str(tampered), "--json")
    report = json.loads(printed)
    assert (code, report["clean"]) == (1, False)
    assert list(report["counts"]) == ["RECEIPT_INVALID", "WRONG_OFFSET"]  # the receipt says where, too


async def test_status_tells_who_is_active_and_one_replica_is(world: World) -> None:
    """Goal: `notary status` shows the true state. Method: compare it with the health pages and the database."""
    active = await world.cluster.wait_for_active()
    code, printed = await _notary(world, "status", "--json")
    status = json.loads(printed)
    assert code == 0
    assert [name for name, health in status["replicas"].items() if health["active"]] == [active.name]
    assert (status["lock_owner"], status["database"]["replica"]) == (active.name, active.name)
    assert (status["problems"], status["endpoint"]) == ([], world.cluster.endpoint)


async def test_the_time_budget_counts_the_steps_that_were_measured(world: World) -> None:
    """Goal: `notary config check` prints what a fail-over costs here. Method: every step of every sum is known."""
    code, printed = await _notary(world, "config", "check", "--json")
    found = json.loads(printed)
    assert (code, found["valid"], found["warnings"]) == (0, True, [])
    log = world.cluster.config.log.settings
    when = "committed" if isinstance(log, PostgresLogSettings) else "the only broker has it on disk"
    assert found["promise"]["answered_when"] == when
    assert [budget["fault"] for budget in found["budgets"]] == ["stopped", "killed", "frozen"]
    for budget in found["budgets"]:
        assert budget["complete"]
        assert {"activation: epoch", "activation: barrier"} <= {step["name"] for step in budget["steps"]}


async def test_a_second_supervisor_is_refused(world: World) -> None:
    """Goal: two supervisors never share a folder. Method: start a second one while the first one runs."""
    with pytest.raises(ServerFailed, match="already"):
        async with LocalCluster(ClusterSettings(folder=world.cluster.folder)):
            pass


async def test_a_receipt_says_where_and_when_before_and_after_a_fail_over(world: World, tmp_path: Path) -> None:
    """Goal: one transaction has one place, whoever signs for it. Method: receipts by the active, and by
    its successor for the same transaction; the client and `notary verify` take both, and neither with another place."""
    submission = world.fresh()
    before = await world.client.submit(submission)
    assert isinstance(before, Notarised)
    await world.outage_of(ReplicaProcess.kill_group)
    again, after = await world.client.submit(submission), await world.client.submit(world.fresh())
    assert isinstance(again, Notarised)
    assert isinstance(after, Notarised)
    assert before.receipt.place is not None
    assert again.receipt.place == before.receipt.place
    assert after.receipt.place is not None
    assert after.receipt.place.epoch > before.receipt.place.epoch
    assert before.receipt.place.log_offset == before.log_offset
    assert certifies(again, submission, world.cluster.notary_key)
    for answer in (before, again, after):
        document = msgspec.to_builtins(receipt_to_document(answer.receipt))
        for moved, code in ((0, 0), (1, 1)):
            document["place"]["log_offset"] += moved
            (tmp_path / "receipt.json").write_text(json.dumps(document))
            words = (str(tmp_path / "receipt.json"), "--notary-key", world.cluster.notary_key.hex(), "--json")
            found, printed = await _notary(world, "verify", *words, configured=False)
            assert (found, json.loads(printed)["version"]) == (code, 2)


async def test_followers_miss_nothing_and_get_nothing_twice_across_kills(world: World) -> None:
    """Goal: a stream goes on at the next replica, byte by byte. Method: follow through HAProxy, kill actives."""
    followers = [HttpFollower(world.cluster.endpoint) for _ in range(3)]
    for follower in followers:
        follower.start()
    before = await read_all(world.cluster.endpoint)
    for fault in (ReplicaProcess.kill_group, ReplicaProcess.terminate):
        await world.outage_of(fault)
    after = await read_all(world.cluster.endpoint)
    assert len(after) > len(before)
    assert after[: len(before)] == before
    await eventually(lambda: _holds(all(follower.offset >= len(after) for follower in followers)))
    for follower in followers:
        await follower.stop()
        assert follower.streams >= 3
        assert follower.lines[: len(after)] == after
    assert [json.loads(line)["offset"] for line in after] == list(range(1, len(after) + 1))


async def test_what_was_asked_is_told_about_a_transaction_and_a_state(world: World) -> None:
    """Goal: the queries over real servers. Method: notarise, double-spend, ask for status, state and its history."""
    state = state_ref(os.urandom(32), 3)
    party = world.cluster.parties[0]
    winner, loser = (party.sign(os.urandom(32), [state], command_id=os.urandom(8).hex()) for _ in range(2))
    answer = await world.client.submit(winner)
    assert isinstance(answer, Notarised)
    world.notarised[answer.tx_id] = answer.log_offset
    await world.client.submit(loser)
    tx_id, reference = answer.tx_id.hex(), format_state_ref(state)

    async def attempts() -> bool:
        history = await _get(world, f"/v1/states/{reference}/attempts")
        found = [(a["code"], a["command_id"]) for a in history["attempts"]]
        return found == [("NOTARISED", winner.command_id), ("STATE_CONFLICT", loser.command_id)]

    await eventually(attempts)
    status = await _get(world, f"/v1/transactions/{tx_id}/status")
    assert (status["log_offset"], status["requested_by"]["command_id"]) == (answer.log_offset, winner.command_id)
    known = await _get(world, f"/v1/states/{reference}")
    assert (known["consumed_by"], known["log_offset"]) == (tx_id, answer.log_offset)
    assert (await _get(world, f"/v1/states/{format_state_ref(state_ref(os.urandom(32), 0))}"))["consumed"] is False


async def test_pruning_goes_through_the_active_and_keeps_what_is_needed(world: World) -> None:
    """Goal: the command, the admin call, the lock session. Method: ask for what is safe, then for more."""
    owner = world.cluster.owner_dsn()
    code, printed = await _notary(world, "store", "prune", "--as", owner, "--json")
    assert (code, json.loads(printed)) == (0, {"pruned_to": 0, "safe_to": 0, "deleted": 0})
    code, _ = await _notary(world, "store", "prune", "--as", owner, "--up-to", "1")
    assert code == 2  # younger than the deduplication period


async def test_a_replica_that_was_stopped_on_purpose_stays_down_and_its_index_can_be_verified(world: World) -> None:
    """Goal: the index commands as the runbook has them. Method: refused while it runs; stopped, verified, rebuilt."""
    (passive, *_) = await world.cluster.passives()
    name = ("--name", passive.name)
    code, _ = await _notary(world, "index", "verify", *name)
    assert code == 2
    await passive.stop()
    code, printed = await _notary(world, "index", "verify", *name, "--json")
    before = json.loads(printed)
    assert code == 0
    assert before["entries"] >= 2 * len(world.notarised)
    code, _ = await _notary(world, "index", "rebuild", *name)
    assert (code, passive.running) == (0, False)
    passive.start()

    async def has_caught_up() -> bool:
        health = (await world.cluster.healths())[passive.name]
        return health is not None and health.applied_offset >= before["applied_offset"]

    await eventually(has_caught_up, 60.0)
    await passive.stop()
    code, printed = await _notary(world, "index", "verify", *name, "--json")
    assert json.loads(printed) == before | {"applied_offset": json.loads(printed)["applied_offset"]}
    passive.start()


@pytest.mark.thorough
async def test_two_replicas_under_the_watch_take_over_from_each_other(world: World) -> None:
    """Goal: `notary watch` keeps a pair of replicas alive. Method: it runs two, the third is down; under load SIGKILL
    of the active's core: the peer serves and is left alone, the fallen one comes back; check. test_watch_replicas.py
    has the long form."""
    cluster = world.cluster
    (third, *pair) = cluster.replicas.values()
    await third.stop()
    watch = RunningWatch(cluster, *(one.name for one in pair))
    async with watched(cluster, watch):
        active = await cluster.wait_for_active()
        (peer,) = (one for one in pair if one.name != active.name)
        before = {one.name: watch.core(one.name) for one in pair}
        await world.notarise_one()
        os.kill(before[active.name], signal.SIGKILL)
        await world.notarise_one()
        assert (await cluster.wait_for_active(other_than=active.name)).name == peer.name
        await watch.started_again(active.name, before[active.name])
        assert watch.core(peer.name) == before[peer.name]
        assert re.search(rf"{active.name} +ended with code -9; starts again in 2 s", watch.said())
    third.start()
    await world.check()


async def test_a_cluster_that_is_started_again_is_the_same_notary(world: World) -> None:
    """Goal: nothing survives a stop but the data. Method: stop, look for processes, start, look an answer up."""
    await world.notarise_one()
    tx_id, log_offset = list(world.notarised.items())[-1]
    cluster = world.cluster
    pids = [replica.pid for replica in cluster.replicas.values()]
    pids += [cluster.postgres.process.pid, cluster.haproxy.process.pid, *cluster.log_pids()]
    pids += [child for pid in pids for child in descendants(pid)]
    await cluster.stop()
    assert await _all_gone(pids)
    async with guarded(LocalCluster(ClusterSettings(folder=cluster.folder, parties=2))) as again:
        assert (again.notary_key, again.endpoint) == (cluster.notary_key, cluster.endpoint)
        found = await world.client.look_up(tx_id)
        assert isinstance(found, Notarised)
        assert found.log_offset == log_offset


async def _holds(fact: bool) -> bool:
    return fact


async def _get(world: World, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(world.cluster.endpoint + path) as response:
        assert response.status == 200, await response.read()
        return await response.json(content_type=None)


async def _all_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)
