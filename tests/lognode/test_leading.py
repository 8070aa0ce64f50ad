"""Which log node leads: the one beside the only writer, the one that leads where all write, the next one."""

from __future__ import annotations

import asyncio

import pytest

from ha.raft.state import Leadership
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.log import RaftLog
from replica.log.raft.wire import name_of
from tests.lognode.nodes_here import NodesHere
from tests.lognode.real_nodes import GROUP, WAIT_S
from tests.unit.log.test_contract import numbered, read_all


async def test_the_node_beside_a_writer_takes_the_lead(
    topic_under_test: NodesHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an active's records travel once less. Method: open a writer beside each node in turn; then beside none. A
    busy machine may need longer than a writer waits."""
    monkeypatch.setattr("replica.log.raft.log._LEAD_MAX_S", 10.0)
    for node in ("r1", "r2", "r3", "r1"):
        log = topic_under_test.raft_log(node)
        writer = await log.open_writer()
        assert await log.leader() == node
        writer.append(node.encode())
        await log.close()
    log = RaftLog(topic_under_test.log_settings())
    writer = await log.open_writer()
    assert await log.leader() == "r1"
    await log.close()


async def test_writers_that_share_the_log_leave_its_lead_where_it_is(topic_under_test: NodesHere) -> None:
    """Goal: replicas that all write do not take the lead from one another. Method: one beside each node appends."""
    logs = [topic_under_test.raft_log(name) for name in ("r1", "r2", "r3")]
    leader = await logs[0].any_leader()
    view = topic_under_test.nodes[leader].raft.view
    writers = [await log.open_shared_writer() for log in logs]
    for n in range(20):
        for writer in writers:
            writer.append(b"%d" % n)
        await asyncio.sleep(0.01)
    async with asyncio.timeout(WAIT_S):
        while await logs[0].end_offset() < 60:
            await asyncio.sleep(0.01)
    assert (await logs[0].any_leader(), topic_under_test.nodes[leader].raft.view) == (leader, view)
    for log in logs:
        await log.close()


async def test_who_asks_during_an_election_waits_for_it(topic_under_test: NodesHere) -> None:
    """Goal: a fail-over need not be tried twice. Method: kill the leader's node and ask at once, beside another."""
    await topic_under_test.put(*numbered(3))
    leader = await topic_under_test.raft_log().leader()
    log = topic_under_test.raft_log(next(name for name in topic_under_test.nodes if name != leader))
    await log.check()
    await topic_under_test.kill_node(leader)
    assert await log.agreed_end_offset() == 3
    writer = await log.open_writer()
    writer.append(b"record 3")
    assert await read_all(await log.open_reader(3), 1) == [(3, b"record 3")]
    await log.close()
    topic_under_test.start_node(leader)


async def test_a_node_that_does_not_keep_up_is_not_nominated(topic_under_test: NodesHere) -> None:
    """Goal: no election for nothing. Method: nominate a silent member and a stranger; the leader and its view stay."""
    log = topic_under_test.raft_log("r1")
    await log.open_writer()
    leader = topic_under_test.nodes["r1"]
    await topic_under_test.stop_node("r3")
    async with asyncio.timeout(WAIT_S):
        while "r3" in {name_of(node) for node in leader._live()}:
            await asyncio.sleep(0.05)
    view = leader.raft.view
    client = await LogClient.connect(topic_under_test.addresses["r1"], GROUP)
    for name in ("r3", "r9"):
        with pytest.raises(CallFailed, match="no member that keeps up"):
            await client.nominate(name)
    await client.close()
    assert (leader.raft.leadership, leader.raft.view) == (Leadership.LEADER, view)
    topic_under_test.start_node("r3")
    await log.close()


async def test_a_nominated_node_leads_whatever_clients_append(topic_under_test: NodesHere) -> None:
    """Goal: no election is lost to a nomination. Method: hand over ten times under appends; each costs one view."""
    logs = {name: topic_under_test.raft_log(name) for name in ("r1", "r2", "r3")}
    stop = asyncio.Event()

    async def append() -> int:
        writer, count = await logs["r1"].open_shared_writer(), 0
        while not stop.is_set():
            writer.append(b"%d" % count)
            count += 1
            await asyncio.sleep(0.001)
        return count

    appending = asyncio.create_task(append())
    lost = 0
    for turn in range(10):
        name = ("r2", "r3", "r1")[turn % 3]
        async with asyncio.timeout(WAIT_S):
            before = await logs["r1"].any_leader()
            view = topic_under_test.nodes[before].raft.view
            found = await logs[name].leader_for_writing()
            lost += topic_under_test.nodes[found].raft.view - view > (found != before)
    stop.set()
    count = await appending
    assert count > 0
    assert not lost
    async with asyncio.timeout(WAIT_S):
        while await logs["r1"].end_offset() < count:
            await asyncio.sleep(0.05)
    for log in logs.values():
        await log.close()
