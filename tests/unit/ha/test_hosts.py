"""Which of several database hosts is connected to, and how long a silent one holds up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from ha.hosts import STAGGER_S, each_host, first_connected
from tests.simulation.virtual import run_virtually

TWO = {"host": "a,b", "port": "5432", "dbname": "notary"}
SILENT_S = 2.0


async def silent(host: str) -> str:
    """As long as a connection may take."""
    await asyncio.sleep(SILENT_S)
    raise ConnectionError(f"{host}: timeout")


async def refuses(host: str) -> str:
    raise ConnectionError(f"{host}: read-only")


async def answers(host: str) -> str:
    await asyncio.sleep(0.01)
    return host


def took(
    first: Callable[[str], Awaitable[str]], second: Callable[[str], Awaitable[str]]
) -> tuple[str | ConnectionError, float]:
    """The host that was reached, or the error instead, and after how many seconds."""
    hosts, closed = {"a": first, "b": second}, list[str]()

    async def connect(parameters: Mapping[str, object]) -> str:
        return await hosts[str(parameters["host"])](str(parameters["host"]))

    async def run() -> tuple[str | ConnectionError, float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            found: str | ConnectionError = await first_connected(TWO, connect, closed.append)
        except ConnectionError as error:
            found = error
        return found, loop.time() - began_s

    return run_virtually(run())


@pytest.mark.parametrize(
    ("first", "second", "connected", "after_s"),
    [
        (answers, answers, "a", 0.01),  # order decides while all are well
        (refuses, answers, "b", 0.01),  # a standby, or nobody listens: the next at once
        (silent, answers, "b", STAGGER_S + 0.01),  # behind a cut
        (answers, silent, "a", 0.01),
    ],
)
def test_a_silent_host_does_not_hold_up_the_others(
    first: Callable[[str], Awaitable[str]], second: Callable[[str], Awaitable[str]], connected: str, after_s: float
) -> None:
    """Goal: a fail-over of the database is not waited for twice. Method: hosts that answer, refuse, say nothing."""
    found, took_s = took(first, second)
    assert found == connected
    assert took_s == pytest.approx(after_s)


def test_each_host_is_told_of_when_none_takes_the_connection() -> None:
    """Goal: an operator sees each host's error. Method: one refuses, one is silent."""
    found, took_s = took(refuses, silent)
    assert str(found) == "a: read-only; b: timeout"
    assert took_s == pytest.approx(SILENT_S)


def test_a_connection_that_comes_too_late_is_closed() -> None:
    """Goal: no session is left open by accident. Method: both hosts take the connection in the same moment."""
    closed: list[str] = []

    async def connect(parameters: Mapping[str, object]) -> str:
        host = str(parameters["host"])
        await asyncio.sleep(STAGGER_S + 0.01 if host == "a" else 0.01)
        return host

    async def run() -> str:
        return await first_connected(TWO, connect, closed.append)

    assert sorted([run_virtually(run()), *closed]) == ["a", "b"]


def test_a_bug_is_not_taken_for_a_host_that_is_away() -> None:
    """Goal: only refused connections are tried again. Method: an error that no connection raises."""

    async def broken(host: str) -> str:
        raise KeyError(host)

    with pytest.raises(KeyError):
        took(broken, refuses)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dbname": "x"}, [{"dbname": "x"}]),
        ({"host": "a"}, [{"host": "a"}]),
        ({"host": "a,b", "port": "1,2"}, [{"host": "a", "port": "1"}, {"host": "b", "port": "2"}]),
        ({"host": "a,b", "port": "1"}, [{"host": "a", "port": "1"}, {"host": "b", "port": "1"}]),
        ({"host": "a,b", "hostaddr": "::1,::2"}, [{"host": "a", "hostaddr": "::1"}, {"host": "b", "hostaddr": "::2"}]),
        ({"host": "a,b", "port": "1,2,3"}, [{"host": "a,b", "port": "1,2,3"}]),  # libpq reports what is wrong with it
    ],
)
def test_lists_of_hosts_are_taken_apart_as_libpq_does(
    given: dict[str, object], expected: list[dict[str, object]]
) -> None:
    """Goal: each attempt has one host. Method: lists as libpq knows them."""
    assert each_host(given) == expected
