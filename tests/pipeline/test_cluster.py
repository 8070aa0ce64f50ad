"""The same jobs on a cluster of two workers: through a standalone master, and through Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replica.index.rocks import verify_index
from replica.index.summary import summarise
from replica.local.ports import PortReservation
from tests.pipeline.judged import by_replica
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import log_values
from tests.pipeline.spark_cluster import SparkCluster, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ports: PortReservation) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark"), ports) as running:
        yield running


@pytest.mark.parametrize("way", ["master", "connect"])
def test_jobs_run_unchanged(cluster: SparkCluster, tmp_path: Path, way: str) -> None:
    """Goal: a rebuild and an audit need nothing but another address. Method: a process of its own for each way."""
    values = log_values(forged=2)
    write_log(tmp_path / "log", values, [3, 6])
    command = [sys.executable, "-m", "tests.pipeline.on_cluster", getattr(cluster, way), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["SIGNATURE_INVALID", "3"]
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).index).digest
