"""Machines that are only addresses on loopback, with a fault proxy in each link between them: it needs no privilege.

A server listens on its machine's own address, 127.127.0.S. A client on machine C is given 127.127.C.S for it, the same
port: there the proxy listens, for that client alone, and connects from C's own address. So a cut has two names, as in
a network, and `ss` and the servers' logs show who talks to whom.

Two kinds of links have no proxy: those between brokers, which all get the same address, and those of this process,
which judges.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

import msgspec

from replica.local.machine import Machine
from replica.local.process import ServerFailed, SoftwareMissing
from tests.faults.lab.proxy import DONE, Door, Heal, LinkName, Order, Silence

PREFIX = "127.127"
FIRST_HOST = 11  # the last byte
ANSWER_MAX_S = 20.0


class Proxied:
    """Hosts by name, and one proxy process with all their links; see `network`."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = {name: number for number, name in enumerate(hosts, start=FIRST_HOST)}
        self._names = {self._own(number): name for name, number in self._hosts.items()}
        self._machines = {
            name: Machine(self._own(number), (), f"{PREFIX}.0.0/16", partial(self._way, name))
            for name, number in self._hosts.items()
        }
        self._doors: set[Door] = set()
        self._silenced: set[LinkName] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the proxy."""
        argv = [sys.executable, "-m", "tests.faults.lab.proxy"]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )  # it ends with its input, however this process ends

    def stop(self) -> None:
        """End the proxy, and with it every connection through it. May be repeated."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=ANSWER_MAX_S)
        self._doors.clear()

    def machine(self, name: str) -> Machine:
        """An address, and ways to others through the proxy."""
        return self._machines[name]

    @contextmanager
    def cut(self, some: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> Iterator[None]:
        """While the block runs, silently drop everything between any of `some` and any of `others`."""
        if one_way:
            raise SoftwareMissing("a fault proxy cuts both ways; with network namespaces one can be cut")
        pairs = list(product(some, others))
        links = self._links()
        for one, other in pairs:
            if not {(one, other), (other, one)} & links:
                raise SoftwareMissing(_NOT_BETWEEN.format(one=one, other=other))
        with self._silent({*pairs, *((other, one) for one, other in pairs)} & links):
            yield

    @contextmanager
    def slowed(self, some: Iterable[str], others: Iterable[str], delay_s: float, loss: float) -> Iterator[None]:
        """Packets do not pass through a proxy, only what they carry: none can be lost."""
        raise SoftwareMissing(f"a fault proxy loses no packets ({delay_s:g} s, {loss:.0%}); network namespaces can")
        yield

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """While the block runs the host reaches no other, and none it."""
        links = self._links()
        if name not in {client for client, _ in links}:  # what it connects to by itself would go on
            raise SoftwareMissing(_NOT_BETWEEN.format(one=name, other="those that it connects to"))
        with self._silent({link for link in links if name in link}):
            yield

    # ---- links and orders ----

    def _links(self) -> set[LinkName]:
        return {(door.client, door.server) for door in self._doors}

    @contextmanager
    def _silent(self, links: set[LinkName]) -> Iterator[None]:
        new = links - self._silenced  # the rest is not ours to end
        self._order(Silence(sorted(new)))
        self._silenced |= new
        try:
            yield
        finally:
            self._order(Heal(sorted(new)))
            self._silenced -= new

    def _way(self, client: str, address: str, port: int) -> str:
        """Have the proxy listen for this client; the address that it does so at."""
        server = self._names[address]
        here, there = self._hosts[client], self._hosts[server]
        door = Door(client, server, f"{PREFIX}.{here}.{there}", self._own(here), address, port)
        if door not in self._doors:
            self._order(door)
            self._doors.add(door)
        return door.listen

    def _order(self, order: Order) -> None:
        """Have the proxy carry it out; returns once it has. Raises ServerFailed."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ServerFailed("the fault proxy was not started")
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], ANSWER_MAX_S)
        answer = process.stdout.readline() if readable else b"no answer"
        if answer != DONE:
            raise ServerFailed(f"the fault proxy, asked for {order}: {answer.decode().strip() or 'it has ended'}")

    @staticmethod
    def _own(number: int) -> str:
        return f"{PREFIX}.0.{number}"


_NOT_BETWEEN = (
    "a fault proxy cannot cut {one} off from {other}: what they send one another does not pass through it; "
    "as root, with network namespaces, it can be done"
)
