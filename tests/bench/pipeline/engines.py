"""One engine makes an index of a log in Parquet files: `python -m tests.bench.pipeline.engines ENGINE LOG INDEX`.

Each engine has a process of its own, so that its memory can be measured. Both read the same files and leave an index
that a replica opens. Spark is the product's job; `replay` is the replica's own code for applying the log.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pyarrow.parquet as pq

from pipeline.jobs.slices import ParquetLog, parquet_log
from replica.following.apply import Applier
from replica.following.log_reading import bounded_runs
from replica.index.rocks import RocksIndex
from replica.settings import CoreSettings
from tests.bench.pipeline.big_log import TOPIC_ID

AGAIN_SLICES_MAX = 100  # a longer log is given to Spark once: what a session's start costs does not show


def spark(log: ParquetLog, folder: Path) -> dict[str, Any]:
    """The product's job, its session's start not counted. If the log is short, then once more with the session warm."""
    from pipeline.jobs.rebuild import rebuild_index
    from pipeline.session import spark_session

    began_s = monotonic()
    session = spark_session("bench")
    session_s = monotonic() - began_s
    took_s = {}
    for turn in ("took_s", "warm_s") if len(log) <= AGAIN_SLICES_MAX else ("took_s",):
        shutil.rmtree(folder, ignore_errors=True)
        began_s = monotonic()
        rebuilt = rebuild_index(session, log, folder / "index", folder / "work")
        took_s[turn] = monotonic() - began_s
    session.stop()
    return {
        **took_s,
        "session_s": session_s,
        "steps_s": rebuilt.steps_s,
        "entries": rebuilt.entry_count,
        "index": str(folder / "index"),
    }


def replay(log: ParquetLog, folder: Path) -> dict[str, Any]:
    """What a replica does: runs of the size that it reads, judged and written one after the other."""
    settings = CoreSettings()
    began_s = monotonic()
    index = RocksIndex(folder / "index")
    applier = Applier(index, TOPIC_ID)
    for records in _records(log, settings.read_batch_max):
        for run in bounded_runs(records, settings.read_batch_states_max):
            applier.apply(run)
    index.close()
    return {"took_s": monotonic() - began_s, "index": str(folder / "index")}


def _records(log: ParquetLog, size: int) -> Iterator[list[tuple[int, bytes]]]:
    for path in dict.fromkeys(part.path for part in log.slices):
        for batch in pq.ParquetFile(path).iter_batches(size, columns=["offset", "value"]):
            yield list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))


ENGINES = {"spark": spark, "replay": replay}

if __name__ == "__main__":
    name, log_folder, index_folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    index_folder.mkdir(parents=True)
    found = ENGINES[name](parquet_log(TOPIC_ID, sorted(log_folder.glob("*.parquet"))), index_folder)
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(found) + b"\n")
