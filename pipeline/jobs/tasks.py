"""Runs a function of a number as many Spark tasks, and collects the small result of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

Batches = Iterator[pa.RecordBatch]


def numbered(
    spark: SparkSession, count: int, task: Callable[[int], Iterator[dict[str, Any]]], schema: str
) -> DataFrame:
    """A row for each dictionary that `task` yields for the numbers from 0 on; a Spark task for each number."""
    arrow = _arrow_schema(schema)

    def batches(number: int) -> Batches:
        for row in task(number):
            yield pa.RecordBatch.from_pylist([row], arrow)

    return numbered_batches(spark, count, batches, schema)


def numbered_batches(spark: SparkSession, count: int, task: Callable[[int], Batches], schema: str) -> DataFrame:
    """The batches that `task` yields for the numbers from 0 on; a Spark task for each number."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from task(number)

    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)


def fixed_binaries(fixed: np.ndarray[Any, Any]) -> pa.Array:
    """Byte strings of one size as an Arrow column of byte strings; copies nothing."""
    size = fixed.dtype.itemsize
    offsets = np.arange(0, size * (len(fixed) + 1), size, dtype=np.int32)
    data = np.ascontiguousarray(fixed)
    return pa.Array.from_buffers(pa.binary(), len(fixed), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def attempt_file(folder: Path, name: str, suffix: str) -> Path:
    """A file name for one attempt of a task: a killed attempt's file has a name that is never read."""
    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    return folder / f"{name}-{attempt}-{os.getpid()}{suffix}"


def _arrow_schema(schema: str) -> pa.Schema:
    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "binary": pa.binary(),
        "string": pa.string(),
        "double": pa.float64(),
    }
    fields = [field.split() for field in schema.split(",")]
    return pa.schema([(name, types[kind]) for name, kind in fields])
