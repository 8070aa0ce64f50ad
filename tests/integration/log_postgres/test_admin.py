"""What tools ask of the request log on a real Postgres: the archive's columns, and what there is to judge."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from time import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from replica.local.postgres import PostgresServer
from replica.log.admin import LogAdmin
from replica.log.open import open_log_admin
from replica.notary.errors import LogRefused, LogUnavailable
from tests.integration.conftest import MakeDatabase
from tests.integration.log_postgres.world import opened, run, settings_for
from tests.unit.log.test_contract import numbered, read_all

pytestmark = pytest.mark.postgres

Row = tuple[int, int, bytes | None]


async def rows(admin: LogAdmin, first: int, end: int) -> list[Row]:
    def read() -> list[Row]:
        return [
            (offset, time_ms, value)
            for part in admin.stretch(first, end)
            for offset, (time_ms, value) in enumerate(zip(part.times_ms, part.values, strict=True), part.first_offset)
        ]

    return await asyncio.to_thread(read)


async def test_the_archive_s_columns_are_append_time_and_value(dsn: str) -> None:
    """Goal: an archive can be made of it. Method: 900 records in appends of three, more than one query returns; ranges
    that begin and end within an append."""
    began_ms, admin, values = int(time() * 1_000), open_log_admin(settings_for(dsn)), numbered(900)
    async with opened(dsn) as log:
        writer = await log.open_writer()
        for start in range(0, 900, 3):
            writer.append_all(values[start : start + 3])
            await asyncio.sleep(0.001)
        await read_all(await log.open_reader(0), 900)
    found = await rows(admin, 0, 900)
    assert [(offset, value) for offset, _, value in found] == list(enumerate(values))
    times = [time_ms for _, time_ms, _ in found]
    assert all(before <= after for before, after in pairwise(times))
    assert began_ms <= times[0] < times[-1] <= time() * 1_000
    assert await rows(admin, 1, 899) == found[1:899]
    assert await rows(admin, 4, 5) == found[4:5]
    assert await rows(admin, 7, 7) == []
    await admin.close()


async def test_nothing_but_the_whole_range_is_given(dsn: str) -> None:
    """Goal: a log with a hole, or one that is not so long, fails the job. Method: ask past the end; delete batches."""
    admin = open_log_admin(settings_for(dsn))
    for start in range(10):
        await run(
            dsn, "SELECT notary_log.append((SELECT log_id FROM notary_log.log_head), ARRAY[%s::bytea])", [b"%d" % start]
        )
    with pytest.raises(LogUnavailable, match="below offset 10, asked for is 10"):
        await rows(admin, 0, 11)
    await run(dsn, "DELETE FROM notary_log.log_batch WHERE first_offset = 4")
    with pytest.raises(LogRefused, match="no offset 4"):
        await rows(admin, 0, 10)
    with pytest.raises(LogRefused, match="no offset 4"):
        await rows(admin, 4, 10)
    assert [value for _, _, value in await rows(admin, 5, 10)] == [b"%d" % number for number in range(5, 10)]
    await admin.close()


async def test_what_there_is_to_judge(make_database: MakeDatabase) -> None:
    """Goal: one call makes it, another reports its state. Method: make it twice; a rule that is broken is reported."""
    dsn = await make_database()
    admin = open_log_admin(settings_for(dsn))
    with pytest.raises(LogRefused):
        await admin.survey()
    log_id = await admin.create()
    assert log_id.startswith("postgres:")
    assert await admin.create() == log_id == await admin.topic_id()
    survey = await admin.survey()
    assert (survey.first_offset, survey.end_offset, list(survey.violations)) == (0, 0, [])
    assert await admin.server_count() == 1
    await run(dsn, "ALTER TABLE notary_log.log_head SET UNLOGGED")
    assert [rule for rule in (await admin.survey()).violations if "unlogged" in rule] != []
    with pytest.raises(LogRefused, match="unlogged"):
        await admin.create()
    await admin.close()


@pytest.mark.thorough
async def test_an_old_snapshot_is_reported(make_database: MakeDatabase, postgres_server: PostgresServer) -> None:
    """Goal: whoever keeps dead rows of the log is noticed. Method: a snapshot that stays open during twenty
    transactions; an owner who is not shown it; a log that was made without the function."""
    unseen = await make_database()
    dsn = postgres_server.dsn(str(conninfo_to_dict(await make_database())["dbname"]))

    async def oldest(of: str) -> int | None:
        admin = open_log_admin(settings_for(of))
        try:
            await admin.create()
            return (await admin.survey()).oldest_snapshot
        finally:
            await admin.close()

    before = await oldest(dsn)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT FROM notary_log.log_head")
        for _ in range(20):
            await run(dsn, "SELECT pg_current_xact_id()")
        beside = await oldest(dsn)
    assert before is not None and beside is not None and before < 20 <= beside
    assert await oldest(dsn) == before
    await run(dsn, "DROP FUNCTION notary_log.oldest_snapshot")
    assert await oldest(dsn) is None
    assert await oldest(unseen) is None
