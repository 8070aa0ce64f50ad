"""The lab: a whole participant like the reference deployment's, every part on a machine of its own.

A primary and a synchronous standby, three brokers, three replicas, HAProxy: twelve servers in network namespaces.
"""

from __future__ import annotations

from pathlib import Path

from replica.local.cluster import ClusterSettings, LocalCluster
from tests.faults.lab.network import Network

REPLICAS = ("r1", "r2", "r3")
BROKERS = ("k1", "k2", "k3")
DATABASES = ("db1", "db2")
BALANCER = "lb"


class Lab(LocalCluster):
    """A cluster whose machines can be cut off from one another: see `network`."""

    def __init__(self, folder: Path, network: Network) -> None:
        hosts = (*REPLICAS, *BROKERS, *DATABASES, BALANCER)
        settings = ClusterSettings(
            folder=folder,
            replicas=len(REPLICAS),
            brokers=len(BROKERS),
            database_standby=True,
            api_workers=1,
            machines={name: network.machine(name) for name in hosts},
        )
        super().__init__(settings)
        self.network = network


def lab_network() -> Network:
    """The network of one lab, not yet built."""
    return Network((*REPLICAS, *BROKERS, *DATABASES, BALANCER))
