"""The obvious alternative, behind the same front ends: a Postgres table with a unique key for each consumed state.

Two forms, each as good as we know how to make it. `single`: one database transaction per request, over a pool of
connections. `batch`: all that arrived together in one statement and one transaction, `ON CONFLICT DO NOTHING`, and only
requests that met a conflict again by themselves. Both remember transaction ids with their content and sign receipts as
the notary does, a batch with one signature. There is no request log, no completions and no fail-over.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ha.clock import SystemClock
from replica.core.front_ends import FrontEnds
from replica.core.main import front_end_argv
from replica.link.interface import Replies, Standing
from replica.link.settings import LinkSettings
from replica.link.unix import LinkServer
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.canonical import decode_request
from replica.notary.errors import Code
from replica.notary.receipts import make_receipts
from replica.notary.requests import Request, Submission

BATCH_MAX = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS alternative_spent (state bytea PRIMARY KEY, tx_id bytea NOT NULL);
CREATE TABLE IF NOT EXISTS alternative_tx (tx_id bytea PRIMARY KEY, content_digest bytea NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY);
"""
_ADD_TX = """
INSERT INTO alternative_tx (tx_id, content_digest) SELECT * FROM unnest(%b::bytea[], %b::bytea[])
ON CONFLICT DO NOTHING RETURNING tx_id, position
"""
_ADD_STATES = """
INSERT INTO alternative_spent (state, tx_id) SELECT * FROM unnest(%b::bytea[], %b::bytea[])
ON CONFLICT DO NOTHING RETURNING tx_id
"""

Item = tuple[Replies, int, Submission]


class Alternative:
    """A handler for the front ends' link over the two tables."""

    def __init__(self, connections: Sequence[psycopg.AsyncConnection[tuple[object, ...]]], batch_max: int) -> None:
        self._connections = connections
        self._batch_max = batch_max
        self._queue: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._key = Ed25519PrivateKey.generate()
        self.public_key = self._key.public_key().public_bytes_raw()

    def standing(self) -> Standing:
        """Always active: there is one of it."""
        return Standing(True, 1, 1.0)

    def submit(self, replies: Replies, batch: list[tuple[int, Submission]]) -> None:
        """Queue."""
        self._queue.extend((replies, ticket, submission) for ticket, submission in batch)
        self._arrived.set()

    def look_up(self, replies: Replies, batch: list[tuple[int, bytes]]) -> None:
        """Not offered."""
        replies.send([(ticket, NotNow(Code.INTERNAL.name, "not offered", 1.0)) for ticket, _ in batch])

    async def work(self) -> None:
        """One worker per connection, for ever."""
        await asyncio.gather(*(self._work(connection) for connection in self._connections))

    async def _work(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            items = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
            decoded = [decode_request(submission.request) for _, _, submission in items]
            positions = await self._store(connection, decoded)
            self._answer(items, decoded, positions)

    async def _store(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], decoded: list[tuple[Request, bytes]]
    ) -> list[int | None]:
        """The position of each request, None for one that met a conflict."""
        added, whole = await self._insert(connection, decoded)
        if whole:
            return [added.get(request.tx_id) for request, _ in decoded]
        if len(decoded) == 1:
            return [None]
        return [(await self._store(connection, [one]))[0] for one in decoded]

    async def _insert(
        self, connection: psycopg.AsyncConnection[tuple[object, ...]], decoded: list[tuple[Request, bytes]]
    ) -> tuple[dict[object, int], bool]:
        states = [(ref, request.tx_id) for request, _ in decoded for ref in request.inputs]
        async with connection.transaction() as transaction:
            async with connection.pipeline():
                txs = await connection.execute(_ADD_TX, ([r.tx_id for r, _ in decoded], [d for _, d in decoded]))
                spent = await connection.execute(_ADD_STATES, ([s for s, _ in states], [tx for _, tx in states]))
            added = {tx_id: int(str(position)) for tx_id, position in await txs.fetchall()}
            whole = len(added) == len(decoded) and spent.rowcount == len(states)
            if not whole:
                raise psycopg.Rollback(transaction)
        return added, whole

    def _answer(self, items: list[Item], decoded: list[tuple[Request, bytes]], positions: list[int | None]) -> None:
        contents = [(r.tx_id, digest) for (r, digest), at in zip(decoded, positions, strict=True) if at is not None]
        receipts = iter(make_receipts(contents, self.public_key, self._key.sign))
        by_front_end: dict[Replies, list[tuple[int, Answer]]] = {}
        for (replies, ticket, _), (request, digest), at in zip(items, decoded, positions, strict=True):
            answer: Answer = (
                Refused(Code.STATE_CONFLICT.name, request.tx_id)
                if at is None
                else Notarised(request.tx_id, digest, at, at, False, next(receipts))
            )
            by_front_end.setdefault(replies, []).append((ticket, answer))
        for replies, answers in by_front_end.items():
            replies.send(answers)


async def serve(settings: Mapping[str, object]) -> None:
    """Run until killed. Settings: conninfo, connections, batch_max, folder, api (the front ends' own), workers."""
    folder = Path(str(settings["folder"]))
    folder.mkdir(parents=True, exist_ok=True)
    connections = [
        await psycopg.AsyncConnection.connect(str(settings["conninfo"]), autocommit=True)
        for _ in range(int(str(settings["connections"])))
    ]
    for connection in connections:
        connection.prepare_threshold = 0
    await connections[0].execute(_SCHEMA)
    handler = Alternative(connections, int(str(settings["batch_max"])))
    generation, link_settings = secrets.token_hex(16), LinkSettings()
    link = LinkServer(folder / "link.sock", generation, handler, link_settings)
    await link.start()

    def document(number: int) -> Mapping[str, object]:
        return {
            "name": f"alternative/api-{number}",
            "replica": "alternative",
            "core_pid": os.getpid(),
            "link_path": str(folder / "link.sock"),
            "generation": generation,
            "link": link_settings.model_dump(mode="json"),
            "api": settings["api"],
            "notary_key": handler.public_key.hex(),
            "version": "0.1.0",
        }

    front_ends = FrontEnds(front_end_argv(), int(str(settings["workers"])), document, SystemClock())
    await asyncio.gather(handler.work(), front_ends.run())


if __name__ == "__main__":
    uvloop.run(serve(json.load(sys.stdin)))
