"""Servers of our own, restarted, frozen and killed: what they keep, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.local.process import descendants
from replica.local.run_file import ProcessIdentity
from tests.waiting import eventually


@pytest.fixture
def folder(servers_folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = servers_folder / request.node.name[:40]
    path.mkdir()
    yield path


async def all_ended(processes: list[ProcessIdentity]) -> bool:
    return not any(process.runs() for process in processes)


async def rows_of(dsn: str) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        return await (await connection.execute("SELECT n FROM kept ORDER BY n")).fetchall()


@pytest.mark.postgres
async def test_postgres_keeps_what_it_committed(folder: Path, ports: PortReservation) -> None:
    """Goal: a second start reuses the data and password. Method: write, kill the whole server, start it again, read."""
    server = PostgresServer(folder / "pg", ports.take())
    await server.start()
    try:
        async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as connection:
            await connection.execute("CREATE TABLE kept (n int)")
            await connection.execute("INSERT INTO kept VALUES (1)")
            everything = [ProcessIdentity.of(pid) for pid in (server.process.pid, *descendants(server.process.pid))]
            await server.kill()
        await eventually(lambda: all_ended(everything))
        again = PostgresServer(folder / "pg", ports.take())
        await again.start()
        try:
            assert await rows_of(again.dsn()) == [(1,)]
        finally:
            await again.stop()
    finally:
        await server.remove()
    assert not (folder / "pg").exists()


@pytest.mark.thorough
@pytest.mark.postgres
async def test_postgres_tells_who_is_connected(folder: Path, ports: PortReservation) -> None:
    """Goal: a failure to take over can be understood from its report. Method: hold a lock, read; stop, read."""
    server = PostgresServer(folder / "pg", ports.take())
    await server.start()
    try:
        connecting = psycopg.AsyncConnection.connect(server.dsn(), autocommit=True, application_name="holder")
        async with await connecting as connection:
            await connection.execute("SELECT pg_advisory_lock(1)")
            (line,) = [line for line in (await server.sessions()).splitlines() if "holder" in line]
            assert "idle  ClientRead" in line
            assert "HOLDS THE LOCK" in line
        await server.stop()
        assert "does not show" in await server.sessions()
    finally:
        await server.remove()


@pytest.mark.thorough
@pytest.mark.postgres
async def test_a_frozen_postgres_answers_nobody_until_it_thaws(folder: Path, ports: PortReservation) -> None:
    """Goal: the fault "database host hangs" reaches the backends. Method: freeze under an open session, then thaw."""
    server = PostgresServer(folder / "pg", ports.take())
    await server.start()
    try:
        async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as connection:
            server.freeze()
            question = asyncio.create_task(connection.execute("SELECT 1"))
            done, _ = await asyncio.wait([question], timeout=0.5)
            assert not done
            server.thaw()
            async with asyncio.timeout(10):
                await question
    finally:
        await server.remove()


@pytest.mark.postgres
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another account")
async def test_a_folder_that_the_server_cannot_reach_is_no_obstacle(folder: Path, ports: PortReservation) -> None:
    """Goal: a clone in a private home works. Method: a folder of mode 0700 on the way, start, remove, look around."""
    folder.chmod(0o700)
    server = PostgresServer(folder / "pg", ports.take())
    await server.start()
    data = (folder / "pg" / "data").resolve()
    try:
        assert not data.is_relative_to(folder)
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert data.stat().st_uid != 0
    finally:
        await server.remove()
    assert not data.parent.exists()
