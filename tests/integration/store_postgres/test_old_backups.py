"""A database that was restored from an old backup: what was in flight then, and all that was published since.

A backup under load has commands in flight. Restored much later, the completions of months lie between those commands
and the ledger's end, and each activation must find out which are still in flight, within its statements' limits.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from ha.lock.postgres import PostgresLockSession
from replica.notary.position import encode_position
from replica.store.interface import NOTARISED
from replica.store.memory import MemoryDatabase
from replica.store.postgres import store as postgres
from replica.store.postgres.status import read_status
from replica.store.postgres.store import PostgresStore, named_statement
from tests.contracts.store_contract import (
    REJECTED,
    TOPIC,
    NewStore,
    activated,
    at,
    command,
    completion,
    in_order,
    serving,
)
from tests.integration.store_postgres.world import looking, open_session, rows, sessions

pytestmark = pytest.mark.postgres

# What a catch-up publishes, written at once by the server: other people's commands, one completion each.
_REPUBLISHED = """
    INSERT INTO completion
    SELECT i, i, sha256(('change' || i)::bytea), 'alice', md5(i::text), array['O=Bank A,L=London,C=GB'], md5(i::text),
           sha256(('tx' || i)::bytea), sha256(('digest' || i)::bytea), 'NOTARISED', i, i, ''::bytea
      FROM participant, generate_series(ledger_end + 1, ledger_end + {count}) i
"""


async def republish(dsn: str, count: int) -> None:
    """Add completions of others after what the backup has, as an older release left them."""
    async with looking(dsn) as connection:
        await connection.execute(_REPUBLISHED.format(count=count).encode())
        moved = await connection.execute(
            b"UPDATE participant SET ledger_end = ledger_end + %s RETURNING ledger_end", (count,)
        )
        ((end,),) = await moved.fetchall()
        values = (end, encode_position(at(int(str(end)))))
        await connection.execute(b"UPDATE participant SET published_offset = %s, published_position = %s", values)


@asynccontextmanager
async def heartbeats(session: PostgresLockSession) -> AsyncIterator[None]:
    """As the election does: a lock session that is silent for the lease is ended by the server."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.4)
            await session.confirm()

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


async def rows_touched(dsn: str, statement: str, values: dict[str, int] | None = None) -> int:
    """The most rows of completions that any step of a statement's plan takes in hand."""
    async with looking(dsn) as connection:
        await connection.execute(named_statement("prepare_session"))
        text = b"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) " + named_statement(statement)
        found = await (await connection.execute(text, {"limit": 50_000} | (values or {}))).fetchone()
    assert found is not None
    plan = found[0] if isinstance(found[0], list) else json.loads(str(found[0]))
    return max(_rows_of_completions(plan[0]["Plan"]))


def _rows_of_completions(node: dict[str, object]) -> list[int]:
    here = [int(float(str(node["Actual Rows"])))] if node.get("Relation Name") == "completion" else [0]
    below = node.get("Plans", [])
    assert isinstance(below, list)
    return here + [count for child in below for count in _rows_of_completions(child)]


async def test_what_is_in_flight_costs_the_same_however_old_the_backup_is(new_store: NewStore, dsn: str) -> None:
    """Goal: no statement of an activation grows with the backup's age. Method: five pages of completions behind one
    command in flight; the rows that the statements take in hand, before and after the activation has asked."""
    page = 20_000
    await (await serving(new_store)).admit([command(1), command(2)], 0)
    await republish(dsn, 5 * page)
    after = await activated(new_store)
    assert await after.pending(10) == in_order([command(1), command(2)])
    assert await rows_touched(dsn, "pending") <= page
    assert (await read_status(dsn)).in_flight == 2


async def test_no_step_that_carries_on_takes_more_than_a_page_in_hand(new_store: NewStore, dsn: str) -> None:
    """Goal: as above, of the steps themselves. Method: the plan of one of them, carried out on fifty pages."""
    await (await serving(new_store)).admit([command(n) for n in range(100)], 0)
    await republish(dsn, 50_000)
    assert await rows_touched(dsn, "carry", {"low": 20_000, "high": 21_000}) == 1_000
    assert await rows_touched(dsn, "in_flight_span") == 0


async def test_what_a_catch_up_publishes_is_carried_past_at_once(
    new_store: NewStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a catch-up that is cut short leaves little to look at. Method: pages of five; publish, and never ask."""
    monkeypatch.setattr(postgres, "CARRY_ROWS", 5)
    await (await serving(new_store)).admit([command(1), command(2)], 0)
    store = await activated(new_store)
    for n in range(50):
        await store.publish([completion(command(1) if n == 20 else command(1_000 + n), n)], at(n))
    ((behind, numbers),) = await rows(dsn, "SELECT min(ledger_end), count(*) FROM admission")
    assert (behind, numbers) == (45, 1)
    assert await (await activated(new_store)).pending(10) == [command(2)]


@pytest.mark.parametrize("seed", range(2))
async def test_pages_and_the_double_agree(
    new_store: NewStore, dsn: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Goal: no command is lost or settled twice at a page's edge. Method: random commands, resubmissions under the same
    submission id among them; restores, catch-ups in pieces, and activations, on both."""
    monkeypatch.setattr(postgres, "CARRY_ROWS", 3)
    chance, memory, offset = random.Random(seed), MemoryDatabase(), 0
    store = await serving(new_store)
    for _ in range(12):
        for _ in range(chance.randrange(1, 4)):
            asked = [command(chance.randrange(9), submission=chance.choice("ab")) for _ in range(4)]
            assert await store.admit(asked, 10**9) == memory.admit(asked, 10**9)
        store = await activated(new_store)
        for _ in range(chance.randrange(6)):
            done = []
            for _ in range(chance.randrange(5)):
                offset += 1
                of = chance.choice([*memory.in_flight.values(), command(100 + offset)])
                done.append(completion(of, offset, chance.choice([NOTARISED, REJECTED])))
            offset += 1
            assert await store.publish(done, at(offset)) == memory.publish(done, at(offset))
            if chance.random() < 0.3:
                store = await activated(new_store)
        left = memory.pending(100)
        assert await store.pending(100) == left
        if left:
            offset += 1
            settled = [completion(of, offset, REJECTED) for of in left]
            assert await store.publish(settled, at(offset)) == memory.publish(settled, at(offset))
            assert await store.pending(100) == []


@pytest.mark.slow
async def test_two_million_completions_behind_a_backup_do_not_wedge_activation(dsn: str) -> None:
    """Goal: an activation on an old backup ends. Method: a command in flight, two million completions behind it, the
    limits of a real lock session, heartbeats beside; one of the commands is settled, and a second activation asks."""
    async with sessions(dsn) as opened:
        session = await open_session(dsn, opened)
        store = await _activated(session)
        assert await store.pending(10) == []
        await store.admit([command(1), command(2)], 0)
        await session.close()
        await republish(dsn, 2_000_000)
        for expected in ([command(1), command(2)], [command(2)]):
            session = await open_session(dsn, opened)
            assert (await session.try_lock()).granted
            async with heartbeats(session):
                store = await _activated(session)
                assert await store.pending(10) == in_order(expected)
                end = (await store.published()).ledger_end
                await store.publish([completion(expected[0], end + 10, REJECTED)], at(end + 10))
            await session.close()


async def _activated(session: PostgresLockSession) -> PostgresStore:
    store = PostgresStore(session)
    await store.bind(TOPIC)
    await store.raise_epoch(0, "r")
    await store.published()
    return store
