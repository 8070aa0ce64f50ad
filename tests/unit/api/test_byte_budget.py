"""Room for what is held for clients: bounded together, and no caller takes what another needs."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from ledger_api.client import encode_submission
from ledger_api.server.authorisation import Caller
from ledger_api.server.byte_budget import ByteBudget, Reservation
from tests.worlds.api_world import BANK, ApiWorld, FixedCaller, StubParticipant


@pytest.mark.parametrize("greedy", [1, 2, 5])
def test_there_is_room_for_one_more_however_much_the_others_take(greedy: int) -> None:
    """Goal: one caller's slow reading is not everybody's trouble. Method: several take all they can get, in turns; then
    somebody comes who has nothing."""
    budget, held = ByteBudget(1_000), list[Reservation]()
    while taken := [part for holder in range(greedy) if (part := budget.take(10, holder))]:
        held += taken
    assert budget.held_bytes <= 1_000 * greedy / (greedy + 1)
    others = budget.take(1_000 // (greedy + 1), "another")
    assert others is not None
    for part in (*held, others):
        part.release()
    assert budget.held_bytes == 0
    assert not budget._shares._by_holder  # callers who are gone leave nothing


@pytest.mark.parametrize("seed", range(20))
def test_room_is_bounded_and_whole_again(seed: int) -> None:
    """Goal: no account is wrong after anything. Method: takes, shrinks and returns at random, against sums."""
    drawn, budget, held = random.Random(seed), ByteBudget(10_000), list[tuple[int | None, Reservation]]()
    for _ in range(300):
        if held and drawn.random() < 0.5:
            who, part = held[drawn.randrange(len(held))]
            part.shrink(drawn.randrange(part.held_bytes + 1))
        else:
            who, wanted = drawn.choice([None, 1, 2, 3]), drawn.randrange(1, 4_000)
            his = sum(part.held_bytes for holder, part in held if holder == who) if who else 0
            taken = budget.take(wanted, who)
            if taken is not None:
                held.append((who, taken))
                assert budget.held_bytes <= 10_000
                assert not his or his + wanted <= 10_000 - budget.held_bytes
        assert budget.held_bytes == sum(part.held_bytes for _, part in held)
    for _, part in held:
        part.release()
    assert not budget._shares._by_holder


async def test_one_alone_may_have_what_is_larger() -> None:
    """Goal: what is larger than the budget can be done at all. Method: more than the bound, alone and not alone."""
    budget = ByteBudget(100)
    first = budget.take(1_000, "a")
    assert first is not None
    assert budget.take(1, "b") is None
    assert await budget.wait(1, "b", 0.01) is None
    first.release()
    assert await budget.wait(1, "b", 0.01) is not None


class TwoUsers(FixedCaller):
    """Takes a caller by the name that it gives."""

    def remembered(self, request: object) -> Caller:
        return Caller(subject=request.headers["X-User"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("of_what", ["bodies", "answers"])
async def test_one_user_does_not_shut_the_others_out(tmp_path: Path, of_what: str) -> None:
    """Goal: bodies that never come, and answers that wait, of one user leave room for another's. Method: many
    connections of one user with a real server, then one submission of another."""
    participant = StubParticipant()
    body, modest = (encode_submission(BANK.sign(user_id=user)) for user in ("greedy", "modest"))
    world = ApiWorld(participant, body_max_bytes=2**20, bodies_max_bytes=2**20, answers_max_bytes=2**20)
    world.api._authentication = TwoUsers(Caller())
    size = 400_000 if of_what == "bodies" else len(body)

    def head(user: str, size: int) -> bytes:
        line = f"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nX-User: {user}\r\nConnection: close\r\n"
        return f"{line}Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode()

    async with world.serve():
        participant.gate = asyncio.Event()
        many = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(300)]
        for _, writer in many:
            writer.write(head("greedy", size) + (b"" if of_what == "bodies" else body))
        budget = world.api.capacity.bodies if of_what == "bodies" else world.api.capacity.answers
        async with asyncio.timeout(30):
            while world.counts.answers.get("OVERLOADED", 0) == 0:
                await asyncio.sleep(0.01)
        assert 0 < budget.held_bytes <= 2**19
        answer = asyncio.create_task(world.exchange(head("modest", len(modest)) + modest, close=False))
        await asyncio.sleep(0.1)
        participant.gate.set()
        document = json.loads((await answer).partition(b"\r\n\r\n")[2])
        assert document["code"] == "NOTARISED"
        for _, writer in many:
            writer.close()
