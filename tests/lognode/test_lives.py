"""Lifelines: a log node says that a replica's process has ended only when that is so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import cast

import pytest

from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.lifelines import Lifelines, wait_for_end
from replica.log.raft.links import Links
from replica.log.raft.lives import ENDED_MAX, WATCHING_MAX, Lives, has_closed, is_same_machine
from replica.log.raft.settings import LogNodeTls
from replica.log.raft.wire import Watch, Watched
from replica.notary.errors import LogUnavailable
from tests.certificates import Authority
from tests.lognode.real_nodes import free_ports
from tests.lognode.test_links import Hearer, settings
from tests.simulation.virtual import run_virtually
from tests.waiting import eventually

ID = bytes(range(16))
OTHER = bytes(16)
QUIET_S = 0.5  # long enough to notice what must not be said
_HOLDER = """
import asyncio, ssl, sys
from pathlib import Path
from replica.log.raft.client import LogClient
from replica.log.raft.lifelines import Lifelines
from replica.log.raft.settings import LogNodeTls

async def main(address, ca_file, certificate_file, key_file):
    tls = None
    if ca_file:
        files = {"ca_file": ca_file, "certificate_file": certificate_file, "key_file": key_file}
        tls = LogNodeTls(**files).contexts()[1]
    Lifelines(["r1"], lambda _: LogClient.connect(address, "g", tls), bytes(range(16)))
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("error", "ended_here", "closed"),
    [
        (None, False, True),  # the end of the stream
        (ConnectionResetError(), False, True),  # the kernel's answer where something was unread
        (BrokenPipeError(), False, True),
        (None, True, False),  # this node ended it
        (ConnectionResetError(), True, False),
        (TimeoutError(), False, False),  # the network, or a machine that stands still
        (OSError(113, "no route to host"), False, False),
        (ValueError(), False, False),  # a bug here
    ],
)
def test_only_the_other_sides_kernel_proves_an_end(error: Exception | None, ended_here: bool, closed: bool) -> None:
    """Goal: no end of a process is invented. Method: each way in which a connection can be lost."""
    assert has_closed(error, ended_here=ended_here) is closed


def test_a_connection_from_another_machine_proves_nothing() -> None:
    """Goal: what stands between two machines may end connections, and must depose nobody. Method: addresses."""
    assert is_same_machine(("10.0.0.1", 1), ("10.0.0.1", 2))
    assert is_same_machine(("::1", 1, 0, 0), ("::1", 2, 0, 0))
    for others in (("10.0.0.2", 1), None, ""):
        assert not is_same_machine(("10.0.0.1", 1), others)
    assert not is_same_machine("", "")


def test_who_watches_is_told_once_and_of_that_activation_only() -> None:
    """Goal: an answer for each call, never a wrong one; bounded. Method: the end of one, another, time, too many."""
    lives, told = Lives(), list[Watched]()
    lives.watch(Watch(1, ID, 1_000), told.append, 10.0)
    lives.watch(Watch(2, OTHER, 1_000), told.append, 10.0)
    lives.ended(OTHER)
    assert told == [Watched(2, ended=True)]
    lives.tick(10.9)
    assert len(told) == 1
    lives.tick(11.0)
    assert told[1:] == [Watched(1, ended=False)]
    lives.watch(Watch(3, OTHER, 0), told.append, 12.0)
    lives.watch(Watch(4, ID, 0), told.append, 12.0)
    assert told[2:] == [Watched(3, ended=True), Watched(4, ended=False)]
    for number in range(WATCHING_MAX + 1):
        lives.watch(Watch(number, ID, 1_000), told.append, 13.0)
    assert told[4:] == [Watched(WATCHING_MAX, ended=False)]
    for number in range(ENDED_MAX):
        lives.ended(number.to_bytes(16, "big"))
    lives.watch(Watch(5, ID[:15] + b"\xff", 0), told.append, 14.0)
    assert told[-1] == Watched(5, ended=False)


class Node:
    """One node's links, with or without TLS."""

    def __init__(self, folder: Path, authority: Authority | None) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.files = ["", "", ""]
        tls = None
        if authority is not None:
            certificate, key = authority.issue("r1")
            self.files = [str(authority.ca_file), str(certificate), str(key)]
            tls = LogNodeTls(ca_file=authority.ca_file, certificate_file=certificate, key_file=key)
        self.hearer = Hearer()
        self.links = Links(settings(folder, "r1", {"r1": port}, tls=tls), "r1.1", self.hearer)

    async def holder(self) -> subprocess.Popen[bytes]:
        """A process whose lifeline this node has."""
        process = subprocess.Popen([sys.executable, "-c", _HOLDER, self.address, *self.files])

        async def tied() -> bool:
            return any(connection._life == ID for connection in self.links._incoming)

        await eventually(tied)
        return process


@pytest.fixture(params=["plain", "tls"])
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(tmp_path, Authority(tmp_path / "ca") if request.param == "tls" else None)
    await node.links.start()
    yield node
    await node.links.stop()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
async def test_the_end_of_a_process_is_seen_at_once(node: Node, sign: signal.Signals) -> None:
    """Goal: milliseconds, not the lease. Method: a process with a lifeline gets SIGKILL; or ends by another signal."""
    process = await node.holder()
    began_s = monotonic()
    process.send_signal(sign)

    async def seen() -> bool:
        return bool(node.hearer.lives_ended)

    await eventually(seen)
    print(f"seen after {1_000 * (monotonic() - began_s):.1f} ms")
    process.wait()
    assert node.hearer.lives_ended == [ID]


