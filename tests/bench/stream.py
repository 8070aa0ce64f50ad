"""The stream of submissions through HAProxy, and what the client library adds to raw HTTP.

The generator is lean, as it shares the processors: frames are made beforehand, and of the answers it reads the numbers
and counts the successes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from random import Random
from statistics import median
from time import perf_counter
from typing import TypeVar

import aiohttp
import msgspec

from haproxy.render import Endpoint
from ledger_api.client import NotaryClient, Party, encode_submission
from ledger_api.wire.stream_frames import Submissions, encoder
from replica.local.cluster import LocalCluster
from replica.notary.answers import Notarised
from replica.notary.requests import Submission
from tests.bench.load import INPUTS
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.usage import add_cpu, cpu_s, parts_of
from tests.bench.workload import fresh_states

STREAMS = 4
PER_FRAME = 200
WINDOW = 2_000  # submissions of a stream under way
PER_SECOND = 12_000  # so many are prepared for each second of a run
CALLS_AT_A_TIME = 16
CALLS = 4_000
Item = TypeVar("Item")
WAITS = 3  # the kind of an interim estimate, behind the array's head
NOTARISED = b"\xa9notarised"  # as it stands in a frame of answers


_answers = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, msgspec.Raw]]])


async def measure_stream(cluster: LocalCluster, sizes: Sizes, report: Report) -> None:
    """Submissions a second over a few streams."""
    report.section("Streams of submissions through HAProxy, 4 inputs, one active and one following passive")
    count, endpoint = _count(sizes), cluster.config.endpoint
    await _rate(endpoint, cluster.parties, count)  # warms up
    parts = await parts_of(cluster)
    before = cpu_s(parts)
    rates = [await _rate(endpoint, cluster.parties, count) for _ in range(sizes.runs)]
    after = cpu_s(parts)
    report.add_runs("stream_tps_4_inputs", rates, f"{STREAMS} streams, {PER_FRAME} a frame", "submissions/s")
    each_s = {part: (after[part] - before[part]) / (count * sizes.runs) for part in parts}
    add_cpu("stream_cpu_us_per_submission", each_s, "stream, processor time per submission", report)


async def measure_rate(endpoint: Endpoint, parties: Sequence[Party], sizes: Sizes) -> list[float]:
    """Submissions a second in each run, after one that warms up."""
    count = _count(sizes)
    return [await _rate(endpoint, parties, count) for _ in range(1 + sizes.runs)][1:]


def _count(sizes: Sizes) -> int:
    return int(PER_SECOND * sizes.run_s) // PER_FRAME * PER_FRAME


def _fresh(parties: Sequence[Party]) -> Iterator[Submission]:
    random = Random()
    while True:
        yield random.choice(parties).sign(random.randbytes(32), fresh_states(random, INPUTS))


async def _rate(endpoint: Endpoint, parties: Sequence[Party], count: int) -> float:
    frames = await asyncio.to_thread(_frames, parties, count)
    meter = _Meter()
    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(_drive(endpoint, frames[number::STREAMS], meter))
    return meter.per_second()


def _frames(parties: Sequence[Party], count: int) -> list[bytes]:
    fresh = _fresh(parties)
    return [encoder.encode(Submissions(list(enumerate(islice(fresh, PER_FRAME))))) for _ in range(count // PER_FRAME)]


class _Meter:
    """Answers a second while every stream is full: from the last one's first answer to the first one's last frame.

    Before and after, the load is not what is to be measured: streams fill, or run dry.
    """

    def __init__(self) -> None:
        self._answered = 0
        self._empty_streams = STREAMS
        self._began: tuple[float, int] | None = None
        self._ended: tuple[float, int] | None = None

    def note_answers(self, count: int, *, first: bool) -> None:
        """So many more answers came, `first`: on a stream that had none."""
        self._answered += count
        self._empty_streams -= first
        if first and not self._empty_streams:
            self._began = (perf_counter(), self._answered)

    def note_last_frame(self) -> None:
        """A stream has sent everything."""
        if self._ended is None:
            self._ended = (perf_counter(), self._answered)

    def per_second(self) -> float:
        """The rate. Raises RuntimeError when the streams were never full together."""
        if self._began is None or self._ended is None or self._ended <= self._began:
            raise RuntimeError("too few submissions to fill the streams")
        return (self._ended[1] - self._began[1]) / (self._ended[0] - self._began[0])


async def _drive(endpoint: Endpoint, frames: list[bytes], meter: _Meter) -> None:
    """Send all of the frames over one stream and wait for all answers. Raises RuntimeError unless all are successes."""
    url = f"http://{endpoint.host}:{endpoint.port}/v1/submissions/stream"
    room = asyncio.Semaphore(WINDOW // PER_FRAME)
    async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
        await socket.receive_bytes()  # the welcome

        async def receive() -> None:
            answered = 0
            while answered < len(frames) * PER_FRAME:
                data = await socket.receive_bytes()
                if data[1] == WAITS:
                    continue
                _, batch = _answers.decode(data)
                if data.count(NOTARISED) != len(batch):
                    raise RuntimeError(f"not notarised: {data!r:.500}")
                for _ in range((answered + len(batch)) // PER_FRAME - answered // PER_FRAME):
                    room.release()
                meter.note_answers(len(batch), first=answered == 0)
                answered += len(batch)

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            for frame in frames:
                await room.acquire()
                await socket.send_bytes(frame)
            meter.note_last_frame()


async def measure_client(cluster: LocalCluster, sizes: Sizes, report: Report) -> None:
    """The same calls with the library and without, in turns; without, the bodies are made beforehand."""
    endpoint = f"http://{cluster.config.endpoint.host}:{cluster.config.endpoint.port}"
    fresh = _fresh(cluster.parties)
    ratios = []
    async with NotaryClient(endpoint) as client, aiohttp.ClientSession() as session:

        async def raw(body: bytes) -> None:
            headers = {"Content-Type": "application/json"}
            async with session.post(endpoint + "/v1/submissions", data=body, headers=headers) as response:
                if b"NOTARISED" not in await response.read():
                    raise RuntimeError(f"not notarised: {response.status}")

        async def through_client(submission: Submission) -> None:
            if not isinstance(await client.submit(submission), Notarised):
                raise RuntimeError("not notarised")

        for _ in range(max(3, sizes.runs)):
            bodies = [encode_submission(submission) for submission in islice(fresh, CALLS)]
            raw_s = await _timed(raw, bodies)
            client_s = await _timed(through_client, list(islice(fresh, CALLS)))
            ratios.append(client_s / raw_s)
    middle = round(median(ratios), 3)
    shown = f"{middle:.3f} times raw HTTP   (runs: {' '.join(f'{ratio:.3f}' for ratio in ratios)})"
    report.add("client_overhead_ratio", middle, f"client library, {CALLS_AT_A_TIME} calls at a time", shown)


async def _timed(call: Callable[[Item], Awaitable[None]], items: Sequence[Item]) -> float:
    left = iter(items)

    async def work() -> None:
        for item in left:
            await call(item)

    began_s = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS_AT_A_TIME):
            group.create_task(work())
    return perf_counter() - began_s
