"""Where a server of a local cluster runs: on this machine, or on one that only looks like another, for fault tests."""

from __future__ import annotations

from dataclasses import dataclass

from replica.local.ports import LOOPBACK


@dataclass(frozen=True, slots=True)
class Machine:
    """An address to listen on, and the prefix that runs a command there, such as `nsenter` with a network namespace.

    `network`: the hosts that a database there serves, in CIDR form; None for this machine alone.
    """

    address: str = LOOPBACK
    enter: tuple[str, ...] = ()
    network: str | None = None


THIS_MACHINE = Machine()
