"""What tools, operators and applications ask log nodes: members, consensus, places of entries, proofs, clocks."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.log.open import open_log_admin
from replica.log.raft.client import LogClient
from replica.log.raft.log import RaftLog
from replica.log.raft.proof import problem_of
from replica.log.raft.wire import name_of
from replica.notary.errors import LogTruncated, LogUnavailable
from replica.operators.admin import AdminListener
from tests.lognode.nodes_here import NodesHere
from tests.lognode.real_nodes import GROUP, WAIT_S
from tests.steering import steering_of_nobody
from tests.unit.log.test_contract import numbered, read_all

NO_NODES = "log.kind is not raft: the log is not on nodes of our own"


class TestAdmin:
    """What tools ask."""

    async def test_a_log_is_created_with_all_nodes(self, tmp_path: Path) -> None:
        """Goal: three copies from the first record on. Method: one node begins the log; create, and once more."""
        nodes = NodesHere(tmp_path)
        nodes.start_nodes()
        admin = open_log_admin(nodes.log_settings())
        try:
            log_id = await admin.create()
            assert await admin.server_count() == 3
            assert await admin.create() == log_id == await admin.topic_id()
        finally:
            await admin.close()
            await nodes.stop()

    async def test_a_survey_names_what_is_silent(self, topic_under_test: NodesHere) -> None:
        """Goal: the doctor knows how much more may fail. Method: with all nodes, then without one."""
        admin = open_log_admin(topic_under_test.log_settings())
        await topic_under_test.put(*numbered(3))
        found = await admin.survey()
        assert (found.end_offset, found.spare, found.silent, found.violations) == (3, 1, (), ())
        leader = await topic_under_test.raft_log().leader()
        gone = next(name for name in topic_under_test.nodes if name != leader)
        await topic_under_test.stop_node(gone)
        async with asyncio.timeout(WAIT_S):
            while not (found := await admin.survey()).silent:
                await asyncio.sleep(0.1)
        assert [name_of(node) for node in found.silent] == [gone]
        assert found.spare == 0
        await admin.close()
        topic_under_test.start_node(gone)

    async def test_a_stretch_has_every_record_with_its_time(self, topic_under_test: NodesHere) -> None:
        """Goal: the archive's columns. Method: two appends at different times; stretches from and to any place."""
        began_ms = int(time.time() * 1_000)
        await topic_under_test.put(*numbered(1_500))
        await asyncio.sleep(0.02)
        await topic_under_test.put(b"later")
        ended_ms = int(time.time() * 1_000)
        admin = open_log_admin(topic_under_test.log_settings())
        for first, end in ((0, 1_501), (1_400, 1_501), (700, 701), (1_500, 1_501), (3, 3)):
            found = await asyncio.to_thread(list, admin.stretch(first, end))
            values = [value for stretch in found for value in stretch.values]
            times = [at for stretch in found for at in stretch.times_ms]
            assert values == [*numbered(1_500), b"later"][first:end]
            assert [stretch.first_offset for stretch in found][:1] == [first][: end - first]
            assert times == sorted(times)
            assert all(began_ms <= at <= ended_ms for at in times)
            assert all(len(stretch.keys) == len(stretch.headers) == len(stretch.values) for stretch in found)
        whole = [at for stretch in await asyncio.to_thread(list, admin.stretch(0, 1_501)) for at in stretch.times_ms]
        assert len(set(whole[:1_500])) == 1
        assert whole[1_499] < whole[1_500]
        with pytest.raises(LogUnavailable, match="ends at offset 1501"):
            await asyncio.to_thread(list, admin.stretch(0, 1_502))
        await admin.close()


@asynccontextmanager
async def admin_calls(log: RaftLog | None) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, Any]]]]:
    """GET on the admin listener of a replica with this log."""
    with tempfile.TemporaryDirectory(prefix="log-") as folder:
        listener = AdminListener(steering_of_nobody(), dict, (), Path(folder) / "admin.sock", consensus=log)
        await listener.start()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(f"{folder}/admin.sock")) as session:

            async def get(path: str) -> tuple[int, Any]:
                async with session.get(f"http://localhost{path}") as answer:
                    return answer.status, await answer.json()

            yield get
        await listener.stop()


