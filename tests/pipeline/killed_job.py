"""A job of the pipeline in a process of its own, which the operating system kills at one point of it.

`python -m tests.pipeline.killed_job POINT JOB ARGUMENTS`, the last a JSON object. A point is `module:function`, `+` for
behind a call of it or `-` for before, and which call: `pipeline.archive.write:_entries-1`.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from subprocess import run
from threading import Event
from typing import Any

import msgspec

from pipeline.archive.manifest import load_manifest
from pipeline.archive.on_spark import on_spark
from pipeline.archive.restore import plan_restore, run_restore
from pipeline.archive.restore_plan import Until
from pipeline.archive.write import Archiver, BatchSize
from pipeline.jobs.rebuild import rebuild_index
from pipeline.jobs.slices import parquet_log
from pipeline.log_copy import LogCopier
from pipeline.session import spark_session
from pipeline.sources.topic import look_at
from pipeline.tables import query
from pipeline.tables.query import SparkWriter, run_query
from pipeline.tables.write import open_judge, open_writer
from replica.log.kafka.settings import KafkaSettings
from replica.notary.places import place_of
from replica.store.archive_head import ArchiveHeads
from tests.pipeline.judged import TOPIC
from tests.pipeline.signed_log import longer_values
from tests.worlds.archive_world import SIGNER

ENDS_S = 300.0


def killed_at(point: str, job: str, **arguments: Any) -> int:
    """Run a job that is to be killed there; returns its exit code, which is that of SIGKILL if it came so far."""
    command = [sys.executable, "-m", "tests.pipeline.killed_job", point, job, msgspec.json.encode(arguments).decode()]
    return run(command, timeout=ENDS_S, check=False).returncode


def archive(kafka: dict[str, Any], folder: str, dsn: str) -> None:
    """As `notary archive run` does, in segments of ten records."""
    settings = KafkaSettings.model_validate(kafka)
    session = spark_session("killed", "local[2]", shuffle_partitions=2)
    size = BatchSize(segment_records=10, segments=2)
    archiver = Archiver(
        settings, place_of(folder), SIGNER, ArchiveHeads(dsn), size=size, write=on_spark(session, settings)
    )
    view = look_at(settings)
    with archiver.open(view, 1, "archive-1") as manifest:
        archiver.archive(manifest, view.end)


def restore(kafka: dict[str, Any], folder: str) -> None:
    """As `notary restore run` does."""
    settings, manifest = KafkaSettings.model_validate(kafka), load_manifest(Path(folder))
    plan = plan_restore(manifest, SIGNER.public_key, settings, Until())
    run_restore(manifest, plan, settings, lambda: 7, lambda offset: None)


def rebuild(log: str, folder: str, work: str) -> None:
    """As `notary index rebuild --engine spark` does."""
    session = spark_session("killed", "local[2]", shuffle_partitions=2)
    files = parquet_log(TOPIC, sorted(Path(log).glob("*.parquet")))
    rebuild_index(session, files, Path(folder), Path(work), ranges=3)


def tables(place: str, index: str) -> None:
    """As `notary tables run` does, in runs of five records."""
    values = list(enumerate(longer_values()))
    with open_writer(place_of(place), Path(index), TOPIC) as writer:
        for start in range(0, len(values), 5):
            writer.append(values[start : start + 5])


def tables_on_spark(place: str, index: str, log: str, commits_at_once: int) -> None:
    """As `notary tables run --engine spark` does, with a log in files, of which each is a batch. Where tables are
    written one after the other each gap between two commits can be hit."""
    query.COMMITS_AT_ONCE = commits_at_once
    session = spark_session("killed", "local[2]", shuffle_partitions=2, delta=True)
    stream = session.readStream.schema("offset bigint, value binary").option("maxFilesPerTrigger", 1).parquet(log)
    with open_judge(place_of(place), Path(index), TOPIC) as (tables, judge):
        writer = SparkWriter(tables, judge, lambda name: None, lambda batch: None)
        run_query(stream, writer, interval_s=None, stopping=Event())


def log_copy(source: dict[str, Any], target: dict[str, Any]) -> None:
    """As `notary log copy` does."""
    copier = LogCopier(KafkaSettings.model_validate(source), KafkaSettings.model_validate(target), lambda _: None)
    copier.open()
    copier.copy(lambda end: None, goes_on=False)


def _kill_at(point: str) -> None:
    """Wrap the function at the point; of a class, its method."""
    found = re.fullmatch(r"([\w.]+):([\w.]+)([+-])(\d+)", point)
    if found is None:
        raise SystemExit(f"not a point: {point}")
    module, path, side, number = found.groups()
    *within, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in within:
        owner = getattr(owner, part)
    wrapped: Callable[..., Any] = getattr(owner, name)
    calls, returns = count(1), count(1)  # apart, as calls may run side by side

    def killing(*given: Any, **named: Any) -> Any:
        if next(calls) == int(number) and side == "-":
            os.kill(os.getpid(), signal.SIGKILL)
        result = wrapped(*given, **named)
        if next(returns) == int(number) and side == "+":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killing)


if __name__ == "__main__":
    _kill_at(sys.argv[1])
    jobs = (archive, restore, rebuild, tables, tables_on_spark, log_copy)
    {job.__name__: job for job in jobs}[sys.argv[2]](**msgspec.json.decode(sys.argv[3]))
