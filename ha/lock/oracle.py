"""The lock session on Oracle 19c or newer: a user lock of DBMS_LOCK, on one dedicated python-oracledb connection.

What frees the lock when the holder cannot: the server process, when the holder's kernel closes the socket; IDLE_TIME of
the user's profile or MAX_IDLE_TIME, in minutes, when the holder is frozen; SQLNET.EXPIRE_TIME when its machine is gone.
A session can set none of them, so `open` reads those that it may read, and names the others.

A user lock holds in the whole database, across all instances of a RAC. It needs no transaction, and a commit never
releases it. It is not counted: a second request for a lock that this session owns answers "already own", which is how
`confirm` checks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import oracledb

from ha.clock import Clock
from ha.errors import DatabaseNotPrepared, LockUnavailable, NoServerLease, PoolerDetected, ScopeMismatch
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
from ha.lock.oracle_connection import OracleConnection
from ha.lock.session import DatabaseSession
from ha.settings import ElectionSettings

T = TypeVar("T")

MODULE = "replicated-notary"
GRANTED, BUSY, DEADLOCK, PARAMETER, ALREADY_OWNED, HANDLE = range(6)  # what DBMS_LOCK answers
NOT_OWNED = ALREADY_OWNED  # the same number, of RELEASE
_EPOCH = datetime(1970, 1, 1)
_NOT_PREPARED = {
    942,  # table or view does not exist, or may not be seen
    1031,  # insufficient privileges
    6550,  # PL/SQL that does not compile: DBMS_LOCK may not be executed
}
_UNREADABLE = {942, 1031}

# Commits are waited for whatever the server's or the transaction's setting; texts are compared byte by byte.
PREPARE = tuple(
    f"/* ha.lock.prepare */\nALTER SESSION SET {setting}"
    for setting in ("COMMIT_WAIT = FORCE_WAIT", "NLS_COMP = BINARY", "NLS_SORT = BINARY")
)
CHECK = """/* ha.lock.check */
SELECT SYS_CONTEXT('USERENV', 'SESSION_USER'), SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA'),
       SYS_CONTEXT('USERENV', 'PROXY_USER'), s.sid, s.server, SYS_CONTEXT('USERENV', 'DATABASE_ROLE'), d.open_mode,
       SYS_EXTRACT_UTC(SYSTIMESTAMP)
  FROM v$database d
  JOIN gv$session s ON s.inst_id = TO_NUMBER(SYS_CONTEXT('USERENV', 'INSTANCE'))
                   AND s.sid = TO_NUMBER(SYS_CONTEXT('USERENV', 'SID'))"""
PROFILE = """/* ha.lock.profile */
SELECT r.limit FROM user_resource_limits r WHERE r.resource_name = 'IDLE_TIME'"""
PARAMETERS = """/* ha.lock.parameters */
SELECT name, value FROM v$parameter WHERE name IN ('resource_limit', 'max_idle_time')"""
REQUEST = """/* ha.lock.request */
BEGIN
    :result := SYS.DBMS_LOCK.REQUEST(id => :id, lockmode => 6, timeout => 0, release_on_commit => FALSE);
    :role := SYS_CONTEXT('USERENV', 'DATABASE_ROLE');
    :wall := SYS_EXTRACT_UTC(SYSTIMESTAMP);
END;"""
LOOK = """/* ha.lock.look */
SELECT h.sid, h.name, h.username, h.machine, r.releases, r.released_by, r.released_for,
       CASE WHEN h.audsid = r.released_session THEN 1 ELSE 0 END,
       SYS_CONTEXT('USERENV', 'DATABASE_ROLE'), SYS_EXTRACT_UTC(SYSTIMESTAMP)
  FROM dual
  LEFT JOIN lock_release r ON r.lock_id = :id
  LEFT JOIN (SELECT l.sid, s.audsid, s.client_identifier AS name, s.username, s.machine
               FROM gv$lock l
               LEFT JOIN gv$session s ON s.inst_id = l.inst_id AND s.sid = l.sid
              WHERE l.type = 'UL' AND l.id1 = :id AND l.id2 = 0 AND l.lmode > 1) h ON 1 = 1"""
NOTE = """/* ha.lock.note */
BEGIN
    UPDATE lock_release
       SET releases = releases + 1, released_by = :name, released_for = :peer,
           released_session = TO_NUMBER(SYS_CONTEXT('USERENV', 'SESSIONID'))
     WHERE lock_id = :id;
    IF SQL%ROWCOUNT = 0 THEN
        INSERT INTO lock_release (lock_id, releases, released_by, released_for, released_session)
        VALUES (:id, 1, :name, :peer, TO_NUMBER(SYS_CONTEXT('USERENV', 'SESSIONID')));
    END IF;
    COMMIT;
