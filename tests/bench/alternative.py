"""The obvious alternative, behind the same front ends: a Postgres table with a unique key for each consumed state.

Each transaction is one statement that records the transaction ids and their states, in the one round trip of an
implicit transaction; the unique keys refuse what was there before. `batch_max` 1: one transaction per request, over a
pool of connections. Above: all that arrived together in one transaction, and after a refusal each request by itself.
Receipts are signed as the notary's are, a batch with one signature. There is no request log, no deduplication, no
completion, no fail-over and no answer that names a conflict's winner: whatever that costs, the alternative saves.
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
from typing import Any

import psycopg
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import errors

from ha.clock import SystemClock
from ha.health import HealthListener, Probes
from replica.link.interface import DEFAULT_OPTIONS, Replies, Standing, SubmitOptions
from replica.link.settings import LinkSettings
from replica.link.unix_server import LinkServer
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.receipts import make_receipts
from replica.notary.requests import Request, Submission
from replica.notary.terms import decode_canonical
from replica.operators.front_ends import FrontEnds
from replica.store.postgres.arrays import byteas, register
from replica.wiring import front_end_argv
from tests.worlds.beginning import LEDGER

SCHEMA = """
CREATE TABLE IF NOT EXISTS alternative_spent (state bytea PRIMARY KEY, tx_id bytea NOT NULL);
CREATE TABLE IF NOT EXISTS alternative_tx (tx_id bytea PRIMARY KEY, content_digest bytea NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY);
"""
RECORD = b"""
WITH states AS (
    INSERT INTO alternative_spent (state, tx_id) SELECT * FROM unnest(%(states)b::bytea[], %(spent_by)b::bytea[])
)
INSERT INTO alternative_tx (tx_id, content_digest) SELECT * FROM unnest(%(tx_ids)b::bytea[], %(digests)b::bytea[])
RETURNING position
"""

Connection = psycopg.AsyncConnection[Any]
Item = tuple[Replies, int, Submission]


class Alternative:
    """A handler for the front ends' link over the two tables."""

    def __init__(self, connections: Sequence[Connection], batch_max: int) -> None:
        self._connections = connections
        self._batch_max = batch_max
        self._queue: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._key = Ed25519PrivateKey.generate()
        self.public_key = self._key.public_key().public_bytes_raw()

    def standing(self) -> Standing:
        """Always active: there is one of it."""
        return Standing(True, 1, 1.0, ledger_id=LEDGER)

    def submit(
        self, replies: Replies, batch: list[tuple[int, Submission]], options: SubmitOptions = DEFAULT_OPTIONS
    ) -> None:
        """Queue. The options are not looked at: nothing is deduplicated here, and everybody waits."""
        self._queue.extend((replies, ticket, submission) for ticket, submission in batch)
        self._arrived.set()

    def look_up(self, replies: Replies, batch: list[tuple[int, bytes]]) -> None:
        """Not offered."""
        replies.send([(ticket, NotNow(Code.INTERNAL.name, "not offered", 1.0)) for ticket, _ in batch])

    def ask_log(self, replies: Replies, ticket: int, question: object) -> None:
        """Not offered."""
        replies.send([(ticket, NotNow(Code.INTERNAL.name, "not offered", 1.0))])

    async def work(self) -> None:
        """One worker per connection, for ever."""
        await asyncio.gather(*(self._work(connection) for connection in self._connections))

    async def _work(self, connection: Connection) -> None:
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            items = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
            decoded = [decode_canonical(submission.request)[:2] for _, _, submission in items]
            self._answer(items, decoded, await self._record(connection, decoded))

    async def _record(self, connection: Connection, decoded: list[tuple[Request, bytes]]) -> list[int | None]:
        """The position of each request, None for one that met a conflict."""
        values = {
            "tx_ids": byteas([request.tx_id for request, _ in decoded]),
            "digests": byteas([digest for _, digest in decoded]),
            "states": byteas([ref for request, _ in decoded for ref in request.inputs]),
            "spent_by": byteas([request.tx_id for request, _ in decoded for _ in request.inputs]),
        }
        try:
            cursor = await connection.execute(RECORD, values, prepare=True, binary=True)
            return [position for (position,) in await cursor.fetchall()]
        except errors.UniqueViolation:
            if len(decoded) == 1:
                return [None]
        return [(await self._record(connection, [one]))[0] for one in decoded]

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


async def serve(settings: Mapping[str, Any]) -> None:
    """Run until killed. Settings: conninfo, connections, batch_max, folder, health_port, api, workers."""
    folder = Path(settings["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    connections = [
        await psycopg.AsyncConnection.connect(settings["conninfo"], autocommit=True)
        for _ in range(settings["connections"])
    ]
    for connection in connections:
        register(connection)
    await connections[0].execute(SCHEMA)
    handler = Alternative(connections, settings["batch_max"])
    generation, link_settings = secrets.token_hex(16), LinkSettings()
    link = LinkServer(folder / "link.sock", generation, handler, link_settings)
    await link.start()

    def is_there() -> bool:
        return bool(len(link.front_ends) == settings["workers"])

    probes = Probes(is_live=is_there, is_ready=is_there, is_active=is_there, detail=dict)
    await HealthListener(probes, host="127.0.0.1", port=settings["health_port"]).start()

    def document(number: int) -> Mapping[str, object]:
        return {
            "name": f"alternative/api-{number}",
            "replica": "alternative",
            "core_pid": os.getpid(),
            "database": "dbname=unused",
            "link_path": str(folder / "link.sock"),
            "generation": generation,
            "link": link_settings.model_dump(mode="json"),
            "api": settings["api"],
            "notary_key": handler.public_key.hex(),
            "version": "0",
        }

    front_ends = FrontEnds(
        front_end_argv(),
        settings["workers"],
        document,
        SystemClock(),
        link,
        drain_max_s=1.0,
    )
    await asyncio.gather(handler.work(), front_ends.run())


if __name__ == "__main__":
    uvloop.run(serve(json.loads(Path(sys.argv[1]).read_text())))
