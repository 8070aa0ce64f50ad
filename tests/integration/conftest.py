"""Real servers, started once per test session on free loopback ports; a fresh database or topic for each test.

A missing server fails the test instead of skipping it: a suite that claims real servers must not pass without them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from replica.local.kafka import KafkaCluster, start_broker
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from tests.worlds import kms_server
from tests.worlds.kms_server import KmsServer

ROLE = "notary"
ROLE_PASSWORD = "notary-of-the-tests"

_numbers = itertools.count(1)

MakeDatabase = Callable[[], Awaitable[str]]
MakeTopic = Callable[..., Awaitable[str]]


@pytest.fixture
def kms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KmsServer]:
    """A new key management service, and in the environment what AWS' libraries need to ask it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in kms_server.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    made = KmsServer(tmp_path / "kms")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def ports() -> Iterator[PortReservation]:
    """Free loopback ports, `ports.take()`, that nobody else is given during the session."""
    with PortReservation() as reservation:
        yield reservation


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """A short path that other accounts may enter: Postgres runs as an account of its own when we are root."""
    folder = Path(tempfile.mkdtemp(prefix="notary-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(servers_folder: Path, ports: PortReservation) -> Iterator[PostgresServer]:
    """A running Postgres server; `postgres_server.dsn()` is the superuser's, for faults and look-ups."""
    server = PostgresServer(servers_folder / "postgres", ports.take())
    asyncio.run(_start_postgres(server))
    yield server
    asyncio.run(server.remove())


@pytest.fixture(scope="session")
def kafka_broker(servers_folder: Path, ports: PortReservation) -> Iterator[KafkaCluster]:
    """A running Kafka broker; clients use `kafka_broker.bootstrap_servers`."""
    cluster = asyncio.run(start_broker(servers_folder / "kafka", ports, topics_deletable=True))
    yield cluster
    asyncio.run(cluster.remove())


@pytest.fixture
def make_database(postgres_server: PostgresServer) -> Iterator[MakeDatabase]:
    """Coroutine function: a new empty database owned by an ordinary role; returns its DSN. Dropped after the test."""
    made: list[str] = []

    async def make() -> str:
        name = f"test_{next(_numbers)}"
        await postgres_server.ensure_database(name, ROLE)
        made.append(name)
        return postgres_server.dsn(name, ROLE, ROLE_PASSWORD)

    yield make
    asyncio.run(_drop_all(postgres_server, made))


@pytest.fixture
def database_dsn(make_database: MakeDatabase) -> str:
    """The DSN of one new empty database."""
    return asyncio.run(_await(make_database()))


@pytest.fixture
def make_topic(kafka_broker: KafkaCluster) -> MakeTopic:
    """Coroutine function: a new empty topic with the request log's contract; returns its name.

    Keyword arguments are those of `KafkaCluster.create_topic`. Topics go with the broker at the end of the session.
    """

    async def make(**contract: int) -> str:
        name = f"test-{next(_numbers)}"
        await kafka_broker.create_topic(name, **contract)
        return name

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """The name of one new empty topic."""
    return asyncio.run(_await(make_topic()))


async def _start_postgres(server: PostgresServer) -> None:
    await server.start()
    await server.ensure_role(ROLE, ROLE_PASSWORD)


async def _drop_all(server: PostgresServer, names: list[str]) -> None:
    for name in names:
        await server.drop_database(name)


async def _await(awaitable: Awaitable[str]) -> str:
    return await awaitable