async def test_operators_see_the_consensus(topic_under_test: NodesHere) -> None:
    """Goal: CCF's fields, of the node beside the replica. Method: the admin listener of one beside a follower."""
    await topic_under_test.put(b"a")
    leader = await topic_under_test.raft_log().leader()
    beside = next(name for name in topic_under_test.nodes if name != leader)
    log = topic_under_test.raft_log(beside)
    async with admin_calls(log) as get:
        status, found = await get("/node/consensus")
        details = found["details"]
        assert (status, details["node_id"]) == (200, topic_under_test.nodes[beside].node_id)
        assert details["primary_id"] == topic_under_test.nodes[leader].node_id
        assert {"configs", "acks", "membership_state", "leadership_state", "current_view", "ticking"} <= details.keys()
        assert await get("/node/network/removable_nodes") == (200, [])
        names = sorted(topic_under_test.nodes)
        left = next(name for name in names if name not in {leader, beside})
        client = await LogClient.connect(topic_under_test.addresses[leader], GROUP)
        await client.change([topic_under_test.nodes[name].node_id for name in (leader, beside)])
        await client.close()
        async with asyncio.timeout(WAIT_S):
            while (found := await get("/node/network/removable_nodes")) == (200, []):
                await asyncio.sleep(0.05)
        assert found == (200, [topic_under_test.nodes[left].node_id])
        details = (await get("/node/consensus"))[1]["details"]
        assert all({"idx", "nodes", "rid"} <= each.keys() for each in details["configs"])
    await log.close()


async def test_what_became_of_an_entry(topic_under_test: NodesHere) -> None:
    """Goal: an application can ask later. Method: a committed record, the log's own entry, one to come, nonsense."""
    await topic_under_test.put(b"a", b"b")
    log = topic_under_test.raft_log("r1")
    client = await LogClient.connect(topic_under_test.addresses[await log.leader()], GROUP)
    appended = await client.append([b"c"])
    view, idx = appended.view, appended.last_idx
    reader = await log.open_reader(0)
    await read_all(reader, 3)
    async with admin_calls(log) as get:
        status, found = await get(f"/v1/log/{view}.{idx}")
        assert (status, found["status"], found["offset"]) == (200, "Committed", 2)
        assert (await get(f"/v1/log/{view}.{idx + 1}"))[1]["offset"] is None  # the signature
        assert (await get(f"/v1/log/{view}.{idx + 1_000}"))[1]["status"] == "Unknown"
        assert (await get(f"/v1/log/{view + 1}.{idx}"))[1]["status"] == "Invalid"
        for wrong in ("0.1", "1", "1.0", "a.b", "1.1.1", "9" * 17 + ".1"):
            assert (await get(f"/v1/log/{wrong}"))[0] == 400
    await client.close()
    await log.close()


async def status_at(log: RaftLog, place: str, *statuses: str) -> str:
    """Ask until one of these is answered."""
    view, _, seqno = place.partition(".")
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                if (found := (await log.transaction(int(view), int(seqno))).status) in statuses:
                    return found
            except LogUnavailable:
                pass
            await asyncio.sleep(0.05)


async def test_a_writer_reports_places_before_they_are_committed(topic_under_test: NodesHere) -> None:
    """Goal: early places are those of the records. Method: two calls, one without; Committed, with the offsets."""
    log = topic_under_test.raft_log("r1")
    writer = await log.open_writer()
    places: dict[int, str] = {}
    writer.append_all([b"a"])
    writer.append_early([b"b", b"c"], places.update)
    reader = await log.open_reader(0)
    assert [value for _, value in await read_all(reader, 3)] == [b"a", b"b", b"c"]
    assert sorted(places) == [0, 1]
    for position, offset in ((0, 1), (1, 2)):
        view, _, seqno = places[position].partition(".")
        found = await log.transaction(int(view), int(seqno))
        assert (found.transaction_id, found.status, found.offset) == (places[position], "Committed", offset)
    commit = await log.commit(1)
    view, _, seqno = commit.transaction_id.partition(".")
    assert commit.view_history is not None
    assert len(commit.view_history) == int(view)
    assert list(commit.view_history) == sorted(commit.view_history)
    assert commit.view_history[-1] <= int(seqno)
    assert (await log.commit(int(view))).view_history == commit.view_history[-1:]
    assert (await log.commit(int(view) + 1)).view_history == ()
    assert (await log.commit()).view_history is None
    await log.close()


async def test_what_a_leader_alone_had_is_pending_and_then_invalid(topic_under_test: NodesHere) -> None:
    """Goal: an early place is no promise. Method: no follower; kill the leader; the others go on; it comes back."""
    await topic_under_test.put(b"before")
    log = topic_under_test.raft_log("r1")
    leader = await log.leader()
    beside = topic_under_test.raft_log(leader)
    await beside.check()
    followers = [name for name in topic_under_test.nodes if name != leader]
    for name in followers:
        await topic_under_test.kill_node(name)
    client = await LogClient.connect(topic_under_test.addresses[leader], GROUP)
    placed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    appending = asyncio.create_task(
        client.append([b"lost"], lambda here: placed.set_result(f"{here.view}.{here.first_idx}"))
    )
    async with asyncio.timeout(WAIT_S):
        place = await placed
    assert await status_at(beside, place, "Pending", "Committed", "Invalid", "Unknown") == "Pending"
    await topic_under_test.kill_node(leader)
    await asyncio.gather(appending, return_exceptions=True)
    for name in followers:
        topic_under_test.start_node(name)
    await topic_under_test.put_after_start(b"after")
    other = topic_under_test.raft_log(followers[0])
    assert await status_at(other, place, "Committed", "Invalid") == "Invalid"
    topic_under_test.start_node(leader)
    assert await status_at(beside, place, "Committed", "Invalid") == "Invalid"
    for one in (log, beside, other):
        await one.close()
    await client.close()


