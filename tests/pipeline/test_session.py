"""The Spark session: what every job relies on."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import replica.notary  # what a worker must be able to import

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "room": [replica.notary.__name__]})


def test_workers_run_our_python_with_our_code(spark: SparkSession) -> None:
    """Goal: a worker has the packages and the code of the driver. Method: ask one which Python it is."""
    rows = spark.range(1, numPartitions=1).mapInArrow(_python, "python string, room string").collect()
    assert [(row.python, row.room) for row in rows] == [(sys.executable, "replica.notary")]


def test_times_are_utc(spark: SparkSession) -> None:
    """Goal: no result depends on where it is computed. Method: show a moment as text."""
    assert spark.sql("SELECT CAST(timestamp_micros(0) AS STRING) AS t").collect()[0].t == "1970-01-01 00:00:00"
