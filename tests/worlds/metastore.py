"""A real Hive metastore for tests: the one among PySpark's own jars, on loopback, its database a Derby in a folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.worlds.hdfs_server import LOGGING, configuration

START_MAX_S = 120.0  # 4 s on a quiet machine
_MAIN = "org.apache.hadoop.hive.metastore.HiveMetaStore"


@dataclass
class Metastore:
    """A metastore that can be started, killed, and started again with what it knew."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        configured = self.folder / "metastore"
        configured.mkdir(exist_ok=True)
        (configured / "hive-site.xml").write_text(configuration(self._settings()))
        for name in ("log4j2.properties", "hive-log4j2.properties"):
            (configured / name).write_text(LOGGING)
        with (self.folder / "metastore.log").open("ab") as log:
            self.process = subprocess.Popen([*_java(configured), str(self.port)], stdout=log, stderr=log)
        until_s = time.monotonic() + START_MAX_S
        while not self._accepts():
            said = (self.folder / "metastore.log").read_text()[-3000:]
            assert self.process.poll() is None and time.monotonic() < until_s, said
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, once or again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _settings(self) -> dict[str, str]:
        return {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.folder}/derby;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "hive.metastore.schema.verification": "false",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.warehouse.dir": f"file://{self.folder}/warehouse",
            "hive.metastore.server.min.threads": "2",
            "hive.async.log.enabled": "false",
            **self.settings,
        }


def _java(configured: Path) -> list[str]:
    spark = find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    jars = Path(spark.origin).parent / "jars" / "*"
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dderby.stream.error.file={os.devnull}"]
    return [program, *options, "-cp", f"{configured}{os.pathsep}{jars}", _MAIN, "-p"]
