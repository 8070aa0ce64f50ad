"""The lock session on Postgres 14 or newer: a session-level advisory lock on one dedicated psycopg connection.

What frees the lock when the holder cannot: the operating system when the process dies; `idle_session_timeout` and
`idle_in_transaction_session_timeout` when it is frozen or cut off; `statement_timeout`, `tcp_user_timeout` and
`client_connection_check_interval` when that happens inside a statement. Keepalive alone would not: the kernel of a
frozen process answers it.

Before Postgres 17 none of these ends the session of a holder that freezes or is cut off when the server has received
half the messages of a statement. A peer that asks for the lock ends it. (A commit that waits for its standby keeps the
lock for that time, whatever happened to the holder. No replica could lead meanwhile: an epoch begins with a commit.)
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import LiteralString

import psycopg
from psycopg import conninfo as libpq
from psycopg import waiting
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from ha.clock import Clock
from ha.errors import (
    LockUnavailable,
    PoolerDetected,
    ScopeMismatch,
    SessionSettingIgnored,
    UnsafeCommitMode,
    WritesNotSynced,
)
from ha.hosts import first_connected
from ha.invariant import InvariantBroken
from ha.lock.ids import Counter, lock_id
from ha.lock.interface import (
    RELEASE_LEAD_S,
    DatabaseIdentity,
    LockAnswer,
    LockOwner,
    LockView,
    ReleaseNote,
    ServerLease,
)
from ha.lock.notes import decode_note, encode_note
from ha.lock.session import DatabaseSession
from ha.postgres_session import ENCODING, session_options
from ha.settings import CLIENT_CHECK_S, ElectionSettings

_TRANSACTION_TIMEOUT_SINCE = 170_000
_WALL: LiteralString = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_READ_ONLY: LiteralString = "current_setting('transaction_read_only') = 'on'"

# Advisory locks are kept per database, so a row of pg_locks is ours only with our database's oid: without it, an equal
# id in another database of the server looks like a holder. In any mode: a shared lock bars an exclusive one as well.
_HOLDERS: LiteralString = """
    select l.pid, coalesce(a.application_name, '') as name, coalesce(a.usename, '') as usename,
           coalesce(host(a.client_addr), '') as address,
           case when a.state = 'active' and a.wait_event = 'ClientRead'
                then extract(epoch from clock_timestamp() - a.query_start)::float8 end as half_sent_s
      from pg_catalog.pg_locks l left join pg_catalog.pg_stat_activity a using (pid)
     where l.locktype = 'advisory' and l.granted
       and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
       and l.classid = 0 and l.objid = %(id)s and l.objsubid = 1
"""
_CHECK: LiteralString = f"""
    select current_database(), pg_backend_pid(), current_setting('synchronous_commit'),
           current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on',
           (select setting::bigint from pg_catalog.pg_settings where name = 'idle_session_timeout'),
           {_READ_ONLY}, {_WALL}
"""  # noqa: S608
_LOOK: LiteralString = f"""
    select h.pid, h.name, h.usename, h.address, {_READ_ONLY}, {_WALL}
      from (select 1) one left join ({_HOLDERS}) h on true
"""  # noqa: S608
# Materialised, so that the lock is asked for exactly once: it is re-entrant, and would need as many unlocks.
_TRY: LiteralString = f"""
    with tried as materialized (select pg_try_advisory_lock(%(id)s) as granted)
    select t.granted, h.pid, h.name, h.usename, h.address, coalesce(h.half_sent_s, 0), {_READ_ONLY}, {_WALL}
      from tried t left join ({_HOLDERS}) h on true
"""  # noqa: S608
# The holder's claim counts from a statement before the one that it did not finish: as safe as the idle timeout.
_END_HALF_SENT: LiteralString = f"""
    select pg_terminate_backend(h.pid) from ({_HOLDERS}) h where h.pid = %(pid)s and h.half_sent_s > %(lease_s)s
