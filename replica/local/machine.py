"""Where a server of a local cluster runs: on this machine, or on one that only looks like another, for fault tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replica.local.ports import LOOPBACK


@dataclass(frozen=True, slots=True)
class Machine:
    """An address to listen on, and the prefix that runs a command there, such as `nsenter` with a network namespace.

    `network`: the hosts that a database there serves, in CIDR form; None for this machine alone. `way`: opens a way to
    another machine's address and port, and returns the address where it begins; None: all direct.
    """

    address: str = LOOPBACK
    enter: tuple[str, ...] = ()
    network: str | None = None
    way: Callable[[str, int], str] | None = None

    def reach(self, address: str, port: int) -> str:
        """Where clients on this machine connect to a server that listens there; the port is the same."""
        return address if self.way is None else self.way(address, port)


THIS_MACHINE = Machine()
