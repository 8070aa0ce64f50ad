"""The open loop: when requests come, what is measured, and that each body is sent once, whatever happens."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pvariance

import pytest

from ledger_api.client.signing import Party
from tests.bench.arrivals import poisson_arrivals, quantiles_ms
from tests.bench.generator import GeneratorSettings, OpenLoop
from tests.bench.http_message import is_whole
from tests.bench.load import LoadGenerator
from tests.bench.open_loop import null_server, run_open_loop
from tests.bench.pictures import growth, latency_curve
from tests.worlds.beginning import LEDGER

PAUSE_S = 0.5


def test_arrivals_are_a_poisson_process() -> None:
    """Goal: the rate is the one asked for, and gaps vary as those of independent callers. Method: mean and variance."""
    arrivals = poisson_arrivals(1_000.0, 20.0, Random(1))
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert arrivals == sorted(arrivals) and arrivals[0] > 0 and arrivals[-1] < 20.0
    assert len(arrivals) == pytest.approx(20_000, rel=0.03)
    assert pvariance(gaps) == pytest.approx(fmean(gaps) ** 2, rel=0.06)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    """Goal: who prepares the bodies knows how many are sent."""
    assert poisson_arrivals(500.0, 2.0, Random(7)) == poisson_arrivals(500.0, 2.0, Random(7))


def test_a_rate_that_never_sends_is_refused() -> None:
    """Goal: an error, not an endless wait."""
    with pytest.raises(ValueError, match="never come"):
        poisson_arrivals(0.0, 1.0, Random(1))


def test_quantiles_are_measured_values() -> None:
    """Goal: nearest rank. Method: a thousand latencies of 1 to 1,000 ms, in any order; then one; then none."""
    latencies_s = [number / 1_000 for number in range(1, 1_001)]
    Random(1).shuffle(latencies_s)
    assert quantiles_ms(latencies_s) == {"p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0, "max": 1_000.0}
    assert set(quantiles_ms([0.002]).values()) == {2.0}
    with pytest.raises(ValueError, match="no request"):
        quantiles_ms([])


@pytest.mark.parametrize("end", range(1, 60))
def test_a_message_is_whole_with_its_last_byte_only(end: int) -> None:
    """Goal: answers may come in any pieces. Method: an answer, cut off everywhere."""
    answer = b"HTTP/1.1 200 OK\r\nX: y\r\ncontent-LENGTH: 11\r\n\r\n{a\r\n\r\nb: 1}"
    assert len(answer) == 56
    assert is_whole(answer[:end]) == (end >= len(answer))


def test_a_message_without_a_length_is_an_error() -> None:
    """Goal: no wait for an end that cannot be recognised."""
    with pytest.raises(ValueError, match="without a length"):
        is_whole(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


class Paused(asyncio.Protocol):
    """Answers at once, but for one pause, in which nobody is answered."""

    bodies: list[str]
    paused_until_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not is_whole(self.received):
            return
        self.bodies.append(self.received.partition(b"\r\n\r\n")[2].decode())
        self.received = b""
        loop = asyncio.get_running_loop()
        if len(self.bodies) == 100:
            Paused.paused_until_s = loop.time() + PAUSE_S
        loop.call_at(Paused.paused_until_s, self.answer)

    def answer(self) -> None:
        assert isinstance(self.transport, asyncio.WriteTransport)
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.thorough
async def test_a_pause_is_felt_by_all_who_come_in_it(tmp_path: Path) -> None:
    """Goal: latencies begin when requests are due, although connections are few; each body is sent once.

    Method: a server that pauses for half a second, two connections, 200 requests a second. A closed loop would see two
    slow answers.
    """
    per_second, duration_s = 200.0, 2.0
    Paused.bodies, Paused.paused_until_s = [], 0.0
    bodies = tmp_path / "bodies"
    bodies.write_text("".join(f"{json.dumps({'n': number})}\n" for number in range(1_000)))
    server = await asyncio.get_running_loop().create_server(Paused, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        settings = GeneratorSettings(
            host=host,
            port=port,
            path="/",
            bodies=str(bodies),
            from_byte=0,
            per_second=per_second,
            duration_s=duration_s,
            seed=3,
            connections_max=2,
        )
        result = await OpenLoop(settings).run()
    assert result.due == result.succeeded == len(poisson_arrivals(per_second, duration_s, Random(3)))
    assert len(Paused.bodies) == len(set(Paused.bodies)) == result.due
    assert result.failed == {}
    assert result.latency_ms["max"] >= 1_000 * PAUSE_S * 0.9
    assert result.latency_ms["p90"] >= 100.0  # a quarter of the requests came in the pause


@pytest.mark.thorough
async def test_the_generator_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Goal: it does what the bench asks of it, on the loop that it uses there. Method: the server that does nothing."""
    load = LoadGenerator(tmp_path, [Party("O=Bank,L=London,C=GB", LEDGER)])
    async with null_server() as endpoint:
        result = await run_open_loop(endpoint, load, 200.0, 0.5)
    assert result.due == result.succeeded > 0
    assert not list(tmp_path.iterdir())


async def test_failures_are_counted_by_status(tmp_path: Path) -> None:
    """Goal: an overloaded service does not look fast. Method: a server that refuses everything."""

    class Refusing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            assert isinstance(self.transport, asyncio.WriteTransport)
            self.transport.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    bodies = tmp_path / "bodies"
    bodies.write_text("{}\n" * 200)
    server = await asyncio.get_running_loop().create_server(Refusing, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        settings = GeneratorSettings(
            host=host, port=port, path="/", bodies=str(bodies), from_byte=0, per_second=100.0, duration_s=0.5, seed=1
        )
        result = await OpenLoop(settings).run()
    assert (result.succeeded, result.failed, result.latency_ms) == (0, {"503": result.due}, {})


def test_the_curve_shows_both_and_what_failed() -> None:
    """Goal: one picture for both, also where one of them answered nothing any more."""
    point = {"offered_per_s": 100.0, "failed": 0.0, "p50": 1.0, "p99": 2.0, "p99.9": 3.0}
    gone = {"offered_per_s": 200.0, "failed": 1.0}
    drawn = latency_curve({"notary": [point, point | {"offered_per_s": 200.0}], "alternative": [point, gone]}, 180.0)
    for text in ("notary, p99.9", "alternative, p50", "capacity"):
        assert text in drawn


def test_growth_has_the_empty_index_as_well() -> None:
    """Goal: the axis is logarithmic and still has 0."""
    assert "batches" in growth({"single": {0: 5.0, 10**8: 4.0}, "batches": {0: 9.0, 10**8: 8.0}})
