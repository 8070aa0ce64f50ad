"""The same jobs on a cluster of two workers: through a standalone master, and through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.failures import meaning_of
from replica.index.rocks import verify_index
from replica.index.summary import summarise
from replica.local.ports import PortReservation
from replica.notary.records import BarrierRecord, encode_record
from tests.pipeline.judged import by_replica
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import ACTIVATION, log_values, request, signed
from tests.pipeline.spark_cluster import SparkCluster, bare_python, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REQUESTS, SLICES = 6_000, 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ports: PortReservation) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark"), ports) as running:
        yield running


def _many() -> list[bytes]:
    """A log of thousands of requests; every tenth wants a state that is consumed, and one is forged."""
    barrier = encode_record(BarrierRecord(1, ACTIVATION, "r1", "postgres:1:1", 1, 1))
    requests = [request(n, [n - 1 if n % 10 == 9 else n, REQUESTS + n]) for n in range(REQUESTS)]
    return [barrier, *[signed(one, n, forged=n == 4_000) for n, one in enumerate(requests)]]


def _tasks(events: Path) -> Counter[str]:
    """How many tasks each executor of the cluster ran to their end, of Spark's own event log."""
    lines = [json.loads(line) for file in events.rglob("events_*") for line in file.read_text().splitlines()]
    ends = [line for line in lines if line["Event"] == "SparkListenerTaskEnd"]
    return Counter(line["Task Info"]["Executor ID"] for line in ends if not line["Task Info"]["Failed"])


def _run(master: str, folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.pipeline.on_cluster", master, str(folder)]
    environment = os.environ | {"PYSPARK_PYTHON": str(python)}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


def test_both_workers_judge_a_log_without_having_the_notary(cluster: SparkCluster, tmp_path: Path) -> None:
    """Goal: one job uses all of a cluster, and brings our code along. Method: workers' Python cannot import it; Spark's
    event log says who did how much; the index is a replica's; Spark says nothing on standard error."""
    alone = subprocess.run(
        [cluster.python, "-c", "import msgspec; import replica"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'replica'" in alone.stderr
    values = _many()
    write_log(tmp_path / "log", values, range(0, REQUESTS, REQUESTS // SLICES))
    done = _run(cluster.master, tmp_path, cluster.python)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "4001"]
    assert done.stderr == ""
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).index).digest
    tasks = _tasks(tmp_path / "events")
    assert set(tasks) == {"0", "1"}
    assert min(tasks.values()) >= SLICES // 2, tasks


def test_jobs_run_unchanged_through_connect(cluster: SparkCluster, tmp_path: Path) -> None:
    """Goal: a rebuild and an audit need nothing but another address. Method: workers and server without the notary."""
    values = log_values(forged=2)
    write_log(tmp_path / "log", values, [3, 6])
    done = _run(cluster.connect, tmp_path, cluster.python)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "3"]
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).index).digest


def test_a_worker_that_lacks_a_package_is_told_of(cluster: SparkCluster, tmp_path: Path) -> None:
    """Goal: the operator hears which package is missing where. Method: a Python of workers that has PySpark's alone."""
    write_log(tmp_path / "log", log_values(), [3])
    python = bare_python(tmp_path / "python", without="msgspec")
    done = _run(cluster.master, tmp_path, python)
    assert done.returncode != 0
    meant = meaning_of(done.stderr)
    assert "a Python of Spark's workers has no package msgspec" in str(meant)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [("spark.executor.memory", "64g", "SPARK_UNAVAILABLE"), ("spark.cores.max", "1", "began")],
)
def test_a_job_that_no_worker_has_room_for_ends(cluster: SparkCluster, setting: str, value: str, expected: str) -> None:
    """Goal: it does not wait for ever; and one worker is enough. Method: more memory than workers have; one core."""
    program = f"""
from pipeline import session
session.EXECUTOR_MAX_S = 20.0
further = {{"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", {setting!r}: {value!r}}}
try:
    session.spark_session("room", {cluster.master!r}, further=further).stop()
    print("began")
except session.SparkUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith(expected), done.stdout + done.stderr[-2000:]
    assert done.stderr == ""
