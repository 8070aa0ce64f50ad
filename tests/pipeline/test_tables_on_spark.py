"""The tables that `deltalake` writes are read by Spark, with Delta's own connector."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.tables.write import open_writer
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.notary.counted import CountedRequest
from tests.pipeline.judged import TOPIC, by_replica
from tests.pipeline.read_delta import JARS
from tests.pipeline.signed_log import longer_values

FIRST_RECORDS = 9
ENDS_S = 240.0  # 20 s on a quiet machine, most of it Spark's start
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not JARS.exists(), reason="no jars of Delta: `make lake` fetches them"),
]


def test_spark_reads_what_was_written(tmp_path: Path) -> None:
    """Goal: SQL on Spark gives the rows, types and versions that were written. Method: a log in two appends, joined,
    counted and read as it was before, in a process with the pinned jars."""
    values = longer_values()
    records = list(enumerate(values))
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        writer.append(records[:FIRST_RECORDS])
        writer.append(records[FIRST_RECORDS:])
    command = [sys.executable, "-m", "tests.pipeline.read_delta", str(tmp_path / "tables"), str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    requests = [
        entry
        for entry in Applier(MemoryIndex(), TOPIC).apply(records).reading.counted
        if isinstance(entry, CountedRequest)
    ]
    verdicts = by_replica(values).verdicts
    assert [
        (row["log_offset"], row["notarised_offset"], row["stamp_us"], row["inputs"]) for row in found["decided"]
    ] == [
        (entry.offset, verdicts[entry.offset][1], entry.record.stamp_us, len(entry.request.inputs))
        for entry in requests
    ]
    assert (found["conflicts"], found["days"]) == ([5, 7, 19], 1)
    at_first = sum(entry.offset < FIRST_RECORDS for entry in requests)
    assert (found["versions"], found["earlier"]) == (3, at_first)  # made, and two appends
