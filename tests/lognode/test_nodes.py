"""Three log nodes as processes on loopback: nothing that was acknowledged is ever lost."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from replica.log.raft.client import CallFailed
from tests.certificates import Authority
from tests.lognode.real_nodes import WAIT_S, Nodes, bodies_of, freeze

pytestmark = pytest.mark.slow  # `make lognode`: nothing runs on the log node yet


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.stop_all()


def batch(number: int, count: int = 20, size: int = 0) -> list[bytes]:
    return [b"%d/%d" % (number, at) + bytes(size) for at in range(count)]


async def test_what_is_committed_is_on_every_nodes_own_disk(nodes: Nodes) -> None:
    """Goal: append at the leader, read anywhere. Method: three processes, batches, each node's log by its own word."""
    await nodes.start_group()
    sent = [body for number in range(20) for body in batch(number)]
    for number in range(20):
        answer = await nodes.append(batch(number))
    logs = [await nodes.log_of(name, answer.last_idx) for name in nodes.names]
    common = min(map(len, logs))
    assert logs[0][:common] == logs[1][:common] == logs[2][:common]
    assert all(bodies_of(log) == sent for log in logs)


async def test_a_leader_that_is_killed_is_replaced_and_comes_back(nodes: Nodes) -> None:
    """Goal: nothing acknowledged is lost, and the killed node has it too. Method: SIGKILL under load, three times."""
    await nodes.start_group()
    acknowledged: list[bytes] = []
    for turn in range(3):
        leader = await nodes.leader()
        loading = asyncio.create_task(load(nodes, turn, acknowledged))
        await asyncio.sleep(1.0)
        nodes.kill(leader)
        await nodes.append([b"after %d" % turn], among=set(nodes.names) - {leader})
        await loading
        nodes.start(leader)
    last = await nodes.append([b"the end"])
    for name in nodes.names:
        found = bodies_of(await nodes.log_of(name, last.last_idx))
        assert set(acknowledged) <= set(found)
        kept = [body for body in dict.fromkeys(found) if body in set(acknowledged)]
        assert kept == list(dict.fromkeys(acknowledged))


async def load(nodes: Nodes, turn: int, acknowledged: list[bytes]) -> None:
    for number in range(30):
        bodies = batch(turn * 1_000 + number)
        await nodes.append(bodies)
        acknowledged += bodies


async def test_all_nodes_killed_at_once_come_back_with_their_log(nodes: Nodes) -> None:
    """Goal: the log outlives its nodes. Method: SIGKILL all, a torn tail on one, start again."""
    await nodes.start_group()
    for number in range(10):
        await nodes.append(batch(number))
    nodes.stop_all()
    segment = nodes.segments("r2")[-1]
    data = segment.read_bytes()
    segment.write_bytes(data.rstrip(b"\x00") + b"\x21\x00\x00\x00torn" + bytes(4_096))
    for name in nodes.names:
        nodes.start(name)
    last = await nodes.append(batch(10))
    for name in nodes.names:
        assert bodies_of(await nodes.log_of(name, last.last_idx)) == [b for n in range(11) for b in batch(n)]


