"""How long one state is looked for among many conflicts, before and after `notary tables maintain` sorts them:
`python -m tests.bench.pipeline.lookup [MILLIONS]`. Needs about 150 MB of disk for each million rows."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake

APPENDS, LOOKUPS = 20, 15
DAYS = 2
SORTED_GROUP_ROWS = 65_536


def _rows(rng: np.random.Generator, first: int, rows: int, day: int) -> pa.Table:
    states = rng.bytes(32 * rows).hex()
    return pa.table(
        {
            "log_offset": pa.array(range(first, first + rows), pa.int64()),
            "day": pa.array([day] * rows, pa.int32()).cast(pa.date32()),
            "state": [f"{states[at : at + 64]}:0" for at in range(0, len(states), 64)],
            "usage": pa.array(["input"] * rows),
            "consumed_by_hash": pa.array([b"\x00" * 32] * rows, pa.binary()),
            "consumed_offset": pa.array([0] * rows, pa.int64()),
        }
    )


def _lookup_ms(folder: str, states: list[str]) -> float:
    times_s = []
    for state in states:
        began_s = perf_counter()
        connection = duckdb.connect()
        connection.register("conflicts", DeltaTable(folder).to_pyarrow_dataset())
        assert connection.sql(f"SELECT count(*) FROM conflicts WHERE state = '{state}'").fetchall() == [(1,)]
        times_s.append(perf_counter() - began_s)
    return median(times_s) * 1e3


def main(millions: float) -> None:
    """Print the medians, in ms."""
    rng, rows = np.random.default_rng(1), round(millions * 1e6 / APPENDS)
    with TemporaryDirectory(dir=Path("build")) as folder:
        for number in range(APPENDS):
            found = _rows(rng, number * rows, rows, number * DAYS // APPENDS)
            write_deltalake(folder, found, mode="append", partition_by=["day"])
        wanted = [row["state"] for row in found.slice(0, LOOKUPS).to_pylist()]
        print(f"{millions:g} million rows in {APPENDS} files: {_lookup_ms(folder, wanted):.0f} ms")
        began_s = perf_counter()
        DeltaTable(folder).optimize.compact()
        print(f"compacted in {perf_counter() - began_s:.0f} s: {_lookup_ms(folder, wanted):.0f} ms")
        began_s = perf_counter()
        DeltaTable(folder).optimize.z_order(
            ["state"], writer_properties=WriterProperties(max_row_group_size=SORTED_GROUP_ROWS)
        )
        print(f"sorted in {perf_counter() - began_s:.0f} s: {_lookup_ms(folder, wanted):.0f} ms")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
