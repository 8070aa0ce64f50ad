"""The Spark session: what every job relies on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from pipeline import session
from tests.pipeline.spark_cluster import write_conf

pytestmark = pytest.mark.spark


def _python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import replica.notary  # what a worker must be able to import

    for _ in batches:
        safe = str(sys.flags.safe_path)
        yield pa.RecordBatch.from_pydict(
            {"python": [sys.executable], "room": [replica.notary.__name__], "safe": [safe]}
        )


def test_workers_run_our_python_with_our_code(spark: SparkSession) -> None:
    """Goal: a worker has the packages and the code of the driver, and nothing of the folder in which it runs.

    Method: ask one which Python it is.
    """
    rows = spark.range(1, numPartitions=1).mapInArrow(_python, "python string, room string, safe string").collect()
    assert [(row.python, row.room, row.safe) for row in rows] == [(sys.executable, "replica.notary", "True")]


def test_times_are_utc(spark: SparkSession) -> None:
    """Goal: no result depends on where it is computed. Method: show a moment as text."""
    assert spark.sql("SELECT CAST(timestamp_micros(0) AS STRING) AS t").collect()[0].t == "1970-01-01 00:00:00"


_SHOWS_WHAT_COUNTS = """
from pipeline.session import spark_session
session = spark_session("settings", "local[1]")
heap_bytes = session.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
print(session.conf.get("spark.sql.shuffle.partitions"), heap_bytes >> 20)
session.stop()
"""


def test_what_the_operator_chose_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: spark-defaults.conf is where operators tune a job. Method: partitions and memory there, unlike ours, and no
    variable of Spark's; then what counts where none is there: the tests' session has our memory."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_DRIVER_MEMORY"}
    told = [sys.executable, "-c", _SHOWS_WHAT_COUNTS]
    write_conf(tmp_path, {"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "600m"})
    done = subprocess.run(
        told, env=environment | {"SPARK_CONF_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    partitions, heap_mib = map(int, done.stdout.split())
    assert partitions == 3 and 450 < heap_mib <= 600  # some collectors leave a part of it out
    partitions_here = session._defaults(SparkConf(loadDefaults=False))["spark.sql.shuffle.partitions"]
    assert int(partitions_here) == session.PARTITIONS_PER_CORE * (os.cpu_count() or 1)
    assert spark._jvm is not None
    assert 1_500 < spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20 <= 2_048
