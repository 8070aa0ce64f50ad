"""A real HDFS for tests: a NameNode and a DataNode on loopback, of the jars that the tests' set-up fetches."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.places.open import open_store
from replica.local.ports import PortReservation
from replica.notary.errors import PlaceUnavailable
from replica.notary.places import Remote

JARS = Path(__file__).parents[2] / ".tools" / "hadoop" / "libs"
START_MAX_S = 400.0  # of each server; seconds on a quiet machine
_OF_SPARK = ("hadoop-client-*", "jcl-over-slf4j-*", "slf4j-api-*", "log4j-*")
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
"""


@dataclass(frozen=True, slots=True)
class Hdfs:
    """A running file system; `configuration` is a folder as HADOOP_CONF_DIR names one."""

    address: str  # hdfs://HOST:PORT
    configuration: Path
    name_node: subprocess.Popen[bytes]
    service: str = "lake"  # the name service that the configuration has


@contextmanager
def hdfs(folder: Path, ports: PortReservation) -> Iterator[Hdfs]:
    """A new file system that takes files, stopped at the end; skips the test where the jars are not there."""
    if not JARS.exists():
        pytest.skip("no jars of Hadoop: make setup-tests fetches them")
    port, data_port = ports.take(), ports.take()
    address = f"hdfs://127.0.0.1:{port}"
    core = {"fs.defaultFS": address}
    site = {
        "dfs.namenode.name.dir": f"{folder}/names",
        "dfs.datanode.data.dir": f"{folder}/data",
        "dfs.namenode.http-address": "127.0.0.1:0",
        "dfs.datanode.address": f"127.0.0.1:{data_port}",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.replication": "1",
        "dfs.namenode.fs-limits.min-block-size": "1024",
    }
    of_service = {
        "dfs.nameservices": "lake",
        "dfs.ha.namenodes.lake": "n1",
        "dfs.namenode.rpc-address.lake.n1": f"127.0.0.1:{port}",
    }
    servers, clients = folder / "servers", folder / "clients"
    for place, files in ((servers, {"core": core, "hdfs": site}), (clients, {"core": core, "hdfs": of_service})):
        place.mkdir()
        for name, values in files.items():
            (place / f"{name}-site.xml").write_text(configuration(values))
    (servers / "log4j2.properties").write_text(LOGGING)
    with (folder / "format.log").open("wb") as log:
        subprocess.run([*java(servers), _NAME_NODE, "-format", "-nonInteractive"], stderr=log, stdout=log, check=True)
    with ExitStack() as stack:
        name_node = stack.enter_context(_started(servers, _NAME_NODE, folder / "names.log"))
        wait_for_port(port, name_node, folder / "names.log")
        data_node = stack.enter_context(_started(servers, _DATA_NODE, folder / "data.log"))
        wait_for_port(data_port, data_node, folder / "data.log")
        _wait_until_it_takes_files(address)
        yield Hdfs(address, clients, name_node)


def _wait_until_it_takes_files(address: str) -> None:
    """The DataNode is known to the NameNode some time after it listens."""
    until_s = time.monotonic() + START_MAX_S
    while True:
        try:
            open_store(Remote(f"{address}/ready/{uuid4().hex}")).create("ready", [b"ready"])
            return
        except PlaceUnavailable:
            assert time.monotonic() < until_s
            time.sleep(0.5)


def java(configured: Path) -> list[str]:
    """The command of a JVM whose class path has Hadoop's servers and a folder of configuration."""
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    spark = Path(found.origin).parent / "jars"
    jars = [*JARS.glob("*.jar"), *(jar for name in _OF_SPARK for jar in sorted(spark.glob(f"{name}.jar")))]
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    return [
        program,
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        os.pathsep.join(map(str, [configured, *jars])),
    ]


def configuration(values: Mapping[str, str]) -> str:
    """A file of Hadoop's configuration."""
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in values.items()
    )
    return f"<configuration>\n{rows}</configuration>\n"


@contextmanager
def _started(configured: Path, server: str, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log_path.open("wb") as log, subprocess.Popen([*java(configured), server], stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()  # its folder goes with the test


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once the server listens; fails with its log when it has ended, or after START_MAX_S."""
    until_s = time.monotonic() + START_MAX_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < until_s, log.read_text()
        time.sleep(0.1)
