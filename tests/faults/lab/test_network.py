"""The lab's network does what the scenarios rely on: a cut drops all between those it names, and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from replica.local.process import SoftwareMissing
from tests.faults.lab.network import Network

PORT = 7
NO_PRIVILEGE = "NO LAB HERE: its scenarios will fail, not be left out"
_LISTEN = f"import socket, sys; s = socket.create_server((sys.argv[1], {PORT})); print(flush=True); sys.stdin.read()"
_CONNECT = f"import socket, sys; socket.create_connection((sys.argv[1], {PORT}), 0.5).close()"


def started(*hosts: str) -> Network:
    """A network that runs; the test is left out, and says so, where nobody may build one."""
    network = Network(hosts)
    try:
        network.start()
    except SoftwareMissing as error:
        network.stop()
        pytest.skip(f"{NO_PRIVILEGE}: {error}")
    return network


@pytest.fixture
def network() -> Iterator[Network]:
    """Three hosts; somebody listens on `a`."""
    network = started("a", "b", "c")
    try:
        place = network.machine("a")
        argv = [*place.enter, sys.executable, "-c", _LISTEN, place.address]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
            assert listener.stdout is not None
            listener.stdout.readline()
            yield network
            listener.communicate()
    finally:
        network.stop()


def reached(network: Network, name: str) -> bool:
    """Whether a host reaches the listener."""
    argv = [*network.machine(name).enter, sys.executable, "-c", _CONNECT, network.machine("a").address]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def reached_from_here(network: Network) -> bool:
    """Whether this process reaches it."""
    try:
        socket.create_connection((network.machine("a").address, PORT), 0.5).close()
    except OSError:
        return False
    return True


def test_only_those_named_in_a_cut_notice_it(network: Network) -> None:
    """Goal: a cut is between some and others, and ends. Method: connect from everywhere, before, during and after."""
    assert reached(network, "b")
    with network.cut(["b"], ["a"]):
        assert (reached(network, "b"), reached(network, "c"), reached_from_here(network)) == (False, True, True)
    assert reached(network, "b")


def test_an_unplugged_host_is_reached_by_nobody(network: Network) -> None:
    """Goal: no carrier, nobody. Method: connect from everywhere, during and after."""
    with network.unplugged("a"):
        assert (reached(network, "b"), reached_from_here(network)) == (False, False)
    assert (reached(network, "b"), reached_from_here(network)) == (True, True)


def test_a_lab_whose_process_was_killed_is_removed_by_the_next() -> None:
    """Goal: nothing piles up on a machine. Method: a process that builds a network and is gone; build another one."""
    started().stop()  # or there is no lab on this machine at all
    code = "import os, sys; from tests.faults.lab.network import Network; Network(['x']).start(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    network = started("y")
    try:
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    finally:
        network.stop()
    assert "-y" in left
    assert "-x" not in left
