"""The filter in front of the index: look-ups of absent keys and whole runs, with and without it, in turns.

    python -m tests.bench.index_filter --states 5000000

Prints JSON: microseconds of process time a key, medians of the turns with all of them beside; bytes a state; the share
of absent keys that the filter does not answer; how long it took to fill. Postgres, Kafka and front ends have no part.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from msgspec.structs import replace

from replica.index.filtered import FilteredIndex
from replica.index.rocks import RocksIndex
from replica.notary.acceptances import COMMAND_KEY, VALUE_BYTES
from replica.notary.position import POSITION_VERSION, Position
from replica.notary.rules import STATE_KEY, TX_KEY
from tests.bench.bulk import STATES_PER_TX, fill_index

AT = Position(POSITION_VERSION, b"L" * 16, "topic", 1_000, b"d" * 32)
RUNS = (50, 100, 200, 1_000)  # keys
KEYS_A_TURN = 100_000
TURNS = 5
REQUESTS_A_RUN = 200  # each with STATES_PER_TX states, a transaction and a command


def keys_of(requests: int) -> list[bytes]:
    """What so many new requests ask for, and add."""
    kinds = [*([(STATE_KEY, 36)] * STATES_PER_TX), (TX_KEY, 32), (COMMAND_KEY, 32)]
    return [kind + os.urandom(length) for _ in range(requests) for kind, length in kinds]


def absent_runs(keys: int) -> list[list[bytes]]:
    """Runs of about so many keys each."""
    every = keys_of(KEYS_A_TURN // (STATES_PER_TX + 2))
    return [every[at : at + keys] for at in range(0, len(every) - keys + 1, keys)]


def cost_us(work: Callable[[list[bytes]], object], runs: Sequence[list[bytes]]) -> float:
    """Microseconds of process time a key."""
    began_s = process_time()
    for run in runs:
        work(run)
    return (process_time() - began_s) / sum(map(len, runs)) * 1e6


def in_turns(measure: Callable[[str], float]) -> dict[str, object]:
    """Both ways, in turns."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(TURNS):
        for way, figures in found.items():
            figures.append(round(measure(way), 3))
    ratio = median(found["without"]) / median(found["with"])
    return {**{way: median(figures) for way, figures in found.items()}, "ratio": round(ratio, 2), "turns": found}


def measure(folder: Path, states: int) -> dict[str, object]:
    """All figures, of an index of so many states and one that is the same without a filter."""
    indexes: dict[str, RocksIndex] = {}
    for way in ("without", "with"):
        RocksIndex(folder / way).close()
        fresh = RocksIndex(folder / way)
        fresh.write({}, AT)
        fresh.close()
    fill_index(folder / "tables", states, [folder / "without", folder / "with"], AT.offset)
    indexes["without"] = RocksIndex(folder / "without")
    indexes["with"] = filtered = FilteredIndex(folder / "with")
    began_s = process_time()
    slices = sum(1 for _ in filtered.fill_filter())
    assert filtered.filter_answers
    found: dict[str, object] = {
        "entries": filtered.entry_count,
        "fill_us_an_entry": round((process_time() - began_s) / filtered.entry_count * 1e6, 2),
        "fill_slices": slices,
        "bytes_a_state": round(filtered.sizes()["filter_bytes"] / states, 2),
        "perhaps_wrongly": _perhaps_wrongly(filtered),
    }
    for keys in RUNS:
        found[f"absent_{keys}_us"] = in_turns(lambda way, keys=keys: cost_us(indexes[way].lookup, absent_runs(keys)))  # type: ignore[misc]
    offset = AT.offset

    def run_of(index: RocksIndex, keys: list[bytes]) -> None:
        nonlocal offset
        offset += REQUESTS_A_RUN
        assert not any(index.lookup(keys))
        index.write(
            {key: bytes(VALUE_BYTES if key[:1] == COMMAND_KEY else 40) for key in keys}, replace(AT, offset=offset)
        )

    runs = KEYS_A_TURN // REQUESTS_A_RUN // (STATES_PER_TX + 2)
    found["run_us"] = in_turns(
        lambda way: cost_us(lambda keys: run_of(indexes[way], keys), [keys_of(REQUESTS_A_RUN) for _ in range(runs)])
    )
    assert filtered.filter_answers and filtered.false_absences == 0
    found["write_file_s"] = seconds(filtered.close)
    found["open_with_file_s"] = seconds(lambda: indexes.update(again=FilteredIndex(folder / "with")))
    assert indexes["again"].sizes()["filter_answers"]
    for index in indexes.values():
        index.close()
    return found


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began_s = perf_counter()
    work()
    return round(perf_counter() - began_s, 2)


def _perhaps_wrongly(index: FilteredIndex) -> float:
    assert index._filter is not None
    absent = keys_of(100_000)
    return len(index._filter.perhaps(absent)) / len(absent)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, default=5_000_000)
    with TemporaryDirectory() as chosen:
        print(json.dumps(measure(Path(chosen), parser.parse_args().states), indent=1))
