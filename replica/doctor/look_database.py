"""Looks at the shared database with the replicas' own role, and changes nothing there. Never raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from ha.clock import SystemClock
from ha.errors import HaError
from ha.lock.interface import DatabaseIdentity, LockOwner, ServerLease
from replica.config.model import Config
from replica.database import Database, Ledgers, PostgresDatabase
from replica.doctor.facts import DatabaseFacts, PostgresFacts
from replica.notary.errors import ConfigError, InvariantBroken, NotaryError, SignerUnavailable, StoreMismatch
from replica.store.bulletin import Board
from replica.store.facts import StoreStatus
from replica.store.neighbours import Neighbours
from replica.store.postgres.looking import to_look
from replica.store.postgres.neighbours import look_at_neighbours
from replica.store.trail import TrailBroken, follow, head_before, head_of

TRAIL_MAX = 1_000  # newest entries that are verified: the whole trail is for notary trail verify
BETWEEN_LOOKS_S = 1.0  # in which a living replica's session works at least once
_SETTINGS = (
    "synchronous_commit", "synchronous_standby_names", "fsync", "full_page_writes", "max_connections",
    "superuser_reserved_connections", "autovacuum", "server_encoding",
)  # fmt: skip
_SERVER = b"""
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_user::text,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
       coalesce(inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1', true),
       (SELECT CASE WHEN pg_has_role(current_user, 'pg_monitor', 'member')
                    THEN (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) END)
"""
# What notary_writer has (sql/postgres/roles.sql), by one column or privilege of each kind, and what it must not have.
_NEEDED = {
    "read participant": "has_table_privilege('participant', 'SELECT')",
    "raise the epoch": "has_column_privilege('participant', 'epoch', 'UPDATE')",
    "grant epochs": "has_table_privilege('epoch_grant', 'INSERT')",
    "end epochs": "has_column_privilege('epoch_grant', 'end_reason', 'UPDATE')",
    "publish completions": "has_table_privilege('completion', 'INSERT')",
    "draw sequence numbers": "has_column_privilege('worker_numbers', 'drawn', 'UPDATE')",
    "write the operators' trail": "has_table_privilege('operator_trail', 'INSERT')",
    "pause fail-over": "has_table_privilege('failover_pause', 'DELETE')",
}
_TOO_MUCH = {
    "delete completions": "has_table_privilege('completion', 'DELETE')",
    "change completions": "has_table_privilege('completion', 'UPDATE')",
    "delete entries of the operators' trail": "has_table_privilege('operator_trail', 'DELETE')",
    "change entries of the operators' trail": "has_table_privilege('operator_trail', 'UPDATE')",
    "drop tables": "pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE relname = 'completion'), 'member')",
}


async def look_at_database(config: Config) -> DatabaseFacts:
    """The lock session first, then what only an ordinary connection shows."""
    if config.database.is_embedded:
        return await _look_at_ledgers(config.ledgers(), config)
    try:
        database = config.shared_database()
    except ConfigError as error:  # a password's file, which has a check of its own, or a driver that is not installed
        return DatabaseFacts(session_problem=(error.code.name, error.detail), reach_problem=error.detail)
    tried = await _try_session(database, config)
    status, schema_problem, reach_problem = await _status(database)
    pause = formats = left = None
    trail = _Trail()
    if status is not None:
        try:
            async with database.board("notary-doctor") as board:
                pause, formats = await board.paused(), await board.formats()
                left = await board.contradicted_marks()
                trail = await _look_at_trail(board, config)
        except StoreMismatch as error:
            schema_problem = error.detail
        except (NotaryError, InvariantBroken) as error:  # what the database said, whatever it was
            reach_problem = error.detail
    on_postgres = isinstance(database, PostgresDatabase)
    return DatabaseFacts(
        session_problem=tried.problem,
        clock_skew_s=tried.clock_skew_s,
        lease=tried.lease,
        identity=tried.identity,
        lock_owner=tried.owner,
        neighbours=await _look_around(config) if on_postgres and not reach_problem else None,
        schema_problem=schema_problem,
        reach_problem=reach_problem,
        bound_topic_id=None if status is None else status.topic_id,
        published_offset=-1 if status is None else status.published_offset,
        salvages=() if status is None else status.salvages,
        paused_because=None if pause is None else pause.reason,
        is_service_paused=pause is not None and pause.of_service,
        formats=formats,
        contradicted_by=None if left is None else tuple(one.replica for one in left),
        trail_problem=trail.problem,
        trail_entries=trail.entries,
        postgres=await _look_at_postgres(config.conninfo()) if on_postgres and not reach_problem else None,
    )


async def _look_at_ledgers(ledgers: Ledgers, config: Config) -> DatabaseFacts:
    """What the replicas of this machine have derived from the log, where they share no database; and whether
    operators have paused fail-over, as the log says."""
    status, _, reach_problem = await _status(ledgers)
    pause, trail = None, _Trail()
    async with ledgers.board("notary-doctor") as board:
        formats = await board.formats()
        try:
            pause = await board.paused()
            trail = await _look_at_trail(board, config)
        except NotaryError as error:
            reach_problem = reach_problem or error.detail
    return DatabaseFacts(
        embedded=True,
        contradicted_by=(),  # there is no table that replicas share
        reach_problem=reach_problem,
        bound_topic_id=None if status is None else status.topic_id,
        published_offset=-1 if status is None else status.published_offset,
        paused_because=None if pause is None else pause.reason,
        formats=formats,
        trail_problem=trail.problem,
        trail_entries=trail.entries,
    )


@dataclass(frozen=True, slots=True)
class _Trail:
    problem: str | None = None
    entries: int | None = None


async def _look_at_trail(board: Board, config: Config) -> _Trail:
    """The newest entries of the operators' trail, by the keys that are known here. Raises NotaryError."""
    try:
        known = config.signatories()
        newest = head_of(await board.newest_of_trail()).number
        lines = await board.trail(max(0, newest - TRAIL_MAX), TRAIL_MAX)
        broken = follow(lines, head_before(lines), known).broken
    except TrailBroken as error:
        return _Trail(error.detail)
    except (ConfigError, SignerUnavailable):  # other checks say so; or a log that keeps no trail
        return _Trail()
    return _Trail(None if broken is None else str(broken), newest)


@dataclass(frozen=True, slots=True)
class _Tried:
    """The result that a replica would get: code and text of a problem, or its session's findings."""

    problem: tuple[str, str] | None = None
    clock_skew_s: float = 0.0
    lease: ServerLease | None = None
    identity: DatabaseIdentity | None = None
    owner: LockOwner | None = None


async def _try_session(database: Database, config: Config) -> _Tried:
    """A lock session, opened and closed."""
    session = database.lock_session(name="notary-doctor", settings=config.election, clock=SystemClock())
    try:
        await session.open()
        owner = (await session.look()).owner
        identity = await session.database_identity()
        return _Tried(None, session.clock_skew_s, session.server_lease, identity, owner)
    except HaError as error:
        return _Tried((error.code, str(error.args[0]) if error.args else error.code))
    finally:
        await session.close()


async def _look_around(config: Config) -> Neighbours | None:
    """Sessions under the replicas' names, and ledgers; None when the database does not answer."""
    try:
        names = [address.name for address in config.replicas]
        return await look_at_neighbours(config.conninfo(), names, BETWEEN_LOOKS_S)
    except NotaryError:
        return None


async def _status(database: Ledgers) -> tuple[StoreStatus | None, str | None, str | None]:
    """Status, or a problem of the schema, or of reaching it."""
    try:
        return await database.status(), None, None
    except StoreMismatch as error:
        return None, error.detail, None
    except (NotaryError, InvariantBroken) as error:  # what the database said, whatever it was
        return None, None, error.detail


async def _look_at_postgres(conninfo: str) -> PostgresFacts | None:
    """None when it is not reached: other findings say so."""
    try:
        async with await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True) as connection:
            return await _facts(connection)
    except psycopg.Error:
        return None


