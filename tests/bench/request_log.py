"""What the request log costs on a real broker and a real Postgres: opening, read-back latency, throughput, catch-up.

Run it with `python -m tests.bench.request_log`: it starts servers of its own on loopback, and removes them. Everything
runs on this machine, so the figures say what the client and its settings cost, not what a network does.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import structlog
import uvloop

from replica.local.kafka import start_broker
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.log.interface import LogReader, RequestLog
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.settings import PostgresLogSettings

VALUE_BYTES = 430
OPENINGS = 15
SINGLES = 2_000
PIPELINED = 200_000
IN_FLIGHT_MAX = 10_000
READ_MAX = 500
VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {"append_linger_s": 0.001},
    {"compression": "lz4"},
    {"append_linger_s": 0.001, "compression": "lz4"},
)


async def measure_opening(log: RequestLog) -> None:
    """Print what an activation waits for: a writer, and its first record read back by a reader that is open already."""
    reader, steps = await log.open_reader(await log.end_offset()), list[tuple[float, ...]]()
    for _ in range(OPENINGS):
        began_s = perf_counter()
        writer = await log.open_writer()
        opened_s = perf_counter()
        writer.append(b"barrier")
        await _read(reader, 1)
        read_s = perf_counter()
        await writer.close()
        steps.append((opened_s - began_s, read_s - opened_s, perf_counter() - read_s))
    names = ("open_writer", "first append read back", "close writer")
    for name, times_s in zip(names, zip(*steps, strict=True), strict=True):
        _print_times(name, times_s)
    for name, ask in (("check", log.check), ("end_offset", log.end_offset)):
        _print_times(name, [await _timed(ask) for _ in range(OPENINGS)])
    await reader.close()


async def measure_appending(log: RequestLog, values: list[bytes]) -> str:
    """The time from append to read back for one record at a time, then records a second with many in flight."""
    writer, reader = await log.open_writer(), await log.open_reader(await log.end_offset())
    times_s = []
    for value in values[:SINGLES]:
        began_s = perf_counter()
        writer.append(value)
        await _read(reader, 1)
        times_s.append(perf_counter() - began_s)
    times_s.sort()
    p50, p99 = times_s[SINGLES // 2], times_s[SINGLES * 99 // 100]

    began_s, read = perf_counter(), 0
    for start in range(0, PIPELINED, READ_MAX):
        for value in values[start : start + READ_MAX]:
            writer.append(value)
        while start + READ_MAX - read > IN_FLIGHT_MAX:
            read += len(await reader.read(READ_MAX, 1.0))
        await asyncio.sleep(0)
    await _read(reader, PIPELINED - read)
    rate = PIPELINED / (perf_counter() - began_s)
    await writer.close()
    await reader.close()
    return f"one at a time, read back p50 {_ms(p50)} p99 {_ms(p99)}; pipelined, read back {rate:,.0f} records/s"


async def measure_catching_up(log: RequestLog) -> None:
    """Print how fast a reader gets through everything that is there, and how soon it has the first record."""
    began_s = perf_counter()
    end, reader = await log.end_offset(), await log.open_reader(0)
    first = len(await reader.read(READ_MAX, 5.0))
    first_s = perf_counter() - began_s
    await _read(reader, end - first)
    rate = end / (perf_counter() - began_s)
    closed_s = await _timed(reader.close)
    print(f"catching up on {end:,} records: {rate:,.0f} records/s, first {_ms(first_s)}; close reader {_ms(closed_s)}")


async def run() -> None:
    """Start a broker and measure every variant of the client's settings on a topic of its own."""
    values = [Random(number).randbytes(VALUE_BYTES) for number in range(PIPELINED)]
    print(f"{VALUE_BYTES}-byte random records, one broker, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder, PortReservation() as ports:
        cluster = await start_broker(Path(folder), ports)
        try:
            for number, changes in enumerate(VARIANTS):
                given = {"bootstrap_servers": cluster.bootstrap_servers, "single_broker": True}
                settings = KafkaSettings.model_validate({**given, "topic": f"bench-{number}", **changes})
                print(f"\n{', '.join(f'{name} = {value}' for name, value in changes.items()) or 'default settings'}")
                await create_topic(settings)
                log = KafkaLog(settings)
                if not changes:
                    await measure_appending(log, values)  # warms the broker up, which would favour later variants
                    await measure_opening(log)
                print(await measure_appending(log, values))
                await measure_catching_up(log)
                await log.close()
        finally:
            await cluster.remove()


async def run_on_postgres() -> None:
    """The same on a Postgres server without a standby."""
    values = [Random(number).randbytes(VALUE_BYTES) for number in range(PIPELINED)]
    with tempfile.TemporaryDirectory() as folder, PortReservation() as ports:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "postgres", ports.take())
        try:
            await server.start()
            await install(server.dsn())
            print("\non Postgres, one server")
            log = PostgresLog(PostgresLogSettings(conninfo=server.dsn(), single_server=True))
            await measure_appending(log, values)
            await measure_opening(log)
            print(await measure_appending(log, values))
            await measure_catching_up(log)
            await log.close()
        finally:
            await server.remove()


async def _read(reader: LogReader, count: int) -> None:
    while count > 0:
        count -= len(await reader.read(READ_MAX, 5.0))


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began_s = perf_counter()
    await call()
    return perf_counter() - began_s


def _print_times(name: str, times_s: Sequence[float]) -> None:
    print(f"{name:24} median {_ms(median(times_s))}  worst {_ms(max(times_s))}")


def _ms(duration_s: float) -> str:
    return f"{duration_s * 1_000:.1f} ms"


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    uvloop.run(run())
    uvloop.run(run_on_postgres())
