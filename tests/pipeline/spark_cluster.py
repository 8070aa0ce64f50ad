"""A Spark cluster on loopback, as an operator would start one: a master, two workers, and a Connect server on top."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from replica.local.ports import PortReservation

_HOME = Path(pyspark.__file__).parent
_ROOT = Path(__file__).parents[2]
_START_MAX_S = 180.0


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """Addresses of a running cluster."""

    master: str
    connect: str


@contextmanager
def spark_cluster(folder: Path, ports: PortReservation) -> Iterator[SparkCluster]:
    """A master and two workers of one core each, and a Connect server that uses them; stopped at the end."""
    port, connect_port = ports.take(), ports.take()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        place = ["--host", "127.0.0.1"]
        stack.enter_context(
            _started(
                folder,
                "master",
                "org.apache.spark.deploy.master.Master",
                *place,
                "--port",
                str(port),
                "--webui-port",
                "0",
            )
        )
        _wait_for(port, _START_MAX_S)
        for number in (1, 2):
            of_worker = [
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / f"worker-{number}"),
            ]
            stack.enter_context(
                _started(
                    folder, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *place, *of_worker, master
                )
            )
        settings = {
            "spark.connect.grpc.binding.port": str(connect_port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": str(_ROOT),
            "spark.cores.max": "1",  # the other worker stays free for jobs that come by way of the master
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        stack.enter_context(
            _started(folder, "connect", "org.apache.spark.deploy.SparkSubmit", "--master", master, *options,
                     "--class", server, "spark-internal")
        )  # fmt: skip
        _wait_for(connect_port, _START_MAX_S)
        yield SparkCluster(master, f"sc://127.0.0.1:{connect_port}")


@contextmanager
def _started(folder: Path, name: str, *command: str) -> Iterator[None]:
    environment = os.environ | {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(_ROOT),
        "SPARK_DAEMON_MEMORY": "1g" if name == "connect" else "256m",
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([_HOME / "bin" / "spark-class", *command], env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int, timeout_s: float) -> None:
    """Return once something listens on a port; raises TimeoutError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nothing listens on port {port} after {timeout_s} s")
        time.sleep(0.1)
