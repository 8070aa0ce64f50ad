"""Simulated machines: a network namespace each, joined by a router that can drop every packet.

Each host has one link, to the router; this process is one more host on it. A cut is a rule in the router that silently
drops packets from one host to another, as a broken switch does, without a reset or a refusal. Hosts that the rule does
not name are not affected.

Addresses are 127.N.0.x. That network is this machine's own by definition, and the product sends nothing unprotected
beyond it; inside the lab it is routed like any other.

It needs root, network namespaces and `ip` (Debian: iproute2).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from replica.local.machine import Machine
from replica.local.process import SoftwareMissing
from tests.faults.lab.slow_link import READY

NAMESPACES = Path("/run/netns")
PREFIX = "notary-lab"
BAD_LINE, BAD_TABLE = "bad-line", 100  # the device in the router that packets of slow links pass, and the way there
FIRST_NETWORK, LAST_NETWORK = 64, 126  # the second byte of a lab's addresses
ROUTER, DESK, FIRST_HOST = 1, 2, 11  # the last byte
# Loopback addresses are routed, from wherever they come, and between hosts.
_KERNEL = (
    "cd /proc/sys/net/ipv4; for c in all default; do echo 1 >conf/$c/route_localnet; echo 0 >conf/$c/rp_filter; done"
)


class Namespaces:
    """A router and hosts by name, from `start` to `stop`; `machine` says where commands of a host run."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = {name: number for number, name in enumerate(hosts, start=FIRST_HOST)}
        self._number = 0
        self._cuts: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Build it. Raises SoftwareMissing where that is not possible."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise SoftwareMissing("a lab of network namespaces needs root and `ip`; Debian's package is `iproute2`")
        remove_abandoned()
        self._number = _free_network()
        for name in ("router", *self._hosts):
            _ip("netns", "add", self._namespace(name))
            _run([*self._enter(name), "sh", "-ec", f"{_KERNEL}; echo 1 >ip_forward"])
            self._batch(name, ["link set lo up", "addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo"])
        self._batch("router", [f"addr add {self._address(ROUTER)}/32 dev lo scope global"])
        for name, number in self._hosts.items():
            self._join(name, number)
        self._join_desk()

    def stop(self) -> None:
        """Remove it; what still runs in it must have been ended. May be repeated."""
        for name in (*self._hosts, "router"):
            if (NAMESPACES / self._namespace(name)).exists():
                _ip("netns", "delete", self._namespace(name))

    def machine(self, name: str) -> Machine:
        """Where a host's commands run, and its address."""
        return Machine(self._of(name), self._enter(name), f"127.{self._number}.0.0/16")

    # ---- faults ----

    @contextmanager
    def cut(self, some: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> Iterator[None]:
        """While the block runs, no packet passes between any of `some` and any of `others`; `one_way`: from `some`."""
        between = list(product(some, others))
        back = [] if one_way else [(other, one) for one, other in between]
        pairs = {*between, *back} - self._cuts  # the rest is not ours to end
        self._drop(pairs)
        try:
            yield
        finally:
            self._pass(pairs)

    @contextmanager
    def slowed(self, some: Iterable[str], others: Iterable[str], delay_s: float, loss: float) -> Iterator[None]:
        """While the block runs, packets between any of `some` and any of `others` come late, and some not at all."""
        between = [(one, other) for one, other in product(some, others) if one != other]
        pairs = {*between, *((other, one) for one, other in between)}
        argv = [*self._enter("router"), sys.executable, "-m", "tests.faults.lab.slow_link", BAD_LINE]
        with subprocess.Popen(
            [*argv, f"{delay_s}", f"{loss}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as line:
            assert line.stdin is not None
            assert line.stdout is not None
            if line.stdout.readline() != READY:
                raise SoftwareMissing("a slow link needs /dev/net/tun")
            self._batch("router", [f"route add default dev {BAD_LINE} table {BAD_TABLE}"])
            rules = [f"from {self._of(a)} to {self._of(b)} iif to-{a} lookup {BAD_TABLE}" for a, b in pairs]
            self._batch("router", [f"rule add {rule}" for rule in rules])
            try:
                yield
            finally:
                self._batch("router", [f"rule del {rule}" for rule in rules])
                line.stdin.close()  # it ends, and its device and route with it

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """While the block runs, the host's own link has no carrier: nothing passes in either direction."""
        self._batch("router", [f"link set to-{name} down"])
        try:
            yield
        finally:
            address = self._address(self._hosts[name])
            self._batch("router", [f"link set to-{name} up", f"route add {address}/32 dev to-{name} scope link"])

    def _drop(self, pairs: set[tuple[str, str]]) -> None:
        self._batch("router", [f"rule add {self._rule(*pair)}" for pair in pairs])
        self._cuts |= pairs

    def _pass(self, pairs: set[tuple[str, str]]) -> None:
        self._batch("router", [f"rule del {self._rule(*pair)}" for pair in pairs])
        self._cuts -= pairs

    def _rule(self, some: str, other: str) -> str:
        return f"from {self._of(some)} to {self._of(other)} blackhole"

    # ---- names and links ----

    def _join(self, name: str, number: int) -> None:
        """A cable between the host and the router, and the routes on both sides."""
        self._batch(name, [f"link add cable type veth peer name to-{name} netns {self._namespace('router')}"])
        here, router = self._address(number), self._address(ROUTER)
        self._batch("router", [f"link set to-{name} up", f"route add {here}/32 dev to-{name} scope link"])
        self._batch(
            name,
            [
                f"addr add {here}/32 dev cable scope global",
                "link set cable up",
                f"route add {router}/32 dev cable scope link",
                f"route add 127.{self._number}.0.0/16 via {router} dev cable onlink src {here}",
            ],
        )

    def _join_desk(self) -> None:
        """The same for this process, whose namespace is the machine's own: only this network's addresses go there."""
        cable, here, router = f"lab{self._number}", self._address(DESK), self._address(ROUTER)
        _ip(*f"link add {cable} type veth peer name to-desk netns {self._namespace('router')}".split())
        for setting, value in (("route_localnet", "1"), ("rp_filter", "0")):
            Path(f"/proc/sys/net/ipv4/conf/{cable}/{setting}").write_text(value)
        self._batch("router", ["link set to-desk up", f"route add {here}/32 dev to-desk scope link"])
        _ip(*f"addr add {here}/32 dev {cable} scope global".split())
        _ip("link", "set", cable, "up")
        _ip(*f"route add {router}/32 dev {cable} scope link table local".split())
        _ip(*f"route add 127.{self._number}.0.0/16 via {router} dev {cable} onlink src {here} table local".split())

    def _enter(self, name: str) -> tuple[str, ...]:
        return ("nsenter", f"--net={NAMESPACES / self._namespace(name)}", "--")

    def _namespace(self, name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{self._number}-{name}"  # a process may have several networks

    def _address(self, number: int) -> str:
        return f"127.{self._number}.0.{number}"

    def _of(self, name: str) -> str:
        return self._address(self._hosts[name])

    def _batch(self, name: str, commands: list[str]) -> None:
        _run(["ip", "-n", self._namespace(name), "-batch", "-"], "\n".join(commands) + "\n")


def remove_abandoned() -> None:
    """Remove what labs have left whose process was killed."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        owner = path.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            _ip("netns", "delete", path.name)


def _free_network() -> int:
    for number in range(FIRST_NETWORK, LAST_NETWORK + 1):
        if not Path(f"/sys/class/net/lab{number}").exists():
            return number
    raise SoftwareMissing(f"{LAST_NETWORK - FIRST_NETWORK + 1} labs run already")


def _ip(*words: str) -> str:
    return _run(["ip", *words])


def _run(argv: list[str], text: str | None = None) -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise SoftwareMissing(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
