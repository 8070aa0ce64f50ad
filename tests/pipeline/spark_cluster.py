"""A Spark cluster on loopback, as an operator would start one: a master and two workers; a Connect server on top."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from replica.local.ports import PortReservation

_HOME = Path(pyspark.__file__).parent
_START_MAX_S = 400.0  # of each server; seconds on a quiet machine
_LARGE = ("pyspark", "polars", "_polars", "playwright", "kubernetes", "deltalake", "_duckdb", "mypy")  # for no task


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running cluster. `folder`: for the logs of its servers."""

    folder: Path
    master: str  # its address
    python: Path  # the workers'; it has no notary


@contextmanager
def spark_cluster(folder: Path, ports: PortReservation) -> Iterator[SparkCluster]:
    """A master and two workers of two cores; stopped at the end."""
    python = bare_python(folder / "python")
    port = ports.take()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        place = ["--host", "127.0.0.1"]
        stack.enter_context(
            _started(folder, python, "master", "org.apache.spark.deploy.master.Master", *place,
                     "--port", str(port), "--webui-port", "0")
        )  # fmt: skip
        _wait_for(port, _START_MAX_S)
        for name in ("worker-1", "worker-2"):
            stack.enter_context(
                _started(folder, python, name, "org.apache.spark.deploy.worker.Worker", *place, "--cores", "2",
                         "--memory", "2g", "--webui-port", "0", "--work-dir", str(folder / name), master)
            )  # fmt: skip
        yield SparkCluster(folder, master, python)


@contextmanager
def connect_server(cluster: SparkCluster, ports: PortReservation) -> Iterator[str]:
    """The address of a Connect server that uses one of a cluster's four cores."""
    port = ports.take()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.cores.max": "1",  # the others stay free for jobs that come by way of the master
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = ("org.apache.spark.deploy.SparkSubmit", "--master", cluster.master, *options)
    with _started(cluster.folder, cluster.python, "connect", *submit, "--class", server, "spark-internal"):
        _wait_for(port, _START_MAX_S)
        yield f"sc://127.0.0.1:{port}"


def bare_python(folder: Path, without: str | None = None) -> Path:
    """A Python with the packages of this one but not the notary, as a cluster's workers have it; or without one more.

    The notary is installed here by a file `.pth`, and such a file counts in the first folder of packages only.
    """
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    packages = _HOME.parent
    if without is None:
        (site / "packages.pth").write_text(f"{packages}\n")
    else:
        for entry in packages.iterdir():
            if entry.name != without and entry.suffix != ".pth":
                (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def packed_python(folder: Path, file: Path) -> None:
    """An archive of a Python environment, as docs/pipeline.md has it made: all that our code imports, and no notary."""
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    with tarfile.open(file, "w:gz", compresslevel=1) as archive:
        archive.add(folder, ".")
        for entry in sorted(_HOME.parent.iterdir()):
            if entry.suffix != ".pth" and not entry.name.startswith(_LARGE):
                archive.add(entry, f"{site.relative_to(folder)}/{entry.name}")


def run_job(
    master: str, folder: Path, python: Path, *packed: Path, database: str = ""
) -> subprocess.CompletedProcess[str]:
    """The jobs on the log in a folder, in a process of its own; `python`: what workers are told to run, unless a
    `packed` one comes along. `database`: what the audit holds against the log."""
    command = [sys.executable, "-m", "tests.pipeline.on_cluster", master, str(folder), database, *map(str, packed)]
    environment = os.environ | {"PYSPARK_PYTHON": str(python)}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)


def write_conf(folder: Path, settings: Mapping[str, str]) -> None:
    """An operator's settings of Spark, in a folder that is there: SPARK_CONF_DIR names it."""
    text = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "spark-defaults.conf").write_text(text)


@contextmanager
def _started(folder: Path, python: Path, name: str, *command: str) -> Iterator[None]:
    environment = os.environ | {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "SPARK_DAEMON_MEMORY": "1g" if name == "connect" else "256m",
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [_HOME / "bin" / "spark-class", *command], env=environment, cwd=folder, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(120)


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
