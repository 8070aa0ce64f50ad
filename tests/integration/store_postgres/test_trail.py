"""The operators' trail in Postgres: a chain, whoever writes at once, that replicas' logins only add to."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from replica.store.postgres.board import postgres_board
from replica.store.trail import Head, follow, head_of
from replica.store.trail_writing import add_line, lines_after
from tests.contracts.store_contract import NewStore, activated
from tests.worlds.trails import KNOWN, line_after, trail_of

pytestmark = pytest.mark.postgres


async def test_entries_are_kept_in_order_and_never_replaced(new_store: NewStore, dsn: str) -> None:
    """Goal: one line a number, without gaps. Method: numbers that are taken, or too high; pages."""
    await activated(new_store)
    lines = trail_of({"reason": "zoë \u2028"}, {"who": "ben"}, {}, {})
    async with postgres_board(dsn, "test") as board:
        assert (await board.newest_of_trail(), await board.trail(0, 9)) == (None, [])
        assert not await board.extend_trail(2, lines[1])
        for number, line in enumerate(lines, start=1):
            assert await board.extend_trail(number, line)
            assert not await board.extend_trail(number, lines[0])
        assert not await board.extend_trail(6, lines[0])
        assert await board.newest_of_trail() == lines[-1]
        assert (await board.trail(0, 9), await board.trail(1, 2), await board.trail(4, 9)) == (lines, lines[1:3], [])


async def test_writers_at_once_make_one_chain(new_store: NewStore, dsn: str) -> None:
    """Goal: nobody's entry is lost. Method: twelve operators write five entries each, at the same time."""
    await activated(new_store)

    async def write(who: str) -> None:
        async with postgres_board(dsn, who) as board:
            for _ in range(5):
                await add_line(board, lambda head: line_after(head, who))

    await asyncio.gather(*(write(who) for who in ("anna", "ben", "notary") * 4))
    async with postgres_board(dsn, "test") as board:
        found = follow([line async for line in lines_after(board, Head())], Head(), KNOWN)
    assert (len(found.entries), found.broken) == (60, None)
    assert sorted(entry.operator for entry in found.entries) == ["anna"] * 20 + ["ben"] * 20 + ["root"] * 20


async def test_what_an_administrator_changes_is_found(new_store: NewStore, dsn: str) -> None:
    """Goal: the owner of the tables cannot hide an act. Method: change, delete in the middle, delete the tail."""
    await activated(new_store)
    lines = trail_of({}, {}, {})
    async with (
        postgres_board(dsn, "test") as board,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as owner,
    ):
        for number, line in enumerate(lines, start=1):
            assert await board.extend_trail(number, line)
        await owner.execute("UPDATE operator_trail SET line = replace(line, 'machine', 'another') WHERE number = 2")
        assert str(follow(await board.trail(0, 9)).broken) == "entry 2 has a signature that does not hold"
        await owner.execute("DELETE FROM operator_trail WHERE number = 2")
        assert str(follow(await board.trail(0, 9)).broken) == "entry 2 is missing: 3 comes after 1"
        await owner.execute("DELETE FROM operator_trail WHERE number > 1")
        assert follow(await board.trail(0, 9)).broken is None  # only who remembers a head finds it
        with pytest.raises(Exception, match="entry 3 is gone"):
            assert [line async for line in lines_after(board, head_of(lines[2]))]
