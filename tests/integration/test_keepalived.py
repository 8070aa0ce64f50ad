"""Two HAProxy nodes that share one address: real HAProxy and keepalived, in network namespaces on one bridge."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import pytest

from haproxy.nodes import Node
from haproxy.render import HaproxySettings, render_keepalived
from replica.local.haproxy import HaproxyServer, find_keepalived
from replica.local.machine import Machine
from replica.local.process import Command, ManagedProcess
from tests.closing import listening
from tests.waiting import eventually

NETWORK = "198.18.77"  # of the addresses set apart for tests of networks: hardly any machine has one
DESK, SHARED, OWN = f"{NETWORK}.1", f"{NETWORK}.100", {Node.PRIMARY: f"{NETWORK}.11", Node.BACKUP: f"{NETWORK}.12"}
PORT, EXPORTER_PORT, API_PORT, HEALTH_PORT = 8080, 9404, 8081, 8082
MOVE_MAX_S = 30.0  # far above what is expected: a busy machine must not fail the test
CONNECT_MAX_S = 0.2


class Segment:
    """A switch with a port for each node and one for this process; a node that is unplugged reaches nobody."""

    def __init__(self) -> None:
        self._switch = f"notary-vip-{os.getpid()}"
        self._desk = f"vip{os.getpid()}"

    @contextmanager
    def built(self) -> Iterator[Segment]:
        try:
            self._ip(f"netns add {self._switch}")
            self._ip("link add bridge type bridge", self._switch)
            self._ip("link set bridge up", self._switch)
            for node in Node:
                self._ip(f"netns add {self._namespace(node)}")
                self._ip("link set lo up", self._namespace(node))
                self._plug(node.value, "eth0", f"{OWN[node]}/24", self._namespace(node))
            self._plug("desk", self._desk, f"{DESK}/24", None)
            yield self
        finally:
            for namespace in (*map(self._namespace, Node), self._switch):
                subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)

    def machine(self, node: Node) -> Machine:
        return Machine(OWN[node], ("nsenter", f"--net=/run/netns/{self._namespace(node)}", "--"))

    def unplug(self, node: Node) -> None:
        self._ip(f"link set to-{node.value} down", self._switch)

    def _plug(self, name: str, device: str, address: str, namespace: str | None) -> None:
        self._ip(f"link add {device} type veth peer name to-{name} netns {self._switch}", namespace)
        self._ip(f"link set to-{name} master bridge up", self._switch)
        self._ip(f"addr add {address} dev {device}", namespace)
        self._ip(f"link set {device} up", namespace)

    def _namespace(self, node: Node) -> str:
        return f"{self._switch}-{node.value}"

    @staticmethod
    def _ip(words: str, namespace: str | None = None) -> None:
        inside = [] if namespace is None else ["-n", namespace]
        subprocess.run(["ip", *inside, *words.split()], capture_output=True, check=True)


@dataclass(frozen=True, slots=True)
class RunningNode:
    """One of the two, with what runs on it."""

    haproxy: HaproxyServer
    keepalived: ManagedProcess


def make_node(folder: Path, node: Node, machine: Machine) -> RunningNode:
    """Configured by what is rendered for it, and by nothing else."""
    folder.mkdir()
    settings = HaproxySettings.model_validate(
        {
            "bind": {"host": "*", "port": PORT},
            "replicas": [{"name": "r1", "host": DESK, "api_port": API_PORT, "health_port": HEALTH_PORT}],
            "stats_socket": f"{folder}/admin.sock",
            "state_file": f"{folder}/server.state",
            "exporter": {"port": EXPORTER_PORT},
            "keepalived": {
                "virtual_address": f"{SHARED}/24",
                "interface": "eth0",
                "primary_address": OWN[Node.PRIMARY],
                "backup_address": OWN[Node.BACKUP],
            },
        }
    )
    configuration = folder / "keepalived.conf"
    configuration.write_text(render_keepalived(settings, node))
    pids = [f"--{kind}={folder}/{kind}" for kind in ("pid", "vrrp_pid")]
    argv = [str(find_keepalived()), "--dont-fork", "--log-console", "--vrrp", *pids, f"--use-file={configuration}"]
    command = Command(name="keepalived", argv=argv, log_path=folder / "keepalived.log", enter=machine.enter)
    return RunningNode(HaproxyServer(folder, settings, machine), ManagedProcess(command))


@asynccontextmanager
async def standing_in() -> AsyncIterator[None]:
    """What HAProxy sees of an active replica: everything that it is asked is well."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with listening(answer, DESK, API_PORT), listening(answer, DESK, HEALTH_PORT):
        yield


async def answers() -> bool:
    """Whether a new connection to the shared address reaches the replica."""
    try:
        async with asyncio.timeout(CONNECT_MAX_S):
            reader, writer = await asyncio.open_connection(SHARED, PORT)
            try:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def moved() -> float:
    """Seconds from now until the shared address answers."""
    began_s = perf_counter()
    await eventually(answers, MOVE_MAX_S)
    return perf_counter() - began_s


@pytest.fixture
def segment() -> Iterator[Segment]:
    if os.geteuid() != 0 or shutil.which("ip") is None or find_keepalived() is None or shutil.which("curl") is None:
        pytest.skip("NOT TESTED: two HAProxy nodes need root, network namespaces, keepalived and curl")
    with ExitStack() as stack:
        try:
            built = stack.enter_context(Segment().built())
        except subprocess.CalledProcessError as error:
            pytest.skip(f"NOT TESTED: two HAProxy nodes need network namespaces: {error.stderr.decode().strip()}")
        yield built


async def test_the_shared_address_moves_when_haproxy_or_its_machine_is_lost(
    servers_folder: Path, segment: Segment
) -> None:
    """Goal: no HAProxy is a single point of failure. Method: end one's HAProxy, then the other machine; time both."""
    folder = servers_folder / "keepalived"
    folder.mkdir()
    async with standing_in(), AsyncExitStack() as stack:
        nodes = {node: make_node(folder / node.value, node, segment.machine(node)) for node in Node}
        for running in nodes.values():
            stack.push_async_callback(running.haproxy.stop)
            await running.haproxy.start()
            stack.push_async_callback(running.keepalived.stop, 5.0)
            running.keepalived.start()
        await eventually(answers, MOVE_MAX_S)
        primary, backup = nodes[Node.PRIMARY], nodes[Node.BACKUP]

        async def primary_serves() -> bool:
            before = await sessions(primary)
            return await answers() and await sessions(primary) > before

        await eventually(primary_serves, MOVE_MAX_S)
        await primary.haproxy.process.kill()
        without_haproxy_s = await moved()
        assert await sessions(backup) > 0
        await primary.haproxy.start()  # and the address stays where it is: nothing is cut a second time

        async def primary_is_well_again() -> bool:
            return primary.keepalived.command.log_path.read_text().count("Entering BACKUP STATE") > 1

        await eventually(primary_is_well_again, MOVE_MAX_S)
        segment.unplug(Node.BACKUP)
        await backup.keepalived.kill()
        without_machine_s = await moved()
    print(
        f"\nshared address: {without_haproxy_s:.2f} s after HAProxy ended, {without_machine_s:.2f} s after its machine"
    )


async def sessions(node: RunningNode) -> int:
    """How many connections this node's HAProxy has brought to the replica."""
    return (await node.haproxy.servers())["r1"].sessions_total
