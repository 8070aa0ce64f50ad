"""Large requests on one topic beside the same on split topics: `--only large`, keys `large_*`.

The log alone: one writer, and as many readers as replicas would follow it, each in a process of its own. A run ends
when the last reader has every record. So this measures what the log does with large requests, not what judging costs.
Here every size is split, to find where that begins to pay; a replica splits above `LARGE_ABOVE_BYTES`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import structlog
import uvloop

from replica.local.kafka import KafkaCluster, start_broker
from replica.local.ports import PortReservation
from replica.log.interface import LogReader, LogWriter
from replica.log.kafka import payload_writer
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from tests.bench.report import Report, number
from tests.bench.sizes import Sizes

REQUEST_BYTES = (1_000, 4_000, 10_000, 30_000, 100_000, 300_000)
READERS = (1, 3, 5)
PARTITIONS = 4
BYTES_PER_RUN_S = 10_000_000  # of `run_s`
BYTES_MAX = 20_000_000  # of a run
RUNS_MAX = 2  # of each: there are 36 kinds
RECORDS_MAX = 20_000
IN_FLIGHT_BYTES_MAX = 16 * 1_048_576
SINGLES = 100  # one at a time
SILENCE_MAX_S = 30.0
PAYS = 1.05  # a ratio below it is noise
_KINDS = {"one": 0, "split": PARTITIONS}
_REQUEST = b"\x98\x01\x02"  # what a request of format 2 begins with

Rates = Mapping[tuple[int, int], tuple[float, float]]
"""Records a second on one topic and on split topics, by request size and number of readers."""


async def measure_large(folder: Path, sizes: Sizes, report: Report) -> None:
    """Each size with each number of readers, both ways, on one broker."""
    report.section("Large requests: one topic and split topics, the log alone")
    payload_writer.LARGE_ABOVE_BYTES = 0
    rates: dict[tuple[int, int], tuple[float, float]] = {}
    with PortReservation() as ports:
        cluster = await start_broker(folder, ports, topics_deletable=True)
        try:
            for size in REQUEST_BYTES:
                await _measure_lone(cluster, size, report)
                for readers in READERS:
                    rates[size, readers] = await _measure_rates(cluster, size, readers, sizes, report)
        finally:
            await cluster.remove()
    for readers in READERS:
        begins = pays_from(rates, readers)
        text = "never, up to the largest" if begins is None else f"from {begins:,} bytes on"
        report.add(f"large_pays_from_bytes_{readers}_readers", begins, f"splitting pays with {readers} readers", text)
    least = readers_needed(rates)
    text = "none of those that were measured" if least is None else str(least)
    report.add("large_pays_from_readers", least, "readers from which it pays at some size", text)


def pays_from(rates: Rates, readers: int) -> int | None:
    """The smallest request size from which on splitting pays, at it and at all larger ones; None: it never does."""
    begins = None
    for size in sorted({size for size, count in rates if count == readers}, reverse=True):
        one, split = rates[size, readers]
        if split < PAYS * one:
            break
        begins = size
    return begins


def readers_needed(rates: Rates) -> int | None:
    """The fewest readers with which splitting pays from some size on; None: with none of the numbers measured."""
    return next((count for count in sorted({count for _, count in rates}) if pays_from(rates, count) is not None), None)


async def _measure_rates(
    cluster: KafkaCluster, size: int, readers: int, sizes: Sizes, report: Report
) -> tuple[float, float]:
    count = max(1, min(RECORDS_MAX, min(BYTES_MAX, round(BYTES_PER_RUN_S * sizes.run_s)) // size))
    runs: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for run in range(min(sizes.runs, RUNS_MAX)):  # in turn, so that a slow minute of the machine meets both
        for kind, partitions in _KINDS.items():
            settings = _settings(cluster, f"{kind}-{size}-{readers}-{run}", partitions)
            runs[kind].append(await _rate(settings, size, count, readers))
            for topic in settings.topics:
                await cluster.delete_topic(topic)
    label = f"{size:,} bytes, {readers} readers"
    one, split = (
        report.add_runs(f"large_{kind}_{size}_bytes_{readers}_readers", found, f"{label}, {kind}", "records/s")
        for kind, found in runs.items()
    )
    report.add(
        f"large_ratio_{size}_bytes_{readers}_readers", round(split / one, 3), "split over one", number(split / one)
    )
    return one, split


async def _measure_lone(cluster: KafkaCluster, size: int, report: Report) -> None:
    """How long one request takes, from the append to the read, while nothing else is on its way."""
    for kind, partitions in _KINDS.items():
        async with _opened(_settings(cluster, f"lone-{kind}-{size}", partitions)) as (writer, reader):
            times_ms = []
            for value in _records(size, SINGLES):
                began_s = perf_counter()
                writer.append(value)
                await _read(reader, 1)
                times_ms.append((perf_counter() - began_s) * 1_000)
        middle = round(median(times_ms), 2)
        report.add(
            f"large_lone_ms_{kind}_{size}_bytes", middle, f"{size:,} bytes, a lone request, {kind}", f"{middle} ms"
        )


async def _rate(settings: KafkaSettings, size: int, count: int, readers: int) -> float:
    """Records a second until the slowest reader has all."""
    values = _records(size, count)
    async with _opened(settings) as (writer, reader):
        others = await asyncio.gather(*(_start_reader(settings, count) for _ in range(readers - 1)))
        began_s = perf_counter()
        await asyncio.gather(_write_and_read(writer, reader, values), *(_heard(other) for other in others))
        took_s = perf_counter() - began_s
    for other in others:
        await other.wait()
    return count / took_s


async def _write_and_read(writer: LogWriter, reader: LogReader, values: list[bytes]) -> None:
    in_flight_max = max(1, IN_FLIGHT_BYTES_MAX // len(values[0]))
    read = 0
    for sent, value in enumerate(values):
        writer.append(value)
        while sent + 1 - read >= in_flight_max:
            read += len(await reader.read(in_flight_max, 5.0))
        if not sent % 50:
            await asyncio.sleep(0)
    await _read(reader, len(values) - read)


async def _start_reader(settings: KafkaSettings, count: int) -> asyncio.subprocess.Process:
    argv = (sys.executable, "-m", "tests.bench.large", settings.model_dump_json(), str(count))
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    await _heard(process)  # it waits for the first record
    return process


async def _heard(reader: asyncio.subprocess.Process) -> None:
    """Return with the next line of a reader. Raises RuntimeError when it ended instead."""
    assert reader.stdout is not None
    if not await reader.stdout.readline():
        raise RuntimeError("a reader failed")


async def _follow(settings: KafkaSettings, count: int) -> None:
    """One more reader, in a process of its own."""
    log = KafkaLog(settings)
    reader = await log.open_reader(0)
    await reader.read(1, 0.2)  # it has its connections then
    print("reads", flush=True)
    await _read(reader, count)
    print("has all", flush=True)
    await log.close()


async def _read(reader: LogReader, count: int) -> None:
    while count > 0:
        found = await reader.read(500, SILENCE_MAX_S)
        if not found:
            raise RuntimeError(f"{count} records did not come within {SILENCE_MAX_S:g} s")
        count -= len(found)


@asynccontextmanager
async def _opened(settings: KafkaSettings) -> AsyncIterator[tuple[LogWriter, LogReader]]:
    """A writer and a reader of a new log."""
    await create_topic(settings)
    log = KafkaLog(settings)
    try:
        yield await log.open_writer(), await log.open_reader(0)
    finally:
        await log.close()


def _settings(cluster: KafkaCluster, topic: str, partitions: int) -> KafkaSettings:
    given = {"bootstrap_servers": cluster.bootstrap_servers, "topic": f"large-{topic}", "single_broker": True}
    return KafkaSettings.model_validate(given | {"payload_partitions": partitions, "answer_max_s": 10.0})


def _records(size: int, count: int) -> list[bytes]:
    """Requests of this size that do not compress."""
    body = Random(size).randbytes(size - len(_REQUEST) - 8)
    return [_REQUEST + position.to_bytes(8) + body for position in range(count)]


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # what is printed is for who started this
    uvloop.run(_follow(KafkaSettings.model_validate_json(sys.argv[1]), int(sys.argv[2])))
