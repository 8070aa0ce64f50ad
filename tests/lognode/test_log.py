"""What every request log promises, on three log nodes; and what only such a log can do to its readers and writers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from replica.log.raft.client import LogClient
from replica.log.raft.wire import name_of
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable
from replica.notary.words import UNSAID, NewWord, Word, replace, value_of
from tests.contracts.log_machine import LogMachine, LogWorld, log_world, memory_world
from tests.contracts.side_by_side import played
from tests.lognode.nodes_here import NodesHere
from tests.lognode.real_nodes import GROUP, WAIT_S
from tests.unit.log.test_contract import LogContract, TopicUnderTest, numbered, read_all


class TestRaftLog(LogContract):
    async def test_an_offset_that_the_log_does_not_have_is_refused(self, topic_under_test: TopicUnderTest) -> None:
        """As everywhere, but for a log whose first records are gone: this one never lets go of them."""
        log = topic_under_test.log()
        await topic_under_test.put(*numbered(5))
        with pytest.raises(LogTruncated, match="from 0 to below 5, asked for is 6"):
            await log.open_reader(6)
        assert await read_all(await log.open_reader(3), 2) == [(3, b"record 3"), (4, b"record 4")]
        await log.close()


@pytest.mark.parametrize("examples", [3, pytest.param(30, marks=pytest.mark.thorough)])
def test_it_answers_as_the_double_does(tmp_path: Path, examples: int) -> None:
    """Goal: see LogMachine. Method: random calls."""
    numbers = count()

    @asynccontextmanager
    async def world() -> AsyncIterator[LogWorld]:
        nodes = NodesHere(tmp_path / str(next(numbers)))
        await nodes.start()
        async with log_world(nodes) as made:
            yield made
        await nodes.stop()

    played(partial(LogMachine, memory_world, world), examples=examples, steps=100)


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
