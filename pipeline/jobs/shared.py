"""Asks a cluster's workers whether they share a job's work folder, before a task fails there for another reason."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.jobs.tasks import attempt_file, numbered
from replica.notary.errors import ConfigError

TASKS = 16  # so that several workers answer; a tiny file each


def check_shared(spark: SparkSession, work: Path) -> None:
    """Raise ConfigError unless those workers that answer can write in this folder, which the driver has just made."""
    rows = numbered(spark, TASKS, partial(try_to_write, work), "host string, problem string").collect()
    if (error := unshared(work, ((row.host, row.problem) for row in rows))) is not None:
        raise error


def try_to_write(work: Path, number: int) -> Iterator[dict[str, Any]]:
    """Which host this is, and what keeps it from writing in the folder, if anything does.

    The folder is new and its name random, so it is the driver's if it is there at all. It is not made here.
    """
    problem = None
    file = attempt_file(work, f"tried-{number}", "")
    try:
        file.touch(exist_ok=False)
        file.unlink()
    except OSError as error:
        problem = error.strerror or str(error)
    yield {"host": socket.gethostname(), "problem": problem}


def unshared(work: Path, answers: Iterable[tuple[str, str | None]]) -> ConfigError | None:
    """The error that names each host which cannot write in the folder; None if all can."""
    problems = sorted({f"{host}: {problem}" for host, problem in answers if problem is not None})
    if not problems:
        return None
    return ConfigError(
        f"Spark's workers cannot write in {work}: {'; '.join(problems)}; name with --work a folder that all of them"
        " have under the same path, and in which they may write (they have to run as this job's Unix user)"
    )