async def test_a_flipped_bit_in_a_sealed_segment_is_fetched_anew(nodes: Nodes) -> None:
    """Goal: a damaged node repairs itself before it takes part. Method: flip a bit of a sealed file, start again."""
    await nodes.start_group()
    sent: list[bytes] = []
    for number in range(12):
        last = await nodes.append(batch(number, size=1_000))
        sent += batch(number, size=1_000)
    await nodes.until(lambda states: all(list(nodes.disk(name).glob("*.seal")) for name in states))
    nodes.terminate("r3")
    segment = nodes.segments("r3")[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 8
    segment.write_bytes(data)
    nodes.start("r3")
    assert bodies_of(await nodes.log_of("r3", last.last_idx))[: len(sent)] == sent
    (line,) = nodes.lines("r3", "log_segment_repaired")
    assert line["first_idx"] == 1
    assert segment.read_bytes() != data


async def test_a_hole_below_the_commit_keeps_a_node_out(nodes: Nodes) -> None:
    """Goal: a node that lost committed entries neither votes nor acknowledges. Method: damage, start, exit code 2."""
    await nodes.start_group()
    await nodes.append(batch(1))
    await nodes.append(batch(2))
    nodes.terminate("r2")
    segment = nodes.segments("r2")[-1]
    data = bytearray(segment.read_bytes())
    data[data.index(b"1/3")] ^= 1
    segment.write_bytes(data)
    nodes.start("r2")
    assert nodes.running.pop("r2").wait(WAIT_S) == 2
    (line,) = nodes.lines("r2", "log_node_failed")
    assert line["code"] == "HA_LOG_INCOMPLETE"
    await nodes.append(batch(3))


async def test_a_lost_disk_comes_back_as_a_new_id_and_a_member_is_replaced(nodes: Nodes) -> None:
    """Goal: nobody answers for votes that are gone. Method: delete the folder, start, change the members."""
    ids = await nodes.start_group()
    await nodes.append(batch(1))
    nodes.kill("r3")
    shutil.rmtree(nodes.folder / "data-r3")
    nodes.start("r3")
    states = await nodes.until(lambda states: "r3" in states and len(states["r3"]["connected"]) == 2)
    new_id = states["r3"]["node_id"]
    assert new_id != ids["r3"]
    leader = await nodes.leader()
    await nodes.until(lambda states: new_id in states[leader]["connected"])
    await nodes.change(leader, [ids["r1"], ids["r2"], new_id])
    await nodes.until(lambda states: states[leader]["removable_nodes"] == [ids["r3"]])
    last = await nodes.append(batch(2))
    assert bodies_of(await nodes.log_of("r3", last.last_idx)) == batch(1) + batch(2)


async def test_members_leave_and_join_by_command(nodes: Nodes) -> None:
    """Goal: an operator sees what may fail, replaces a lost node, and cannot retire the majority. Method: commands."""
    ids = await nodes.start_group()
    shown = json.loads(nodes.command("log", "members", "--json").stdout)
    assert [(each["nodes"], each["spare"]) for each in shown["configurations"]] == [(sorted(ids.values()), 1)]
    nodes.kill("r3")
    await asyncio.sleep(2.0)  # longer than the leader takes a silent node for alive
    assert "in force: 2 of 3 answer; 0 more may fail" in nodes.command("log", "members").stdout
    refused = nodes.command("log", "retire", "r2")
    assert refused.returncode == 1
    assert "LOG_MEMBERS_REFUSED" in refused.stderr
    assert "only 1 answer, and 2 are needed" in " ".join(refused.stderr.split())
    assert nodes.command("log", "retire", "r3").returncode == 0
    await nodes.until(lambda states: all(state["removable_nodes"] == [ids["r3"]] for state in states.values()))
    assert nodes.command("log", "removable").stdout.split() == [ids["r3"]]
    shutil.rmtree(nodes.folder / "data-r3")
    nodes.start("r3")
    states = await nodes.until(
        lambda states: len(states) == 3 and all(len(s["connected"]) == 2 for s in states.values())
    )
    new_id = states["r3"]["node_id"]
    added = json.loads(nodes.command("log", "add", "r3", "--json").stdout)
    assert [(each["nodes"], each["spare"]) for each in added["configurations"]] == [([ids["r1"], ids["r2"], new_id], 1)]
    again = nodes.command("log", "add", "r3")
    assert (again.returncode, "LOG_MEMBERS_REFUSED" in again.stderr) == (1, True)
    last = await nodes.append(batch(1))
    assert bodies_of(await nodes.log_of("r3", last.last_idx)) == batch(1)


async def test_a_new_member_copies_sealed_segments_from_whoever_has_them_whole(tmp_path: Path) -> None:
    """Goal: whole files, from the first peer whose files are good. Method: one peer frozen, one with a changed file."""
    nodes = Nodes(tmp_path, 5, unacknowledged_max=100, hello_max_s=1.0)
    try:
        ids = await nodes.start_group(nodes.names[:4])
        sent: list[bytes] = []
        for number in range(30):
            await nodes.append(batch(number, size=1_000))
            sent += batch(number, size=1_000)
        leader = await nodes.leader()
        frozen, damaged, _ = sorted(set(nodes.names[:4]) - {leader})
        await nodes.until(lambda states: all(len(list(nodes.disk(name).glob("*.seal"))) > 3 for name in states))
        segment = nodes.segments(damaged)[2]
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 8
        segment.write_bytes(data)
        freeze(nodes.running[frozen])
        nodes.start("r5")
        states = await nodes.until(
            lambda states: "r5" in states and states["r5"]["node_id"] in states[leader]["connected"]
        )
        await nodes.change(leader, [*ids.values(), states["r5"]["node_id"]])
        last = await nodes.append([b"the end"])
        assert bodies_of(await nodes.log_of("r5", last.last_idx)) == [*sent, b"the end"]
        assert [line["peer"] for line in nodes.lines("r5", "log_copy_interrupted")] == [frozen]
        (refused,) = nodes.lines("r5", "log_segment_refused")
        assert refused["peer"] == damaged
        assert "another SHA-256 than its seal" in refused["why"]
        assert nodes.lines("r5", "log_segments_copied")[0]["entries"] > len(sent) // 2
    finally:
        nodes.stop_all()


async def test_the_leader_says_where_the_log_ends(nodes: Nodes) -> None:
    """Goal: a confirmed end has all that was committed, and only a leader gives one. Method: ask after appends."""
    await nodes.start_group()
    last = await nodes.append(batch(1))
    leader = await nodes.leader()
    client = await nodes.client(leader)
    ends = await asyncio.gather(*(client.end() for _ in range(50)))
    assert min(end.idx for end in ends) >= last.last_idx
    assert {end.records for end in ends} == {len(batch(1))}
    await client.close()
    client = await nodes.client(next(name for name in nodes.names if name != leader))
    with pytest.raises(CallFailed, match="NOT_LEADER"):
        await client.end()
    await client.close()


async def test_a_stopped_leader_hands_over(nodes: Nodes) -> None:
    """Goal: a planned stop costs no election timeout. Method: SIGTERM, exit code 0, another leads; log lines show
    it."""
    await nodes.start_group()
    leader = await nodes.leader()
    view = (await nodes.status(leader) or {})["current_view"]
    assert nodes.terminate(leader) == 0
    other = await nodes.leader(set(nodes.names) - {leader})
    assert (await nodes.status(other) or {})["current_view"] == view + 1
    assert nodes.lines(leader, "log_node_stopped")


async def test_a_killed_leader_is_replaced_without_waiting_for_its_silence(tmp_path: Path) -> None:
    """Goal: a process that ended leaves closed connections; nobody waits for the time-out. Method: SIGKILL, and a
    time-out that is longer than the test may take."""
    nodes = Nodes(tmp_path, message_timeout_ms=100, election_timeout_ms=600_000)
    try:
        await nodes.start_group()
        leader = await nodes.leader()
        nodes.kill(leader)
        await nodes.append([b"after it"], among=set(nodes.names) - {leader})
    finally:
        nodes.stop_all()


async def test_certificates_of_all_nodes_are_replaced_under_load(tmp_path: Path) -> None:
    """Goal: rotation to another authority costs no restart, no election and no record. Method: first both authorities
    are trusted, then each node gets a new certificate, then the old authority is dropped; SIGHUP after each change."""
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    nodes = Nodes(tmp_path / "nodes", authority=old, election_timeout_ms=5_000)
    both = old.ca_file.read_bytes() + new.ca_file.read_bytes()

    async def reload(number: int) -> None:
        for name, process in nodes.running.items():
            process.send_signal(signal.SIGHUP)
            await nodes.until(lambda states: len(states) == len(nodes.names))
            await nodes.until(lambda states: all(len(state["connected"]) == 2 for state in states.values()))
            assert len(nodes.lines(name, "reloaded")) == number

    try:
        await nodes.start_group()
        before = await nodes.until(lambda states: len(states) == len(nodes.names))
        acknowledged: list[bytes] = []
        loading = asyncio.create_task(load(nodes, 0, acknowledged))
        old.ca_file.write_bytes(both)
        await reload(1)
        for name in nodes.names:
            for given, fresh in zip(old.issue(name), new.issue(name), strict=True):
                given.write_bytes(fresh.read_bytes())
        await reload(2)
        await loading
        old.ca_file.write_bytes(new.ca_file.read_bytes())
        nodes.authority = new
        await reload(3)
        last = await nodes.append([b"the end"])
        for name in nodes.names:
            assert set(acknowledged) <= set(bodies_of(await nodes.log_of(name, last.last_idx)))
        after = await nodes.until(lambda states: len(states) == len(nodes.names))
        views = [{state["current_view"] for state in states.values()} for states in (before, after)]
        assert views[0] == views[1]
        nodes.authority = Authority(tmp_path / "third", "third")
        assert await nodes.status("r1") is None
    finally:
        nodes.stop_all()


async def test_identity_of_a_process_is_new_at_each_start(tmp_path: Path) -> None:
    """Goal: CCF's way: no node ever comes back. Method: start the same folder twice."""
    nodes = Nodes(tmp_path, 1, identity="process")
    try:
        nodes.start("r1", "--new-group")
        first = (await nodes.until(lambda states: "r1" in states))["r1"]
        nodes.terminate("r1")
        nodes.start("r1")
        second = (await nodes.until(lambda states: "r1" in states))["r1"]
        assert first["node_id"] != second["node_id"]
        assert second["last_idx"] == 0
        assert second.get("leadership_state") == "None"
    finally:
        nodes.stop_all()


async def test_an_isolated_frozen_leader_acknowledges_nothing_more(nodes: Nodes) -> None:
    """Goal: what a deposed leader holds does not count. Method: SIGSTOP it, append elsewhere, let it go on."""
    await nodes.start_group()
    leader = await nodes.leader()
    client = await nodes.client(leader)
    nodes.running[leader].send_signal(signal.SIGSTOP)
    late = asyncio.create_task(client.append([b"late"]))
    last = await nodes.append(batch(1), among=set(nodes.names) - {leader})
    nodes.running[leader].send_signal(signal.SIGCONT)
    outcome = (await asyncio.gather(late, return_exceptions=True))[0]
    await client.close()
    log = bodies_of(await nodes.log_of(leader, last.last_idx))
    assert set(batch(1)) <= set(log)
    if not isinstance(outcome, BaseException):
        assert b"late" in bodies_of(await nodes.log_of(leader, outcome.last_idx))


async def test_no_second_log_is_begun_beside_one_and_none_that_was_disturbs_it(nodes: Nodes) -> None:
    """Goal: the install page's command on an empty disk harms nobody. Method: it is refused while another node
    answers; while all others are frozen it begins another log, which then leads, adds and stops nobody."""
    ids = await nodes.start_group()
    await nodes.append(batch(1))
    nodes.kill("r1")
    shutil.rmtree(nodes.folder / "data-r1")
    nodes.start("r1", "--new-group")
    assert nodes.running.pop("r1").wait(WAIT_S) == 2
    assert "without --new-group" in nodes.lines("r1", "log_node_failed")[0]["detail"]
    for name in ("r2", "r3"):
        nodes.terminate(name)
    nodes.start("r1", "--new-group")
    await nodes.until(lambda states: states.get("r1", {}).get("commit_idx") == 2)
    for name in ("r2", "r3"):
        nodes.start(name)
    last = await nodes.append(batch(2), among={"r2", "r3"})
    assert bodies_of(await nodes.log_of("r2", last.last_idx)) == batch(1) + batch(2)
    assert (await nodes.status("r1") or {})["connected"] == []
    shown = json.loads(nodes.command("log", "members", "--json").stdout)  # by r1's settings
    assert shown["configurations"][0]["nodes"] == sorted(ids.values())
    client = await nodes.client("r1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await client.change([client.node_id, ids["r2"], ids["r3"]])
    await client.close()
    assert any("this node has" in line["why"] for line in nodes.lines("r2", "log_link_refused"))