END;"""
RELEASE = """/* ha.lock.release */
BEGIN
    :result := SYS.DBMS_LOCK.RELEASE(id => :id);
END;"""
IDENTITY = """/* ha.lock.identity */
SELECT TO_CHAR(dbid), resetlogs_change# FROM v$database"""


def connect_parameters(login: Mapping[str, str], settings: ElectionSettings) -> dict[str, Any]:
    """Arguments of oracledb.connect_async. `login`: user, password and dsn. No call_timeout: it would cancel."""
    return {
        **login,
        "server_type": "dedicated",
        "tcp_connect_timeout": settings.connect_max_s,
        "retry_count": 0,  # the election tries again, with a new session
        "expire_time": 1,  # minutes; keepalive of our end of the socket
    }


class OracleLockSession(DatabaseSession[OracleConnection]):
    """A WriteSession of OracleConnection."""

    def __init__(
        self,
        login: Mapping[str, str],
        *,
        scope: str,
        name: str,
        settings: ElectionSettings,
        clock: Clock,
        counter: int = Counter.PARTICIPANT_WRITE,
    ) -> None:
        """`scope`: the user that logs in and owns the tables, as the server writes it; the lock id is made of it.

        `login`: user, password and dsn. `name`: this replica's, unique among its peers.
        """
        super().__init__(name=name, settings=settings, clock=clock)
        self._parameters = connect_parameters(login, settings)
        self._scope = scope
        self._id = lock_id(scope, counter)
        self._granted = False
        self._releases_over = 0  # how many releases on purpose are old news
        self._lease = ServerLease(None, False, "not connected")

    @property
    def server_lease(self) -> ServerLease:
        """See LockSession."""
        return self._lease

    async def _connect(self) -> OracleConnection:
        try:
            connection = await OracleConnection.connect(self._parameters)
        except LockUnavailable as error:
            raise LockUnavailable(f"cannot connect as {self._name}: {error.args[0]}") from error
        connection.introduce(self._name, MODULE)
        return connection

    async def _check(self) -> None:
        user, schema, proxy, sid, server, role, mode, _ = await self._one("lock.check", CHECK, {})
        if user != self._scope or schema != self._scope:
            raise ScopeMismatch(
                f"the configured scope is {self._scope!r}, the server's user is {user!r} and its schema {schema!r}"
            )
        self._refuse_pool(proxy, sid, server)
        self._refuse_read_only(role != "PRIMARY" or mode != "READ WRITE")
        for text in PREPARE:
            await self._answered("lock.prepare", partial(OracleConnection.run, text=text, values={}))
        self._lease = server_lease(*await self._idle_limits(), self._settings.lease_s)
        await self._may_execute()
        await self._look("lock.look", at_first=True)

    def _refuse_pool(self, proxy: str | None, sid: int, server: str) -> None:
        if proxy is not None:
            raise PoolerDetected(f"the session was opened by the proxy user {proxy!r}")
        if server != "DEDICATED":
            raise PoolerDetected(f"the server process is {server}, not DEDICATED")
        if self._connection is not None and sid != self._connection.session_id:
            raise PoolerDetected(f"the protocol's session is {self._connection.session_id}, the server's is {sid}")

    async def _idle_limits(self) -> tuple[str | None, dict[str, str] | None]:
        """IDLE_TIME of the user's profile, and the server's parameters; None for what may not be read."""

        async def ask(connection: OracleConnection) -> tuple[str | None, dict[str, str] | None]:
            profile = await connection.rows(PROFILE)
            try:
                parameters = dict(await connection.rows(PARAMETERS))
            except oracledb.DatabaseError as error:
                if _code(error) not in _UNREADABLE:
                    raise
                parameters = None
            return (profile[0][0] if profile else None), parameters

        return await self._answered("lock.limits", ask)

    async def _may_execute(self) -> None:
        """That this session may use DBMS_LOCK: it gives back a lock that it does not own."""
        result = (await self._call("lock.rights", RELEASE, {"result": int}))["result"]
        if result != NOT_OWNED:
            raise InvariantBroken(f"DBMS_LOCK.RELEASE answered {result} in a new session")

    async def try_lock(self) -> LockAnswer:
        """See LockSession."""
        if self._granted:
            raise InvariantBroken("a lock that was granted is not asked for again")
        asked_at_s = self._clock.boottime_s()
        result = await self._request("lock.try")
        if result in (GRANTED, ALREADY_OWNED):
            self._granted = True
            _, note = await self._view("lock.try")
            return LockAnswer(True, asked_at_s, released=note)
        if result != BUSY:
            raise self._unexpected("lock.try", result)
        return LockAnswer(False, asked_at_s, (await self._look("lock.try")).owner)

    async def look(self) -> LockView:
        """See LockSession."""
        return await self._look("lock.look")

    async def confirm(self) -> float:
        """See LockSession. Requests the lock: an owner gets ALREADY_OWNED; GRANTED means that it was not the owner."""
        asked_at_s = self._clock.boottime_s()
        result = await self._request("lock.confirm")
        if result in (GRANTED, BUSY):
            raise self._lose("the server says that this session did not hold the lock")
        if result != ALREADY_OWNED:
            raise self._unexpected("lock.confirm", result)
        return asked_at_s

    async def release(self, to: str | None = None) -> None:
        """See LockSession. First the note, then the lock, so that a peer that finds it free finds the note as well."""
        values = {"id": self._id, "name": self._name, "peer": to}
        await self._answered("lock.note", lambda connection: connection.run(NOTE, values))
        if to is not None:
            await self._clock.sleep_s(RELEASE_LEAD_S)
        result = (await self._call("lock.release", RELEASE, {"result": int}))["result"]
        if result not in (GRANTED, NOT_OWNED):
            raise self._unexpected("lock.release", result)

    async def database_identity(self) -> DatabaseIdentity:
        """See LockSession: the database's id, and the change at which its logs were last reset, as a fail-over does."""
        ((dbid, resetlogs),) = await self._answered("lock.identity", lambda connection: connection.rows(IDENTITY))
        return DatabaseIdentity("oracle", str(dbid), int(resetlogs))

    def _is_unknown(self, error: BaseException) -> bool:
        return isinstance(error, oracledb.OperationalError | oracledb.InterfaceError | oracledb.InternalError)

    async def _request(self, name: str) -> int:
        """What DBMS_LOCK.REQUEST answers. Raises ReadOnlyServer on a standby."""
        before_us = self._clock.wall_us()
        answer = await self._call(name, REQUEST, {"result": int, "role": str, "wall": oracledb.DB_TYPE_TIMESTAMP})
        self._note_clock(before_us, _microseconds(answer["wall"]), self._clock.wall_us())
        self._refuse_read_only(answer["role"] != "PRIMARY")
        return int(answer["result"])

    async def _look(self, name: str, *, at_first: bool = False) -> LockView:
        """Who holds the lock; if nobody does, the note of its last release."""
        owner, note = await self._view(name, at_first=at_first)
        return LockView(owner, note if owner is None else None)

    async def _view(self, name: str, *, at_first: bool = False) -> tuple[LockOwner | None, ReleaseNote | None]:
        """Who holds the lock, and the note of its last release, unless that is older than what was seen.

        A note is out of date once another replica is seen holding the lock. A note of the present holder itself may be
        new: it may be about to let go.
        """
        sid, holder, user, machine, count, by, peer, releasing, role, _ = await self._one(name, LOOK, {"id": self._id})
        self._refuse_read_only(role != "PRIMARY")
        releases = int(count or 0)
        note = ReleaseNote(by, peer) if releases > self._releases_over else None
        if at_first or sid is not None:
            self._releases_over = releases - 1 if releasing else releases
        return (None if sid is None else LockOwner(int(sid), holder or "", user or "", machine or "")), note

    async def _one(self, name: str, text: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The first row of a question about the lock, whose last column is the database's wall clock, UTC."""
        before_us = self._clock.wall_us()
        rows = await self._answered(name, lambda connection: connection.rows(text, values))
        if not rows:
            raise InvariantBroken(f"{name}: a question about the lock gave no row")
        self._note_clock(before_us, _microseconds(rows[0][-1]), self._clock.wall_us())
        return rows[0]

    async def _call(self, name: str, text: str, out: Mapping[str, Any]) -> dict[str, Any]:
        return await self._answered(name, lambda connection: connection.run(text, {"id": self._id}, out=out))

    async def _answered(self, name: str, ask: Callable[[OracleConnection], Awaitable[T]]) -> T:
        """Ask the server. An error as the answer ends the session, too: the state of the lock is then unknown."""
        try:
            async with self.statement(name) as connection:
                return await ask(connection)
        except oracledb.Error as error:
            if _code(error) in _NOT_PREPARED:
                self._lose(f"{name}: {_first_line(error)}")
                raise DatabaseNotPrepared(f"{name}: {_first_line(error)}") from error
            raise self._lose(f"{name}: {_first_line(error)}") from error

    def _unexpected(self, name: str, result: int) -> Exception:
        """A deadlock is worth another session; a wrong parameter or handle is a bug."""
        lost = self._lose(f"{name}: DBMS_LOCK answered {result}")
        return lost if result == DEADLOCK else InvariantBroken(str(lost.args[0]))


def server_lease(idle_time: str | None, parameters: Mapping[str, str] | None, lease_s: float) -> ServerLease:
    """The lease that results from the server's idle limits. Pure; raises NoServerLease.

    `idle_time`: minutes of the user's profile, or UNLIMITED. `parameters`: of the server, None if they may not be read.
    A limit below `lease_s` frees the lock while its holder still claims it; without any limit nothing ever frees it.
    """
    limits = {}
    known = parameters or {}
    if idle_time is not None and idle_time.isdigit() and known.get("resource_limit", "TRUE") == "TRUE":
        limits["IDLE_TIME"] = int(idle_time) * 60.0
    if int(known.get("max_idle_time", "0")) > 0:
        limits["MAX_IDLE_TIME"] = int(known["max_idle_time"]) * 60.0
    detail = ", ".join(f"{name} {limit_s:g} s" for name, limit_s in limits.items()) or "no idle limit found"
    if parameters is None:
        detail += "; RESOURCE_LIMIT and MAX_IDLE_TIME not verified: no right to read V$PARAMETER"
    elif not limits:
        raise NoServerLease("neither IDLE_TIME of the user's profile nor MAX_IDLE_TIME ends an idle session")
    detail += "; SQLNET.EXPIRE_TIME not verified: no view shows it"
    frees_after_s = min(limits.values(), default=None)
    if frees_after_s is not None and frees_after_s < lease_s:
        raise NoServerLease(f"the server ends a session idle for {frees_after_s:g} s, less than lease_s = {lease_s:g}")
    return ServerLease(frees_after_s, parameters is not None, detail)


def _code(error: oracledb.Error) -> int:
    return int(getattr(error.args[0], "code", 0)) if error.args else 0


def _first_line(error: oracledb.Error) -> str:
    """The error's text without the driver's links; an ORA- line if there is one, which is more precise than the
    driver's."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if line.startswith("ORA-")), lines[0])


def _microseconds(utc: datetime) -> int:
    return (utc - _EPOCH) // timedelta(microseconds=1)
