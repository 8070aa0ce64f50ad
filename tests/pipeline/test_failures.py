"""What fails on Spark reaches an operator as the product's own error, with its code, and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.failures import explained, meaning_of
from pipeline.jobs.judge import judge_log
from pipeline.jobs.tasks import numbered
from replica.notary.codes import Code, Retry
from replica.notary.errors import (
    ArchiveDamaged,
    FormatUnknown,
    InvariantBroken,
    LogTruncated,
    LogUnavailable,
    NotaryError,
    PipelineFailed,
)
from tests.pipeline.log_files import write_log
from tests.pipeline.random_logs import chain

pytestmark = pytest.mark.spark


def _fail(kind: Callable[..., Exception], *given: object) -> Callable[[int], Iterator[dict[str, object]]]:
    def task(number: int) -> Iterator[dict[str, object]]:
        raise kind(*given)

    return task


@pytest.mark.parametrize(
    ("kind", "given", "code"),
    [
        (LogUnavailable, ["no record behind offset 7 within 10 s"], Code.LOG_UNAVAILABLE),
        (FormatUnknown, ["epoch 3 writes record format 9"], Code.FORMAT_UNKNOWN),
        (NotaryError, ["odd", Code.ARCHIVE_MISMATCH], Code.ARCHIVE_MISMATCH),
    ],
)
def test_an_error_of_ours_comes_back_as_it_was(
    spark: SparkSession, kind: type[NotaryError], given: list[object], code: Code
) -> None:
    """Goal: code, sentence and retry survive the way through Java. Method: raise it in a task."""
    with pytest.raises(kind) as caught, explained():
        numbered(spark, 2, _fail(kind, *given), "number bigint").collect()
    assert (caught.value.code, caught.value.detail) == (code, given[0])


def test_a_bug_in_a_task_comes_back_as_a_bug(spark: SparkSession) -> None:
    """Goal: a gap that a task found is not called a failure of Spark's. Method: raise it in a task."""
    with pytest.raises(InvariantBroken) as caught, explained():
        numbered(spark, 2, _fail(InvariantBroken, "offset 9 after 7"), "number bigint").collect()
    assert caught.value.detail == "offset 9 after 7"


@pytest.mark.thorough
def test_any_other_failure_is_named_and_may_be_repeated(spark: SparkSession) -> None:
    """Goal: no trace for an operator, but the cause. Method: raise something else in a task."""
    with pytest.raises(PipelineFailed) as caught, explained():
        numbered(spark, 1, _fail(ZeroDivisionError, "of nothing"), "number bigint").collect()
    assert caught.value.detail == "ZeroDivisionError: of nothing"
    assert caught.value.code.retry is Retry.SAME


def test_a_damaged_file_is_a_damaged_archive(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a file that rotted is reported as such. Method: cut the file after its footer was read, and judge it."""
    log = write_log(tmp_path / "log", chain())
    Path(log.slices[0].path).write_bytes(b"PAR1")
    with pytest.raises(ArchiveDamaged, match="cannot be read"), explained():
        judge_log(spark, log, tmp_path / "work")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before the position",
            LogUnavailable,
        ),
        ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position is out of range", LogTruncated),
        ("java.lang.OutOfMemoryError: Java heap space", PipelineFailed),
    ],
)
def test_what_java_says_is_told_as_such(said: str, meant: type[NotaryError]) -> None:
    """Goal: a silent log, a cut log and anything else are three things. Method: the message of Spark's connector."""
    error = meaning_of(f"Job aborted due to stage failure\nCaused by: {said}\n\tat org.apache.spark.X")
    assert type(error) is meant
    assert said.partition(": ")[2] in error.detail


@pytest.mark.slow
def test_a_job_that_follows_outlives_its_jvm() -> None:
    """Goal: a service on Spark survives the end of Java. Method: SIGKILL the JVM under a session;
    the failure is ours, and the next session starts another JVM."""
    done = subprocess.run(
        [sys.executable, "-c", _LOSES_ITS_JVM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["5", "PIPELINE_FAILED", "6"], done.stderr


_LOSES_ITS_JVM = """
import os, signal
from pyspark import SparkContext
from replica.cli.pipeline import SparkChoice, spark
from replica.notary.errors import NotaryError

try:
    with spark("lost", SparkChoice("local[1]")) as session:
        print(session.range(5).count())
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        SparkContext._gateway.proc.wait(30)
        session.range(5).count()
except NotaryError as error:
    print(error.code.name)
with spark("lost", SparkChoice("local[1]")) as session:
    print(session.range(6).count())
"""
