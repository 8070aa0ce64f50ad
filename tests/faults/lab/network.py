"""The interface for faults in the network between the lab's machines, and the choice between its two forms.

`namespaces` gives each host a machine of its own. `proxied` needs no privilege: all on loopback, a proxy in each link.
Scenarios do not know which form they run on; a fault that it cannot make fails the scenario, with the reason.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Protocol

from replica.local.machine import Machine
from replica.local.process import SoftwareMissing
from tests.faults.lab.namespaces import Namespaces
from tests.faults.lab.proxied import Proxied

CHOICE = "FAULTS_NETWORK"  # environment variable: which one it must be


class Network(Protocol):
    """Hosts by name, from `start` to `stop`. Whether this process reaches an unplugged host is left open."""

    def start(self) -> None:
        """Build it. Raises SoftwareMissing where that is not possible."""

    def stop(self) -> None:
        """Remove it; what still runs in it must have been ended. May be repeated."""

    def machine(self, name: str) -> Machine:
        """Where a host's commands run, its address, and its ways to others."""

    def cut(self, some: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> AbstractContextManager[None]:
        """While the block runs nothing passes between any of `some` and any of `others`, in both directions, silently.

        `one_way`: nothing from any of `some` to any of `others`; the other direction works. Raises SoftwareMissing when
        this kind of network cannot do that.
        """

    def slowed(
        self, some: Iterable[str], others: Iterable[str], delay_s: float, loss: float
    ) -> AbstractContextManager[None]:
        """While the block runs each packet between any of `some` and any of `others` takes so much longer, each way,
        and this share of them is lost. Raises SoftwareMissing as `cut` does.
        """

    def unplugged(self, name: str) -> AbstractContextManager[None]:
        """While the block runs the host reaches no other, and none it. Raises SoftwareMissing as `cut` does."""


KINDS: dict[str, tuple[str, Callable[[Iterable[str]], Network]]] = {
    "namespaces": ("network namespaces", Namespaces),
    "proxy": ("fault proxy", Proxied),
}


def network_of(hosts: Iterable[str]) -> Network:
    """A network of the kind that is used here, not yet built."""
    _, kind = KINDS[chosen()]
    return kind(hosts)


def kind_of_network() -> str:
    """What reports call it."""
    return KINDS[chosen()][0]


@cache
def chosen() -> str:
    """The form in $FAULTS_NETWORK, else namespaces where this process can make them. Raises SoftwareMissing."""
    if wanted := os.environ.get(CHOICE):
        if wanted not in KINDS:
            raise SoftwareMissing(f"{CHOICE}={wanted}: it must be one of {', '.join(KINDS)}")
        return wanted
    trial = Namespaces(())
    try:
        trial.start()
    except (SoftwareMissing, OSError) as error:
        warnings.warn(f"NO NETWORK NAMESPACES HERE, faults go through a proxy: {error}", stacklevel=2)
        return "proxy"
    finally:
        trial.stop()
    return "namespaces"