async def _facts(connection: psycopg.AsyncConnection[Any]) -> PostgresFacts:
    version, in_recovery, user, superuser, connections, encrypted, local, standbys = await _row(connection, _SERVER)
    settings = await connection.execute(
        b"SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(_SETTINGS),)
    )
    found = dict(await settings.fetchall())
    return PostgresFacts(
        version_num=version,
        in_recovery=in_recovery,
        settings=found,
        connections=connections,
        standbys_connected=standbys,
        encrypted=encrypted,
        local=local,
        user=user,
        superuser=superuser,
        missing_rights=await _rights(connection, _NEEDED, wanted=True),
        excess_rights=await _rights(connection, _TOO_MUCH, wanted=False),
    )


async def _rights(connection: psycopg.AsyncConnection[Any], rights: dict[str, str], *, wanted: bool) -> tuple[str, ...]:
    """The names of those that are not as wanted; none where there are no tables."""
    try:
        held = await _row(connection, f"SELECT {', '.join(rights.values())}".encode())
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        return ()
    return tuple(name for name, has in zip(rights, held, strict=True) if has is not wanted)


async def _row(connection: psycopg.AsyncConnection[Any], query: bytes) -> tuple[Any, ...]:
    row = await (await connection.execute(query)).fetchone()
    return () if row is None else tuple(row)