async def test_a_frozen_process_has_not_ended(node: Node) -> None:
    """Goal: a holder that may go on is not called ended. Method: SIGSTOP, wait, SIGCONT; then it is killed."""
    process = await node.holder()
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(QUIET_S)
    assert not node.hearer.lives_ended
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()

    async def seen() -> bool:
        return node.hearer.lives_ended == [ID]

    await eventually(seen)


async def test_a_connection_that_the_node_ends_proves_nothing_and_is_made_anew(node: Node) -> None:
    """Goal: a node that reloads its certificates deposes nobody. Method: it cuts all connections; then SIGKILL."""
    process = await node.holder()
    await node.links.reload()
    await asyncio.sleep(QUIET_S)
    assert not node.hearer.lives_ended
    assert process.poll() is None

    async def tied() -> bool:
        return any(connection._life == ID for connection in node.links._incoming)

    await eventually(tied)
    process.kill()
    process.wait()

    async def seen() -> bool:
        return node.hearer.lives_ended == [ID]

    await eventually(seen)


async def test_a_lifeline_ends_when_it_is_closed_and_not_when_its_client_is(tmp_path: Path) -> None:
    """Goal: no mishap of an event loop is taken for the end. Method: abort the client's transport; then close."""
    node = Node(tmp_path, None)
    await node.links.start()
    clients: list[LogClient] = []

    async def connect(_: str) -> LogClient:
        clients.append(await LogClient.connect(node.address, "g"))
        return clients[-1]

    async def tied() -> bool:
        return any(connection._life == ID for connection in node.links._incoming)

    descriptors = len(os.listdir("/proc/self/fd"))
    lifelines = Lifelines(["r1"], connect, ID)
    await eventually(tied)
    clients[0]._writer.transport.abort()
    await asyncio.sleep(QUIET_S)
    assert not node.hearer.lives_ended
    assert len(clients) == 2
    await lifelines.close()
    await lifelines.close()

    async def seen() -> bool:
        return ID in node.hearer.lives_ended

    await eventually(seen)
    await node.links.stop()
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


async def test_a_client_that_hangs_up_over_tls_says_no_farewell(tmp_path: Path) -> None:
    """Goal: the replica's own end of a connection, which it makes anew, deposes nobody. Method: the client of a
    lifeline closes in order, as after a bad frame: TLS has a farewell for that, and a node hears it as the end."""
    node = Node(tmp_path, Authority(tmp_path / "ca"))
    await node.links.start()
    ca_file, certificate, key = map(Path, node.files)
    tls = LogNodeTls(ca_file=ca_file, certificate_file=certificate, key_file=key).contexts()[1]
    clients: list[LogClient] = []

    async def connect(_: str) -> LogClient:
        clients.append(await LogClient.connect(node.address, "g", tls))
        return clients[-1]

    async def tied_again() -> bool:
        return len(clients) == 2 and any(connection._life == ID for connection in node.links._incoming)

    async def tied() -> bool:
        return any(connection._life == ID for connection in node.links._incoming)

    lifelines = Lifelines(["r1"], connect, ID)
    await eventually(tied)
    await clients[0].close()
    await eventually(tied_again)
    await asyncio.sleep(QUIET_S)
    assert not node.hearer.lives_ended
    await lifelines.close()

    async def seen() -> bool:
        return ID in node.hearer.lives_ended

    await eventually(seen)
    await node.links.stop()


class AnsweringNode:
    """The client of a node that answers each question at once, or refuses it."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses
        self.asked_count = self.connected_count = 0

    async def connect(self, _: str) -> LogClient:
        self.connected_count += 1
        return cast(LogClient, self)

    async def watch(self, activation_id: bytes, *, wait_ms: int) -> bool:
        self.asked_count += 1
        if self._refuses:
            raise LogUnavailable("a frame cannot be read")
        return False

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(("refuses", "least", "most"), [(False, 10, 11), (True, 4, 4)])
def test_watchers_leave_a_node_alone_that_does_not_let_them_wait(refuses: bool, least: int, most: int) -> None:
    """Goal: a node with too many watchers, or of an older release, is asked with growing pauses. Method: half a second
    of each."""
    node = AnsweringNode(refuses=refuses)
    with pytest.raises(TimeoutError):
        run_virtually(asyncio.wait_for(wait_for_end(["r1"], node.connect, ID), 0.5))
    assert least <= node.asked_count <= most
    assert node.connected_count == (node.asked_count if refuses else 1)


async def test_one_connection_is_one_activations(tmp_path: Path) -> None:
    """Goal: an end names one activation. Method: tie a connection twice, and to another one."""
    node = Node(tmp_path, None)
    await node.links.start()
    client = await LogClient.connect(node.address, "g")
    await client.tie(ID)
    await client.tie(ID)
    with pytest.raises(CallFailed, match="another activation's"):
        await client.tie(OTHER)
    await client.close()
    await node.links.stop()


class EndsOnce:
    """A client whose first connections end while they watch; the next one sees that the holder has ended."""

    def __init__(self, ends: int) -> None:
        self.left = ends

    async def connect(self, node: str) -> LogClient:
        return cast(LogClient, self)

    async def watch(self, activation_id: bytes, *, wait_ms: int) -> bool:
        self.left -= 1
        if self.left >= 0:
            raise LogUnavailable("the node closed the connection")
        return True

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(("ends", "took_max_s"), [(1, 0.1), (3, 0.5)])
def test_a_connection_that_watches_is_opened_anew_at_once(ends: int, took_max_s: float) -> None:
    """Goal: the end of the holder is seen as quickly after a connection ended as before. Method: connections that end
    at once, one and some in a row, on virtual time."""

    async def story() -> float:
        await wait_for_end(["r1"], EndsOnce(ends).connect, ID)
        return asyncio.get_running_loop().time()

    assert run_virtually(story()) < took_max_s
