"""Rows of the log that nobody but its owner can harm, harmed: refused, and never read as a shorter truth."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.local.postgres import PostgresServer
from replica.log.postgres.install import grant, install
from replica.notary.errors import LogRefused, LogTruncated
from tests.integration.log_postgres.world import PARTITION_RECORDS, PostgresUnderTest, opened, run, settings_for
from tests.unit.log.test_contract import QUIET_S, READ_WAIT_S, numbered, read_all
from tests.waiting import eventually

pytestmark = pytest.mark.postgres

READER, WRITER, NOBODY = "log_reader_of_the_tests", "log_writer_of_the_tests", "log_nobody_of_the_tests"


async def test_a_log_without_its_head_is_refused(dsn: str) -> None:
    async with opened(dsn) as log:
        reader, writer = await log.open_reader(0), await log.open_writer()
        await run(dsn, "DELETE FROM notary_log.log_head")
        writer.append(b"nowhere")
        with pytest.raises(LogRefused, match="no row"):
            await reader.read(1, READ_WAIT_S)
        for asking in (log.check, log.end_offset, log.agreed_end_offset, log.open_writer):
            with pytest.raises(LogRefused, match="no row"):
                await asking()
        assert writer.failed_count == 1
    assert await run(dsn, "SELECT * FROM notary_log.log_batch") == []


async def test_a_head_that_was_put_back_is_refused(dsn: str) -> None:
    """Goal: no offset has two records. Method: lower the head under a reader and a writer that know better."""
    await PostgresUnderTest(dsn).put(*numbered(5))
    async with opened(dsn) as log:
        reader, writer = await log.open_reader(0), await log.open_writer()
        await read_all(reader, 5)
        await run(dsn, "UPDATE notary_log.log_head SET end_offset = 3")
        with pytest.raises(LogTruncated, match="ends at offset 3; 5 is next"):
            await reader.read(1, READ_WAIT_S)
        writer.append(b"on another's offset")  # its offset has a batch
        await eventually(lambda: _is(writer.failed_count == 1))
        for asking in (log.check, log.open_writer, lambda: log.open_reader(0)):
            with pytest.raises(LogRefused, match="its batches go on to 5"):
                await asking()
    assert await run(dsn, "SELECT count(*), max(next_offset) FROM notary_log.log_batch") == [(5, 5)]


async def test_a_writer_stops_when_it_gets_offsets_again(dsn: str) -> None:
    """Goal: found even where no batch is in the way. Method: lower the head into the middle of one large batch."""
    async with opened(dsn) as log:
        writer = await log.open_writer()
        writer.append_all(numbered(10))
        reader = await log.open_reader(0)
        await read_all(reader, 10)
        await run(dsn, "UPDATE notary_log.log_head SET end_offset = 5")
        writer.append_all(numbered(10))
        await eventually(lambda: _is(writer.failed_count == 0 and _is_over(writer)))
        with pytest.raises(LogRefused):
            await reader.read(10, READ_WAIT_S)


async def test_a_head_that_was_raised_is_a_lost_tail(dsn: str) -> None:
    await PostgresUnderTest(dsn).put(*numbered(5))
    async with opened(dsn) as log:
        reader = await log.open_reader(0)
        await read_all(reader, 5)
        await run(dsn, "UPDATE notary_log.log_head SET end_offset = 9")
        with pytest.raises(LogTruncated, match="goes to offset 9, but it has no offset 5"):
            await reader.read(1, READ_WAIT_S)
        for asking in (log.check, log.open_writer, lambda: log.open_reader(5)):
            with pytest.raises(LogTruncated, match="its batches end at 5"):
                await asking()


async def test_a_foreign_batch_is_not_read(dsn: str) -> None:
    """Goal: what did not go through the head is no part of the log. Method: a batch after the end, one in a hole."""
    await PostgresUnderTest(dsn).put(*numbered(5))
    async with opened(dsn) as log:
        reader = await log.open_reader(0)
        await read_all(reader, 5)
        await run(dsn, "INSERT INTO notary_log.log_batch (first_offset, records) VALUES (5, '{x,y}')")
        assert await reader.read(1, QUIET_S) == []  # the head does not count it
        await run(dsn, "UPDATE notary_log.log_head SET end_offset = 6")
        with pytest.raises(LogRefused, match="says offset 6, but a batch goes from 5 to below 7"):
            await reader.read(1, READ_WAIT_S)
        with pytest.raises(LogRefused, match="batches go on to 7"):
            await log.check()


@pytest.mark.parametrize("dropped", [0, PARTITION_RECORDS])
async def test_a_dropped_partition_is_truncation(dsn: str, dropped: int) -> None:
    """Goal: lost records are never skipped. Method: drop the first partition, or one in the middle, under a reader."""
    async with opened(dsn) as log:
        writer, reader = await log.open_writer(), await log.open_reader(0)
        for end in range(500, 3 * PARTITION_RECORDS + 1, 500):  # no batch goes over a bound
            writer.append_all(numbered(500, end - 500))
            await eventually(lambda end=end: _has_end(log, end))  # type: ignore[misc]
        seen = await reader.read(1, READ_WAIT_S)
        assert seen == [(0, b"record 0")]
        await run(dsn, f"DROP TABLE notary_log.log_batch_{dropped}")
        late = await log.open_reader(0) if dropped else None
        if late is None:
            with pytest.raises(LogTruncated, match=f"begins at offset {PARTITION_RECORDS}"):
                await log.check()
            with pytest.raises(LogTruncated, match=f"from {PARTITION_RECORDS} to below {3 * PARTITION_RECORDS}"):
                await log.open_reader(0)
            assert await log.hazards() == [f"it begins at offset {PARTITION_RECORDS}: the records before are gone"]
        else:
            with pytest.raises(LogTruncated, match="no longer has offset 1000: it goes on at offset 2000"):
                await read_all(late, 2 * PARTITION_RECORDS)


async def test_the_owner_without_sight_of_the_standbys_is_refused(dsn: str) -> None:
    """Goal: readers that could never deliver do not start. Method: an owner who is no member of pg_read_all_stats."""
    async with opened(dsn, single_server=False) as log:
        for asking in (log.check, log.open_writer, lambda: log.open_reader(0)):
            with pytest.raises(LogRefused, match="pg_read_all_stats"):
                await asking()
        assert len(await log.hazards()) == 1


async def test_a_database_without_a_log_is_refused_and_a_second_log_too(dsn: str) -> None:
    with pytest.raises(LogRefused, match="already exists"):
        await install(dsn)
    await run(dsn, "DROP SCHEMA notary_log CASCADE")
    async with opened(dsn) as log:
        with pytest.raises(LogRefused, match="make the log"):
            await log.check()


async def test_an_append_that_would_commit_asynchronously_is_refused(dsn: str) -> None:
    """Goal: nothing is seen before it is on disk. Method: the connection's own options ask for it."""
    loose = make_conninfo(dsn, options="-c synchronous_commit=off")
    async with opened(loose) as log:
        for asking in (log.check, log.open_writer):
            with pytest.raises(LogRefused, match="synchronous_commit is off"):
                await asking()
    with pytest.raises(psycopg.Error, match="asynchronously"):
        await run(loose, "SELECT notary_log.append(log_id, '{x}') FROM notary_log.log_head")


