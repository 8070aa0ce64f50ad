"""A real YARN for tests: a ResourceManager and a NodeManager on loopback, of the jars that `make lake` fetches."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from replica.local.ports import PortReservation
from tests.worlds.hdfs_server import JARS, LOGGING, configuration, java, wait_for_port

_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_RM, _NM, _QUEUES = "yarn.resourcemanager", "yarn.nodemanager", "yarn.scheduler.capacity.root"


@contextmanager
def yarn(folder: Path, ports: PortReservation) -> Iterator[Path]:
    """A cluster of one node that takes jobs, stopped at the end; yields a folder as HADOOP_CONF_DIR names one.

    Skips the test where the jars are not there. The node's containers run as this process's user, without isolation.
    """
    if not JARS.exists():
        pytest.skip("no jars of Hadoop: make lake fetches them")
    taken = {name: ports.take() for name in ("address", "scheduler.address", "resource-tracker.address")}
    node_port = ports.take()
    site = {
        **{f"{_RM}.{name}": f"127.0.0.1:{port}" for name, port in taken.items()},
        **{f"{_RM}.{name}.address": "127.0.0.1:0" for name in ("admin", "webapp")},
        **{f"{_NM}.{name}address": "127.0.0.1:0" for name in ("localizer.", "webapp.", "collector-service.")},
        f"{_NM}.address": f"127.0.0.1:{node_port}",
        f"{_NM}.local-dirs": f"{folder}/local",
        f"{_NM}.log-dirs": f"{folder}/logs",
        f"{_NM}.resource.memory-mb": "4096",
        f"{_NM}.resource.cpu-vcores": "4",
        f"{_NM}.vmem-check-enabled": "false",
        f"{_NM}.disk-health-checker.enable": "false",  # a full disk of the machine is no matter of this test
        "yarn.scheduler.minimum-allocation-mb": "128",
    }
    queues = {f"{_QUEUES}.queues": "default", f"{_QUEUES}.default.capacity": "100"} | {
        "yarn.scheduler.capacity.maximum-am-resource-percent": "1"
    }
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{folder}/tmp"}
    configured = folder / "configuration"
    configured.mkdir()
    for name, values in {"core-site": core, "yarn-site": site, "capacity-scheduler": queues}.items():
        (configured / f"{name}.xml").write_text(configuration(values))
    (configured / "log4j2.properties").write_text(LOGGING)
    with ExitStack() as stack:
        manager = stack.enter_context(_started(configured, _RESOURCE_MANAGER, folder / "manager.log"))
        for port in taken.values():
            wait_for_port(port, manager, folder / "manager.log")
        node = stack.enter_context(_started(configured, _NODE_MANAGER, folder / "node.log"))
        wait_for_port(node_port, node, folder / "node.log")
        yield configured


@contextmanager
def _started(configured: Path, server: str, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"JAVA_HOME": str(_java_home())}  # containers are started with it
    with (
        log_path.open("wb") as log,
        subprocess.Popen([*java(configured), server], stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()  # a node ends its containers
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _java_home() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        return Path(home)
    program = shutil.which("java")
    assert program is not None
    return Path(program).resolve().parents[1]