"""  # noqa: S608
_END_HOLDER: LiteralString = f"""
    select pg_terminate_backend(h.pid) from ({_HOLDERS}) h where h.pid = %(pid)s
"""  # noqa: S608
_CONFIRM: LiteralString = f"""
    select exists (select from ({_HOLDERS}) h where h.pid = pg_backend_pid()), {_READ_ONLY}, {_WALL}
"""  # noqa: S608
# The timeline being written now. The control file's is that of the last checkpoint, which lags a promotion.
_IDENTITY: LiteralString = """
    select (select system_identifier::text from pg_control_system()),
           ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint
"""


class DirectConnection(psycopg.AsyncConnection[TupleRow]):
    """A psycopg connection that closes its socket where psycopg would ask the server to cancel a statement.

    psycopg sends a cancel request when a task is cancelled in mid-statement (`wait` and `_try_cancel`). A write on the
    lock session must either complete at the server or fail with the session.
    """

    answers = 0  # of the server on this connection, errors not counted
    _listens_on: int | None = None  # the socket's descriptor, while nobody waits for an answer

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        try:
            answer = await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except Exception:
            raise
        except BaseException:  # the task was cancelled while the server works
            self.pgconn.finish()
            raise
        self.answers += 1
        return answer

    def cancel(self) -> None:
        raise InvariantBroken("a statement on the lock session is never cancelled")

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        self.pgconn.finish()  # psycopg calls this for an interrupted COPY or stream

    def listen(self, hear: Callable[[DirectConnection], None]) -> None:
        """Between two statements, call `hear` when the server sends something unasked."""
        self._listens_on = self.pgconn.socket
        asyncio.get_running_loop().add_reader(self._listens_on, hear, self)

    def stop_listening(self) -> None:
        """Leave the socket to the next statement, or before it is closed. May be repeated."""
        if self._listens_on is not None:
            asyncio.get_running_loop().remove_reader(self._listens_on)
            self._listens_on = None

    def take_notes(self) -> list[tuple[str, int]]:
        """Read what arrived unasked: notifications, each with the server's number for the session that sent it.

        Raises psycopg.Error when the connection has ended.
        """
        self.pgconn.consume_input()
        notes = []
        while (note := self.pgconn.notifies()) is not None:
            notes.append((note.extra.decode(errors="replace"), note.be_pid))
        return notes

    def settled(self) -> bool:
        """No statement and no transaction is open, and the connection works."""
        return not self.closed and self.pgconn.transaction_status == TransactionStatus.IDLE

    def hang_up(self) -> None:
        """End the connection at once even if a task waits on its socket: that task gets the socket's error.

        To close the descriptor under it instead would leave the event loop watching a number that is soon reused.
        """
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as shared:
            shared.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """End the connection at once; nobody is waiting on it. May be repeated."""
        self.pgconn.finish()


def limits_of(settings: ElectionSettings) -> dict[str, int]:
    """Server settings of the lock session; milliseconds, except tcp_keepalives_idle and _interval (seconds)."""
    lease_ms = _ms(settings.lease_s)
    return {
        "idle_session_timeout": lease_ms,
        "idle_in_transaction_session_timeout": lease_ms,
        "statement_timeout": _ms(settings.statement_max_s),
        "lock_timeout": _ms(settings.heartbeat_s),
        "tcp_keepalives_idle": 1,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": lease_ms,
        "client_connection_check_interval": _ms(CLIENT_CHECK_S),
    }


def connection_parameters(conninfo: str, name: str, settings: ElectionSettings) -> dict[str, object]:
    """libpq parameters of the lock session. What the operator gives in `options` stays, ours come after it and win."""
    given: dict[str, object] = dict(libpq.conninfo_to_dict(conninfo))
    return given | {
        "application_name": name,
        "client_encoding": ENCODING,
        "options": session_options(given.get("options"), limits_of(settings)),
        "target_session_attrs": "read-write",
        "connect_timeout": max(1, round(settings.connect_max_s)),
        "keepalives": 1,
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": _ms(settings.confirmed_age_max_s),
    }


async def _connect_to(parameters: Mapping[str, object]) -> DirectConnection:
    try:
        return await DirectConnection.connect(**parameters, autocommit=True)  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise ConnectionError(str(error)) from error


def _ms(duration_s: float) -> int:
    return round(duration_s * 1000)


class PostgresLockSession(DatabaseSession[DirectConnection]):
    """A WriteSession of DirectConnection."""

    def __init__(
        self,
        conninfo: str,
        *,
        scope: str,
        name: str,
        settings: ElectionSettings,
        clock: Clock,
        counter: int = Counter.PARTICIPANT_WRITE,
    ) -> None:
        """`scope`: the database name that the lock id is made of. `name`: this replica's, unique among its peers."""
        super().__init__(name=name, settings=settings, clock=clock)
        self._parameters = connection_parameters(conninfo, name, settings)
        self._scope = scope
        self._id = lock_id(scope, counter)
        self._channel = f"ha_lock_{self._id}"
        self._granted = False
        self._released: ReleaseNote | None = None  # the newest note, until another session is seen holding the lock
        self._releasing: int | None = None  # the session that sent it
        self._fatal = ""  # the server's last message

    @property
    def server_lease(self) -> ServerLease:
        """See LockSession: `open` has seen the setting in force."""
        return ServerLease(self._settings.lease_s, True, "idle_session_timeout")

    async def _connect(self) -> DirectConnection:
        try:
            # prepare_threshold stays at its default: the connection is direct, so prepared statements are safe
            connection = await first_connected(self._parameters, _connect_to, DirectConnection.finish)
        except ConnectionError as error:
            raise LockUnavailable(f"cannot connect as {self._name}: {error}") from error
        connection.add_notice_handler(self._note_notice)
        connection.add_notify_handler(lambda notify: self._note_release(notify.payload, notify.pid))
        return connection

    async def _check(self) -> None:
        async with self.statement("lock.check") as connection:
            database, pid, commit, synced, idle_ms, read_only, _ = await self._one(connection, _CHECK)
            if database != self._scope:
                raise ScopeMismatch(f"the configured scope is {self._scope!r}, the server's database is {database!r}")
            if pid != connection.info.backend_pid:
                raise PoolerDetected(f"the protocol's backend is {connection.info.backend_pid}, the session's is {pid}")
            if commit in ("off", "local"):  # local waits for no standby: a promotion may take an epoch back
                raise UnsafeCommitMode("the session commits asynchronously")
            if not synced:
                raise WritesNotSynced("fsync or full_page_writes is off at the server")
            if idle_ms != _ms(self._settings.lease_s):
                raise SessionSettingIgnored(f"idle_session_timeout is {idle_ms} ms")
            self._refuse_read_only(read_only)
            if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
                lease_ms = str(_ms(self._settings.lease_s))
                await connection.execute("select set_config('transaction_timeout', %s, false)", (lease_ms,))
            await connection.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(self._channel)))

    async def try_lock(self) -> LockAnswer:
        if self._granted:
            raise InvariantBroken("the lock is re-entrant: a second grant would need a second unlock")
        asked_at_s = self._clock.boottime_s()
        async with self.statement("lock.try") as connection:
            granted, pid, *who, half_sent_s, read_only, _ = await self._one(connection, _TRY)
            self._refuse_read_only(read_only)
            if not granted and half_sent_s > self._settings.lease_s:
                await self._end_half_sent(connection, pid)
        if granted:
            self._granted = True
            return LockAnswer(True, asked_at_s, released=self._released)
        return LockAnswer(False, asked_at_s, self._seen(pid, who))

    async def _end_half_sent(self, connection: DirectConnection, pid: int) -> None:
        """End the session of a holder that was silent within a statement for the lease, unless another role owns it."""
        values = {"id": self._id, "pid": pid, "lease_s": self._settings.lease_s}
        with suppress(psycopg.errors.InsufficientPrivilege):
            await connection.execute(_END_HALF_SENT, values)

    async def end_holder(self, pid: int) -> bool:
        """End that session, if it holds the lock; whether it was told to end. For operators, not for the election.

        Raises LockUnavailable when the session belongs to another role, which only a superuser may end.
        """
        async with self.statement("lock.end") as connection:
            try:
                found = await connection.execute(_END_HOLDER, {"id": self._id, "pid": pid})
            except psycopg.errors.InsufficientPrivilege as error:
                raise LockUnavailable(f"session {pid} belongs to another role: {error}") from error
            row = await found.fetchone()
        return row is not None and bool(row[0])

    async def look(self) -> LockView:
        async with self.statement("lock.look") as connection:
            pid, *who, read_only, _ = await self._one(connection, _LOOK)
            self._refuse_read_only(read_only)
        owner = self._seen(pid, who)
        return LockView(owner, self._released if owner is None else None)

    def _seen(self, pid: int | None, who: Sequence[str | None]) -> LockOwner | None:
        """Who holds the lock. A release is over once another session holds it; its sender may still be letting go."""
        if pid is None:
            return None
        if pid != self._releasing:
            self._released = self._releasing = None
        return LockOwner(pid, *[text or "" for text in who])

    async def confirm(self) -> float:
        async with self.statement("lock.confirm") as connection:
            asked_at_s = self._clock.boottime_s()
            held, read_only, _ = await self._one(connection, _CONFIRM)
            if not held:
                raise self._lose("the server says that this session does not hold the lock")
            self._refuse_read_only(read_only)
        return asked_at_s

    async def release(self, to: str | None = None) -> None:
        note = encode_note(ReleaseNote(self._name, to))
        async with self.statement("lock.release") as connection:
            # First the note, then the lock, so that a peer that finds it free has received the note; then
            # the note again, because a peer that acted on the first one found the lock still held.
            await connection.execute("select pg_notify(%s, %s)", (self._channel, note))
            if to is not None:
                await self._clock.sleep_s(RELEASE_LEAD_S)
            await connection.execute(
                "select pg_advisory_unlock(%s), pg_notify(%s, %s)", (self._id, self._channel, note)
            )

    async def database_identity(self) -> DatabaseIdentity:
        async with self.statement("lock.identity") as connection:
            row = await (await connection.execute(_IDENTITY)).fetchone()
        if row is None:
            raise InvariantBroken("a select without from gave no row")
        return DatabaseIdentity("postgres", str(row[0]), int(row[1]))

    def _is_unknown(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.OperationalError)

    async def _one(self, connection: DirectConnection, query: LiteralString) -> TupleRow:
        """The one row of a question about the lock, whose last column is the database's wall clock in microseconds."""
        before_us = self._clock.wall_us()
        row = await (await connection.execute(query, {"id": self._id})).fetchone()
        after_us = self._clock.wall_us()
        if row is None:
            raise InvariantBroken("a question about the lock gave no row")
        self._note_clock(before_us, row[-1], after_us)
        return row

    def _listen(self, connection: DirectConnection) -> None:
        connection.listen(self._hear)

    def _stop_listening(self, connection: DirectConnection) -> None:
        connection.stop_listening()

    def _hear(self, connection: DirectConnection) -> None:
        """Read what the server sent unasked: a note of a release, or the end of the session."""
        try:
            notes = connection.take_notes()
        except psycopg.Error as error:
            self._lose(f"the server ended the session: {self._fatal or str(error).strip()}")
            return
        for payload, pid in notes:
            self._note_release(payload, pid)

    def _note_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "FATAL":
            self._fatal = notice.message_primary or ""

    def _note_release(self, payload: str, pid: int) -> None:
        """Called within statements as well: must not raise, whatever was sent."""
        note = decode_note(payload)
        if note is not None and note.by != self._name:
            self._released, self._releasing = note, pid
            self._tell_release(note)
