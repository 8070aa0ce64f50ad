"""The network does what scenarios rely on: a cut drops all between those it names, and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from replica.local.process import SoftwareMissing
from tests.faults.lab.namespaces import Namespaces

PORT = 4_007
NO_PRIVILEGE = "NO NAMESPACES HERE: the lab's scenarios fail"
_ECHO = f"""
import socket, sys, threading
def echo(taken):
    while data := taken.recv(100):
        taken.send(data)
server = socket.create_server((sys.argv[1], {PORT}))
print(flush=True)
while True:
    threading.Thread(target=echo, args=server.accept()[:1], daemon=True).start()
"""
_ASK = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT}), 0.5) as asked:
    asked.send(b"x")
    sys.exit(asked.recv(1) != b"x")
"""


def started(network: Namespaces) -> Namespaces:
    """A running network; the test is skipped with a reason where none can be built."""
    try:
        network.start()
    except SoftwareMissing as error:
        network.stop()
        pytest.skip(f"{NO_PRIVILEGE}: {error}")
    return network


@pytest.fixture
def network() -> Iterator[Namespaces]:
    """Three hosts; a server answers on `a`, and the other two can reach it."""
    network = started(Namespaces(("a", "b", "c")))
    place = network.machine("a")
    try:
        argv = [*place.enter, sys.executable, "-c", _ECHO, place.address]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            yield network
            server.kill()
    finally:
        network.stop()


def reached(network: Namespaces, name: str) -> bool:
    """Whether a host has an answer from `a`."""
    client = network.machine(name)
    argv = [*client.enter, sys.executable, "-c", _ASK, network.machine("a").address]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def reached_from_here(network: Namespaces) -> bool:
    """Whether this process reaches it."""
    try:
        socket.create_connection((network.machine("a").address, PORT), 0.5).close()
    except OSError:
        return False
    return True


def test_only_those_named_in_a_cut_notice_it(network: Namespaces) -> None:
    """Goal: a cut is between some and others, and ends. Method: ask from everywhere, before, during and after."""
    assert reached(network, "b")
    with network.cut(["b"], ["a"]):
        assert (reached(network, "b"), reached(network, "c"), reached_from_here(network)) == (False, True, True)
    assert reached(network, "b")


def test_cuts_overlap(network: Namespaces) -> None:
    """Goal: what one cut holds is not let through by the end of another. Method: the outer one outlives the inner."""
    with network.cut(["b"], ["a"]):
        with network.cut(["b", "c"], ["a"]):
            assert (reached(network, "b"), reached(network, "c")) == (False, False)
        assert (reached(network, "b"), reached(network, "c")) == (False, True)
    assert reached(network, "b")


def test_an_unplugged_host_reaches_nobody(network: Namespaces) -> None:
    """Goal: no link, no answer, and all is well afterwards. Method: ask from it and from another one."""
    with network.unplugged("b"):
        assert (reached(network, "b"), reached(network, "c")) == (False, True)
    assert reached(network, "b")


def test_nobody_reaches_an_unplugged_host() -> None:
    """Goal: no carrier, no connection. Method: a listener in one; connect from here, during and after."""
    network = started(Namespaces(("a",)))
    place = network.machine("a")
    try:
        argv = [*place.enter, sys.executable, "-c", _ECHO, place.address]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            with network.unplugged("a"):
                assert not reached_from_here(network)
            assert reached_from_here(network)
            server.kill()
    finally:
        network.stop()


def test_two_networks_of_one_process_leave_each_other_alone(network: Namespaces) -> None:
    """Goal: the lab outlives what else is tested here. Method: build another one with the same names, and remove it."""
    started(Namespaces(("a", "b"))).stop()
    assert reached(network, "b")


def test_a_lab_whose_process_was_killed_is_removed_by_the_next() -> None:
    """Goal: nothing piles up on a machine. Method: a process that builds a network and is gone; build another one."""
    started(Namespaces(())).stop()  # or there is no lab on this machine at all
    code = "import os; from tests.faults.lab.namespaces import Namespaces; Namespaces(['x']).start(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    network = started(Namespaces(("y",)))
    try:
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    finally:
        network.stop()
    assert "-y" in left
    assert "-x" not in left


_HEAR = f"""
import socket, sys
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind((sys.argv[1], {PORT}))
heard.settimeout(0.5)
print(flush=True)
try:
    heard.recv(100)
except TimeoutError:
    sys.exit(1)
"""
_SAY = f"""
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (sys.argv[1], {PORT}))
"""


def heard(network: Namespaces, speaker: str, hearer: str) -> bool:
    """Whether one packet of a host reaches another."""
    here, there = network.machine(speaker), network.machine(hearer)
    with subprocess.Popen([*there.enter, sys.executable, "-c", _HEAR, there.address], stdout=subprocess.PIPE) as ear:
        assert ear.stdout is not None
        ear.stdout.readline()
        subprocess.run([*here.enter, sys.executable, "-c", _SAY, there.address], check=True)
    return ear.returncode == 0


def test_one_way_can_be_cut_alone() -> None:
    """Goal: half a connection. Method: a packet each way, during the cut and after it."""
    network = started(Namespaces(("a", "b")))
    try:
        with network.cut(["a"], ["b"], one_way=True):
            assert (heard(network, "a", "b"), heard(network, "b", "a")) == (False, True)
        assert heard(network, "a", "b")
    finally:
        network.stop()


def test_a_slow_link_delays_and_loses_and_spares_the_others() -> None:
    """Goal: a bad line between those named. Method: time an echo; lose all; ask another host."""
    network = started(Namespaces(("a", "b", "c")))
    place = network.machine("a")
    try:
        argv = [*place.enter, sys.executable, "-c", _ECHO, place.address]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            try:
                with network.slowed(["a"], ["b"], 0.3, 0.0):
                    assert not reached(network, "b")  # it waits half a second; there and back are more
                    assert reached(network, "c")
                assert reached(network, "b")
                with network.slowed(["a"], ["b"], 0.0, 1.0):
                    assert (heard(network, "c", "b"), heard(network, "a", "b")) == (True, False)
                with network.slowed(["a"], ["b"], 0.0, 0.0):
                    assert reached(network, "b")
            finally:
                server.kill()
    finally:
        network.stop()
