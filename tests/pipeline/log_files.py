"""A log in Parquet files, as the archive keeps one, for the jobs to read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.jobs.slices import ParquetLog, parquet_log
from tests.pipeline.judged import TOPIC


def write_log(folder: Path, values: Sequence[bytes], cuts: Sequence[int] = (), row_group: int = 1 << 16) -> ParquetLog:
    """Write the log of TOPIC, in files that end at the cuts."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for start, end in pairwise(sorted({0, len(values), *[cut for cut in cuts if cut < len(values)]})):
        table = pa.table(
            {"offset": pa.array(range(start, end), pa.int64()), "value": pa.array(values[start:end], pa.binary())}
        )
        paths.append(folder / f"{start:019d}.parquet")
        pq.write_table(table, paths[-1], row_group_size=row_group)
    return parquet_log(TOPIC, paths)
