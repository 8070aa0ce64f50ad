"""The deadline of an answer on the lock session, for a process that runs and for one that stood still."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from ha.lock.deadline import answered_within

LIMIT_S = 0.1


@pytest.mark.parametrize("pause_s", [LIMIT_S, 1.1 * LIMIT_S, 3 * LIMIT_S])
async def test_an_answer_that_came_during_a_pause_is_read(pause_s: float) -> None:
    """Goal: a pause is no lost answer. Method: block the loop to the deadline and past it, the answer in the socket."""
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        loop = asyncio.get_running_loop()
        async with answered_within(LIMIT_S):
            reading = asyncio.ensure_future(loop.sock_recv(here, 1))
            await asyncio.sleep(0)  # the question is asked
            there.send(b"1")
            time.sleep(pause_s)
            assert await reading == b"1"


async def test_silence_ends_by_the_deadline() -> None:
    """Goal: a silent server is given up. Method: wait for what never comes."""
    with pytest.raises(TimeoutError):
        async with answered_within(LIMIT_S):
            await asyncio.Event().wait()


async def test_a_pause_before_silence_does_not_make_it_endless() -> None:
    """Goal: one look, no more. Method: block the event loop past the deadline, then wait for what never comes."""
    with pytest.raises(TimeoutError):
        async with answered_within(LIMIT_S):
            await asyncio.sleep(0)
            time.sleep(2 * LIMIT_S)
            await asyncio.Event().wait()