# ---- rights ----

HARM = (
    "UPDATE notary_log.log_batch SET records = '{x}'",
    "DELETE FROM notary_log.log_batch",
    "TRUNCATE notary_log.log_batch",
    "DROP TABLE notary_log.log_batch_0",
    "INSERT INTO notary_log.log_batch (first_offset, records) VALUES (9, '{x}')",
    "INSERT INTO notary_log.log_batch_0 (first_offset, records) VALUES (9, '{x}')",
    "DELETE FROM notary_log.log_batch_0",
    "UPDATE notary_log.log_head SET end_offset = 9",
    "UPDATE notary_log.log_head SET log_id = gen_random_uuid()",
    "DELETE FROM notary_log.log_head",
    "CREATE TABLE notary_log.more (n int)",
)
WRITES = ("SELECT notary_log.append(log_id, '{x}') FROM notary_log.log_head", "SELECT notary_log.make_partitions()")
READS = (
    "SELECT * FROM notary_log.log_batch",
    "SELECT notary_log.flushed(1)",
    "SELECT notary_log.sees_standbys()",
    "SELECT notary_log.oldest_snapshot()",
)


async def _login(server: PostgresServer, dsn: str, role: str) -> str:
    await server.ensure_role(role, "pw")
    name = str(conninfo_to_dict(dsn)["dbname"])
    await server.run_script(f"GRANT CONNECT ON DATABASE {name} TO {role}".encode(), name)
    return make_conninfo(dsn, user=role, password="pw")


async def test_each_role_may_do_its_part_and_nothing_else(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: nobody who logs in can change or delete a record. Method: every harm, tried by each role."""
    logins = {role: await _login(postgres_server, dsn, role) for role in (READER, WRITER, NOBODY)}
    for _ in range(2):
        await grant(dsn, readers=(READER,), writers=(WRITER,))
    await PostgresUnderTest(dsn).put(b"record")
    refused = {READER: HARM + WRITES, WRITER: HARM, NOBODY: HARM + WRITES + READS}
    for role, statements in refused.items():
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await run(logins[role], statement)
    for role, statements in {READER: READS, WRITER: READS + WRITES}.items():
        for statement in statements:
            await run(logins[role], statement)


async def test_a_replica_needs_no_more_than_the_writers_rights(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: the rights suffice, to the next partition as well. Method: check, append and read as the writer; as the
    reader, all but to append."""
    writing, reading = [await _login(postgres_server, dsn, role) for role in (WRITER, READER)]
    await grant(dsn, readers=(READER,), writers=(WRITER,))
    async with opened(writing) as ours, opened(reading) as theirs:
        assert await ours.check() == await theirs.check()
        writer = await ours.open_writer()
        for start in range(0, 3 * PARTITION_RECORDS, 500):
            writer.append_all(numbered(500, start))
        for log in (ours, theirs):
            assert await read_all(await log.open_reader(0), 3_000) == list(enumerate(numbered(3_000)))
        late = await theirs.open_writer()
        late.append(b"by a reader")
        await eventually(lambda: _is(late.failed_count == 1))


def test_a_password_is_not_shown(dsn: str) -> None:
    assert "password" not in repr(settings_for(dsn))


async def _is(fact: bool) -> bool:
    return fact


def _is_over(writer: object) -> bool:
    return bool(getattr(writer, "_over"))  # noqa: B009


async def _has_end(log: object, end: int) -> bool:
    return await log.end_offset() == end  # type: ignore[attr-defined,no-any-return]
