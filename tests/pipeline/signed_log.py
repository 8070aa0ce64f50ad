"""A log with true signatures, and what a notary would have published and answered on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
from nacl.signing import SigningKey

from ha.lock.ids import Counter, lock_id
from replica.active.publisher import completions_of
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.notary.canonical import content_digest
from replica.notary.receipts import Place, make_receipts, receipt_to_document
from replica.notary.records import (
    SignOfLifeRecord,
    encode_record,
    request_record,
)
from replica.notary.requests import Request, Submission, TimeWindow, make_request, state_ref
from replica.notary.terms import Terms, encode_canonical
from replica.store.postgres.migrate import migrate
from replica.store.postgres.store import PostgresStore
from tests.pipeline.judged import TOPIC
from tests.worlds.beginning import LEDGER, OFFICER, beginning, next_barrier

PARTY = "O=Bank A,L=London,C=GB"
PARTY_KEY, NOTARY_KEY = SigningKey(bytes(range(32))), SigningKey(bytes(range(32, 64)))
ACTIVATION, ACTIVATION_2 = b"\xa1" * 16, b"\xa3" * 16
BEGINNING = [*beginning(OFFICER, (PARTY, bytes(PARTY_KEY.verify_key))), next_barrier(2, ACTIVATION)]
FIRST = len(BEGINNING)  # offset of the first request


def tx(number: int) -> bytes:
    """A transaction id."""
    return number.to_bytes(32, "big")


def request(number: int, inputs: Sequence[int], references: Sequence[int] = (), until_us: int | None = None) -> Request:
    """A request that consumes states with these numbers, and refers to those."""
    window = None if until_us is None else TimeWindow(None, until_us)
    return make_request(
        tx(number),
        [state_ref(tx(1000 + s), s) for s in inputs],
        [state_ref(tx(1000 + s), s) for s in references],
        window,
        PARTY,
        ledger_id=LEDGER,
    )


def signed(one: Request, sequence: int, *, forged: bool = False) -> bytes:
    """A request record; a forged one has a signature over something else."""
    command = f"command-{sequence}"
    canonical = encode_canonical(one, Terms("alice", command, (PARTY,)))
    signature = PARTY_KEY.sign(b"other" if forged else canonical).signature
    submission = Submission(
        canonical, bytes(PARTY_KEY.verify_key), signature, "alice", command, (PARTY,), f"s{sequence}"
    )
    return encode_record(request_record(2, ACTIVATION, sequence, 1_000_000 + sequence, submission, 10**9))


def requests() -> list[Request]:
    """Notarised, conflicting over inputs and a reference, repeated, too late, id reused, free again."""
    return [
        request(1, [1]),
        request(2, [1, 2]),
        request(3, [2], [9]),
        request(4, [5], [1]),
        request(1, [1]),
        request(5, [6], until_us=5),
        request(1, [7]),
        request(6, [7, 8]),
    ]


def log_values(forged: int | None = None) -> list[bytes]:
    """The beginning, the requests, a sign of life, a record of nobody's activation."""
    asked = [signed(one, at, forged=at == forged) for at, one in enumerate(requests())]
    alive = encode_record(SignOfLifeRecord(2, ACTIVATION, 50, 9_000_000))
    return [*BEGINNING, *asked, alive, asked[0].replace(ACTIVATION, b"\xa2" * 16)]


def longer_values() -> list[bytes]:
    """The same log, and one more activation from offset 14: each step of the rules, with and without terms."""
    terms = Terms("alice", "signed", (PARTY,), 500)
    return [
        *log_values(),
        next_barrier(3, ACTIVATION_2, "r2"),
        _signed_2(request(1, [1]), 0, "command-0"),  # 15: accepted before
        _signed_2(request(8, [20]), 1, "command-0"),  # its command with another transaction
        _signed_2(request(8, [20]), 2, "signed", terms=terms),  # 17
        _signed_2(request(8, [20]), 3, "signed", terms=terms, stamp_us=2_000_501),  # too late for its period
        _signed_2(request(9, [1]), 4, "command-1"),  # 19: refused before, and now for another state
        _signed_2(request(8, [20]), 5, "command-0", stamp_us=2_000_502, period_us=1),  # 20: long ago
        encode_record(SignOfLifeRecord(2, ACTIVATION_2, 6, 9_000_000)),
    ]


def _signed_2(
    one: Request,
    sequence: int,
    command: str,
    *,
    stamp_us: int = 2_000_000,
    period_us: int = 10**9,
    terms: Terms | None = None,
) -> bytes:
    canonical = encode_canonical(one, terms or Terms("alice", command, (PARTY,)))
    signature = PARTY_KEY.sign(canonical).signature
    sent = Submission(canonical, bytes(PARTY_KEY.verify_key), signature, "alice", command, (PARTY,), f"s{sequence}")
    period_us = period_us if terms is None or terms.deduplication_us is None else terms.deduplication_us
    return encode_record(request_record(2, ACTIVATION_2, sequence, stamp_us, sent, period_us))


async def publish(dsn: str, values: Sequence[bytes]) -> None:
    """Give a new database its schema, and let the replica's own code publish a log there."""
    await migrate(dsn, lock_id("audit", Counter.NODE_MIGRATIONS))
    applied = Applier(MemoryIndex(), TOPIC).apply(list(enumerate(values)))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        store = PostgresStore(_Session(connection))
        await store.bind(TOPIC)
        await store.published()
        await store.publish(completions_of(applied), applied.position)


class _Session:
    """A session that nobody contends for."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    @asynccontextmanager
    async def statement(self, name: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        yield self._connection


def history() -> list[dict[str, Any]]:
    """What clients really got: a success with its receipt, a refusal, and a bare receipt."""
    first, third = requests()[0], requests()[2]
    pairs = [(one.tx_id, content_digest(one)) for one in (first, third)]
    key = bytes(NOTARY_KEY.verify_key)
    places = [Place("log", FIRST, 2, 1_000), None]
    receipts = make_receipts(pairs, key, lambda message: NOTARY_KEY.sign(message).signature, places)
    documents = [msgspec.to_builtins(receipt_to_document(receipt)) for receipt in receipts]
    ok = {"type": "ok", "process": "p", "op": 0, "at_ns": 1, "log_offset": FIRST, "record_offset": FIRST + 4}
    return [
        {"type": "invoke", "process": "p", "op": 0, "at_ns": 0, "tx_id": first.tx_id.hex()},
        ok | {"content_digest": pairs[0][1].hex(), "receipt": documents[0]},
        {"type": "refused", "process": "p", "op": 1, "at_ns": 3, "code": "STATE_CONFLICT", "record_offset": FIRST + 1},
        documents[1],
    ]
