"""The shared database of a local cluster: what is made on its server. Not imported where replicas share none."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.conninfo import make_conninfo

from ha.lock.ids import Counter, lock_id
from replica.local.kept import Say
from replica.local.participant import DATABASE, OWNER, READER, ROLE, ParticipantFiles
from replica.local.postgres import PostgresServer
from replica.log.open import open_log_admin
from replica.log.postgres.install import grant
from replica.log.postgres.settings import PostgresLogSettings
from replica.store.postgres.migrate import migrate
from replica.store.postgres.store import named_statement

_RIGHTS = b"""
GRANT CONNECT ON DATABASE notary TO notary_reader;
GRANT notary_writer, notary_archivist TO notary;
GRANT notary_reader TO notary_api;
GRANT pg_read_all_stats TO notary_owner; -- the owner of a log in the database counts its standbys
"""


def owner_dsn(server: PostgresServer, files: ParticipantFiles) -> str:
    """Connection string of the tables' owner, password included."""
    return server.dsn(DATABASE, OWNER, files.password(OWNER))


async def make_database(server: PostgresServer, files: ParticipantFiles, say: Say) -> None:
    """Make roles, database, tables and grants, as far as they are missing."""
    for role in (OWNER, ROLE, READER):
        await server.ensure_role(role, files.password(role))
    await server.ensure_database(DATABASE, OWNER)
    applied = await migrate(owner_dsn(server, files), lock_id(DATABASE, Counter.NODE_MIGRATIONS))
    await server.run_script(named_statement("roles") + _RIGHTS, DATABASE)
    say("Postgres", f"database {DATABASE}: {', '.join(applied) or 'schema is up to date'}")


async def make_log(server: PostgresServer, files: ParticipantFiles) -> None:
    """Make a log in the database, as the owner of its schema, which the replicas' role may only append to."""
    dsn = owner_dsn(server, files)
    owner = open_log_admin(PostgresLogSettings(conninfo=dsn, single_server=True))
    try:
        await owner.create()
    finally:
        await owner.close()
    await grant(dsn, writers=(ROLE,))


def conninfo_of(servers: Sequence[PostgresServer]) -> str:
    """Where a client finds whichever of these servers is the primary."""
    return make_conninfo(
        host=",".join(server.machine.address for server in servers),
        port=",".join(str(server.port) for server in servers),
        dbname=DATABASE,
        user=ROLE,
        **({"target_session_attrs": "read-write"} if len(servers) > 1 else {}),
    )
