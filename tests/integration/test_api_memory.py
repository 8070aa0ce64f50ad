"""The largest answers that there are, many at a time: a front end of its own over a real Postgres, its memory watched.

A conflict of 9,999 states has 1.9 MB of JSON. Bounds are small here; a caller that finds no room is refused and asks
again.
"""

# ruff: noqa: F811 (fixtures come by import)
from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec
import psycopg
import pytest

from ledger_api.client import NotaryClient
from ledger_api.client.signing import encode_submission
from replica.link.interface import DEFAULT_OPTIONS, Replies, TicketedLookUp, TicketedSubmission
from replica.notary.answers import Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.rules import Conflict, Usage
from replica.notary.terms import decode_canonical
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.integration.test_api_exhaustion import MIB, SUBMIT, attacked, together
from tests.integration.test_api_process import Core, core, folder  # noqa: F401 (fixtures)
from tests.worlds.api_world import ACTIVE, make_submission, notarise

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

ROWS, STATES = 60, 9_999
WINNER = b"\x01" * 32
STATE = b"\x0a" * 32 + bytes(4)  # which every one of them wanted
ROOM = {"answers_max_bytes": 12 * MIB, "page_max_bytes": 4 * MIB, "stream_read_max_s": 20.0}
_INSERT = """
    COPY completion (ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
                     content_digest, outcome, notarised_offset, recorded_us, detail)
    FROM STDIN (FORMAT BINARY)"""


def largest_detail(number: int) -> bytes:
    """A conflict of as many states as a request may have; all rows have STATE, the rest is their own."""
    states = [STATE, *(os.urandom(36) for _ in range(STATES - 1))]
    return msgspec.msgpack.encode([Conflict(state, os.urandom(32), Usage.INPUT) for state in states])


async def fill(dsn: str) -> None:
    connection = await psycopg.AsyncConnection.connect(dsn)
    kinds = ["int8", "int8", "bytea", "text", "text", "text[]", "text", "bytea", "bytea", "text", "int8", "int8"]
    async with connection, connection.cursor() as cursor, cursor.copy(_INSERT) as copy:
        copy.set_types([*kinds, "bytea"])
        for n in range(1, ROWS + 1):
            tx_id = n.to_bytes(32, "big")
            row = (n, n, tx_id, "alice", f"c{n}", ["O=A"], "s", tx_id, tx_id, Code.STATE_CONFLICT.name, None, n)
            await copy.write_row((*row, largest_detail(n)))


class Beaten:
    """A core at which every large request meets a conflict in each of its states; a small one is notarised."""

    word = ACTIVE

    def standing(self) -> Any:
        return self.word

    def submit(self, replies: Replies, batch: list[TicketedSubmission], options: Any = DEFAULT_OPTIONS) -> None:
        for ticket, submission in batch:
            request = decode_canonical(submission.request).request
            if len(request.inputs) < 100:
                replies.send([(ticket, notarise(submission))])
                continue
            conflicts = tuple(Conflict(state, bytes(32), Usage.REFERENCE) for state in request.inputs)
            replies.send([(ticket, Refused(Code.STATE_CONFLICT.name, request.tx_id, 1, conflicts))])

    def look_up(self, replies: Replies, batch: list[TicketedLookUp]) -> None:
        replies.send([(ticket, StateStatus(state, WINNER, 1)) for ticket, state in batch])


@pytest.fixture
async def large(core: Core, make_database: MakeDatabase) -> AsyncIterator[Core]:
    """A core whose ledger has nothing but the largest conflicts."""
    core.database = await make_database()
    await migrate(core.database, 1)
    await fill(core.database)
    core.handler = core.link.handler = Beaten()  # type: ignore[assignment]
    core.handler.word = msgspec.structs.replace(ACTIVE, ledger_end=ROWS)
    yield core


async def ask(session: aiohttp.ClientSession, url: str) -> bytes:
    """A page, asked for until there is room."""
    while True:
        async with session.get(url) as response:
            body = await response.read()
            if response.status == 200:
                return body
            assert json.loads(body)["retry"] == "same"  # no room, or a front end without an answer of its core
        await asyncio.sleep(0.1)


async def read_all(endpoint: str, path: str, rows: str) -> list[int]:
    """All offsets, page by page. Every page has something, and its rows are bounded."""
    after, found = 0, []
    async with aiohttp.ClientSession() as session:
        while after < ROWS:
            body = await ask(session, f"{endpoint}{path}{'&' if '?' in path else '?'}after={after}")
            assert len(body) <= ROOM["page_max_bytes"] + 1_000
            page = json.loads(body)
            assert page["next_after"] > after
            assert page[rows]
            found += [row["offset"] for row in page[rows]]
            after = page["next_after"]
    return found


@pytest.mark.thorough
async def test_pages_of_the_largest_conflicts_are_bounded_in_bytes(large: Core) -> None:
    """Goal: 60 conflicts of 9,999 states make no page of 105 MiB. Method: five readers at once read all of them, by
    pages of 1,000 rows; all get every row once."""
    async with attacked(large, **ROOM):
        path = "/v1/completions?limit=1000"
        found = await asyncio.gather(*(read_all(large.endpoint, path, "completions") for _ in range(5)))
    assert found == [list(range(1, ROWS + 1))] * 5


@pytest.mark.thorough
async def test_streams_of_the_largest_conflicts_are_bounded_in_bytes(large: Core) -> None:
    """Goal: what streams are given at a time is bounded, of all together. Method: 15 that take nothing, 4 that read."""
    async with attacked(large, **ROOM | {"stream_read_max_s": 8.0}) as victim:
        asleep = [await victim.connect() for _ in range(15)]
        for _, writer in asleep:
            writer.write(b"GET /v1/completions?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await victim.serves_others()
        for _, writer in asleep[5:]:
            writer.close()

        async def follow(_: int) -> None:
            async with NotaryClient(large.endpoint) as client, aclosing(client.completions(ROWS - 30)) as completions:
                async for completion in completions:
                    if completion.offset == ROWS:
                        break

        await together(4, follow)
        for _, writer in asleep:
            writer.close()


async def test_answers_of_the_largest_conflicts_that_nobody_reads_are_bounded(large: Core) -> None:
    """Goal: a caller that submits the largest requests and takes no answer fills nothing. Method: 40 such at once."""
    body = encode_submission(make_submission(inputs_count=STATES))
    request = SUBMIT + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with attacked(large, **ROOM) as victim:

        async def submit(_: int) -> None:
            reader, writer = await victim.connect()
            writer.write(request)
            await writer.drain()
            await asyncio.sleep(2)
            head = await reader.read(100)
            assert b"409" in head or b"503" in head
            writer.close()

        await together(40, submit)
