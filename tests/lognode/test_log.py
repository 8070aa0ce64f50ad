"""What every request log promises, on three log nodes; and what only such a log can do to its readers and writers."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ha.raft.state import Leadership
from replica.log.interface import RequestLog
from replica.log.open import open_log_admin
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.raft.node import LogNode
from replica.log.raft.opening import Opening
from replica.log.raft.process import find_identity
from replica.log.raft.proof import problem_of
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.wire import name_of
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable
from replica.notary.words import UNSAID, NewWord, Word, replace, value_of
from replica.operators.admin import AdminListener
from tests.lognode.real_nodes import GROUP, WAIT_S, free_ports
from tests.steering import steering_of_nobody
from tests.unit.log.test_contract import LogContract, TopicUnderTest, numbered, read_all

NO_NODES = "log.kind is not raft: the log is not on nodes of our own"


class NodesHere:
    """Three log nodes in this process, with real links and disks; a log on them as the contract suite sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(3)
        self.addresses = {f"r{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
        self.nodes: dict[str, LogNode] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def settings(self, name: str) -> LogNodeSettings:
        return LogNodeSettings(
            group=GROUP,
            name=name,
            listen=self.addresses[name],
            peers={peer: address for peer, address in self.addresses.items() if peer != name},
            data_dir=self.folder / name,
            message_timeout_ms=100,
            election_timeout_ms=1_000,
            segment_bytes=2**22,
            core_silence_ms=0,  # no replica reads all the time here
        )

    def start_node(self, name: str, *, new_group: bool = False) -> None:
        settings = self.settings(name)
        identity, files = find_identity(settings, new_group=new_group)
        opened = Opening(settings.group, identity.node_id, identity.key, files, settings.segment_bytes).finished()
        node = LogNode(settings, opened)
        self.nodes[name] = node
        self._running[name] = asyncio.create_task(node.run(new_group=new_group))

    async def start(self) -> None:
        self.start_nodes()
        async with asyncio.timeout(WAIT_S):
            while len(self.nodes["r1"].links.connected) < 2:
                await asyncio.sleep(0.02)
            client = await LogClient.connect(self.addresses["r1"], GROUP)
            await client.change([node.node_id for node in self.nodes.values()])
            await client.close()

    def start_nodes(self) -> None:
        for name in self.addresses:
            self.start_node(name, new_group=name == "r1")

    async def stop_node(self, name: str) -> None:
        self.nodes.pop(name).stop()
        await self._running.pop(name)

    async def kill_node(self, name: str) -> None:
        """It ends without asking anybody to take over."""
        del self.nodes[name]
        running = self._running.pop(name)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def stop(self) -> None:
        for name in list(self.nodes):
            await self.stop_node(name)

    def log(self, node: str = "r2", **changed: object) -> RequestLog:
        return self.raft_log(node, **changed)

    def raft_log(self, node: str = "r2", **changed: object) -> RaftLog:
        return RaftLog(self.log_settings(node=node, **changed))

    def log_settings(self, **changed: object) -> RaftLogSettings:
        nodes = ",".join(f"{name}={address}" for name, address in self.addresses.items())
        return RaftLogSettings.model_validate({"group": GROUP, "nodes": nodes} | changed)

    async def put(self, *values: bytes | None) -> None:
        async with asyncio.timeout(WAIT_S):
            while not await self._put([value or b"" for value in values]):
                await asyncio.sleep(0.05)

    async def put_after_start(self, *values: bytes) -> None:
        """As `put`, also while nodes do not listen yet."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await self.put(*values)
                except LogUnavailable:
                    await asyncio.sleep(0.05)

    async def _put(self, values: Sequence[bytes]) -> bool:
        for name in self.nodes:
            client = await LogClient.connect(self.addresses[name], GROUP)
            try:
                await client.append(values)
                return True
            except CallFailed:
                continue
            finally:
                await client.close()
        return False

    async def cut_off(self, first_offset: int) -> None:
        raise NotImplementedError("no node of this log ever lets go of its start")

    async def recreate(self) -> None:
        await self.stop()
        for name in self.addresses:
            shutil.rmtree(self.folder / name)
        await self.start()


@pytest.fixture
async def topic_under_test(tmp_path: Path) -> AsyncIterator[NodesHere]:
    nodes = NodesHere(tmp_path)
    await nodes.start()
    yield nodes
    await nodes.stop()


class TestRaftLog(LogContract):
    async def test_an_offset_that_the_log_does_not_have_is_refused(self, topic_under_test: TopicUnderTest) -> None:
        """As everywhere, but for a log whose first records are gone: this one never lets go of them."""
        log = topic_under_test.log()
        await topic_under_test.put(*numbered(5))
        with pytest.raises(LogTruncated, match="from 0 to below 5, asked for is 6"):
            await log.open_reader(6)
        assert await read_all(await log.open_reader(3), 2) == [(3, b"record 3"), (4, b"record 4")]
        await log.close()


async def test_records_survive_their_leader_and_keep_their_order(topic_under_test: NodesHere) -> None:
    """Goal: a change of leader loses nothing that was handed over. Method: stop the leader's node under appends."""
    log = topic_under_test.raft_log()
    writer, reader = await log.open_writer(), await log.open_reader(0)
    values = numbered(400)
    for at, value in enumerate(values):
        writer.append(value)
        if at == 200:
            leader = await log.leader()
            await topic_under_test.stop_node("r1" if leader == "r1" else leader)
            if leader == "r2":
                reader = await (log := topic_under_test.raft_log("r3")).open_reader(0)
        await asyncio.sleep(0.001)
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while not set(values) <= set(found):
            found += [value for _, value in await reader.read(500, 1.0)]
    assert list(dict.fromkeys(found)) == values  # some perhaps twice
    assert writer.failed_count == 0
    await log.close()
    await writer.close()


async def test_a_log_without_a_majority_is_unavailable_and_gives_records_up(topic_under_test: NodesHere) -> None:
    """Goal: nothing is promised that nobody can keep. Method: stop two nodes; ask, append, open behind the end."""
    log = topic_under_test.raft_log("r3", append_max_s=0.5, answer_max_s=0.5)
    assert await log.hazards() == []
    writer = await log.open_writer()
    await topic_under_test.put(*numbered(3))
    reader = await log.open_reader(3)
    for name in ("r1", "r2"):
        await topic_under_test.stop_node(name)
    writer.append(b"nowhere")
    async with asyncio.timeout(WAIT_S):
        while not writer.failed_count:
            await asyncio.sleep(0.05)
    with pytest.raises(LogUnavailable):
        await log.agreed_end_offset()
    with pytest.raises(LogUnavailable):  # never LogTruncated: this node cannot know
        await log.open_reader(9)
    assert await reader.read(1, 0.1) == []
    await log.close()
    for name in ("r1", "r2"):
        topic_under_test.start_node(name)


@pytest.mark.thorough
async def test_a_stall_of_the_machine_is_no_silence_of_the_leader(topic_under_test: NodesHere) -> None:
    """Goal: who was not scheduled did not listen either. Method: nothing runs for twice the election timeout."""
    await topic_under_test.put(b"before")
    nodes = topic_under_test.nodes.values()
    view = max(node.raft.view for node in nodes)
    for _ in range(3):
        time.sleep(2.0)  # nobody gets to run
        await asyncio.sleep(0.3)
    assert {node.raft.view for node in nodes} == {view}
    await topic_under_test.put(b"after")


async def test_a_word_counts_once_and_outlives_its_leader(topic_under_test: NodesHere) -> None:
    """Goal: a late copy changes nothing, after a change of leader and a restart of all as well. Method: say two words
    and a copy of the first between records; kill the leader; ask other nodes; stop all, start, ask."""
    log = topic_under_test.raft_log()
    first = NewWord("pause", UNSAID.version, b"for r1")
    said = await log.say(first)
    await topic_under_test.put(*numbered(3))
    ended = await log.say(NewWord("pause", said.version, b""))
    assert (said.value, ended.value) == (b"for r1", b"")
    assert await log.say(first) == ended
    await log.say(NewWord("other", UNSAID.version, b"x"))
    assert await log.end_offset() == 3  # a word has no offset
    leader = await log.leader()
    await topic_under_test.kill_node(leader)
    other = topic_under_test.raft_log(next(iter(topic_under_test.nodes)))
    assert await other.say(first) == ended
    assert await other.words("pau") == {"pause": ended}
    assert await read_all(await other.open_reader(0), 3) == list(enumerate(numbered(3)))
    for opened in (log, other):
        await opened.close()
    for name in list(topic_under_test.nodes):
        await topic_under_test.stop_node(name)
    for name in topic_under_test.addresses:
        topic_under_test.start_node(name)
    again = topic_under_test.raft_log("r3")
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                found = await again.words("")
                break
            except LogUnavailable:
                await asyncio.sleep(0.05)
    assert (found["pause"], found["other"].value) == (ended, b"x")
    await again.close()


async def test_a_word_whose_answer_was_lost_is_not_said_again_after_another_one(
    topic_under_test: NodesHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a pause never comes back after the resume. Method: the answer to the pause is lost, and a resume is said
    before the pause is sent again; without a word in between, the second copy's answer does."""
    log, other = topic_under_test.raft_log(), topic_under_test.raft_log("r3")
    say, resume = LogClient.say, [b""]

    async def lose_the_first_answer(client: LogClient, word: NewWord) -> dict[str, Word]:
        told = await say(client, word)
        monkeypatch.setattr(LogClient, "say", say)
        for value in resume:
            await other.say(NewWord("pause", told["pause"].version, value))
        raise LogUnavailable("the connection was cut")

    monkeypatch.setattr(LogClient, "say", lose_the_first_answer)
    with pytest.raises(LogUnavailable, match="another word is in force"):
        await replace(log, "pause", lambda _: b"for r1")
    assert await value_of(log, "pause") == b""
    resume.clear()
    monkeypatch.setattr(LogClient, "say", lose_the_first_answer)
    assert await replace(log, "pause", lambda _: b"for r1") == (b"", b"for r1")
    for opened in (log, other):
        await opened.close()


async def test_a_node_that_begins_another_log_stops_nobody(topic_under_test: NodesHere) -> None:
    """Goal: one node with an empty disk and `--new-group` neither leads the others nor ends a replica. Method: make it
    one, raise its view, have it asked for members; meanwhile the replica beside it, and a new one, go on."""
    before, others = topic_under_test.raft_log("r1"), ("r2", "r3")
    log_id, reader = await before.check(), await before.open_reader(0)
    await topic_under_test.put(*numbered(3))
    await topic_under_test.stop_node("r1")
    shutil.rmtree(topic_under_test.folder / "r1")
    topic_under_test.start_node("r1", new_group=True)
    stranger = topic_under_test.nodes["r1"]
    async with asyncio.timeout(WAIT_S):
        while stranger.raft.commit_idx < 2:
            await asyncio.sleep(0.02)
    stranger.raft.state.view += 1_000
    client = await LogClient.connect(topic_under_test.addresses["r1"], GROUP)
    adding = asyncio.create_task(client.change([topic_under_test.nodes[name].node_id for name in ("r1", *others)]))
    with suppress(LogUnavailable):  # its connection has ended with the node
        await reader.read(1, 0.1)
    after = topic_under_test.raft_log("r1")
    assert await after.check() == log_id
    for log in (before, after):
        writer = await log.open_writer()
        writer.append(b"more")
        await writer.close() if await read_all(await log.open_reader(3), 1) else None
        assert await log.end_offset() >= 4
    assert stranger.links.connected == ()
    assert all(topic_under_test.nodes[name].raft.view < 1_000 for name in others)
    assert not adding.done()
    adding.cancel()
    await client.close()
    for log in (before, after):
        await log.close()


async def test_a_client_takes_another_log_for_created_anew_once_most_nodes_have_it(topic_under_test: NodesHere) -> None:
    """Goal: with no majority for any log nobody is told that the log is another one. Method: one of two nodes that are
    up has another log."""
    log = topic_under_test.raft_log("r1")
    await log.check()
    for name in ("r1", "r3"):
        await topic_under_test.stop_node(name)
    shutil.rmtree(topic_under_test.folder / "r1")
    topic_under_test.start_node("r1", new_group=True)
    async with asyncio.timeout(WAIT_S):
        while not topic_under_test.nodes["r1"].links.log_id:
            await asyncio.sleep(0.02)
    for known in (log, topic_under_test.raft_log("r1")):
        with pytest.raises(LogUnavailable, match=r"r1.* has another log|no majority of 3 log nodes has one log"):
            await known.check()
        await known.close()


async def test_too_few_members_are_refused(topic_under_test: NodesHere) -> None:
    """Goal: nobody serves on one disk unawares. Method: demand more members than there are."""
    log = topic_under_test.raft_log(members_min=4)
    with pytest.raises(LogRefused, match="has 3 members, and needs 4") as refused:
        await log.check()
    assert refused.value.code is Code.TOPIC_UNSAFE
    assert await log.hazards() == ["the log has 3 members, and needs 4"]
    await log.close()


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


async def test_a_replica_whose_node_is_gone_uses_another(topic_under_test: NodesHere) -> None:
    """Goal: a lost log node is no outage of its replica. Method: stop the node beside it, then read and append."""
    await topic_under_test.put(*numbered(3))
    await topic_under_test.stop_node("r2")
    log = topic_under_test.raft_log("r2")
    await log.check()
    writer, reader = await log.open_writer(), await log.open_reader(3)
    writer.append(b"record 3")
    assert await read_all(reader, 1) == [(3, b"record 3")]
    await log.close()
    topic_under_test.start_node("r2")


async def test_a_reader_returns_to_the_node_beside_its_replica(topic_under_test: NodesHere) -> None:
    """Goal: another machine that falls silent does not stop this replica's reading. Method: its node is away while it
    opens a reader, and comes back; then the one that it read from ends without a word."""
    await topic_under_test.put(*numbered(3))
    await topic_under_test.stop_node("r2")
    log = topic_under_test.raft_log("r2")
    reader = await log.open_reader(0)
    assert len(await read_all(reader, 3)) == 3
    topic_under_test.start_node("r2")
    read_from = reader._client
    async with asyncio.timeout(WAIT_S):
        while reader._client is read_from:
            assert await reader.read(10, 0.05) == []
    assert name_of(reader._client.node_id) == "r2" and read_from.has_ended
    await topic_under_test.kill_node(name_of(read_from.node_id))
    await topic_under_test.put(b"record 3")
    assert await read_all(reader, 1) == [(3, b"record 3")]
    await log.close()


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
