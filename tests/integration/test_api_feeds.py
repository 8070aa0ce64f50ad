"""Streams and pages over real HTTP: chunks, events, slow readers, bounds, ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from replica.store.interface import NOTARISED, Completion
from tests.waiting import eventually
from tests.worlds.api_world import ACTIVE, PASSIVE, ApiWorld, StubParticipant


def completion(number: int, detail_bytes: int = 0) -> Completion:
    tx_id = number.to_bytes(32, "big")
    user = "alice" if number % 2 else "bob"
    text = "s" * (1 + detail_bytes)  # a long text stands for whatever makes a line long
    return Completion(
        number, tx_id, user, f"c{number}", ("O=A,C=GB",), text, tx_id, tx_id, NOTARISED, number, number * 1_000_000
    )


class Ledger(StubParticipant):
    """A participant whose ledger grows on command."""

    def publish(self, count: int, detail_bytes: int = 0) -> None:
        rows = self.database.completions
        for _ in range(count):
            rows.append((len(rows) + 1, completion(len(rows) + 1, detail_bytes)))
        self.say(ledger_end=len(rows))

    def say(self, **changes: Any) -> None:
        self.standing = msgspec.structs.replace(self.standing, **changes)
        self.standing_changes.notify()


@contextlib.asynccontextmanager
async def opened(
    world: ApiWorld, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(world.endpoint + path, headers=headers) as response,
    ):
        yield response


async def get(world: ApiWorld, path: str) -> tuple[int, Any]:
    async with opened(world, path) as response:
        return response.status, await response.json(content_type=None)


async def line_of(response: aiohttp.ClientResponse) -> Any:
    return json.loads(await response.content.readline())


async def streams(world: ApiWorld, count: int) -> None:
    """Wait until this many are open."""

    async def are_open() -> bool:
        return world.counts.streams == count

    await eventually(are_open)


async def test_a_stream_catches_up_goes_on_live_and_tells_its_end(tmp_path: Path) -> None:
    """Goal: newline-delimited JSON from an offset on. Method: publish under an open stream, then step down."""
    ledger = Ledger()
    ledger.publish(3)
    async with ApiWorld(ledger).serve() as world:
        async with opened(world, "/v1/completions?after=1&follow=true", {"X-Request-Id": "r-1"}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "application/x-ndjson"
            assert [(await line_of(response))["offset"] for _ in range(2)] == [2, 3]
            ledger.publish(1)
            assert (await line_of(response))["command_id"] == "c4"
            assert world.counts.streams == 1
            ledger.standing = PASSIVE
            ledger.standing_changes.notify()
            last = await line_of(response)
            assert (last["kind"], last["offset"], last["problem"]["code"]) == ("end", 4, "NOT_ACTIVE")
            assert (last["problem"]["retry"], last["problem"]["request_id"]) == ("same", "r-1")
            assert await response.content.read() == b""
        await streams(world, 0)


async def test_two_streams_and_a_page_have_the_same_bytes(tmp_path: Path) -> None:
    """Goal: a completion is the same bytes wherever it is read. Method: two worlds over one ledger, stream and page."""
    ledger = Ledger()
    ledger.publish(5)
    streamed = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        folder.mkdir()
        async with ApiWorld(ledger).serve() as world:
            async with opened(world, "/v1/completions?follow=true") as response:
                streamed.append([await response.content.readline() for _ in range(5)])
            async with opened(world, "/v1/completions") as response:
                page = msgspec.json.decode(await response.read(), type=dict[str, msgspec.Raw])
    assert streamed[0] == streamed[1]
    assert [bytes(raw) for raw in msgspec.json.decode(page["completions"], type=list[msgspec.Raw])] == [
        line.rstrip(b"\n") for line in streamed[0]
    ]


async def test_events_resume_from_the_last_one_a_browser_had(tmp_path: Path) -> None:
    """Goal: EventSource works by itself. Method: ask for events with Last-Event-ID, and a silence."""
    ledger = Ledger()
    ledger.publish(2)
    async with ApiWorld(ledger, checkpoint_s=0.05).serve() as world:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        async with opened(world, "/v1/updates?after=0&follow=true", headers) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            lines = [await response.content.readline() for _ in range(8)]
    assert lines[0:2] == [b"id: 2\n", b"event: update\n"]
    assert json.loads(lines[2].removeprefix(b"data: "))["offset"] == 2
    assert lines[3:] == [b"\n", b"id: 2\n", b"event: checkpoint\n", b'data: {"kind":"checkpoint","offset":2}\n', b"\n"]


async def test_http_1_0_gets_lines_without_chunks(tmp_path: Path) -> None:
    """Goal: the simplest client can read a stream. Method: HTTP/1.0 by hand; the stop of the server ends it."""
    ledger = Ledger()
    ledger.publish(1)
    async with ApiWorld(ledger).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"GET /v1/completions?follow=true HTTP/1.0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"chunked" not in head
        assert json.loads(await reader.readline())["offset"] == 1
        await world.feed.close()
        assert json.loads(await reader.readline())["kind"] == "end"
        assert await reader.read() == b""
        writer.close()


async def test_a_reader_that_takes_nothing_is_cut_and_can_go_on(tmp_path: Path) -> None:
    """Goal: memory is bounded and nothing is lost. Method: a reader that stops, 16 MB of lines, then a new stream."""
    ledger = Ledger()
    ledger.publish(4_000, detail_bytes=4_000)
    async with ApiWorld(ledger, stream_read_max_s=0.3).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=2**16)
        writer.write(b"GET /v1/completions?follow=true HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await streams(world, 1)
        await asyncio.sleep(0.35)  # longer than the reader may sleep, shorter than it has for the last line
        seen = [json.loads(line) for line in (await reader.read()).splitlines()]
        writer.close()
        assert seen[-1]["problem"]["code"] == "READER_TOO_SLOW"
        assert [line["offset"] for line in seen[:-1]] == list(range(1, seen[-1]["offset"] + 1))
        assert len(seen) < 4_000
        async with opened(world, f"/v1/completions?follow=true&after={seen[-1]['offset']}") as response:
            assert (await line_of(response))["offset"] == seen[-1]["offset"] + 1


async def test_streams_are_bounded(tmp_path: Path) -> None:
    """Goal: one client cannot take all. Method: one more stream than may be open; then close one."""
    ledger = Ledger()
    ledger.publish(1)
    async with ApiWorld(ledger, streams_max=1).serve() as world:
        async with opened(world, "/v1/completions?follow=true") as response:
            await line_of(response)
            async with opened(world, "/v1/completions?follow=true") as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
                assert (await refused.json(content_type=None))["code"] == "TOO_MANY_STREAMS"
            assert (await get(world, "/v1/completions"))[0] == 200
        await streams(world, 0)


async def test_bounds_and_mistakes_have_answers_of_their_own(tmp_path: Path) -> None:
    """Goal: a client knows what to do. Method: one call for each refusal."""
    ledger = Ledger()
    ledger.publish(20)
    ledger.say(pruned_to=5)
    async with ApiWorld(ledger).serve() as world:
        for follow in ("", "&follow=true"):
            status, pruned = await get(world, "/v1/completions?after=4" + follow)
            assert (status, pruned["code"], pruned["pruned_to"], pruned["retry"]) == (410, "OFFSET_PRUNED", 5, "no")
            status, ahead = await get(world, "/v1/updates?after=21" + follow)
            assert (status, ahead["code"], ahead["ledger_end"], ahead["retry"]) == (416, "OFFSET_AFTER_END", 20, "same")
        for path in ("/v1/updates?user_id=a", "/v1/completions?limit=1&follow=true", "/v1/ledger-end?after=1"):
            status, problem = await get(world, path)
            assert (status, problem["code"]) == (400, "QUERY_INVALID")
        assert await get(world, "/v1/ledger-end") == (200, {"ledger_end": 20, "pruned_to": 5})
        ledger.standing = PASSIVE
        for path in ("/v1/completions", "/v1/ledger-end", "/v1/completions?follow=true"):
            status, problem = await get(world, path)
            assert (status, problem["code"]) == (503, "NOT_ACTIVE")
        ledger.standing = msgspec.structs.replace(ACTIVE, ledger_end=20, pruned_to=5)
        status, page = await get(world, "/v1/completions?after=5&user_id=bob&limit=3&party=O%3DA%2CC%3DGB")
        assert ([c["offset"] for c in page["completions"]], page["next_after"]) == ([6, 8, 10], 10)
        assert (page["ledger_end"], page["pruned_to"]) == (20, 5)
