"""What every request log promises, on a real Postgres."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from replica.log.postgres.install import install
from replica.log.postgres.session import BATCHES_MAX, connection_parameters, read
from tests.contracts.log_machine import LogMachine, LogWorld, log_world, memory_world
from tests.contracts.side_by_side import played
from tests.hostile_defaults import make_hostile
from tests.integration.conftest import MakeDatabase
from tests.integration.log_postgres.world import PARTITION_RECORDS, PostgresUnderTest, run, settings_for
from tests.unit.log.test_contract import LogContract

pytestmark = pytest.mark.postgres


class TestPostgresLog(LogContract):
    @pytest.fixture
    def topic_under_test(self, dsn: str) -> PostgresUnderTest:
        return PostgresUnderTest(dsn)


@pytest.mark.parametrize("examples", [2, pytest.param(30, marks=pytest.mark.thorough)])
def test_it_answers_as_the_double_does(make_database: MakeDatabase, examples: int) -> None:
    """Goal: see LogMachine. Method: random calls."""

    @asynccontextmanager
    async def world() -> AsyncIterator[LogWorld]:
        dsn = await make_database()
        await install(dsn, partition_records=PARTITION_RECORDS)
        async with log_world(PostgresUnderTest(dsn)) as made:
            yield made

    played(partial(LogMachine, memory_world, world), examples=examples, steps=100)


@pytest.mark.thorough
class TestPostgresLogUnderHostileDefaults(LogContract):
    @pytest.fixture
    async def topic_under_test(self, make_database: MakeDatabase) -> PostgresUnderTest:
        dsn = await make_hostile(await make_database())
        await install(dsn, partition_records=PARTITION_RECORDS)
        return PostgresUnderTest(dsn)


async def test_a_look_reads_no_more_batches_than_it_shows(dsn: str) -> None:
    """Goal: to catch up costs each batch once. Method: the server's own count, for a long log without statistics."""
    await run(
        dsn,
        "INSERT INTO notary_log.log_batch (first_offset, records)"
        " SELECT n, ARRAY[''::bytea] FROM generate_series(0, 2999) n",
    )
    await run(dsn, "UPDATE notary_log.log_head SET end_offset = 3000")
    values = {"start": 10, "bytes_max": 1 << 20, "standbys": 0, "held": False, "batches_max": BATCHES_MAX}
    parameters = connection_parameters(settings_for(dsn))
    async with await psycopg.AsyncConnection.connect(**parameters) as connection:  # type: ignore[arg-type]
        asked = await connection.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + read("look"), values)
        row = await asked.fetchone()
    assert row is not None
    scanned = [node for node in _nodes(row[0][0]["Plan"]) if "log_batch" in node.get("Relation Name", "")]
    assert {node["Node Type"] for node in scanned} == {"Index Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scanned) == BATCHES_MAX, json.dumps(row, indent=1)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from _nodes(below)