async def test_a_records_place_is_proven(topic_under_test: NodesHere) -> None:
    """Goal: a proof from any node, also after a change of leader. Method: records of two leaders; one too many."""
    await topic_under_test.put(*numbered(1_500))
    log = topic_under_test.raft_log("r3")
    writer = await log.open_writer()  # r3 leads now
    writer.append(b"last")
    await read_all(await log.open_reader(0), 1_501)
    log_id = await log.log_id()
    for offset, body in ((0, b"record 0"), (1_499, b"record 1499"), (1_500, b"last")):
        proof = await log.prove(offset)
        assert problem_of(proof, log_id) is None
        assert (proof.record.entry.body, proof.log_id) == (body, log_id)
    with pytest.raises(LogTruncated, match="below 1501"):
        await log.prove(1_501)
    await log.close()


async def test_a_log_without_nodes_of_our_own_has_no_consensus() -> None:
    """Goal: a sentence, not a crash. Method: each path, without such a log."""
    async with admin_calls(None) as get:
        for path in ("/node/consensus", "/node/network/removable_nodes", "/v1/log/2.1"):
            assert await get(path) == (404, {"code": "NO_LOG_NODES", "detail": NO_NODES})


async def test_what_is_asked_of_a_silent_node_is_unavailable(topic_under_test: NodesHere) -> None:
    """Goal: 503 and the log's code. Method: stop all nodes, and ask."""
    log = topic_under_test.raft_log("r1", connect_max_s=0.5)
    await topic_under_test.stop()
    async with admin_calls(log) as get:
        status, found = await get("/node/consensus")
    assert (status, found["code"]) == (503, "LOG_UNAVAILABLE")
    await log.close()


async def test_a_new_leader_knows_how_long_the_log_was_quiet(topic_under_test: NodesHere) -> None:
    """Goal: an election is no time lost for who waits. Method: half a second after records their leader stops."""
    log = topic_under_test.raft_log("r1")
    assert (await log.end_and_quiet()).quiet_s is None  # it had no record yet
    began_s = time.monotonic()
    await topic_under_test.put(*numbered(5))
    had_s = time.monotonic()
    await asyncio.sleep(0.5)
    leader = await log.leader()
    await log.close()
    await topic_under_test.stop_node(leader)
    log = topic_under_test.raft_log("r1" if leader != "r1" else "r2")
    asked_s = time.monotonic()
    end = await log.end_and_quiet()
    assert end.offset == 5
    assert end.quiet_s is not None
    assert (asked_s - had_s) / 2 < end.quiet_s < time.monotonic() - began_s
    await log.close()
    topic_under_test.start_node(leader)


async def test_the_nodes_tell_the_time_while_a_majority_answers(topic_under_test: NodesHere) -> None:
    """Goal: replicas without a database have a clock to agree with. Method: all nodes, then two, then one."""
    log = topic_under_test.raft_log("r1")
    for stopped in ((), ("r3",), ("r2",)):
        for name in stopped:
            await topic_under_test.stop_node(name)
        before_us = time.time_ns() // 1_000
        told_us = await log.agreed_wall_us()
        if stopped == ("r2",):
            assert told_us is None
        else:
            assert told_us is not None
            assert before_us <= told_us <= time.time_ns() // 1_000
    await log.close()
    for name in ("r2", "r3"):
        topic_under_test.start_node(name)


async def test_the_log_tells_when_a_record_was_appended(topic_under_test: NodesHere) -> None:
    """Goal: its signatures have a time, and a record's is the next one's. Method: two calls with a pause between, the
    first with more records than are looked at together; an offset that is not there."""
    log = topic_under_test.raft_log("r1")
    moments_us = []
    for values in (numbered(40), numbered(1)):
        await asyncio.sleep(0.05)
        moments_us.append(time.time_ns() // 1_000)
        await topic_under_test.put(*values)
    moments_us.append(time.time_ns() // 1_000)
    first_us, last_us, second_us = await log.appended_us([0, 39, 40])
    assert moments_us[0] - 1_000 <= first_us <= last_us <= moments_us[1]  # they have milliseconds
    assert moments_us[1] - 1_000 <= second_us <= moments_us[2]
    with pytest.raises(LogTruncated, match="below 41"):
        await log.appended_us([0, 41])
    assert await log.appended_us([]) == []
    await log.close()
