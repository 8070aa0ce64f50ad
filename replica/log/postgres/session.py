"""One connection to the log's server: the questions to it, and their implementation with psycopg."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any, Protocol

import psycopg
from psycopg import conninfo as libpq
from psycopg import errors, waiting
from psycopg.abc import RV, PQGen
from psycopg.adapt import Dumper
from psycopg.pq import Format, PGnotify
from psycopg.pq.abc import PGconn
from psycopg.rows import TupleRow

from ha.hosts import first_connected
from ha.postgres_session import ENCODING, session_options
from replica.log.interface import LogMissing
from replica.log.postgres.delivery import Appended, Batch, Bounds, Look
from replica.log.postgres.install import read_sql
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable, NotaryError

BATCHES_MAX = 256  # in the answer to one look
_APPEND = b"CALL notary_log.append_and_commit(%(log)s, %(records)s, %(standbys)s, NULL, NULL, NULL)"
_MAY_ASK_FOR_SNAPSHOTS = (
    b"SELECT coalesce(has_function_privilege(to_regprocedure('notary_log.oldest_snapshot()')::oid, 'EXECUTE'), false)"
)
_BYTEA, _BYTEA_ARRAY = 17, 1001  # types of the server
_ARRAY_HEAD, _LENGTH = Struct("!iiIii"), Struct("!i")
_TRANSACTION_TIMEOUT_SINCE = 170_000
_NO_LOG = (errors.UndefinedTable, errors.InvalidSchemaName)
_NOT_OUR_SCHEMA = (errors.UndefinedColumn, errors.UndefinedFunction, errors.InsufficientPrivilege)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server of a session, fixed while the session lives. A promotion begins a new timeline."""

    system_identifier: str
    timeline: int

    def __str__(self) -> str:
        """As it stands in a barrier."""
        return f"postgres:{self.system_identifier}:{self.timeline}"

    @classmethod
    def parse(cls, named: str) -> ServerIdentity | None:
        """The server that a barrier names; None where that is no Postgres."""
        kind, _, rest = named.partition(":")
        system_identifier, _, timeline = rest.partition(":")
        return cls(system_identifier, int(timeline)) if kind == "postgres" and timeline.isdecimal() else None


Admit = Callable[[ServerIdentity], None]  # raises LogUnavailable or LogRefused for a server that is not to be used


class Session(Protocol):
    """A connection. Any failure ends the session: the caller then hangs up.

    All raise LogUnavailable when no answer came, and LogRefused for an answer that makes no sense.
    """

    identity: ServerIdentity
    backend: int  # the server's process for this session, as notices name it

    async def violations(self, standbys: int) -> Sequence[str]:
        """Each rule of the log's contract that the server breaks."""

    async def may_harm(self) -> bool:
        """Whether this login may change or delete what is in the log."""

    async def oldest_snapshot(self) -> int | None:
        """How many transactions ago the oldest snapshot began that keeps dead rows of the log; None: not shown."""

    async def bounds(self, start_offset: int) -> Bounds:
        """Where the log begins and ends, and which batch has an offset."""

    async def look(self, first_batch: int, bytes_max: int, standbys: int, held: bool) -> Look:
        """The head, and the batches from `first_batch` on. `held`: report what is flushed even if no batch is shown."""

    async def flushed(self, standbys: int) -> int | None:
        """The WAL position that this many standbys have on disk; with 0, that of the server itself."""

    async def listen(self, known: Collection[int] = ()) -> None:
        """From now on, appends are notified to this session; see `heard`. Those by the backends in `known` are not."""

    async def heard(self, wait_s: float) -> bool:
        """Return when the server notifies of an append, at `wake`, and after `wait_s` at the latest.

        Whether there may be something to look for: False when only `wake` was called.
        """

    def wake(self) -> None:
        """Have `heard` return, at once when it is called later."""

    async def append(self, log_id: str, values: Sequence[bytes], standbys: int) -> Appended:
        """Append all values together, or none.

        Raises LogUnavailable when it is not known to be committed and replicated. It may then still be in the log.
        """

    async def make_partitions(self) -> None:
        """Create the partitions for the next records."""

    def hang_up(self) -> None:
        """End the connection at once. Every waiting call raises LogUnavailable. May be repeated."""


class LogConnection(psycopg.AsyncConnection[TupleRow]):
    """A psycopg connection that never asks the server to cancel. Either the statement ends, or the connection does.

    psycopg sends a cancel request when a task is cancelled during a statement. That would end a commit's wait for its
    standby with a warning.
    """

    busy = False

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._known: Collection[int] = ()
        self._notified = self._woken = False
        self._stirred = asyncio.Event()

    async def listen(self, known: Collection[int]) -> None:
        """See `Session.listen`. Raises psycopg.Error."""
        self._known = known
        self.pgconn.notify_handler = self._note
        await self.execute("LISTEN notary_log")

    async def heard(self, wait_s: float) -> bool:
        """See `Session.heard`. Unlike psycopg's own wait it can be ended early. Raises psycopg.Error."""
        loop, number = asyncio.get_running_loop(), self.pgconn.socket
        self.busy = True
        loop.add_reader(number, self._stirred.set)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    self._stirred.clear()
                    self.pgconn.consume_input()
                    while notice := self.pgconn.notifies():
                        self._note(notice)
                    if self._notified or self._woken:
                        return self._notified
                    await self._stirred.wait()
        except TimeoutError:
            return True
        finally:
            loop.remove_reader(number)
            self._notified = self._woken = self.busy = False

    def wake(self) -> None:
        """See `Session.wake`."""
        self._woken = True
        self._stirred.set()

    def _note(self, notice: PGnotify) -> None:
        self._notified = self._notified or notice.be_pid not in self._known

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        self.busy = True
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except Exception:
            raise
        except BaseException:  # the task was cancelled
            self.pgconn.finish()
            raise
        finally:
            self.busy = False

    def hang_up(self) -> None:
        """Shut the socket down while a task waits on it. A close would let the event loop watch a reused number."""
        if not self.busy:
            self.pgconn.finish()
            return
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as shared:
            shared.shutdown(socket.SHUT_RDWR)


class BinaryRecords(bytes):
    """Records as a parameter: what `pack` gives."""


class _RecordsDumper(Dumper):
    format = Format.BINARY
    oid = _BYTEA_ARRAY

    def dump(self, obj: BinaryRecords) -> bytes:
        return obj


def pack(values: Sequence[bytes]) -> bytes:
    """Records as Postgres takes a bytea[] in binary: one dimension, without nulls, from 1 on. Pure."""
    parts = [_ARRAY_HEAD.pack(1, 0, _BYTEA, len(values), 1)]
    for value in values:
        parts += (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


class PostgresSession:
    """A `Session` with psycopg."""

    def __init__(self, connection: LogConnection, identity: ServerIdentity, answer_max_s: float) -> None:
        self.identity = identity
        self.backend = connection.info.backend_pid
        self._connection = connection
        self._answer_max_s = answer_max_s
        self._warnings: list[str] = []
        connection.add_notice_handler(self._note)
        connection.adapters.register_dumper(BinaryRecords, _RecordsDumper)

    async def violations(self, standbys: int) -> Sequence[str]:
        """See `Session.violations`."""
        fsync, full_page_writes, commit, sees_standbys, unlogged = await self._row(read("facts"))
        broken = {
            "fsync is off": fsync != "on",
            "full_page_writes is off": full_page_writes != "on",
            f"synchronous_commit is {commit}": commit in ("off", "local"),
            "the owner of notary_log is no member of pg_read_all_stats, so it does not see the standbys": (
                standbys > 0 and not sees_standbys
            ),
            "tables of notary_log are unlogged": unlogged != 0,
        }
        return [rule for rule, is_broken in broken.items() if is_broken]

    async def may_harm(self) -> bool:
        """See `Session.may_harm`."""
        (found,) = await self._row(read("harm"))
        return bool(found)

    async def oldest_snapshot(self) -> int | None:
        """See `Session.oldest_snapshot`. A log that was made without the function does not show it."""
        (may_ask,) = await self._row(_MAY_ASK_FOR_SNAPSHOTS)
        if not may_ask:
            return None
        (age,) = await self._row(b"SELECT notary_log.oldest_snapshot()")
        return None if age is None else int(age)

    async def bounds(self, start_offset: int) -> Bounds:
        """See `Session.bounds`."""
        return Bounds(*await self._row(read("bounds"), {"start": start_offset}))

    async def look(self, first_batch: int, bytes_max: int, standbys: int, held: bool) -> Look:
        """See `Session.look`."""
        values = {
            "start": first_batch,
            "bytes_max": bytes_max,
            "standbys": standbys,
            "held": held,
            "batches_max": BATCHES_MAX,
        }
        rows = await self._rows(read("look"), values)
        if not rows:
            raise LogRefused("notary_log.log_head has no row")
        log_id, end_offset, position, flushed, *_ = rows[0]
        return Look(log_id, end_offset, position, flushed, [Batch(*row[4:]) for row in rows if row[4] is not None])

    async def flushed(self, standbys: int) -> int | None:
        """See `Session.flushed`."""
        (position,) = await self._row(b"SELECT notary_log.flushed(%(standbys)s)", {"standbys": standbys})
        return None if position is None else int(position)

    async def listen(self, known: Collection[int] = ()) -> None:
        """See `Session.listen`."""
        async with self._asking():
            await self._connection.listen(known)

    async def heard(self, wait_s: float) -> bool:
        """See `Session.heard`."""
        try:
            return await self._connection.heard(wait_s)
        except psycopg.Error as error:
            raise LogUnavailable(f"the log's server: {str(error).strip()}") from error

    def wake(self) -> None:
        """See `Session.wake`."""
        self._connection.wake()

    async def append(self, log_id: str, values: Sequence[bytes], standbys: int) -> Appended:
        """See `Session.append`.

        One call, which commits by itself: the server needs nothing more from us once it has the whole of it, and then
        holds nothing. The records are sent as they are, in the protocol's binary form.
        """
        self._warnings.clear()
        given = {"log": log_id, "records": BinaryRecords(pack(values)), "standbys": standbys}
        answer = Appended(*await self._row(_APPEND, given, prepare=True))
        if self._warnings:  # committed, but a standby may lack it
            raise LogUnavailable(f"an append was answered with a warning: {self._warnings[0]}")
        return answer

    async def make_partitions(self) -> None:
        """See `Session.make_partitions`."""
        await self._row(b"SELECT notary_log.make_partitions()")

    def hang_up(self) -> None:
        """See `Session.hang_up`."""
        self._connection.hang_up()

    async def _row(self, query: bytes, values: dict[str, Any] | None = None, prepare: bool | None = None) -> TupleRow:
        rows = await self._rows(query, values, prepare)
        if not rows:
            raise LogRefused("notary_log.log_head has no row")
        return rows[0]

    async def _rows(
        self, query: bytes, values: dict[str, Any] | None = None, prepare: bool | None = None
    ) -> list[TupleRow]:
        async with self._asking():
            cursor = self._connection.cursor(binary=values is not None)
            return await (await cursor.execute(query, values, prepare=prepare)).fetchall()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._answer_max_s):
                yield
        except TimeoutError as error:
            raise LogUnavailable(f"the log's server owes an answer for {self._answer_max_s} s") from error
        except psycopg.Error as error:
            raise meaning_of(error) from error

    def _note(self, notice: errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "")


@cache
def read(name: str) -> bytes:
    """The text of one of the SQL files, by name."""
    return read_sql(name)


def connection_parameters(settings: PostgresLogSettings) -> dict[str, object]:
    """libpq's parameters. The operator's `options` are kept; ours come after them and take precedence.

    The limits are those of the lock session, except `idle_session_timeout`: between two statements we hold nothing.
    """
    given: dict[str, object] = dict(libpq.conninfo_to_dict(settings.login()))
    lease_ms, answer_ms = round(settings.lease_s * 1_000), round(settings.answer_max_s * 1_000)
    limits = {
        # A look reads a few batches in the order of the index. Without statistics the server would instead sort all
        # batches that follow, at each look: a reader that catches up would read the rest of the log every time.
        "enable_sort": "off",
        "enable_bitmapscan": "off",
        "enable_seqscan": "off",
        "jit": "off",  # the planner takes the plans discouraged above for expensive, and would compile them
        "statement_timeout": answer_ms,
        "lock_timeout": answer_ms,
        "idle_in_transaction_session_timeout": lease_ms,
        "tcp_keepalives_idle": 1,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": lease_ms,
        "client_connection_check_interval": 1_000,
    }
    return given | {
        "application_name": given.get("application_name") or "notary_log",
        "client_encoding": ENCODING,
        "options": session_options(given.get("options"), limits),
        "target_session_attrs": "read-write",
        "connect_timeout": max(2, round(settings.connect_timeout_s)),
        "keepalives": 1,
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": answer_ms,
    }


async def connect(settings: PostgresLogSettings, admit: Admit) -> PostgresSession:
    """A session on the first host that is a primary and is admitted.

    Each host is tried by itself: one that is unreachable, a standby or an old primary must not keep us from the others.
    Raises LogUnavailable, and LogRefused.
    """

    async def connect_to(parameters: Mapping[str, object]) -> PostgresSession:
        try:
            return await _connect_to(parameters, settings, admit)
        except LogUnavailable as error:
            raise ConnectionError(error.detail) from error

    try:
        return await first_connected(connection_parameters(settings), connect_to, PostgresSession.hang_up)
    except ConnectionError as error:
        raise LogUnavailable(f"cannot connect to the log's server: {error}") from error


async def _connect_to(parameters: Mapping[str, object], settings: PostgresLogSettings, admit: Admit) -> PostgresSession:
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            connection = await LogConnection.connect(**parameters, autocommit=True)  # type: ignore[arg-type]
    except (psycopg.Error, TimeoutError) as error:
        raise LogUnavailable(str(error).strip() or f"no answer within {settings.connect_timeout_s:g} s") from error
    try:
        identity = await _identify(connection, settings)
        admit(identity)
        return PostgresSession(connection, identity, settings.answer_max_s)
    except BaseException:
        connection.hang_up()
        raise


async def _identify(connection: LogConnection, settings: PostgresLogSettings) -> ServerIdentity:
    try:
        async with asyncio.timeout(settings.answer_max_s):
            if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
                limit = f"{round(settings.lease_s * 1_000)}"
                await connection.execute("SELECT set_config('transaction_timeout', %s, false)", (limit,))
            row = await (await connection.execute(read("identity"))).fetchone()
    except TimeoutError as error:
        raise LogUnavailable("the log's server does not say which it is") from error
    except psycopg.Error as error:
        raise meaning_of(error) from error
    system, in_recovery, timeline, isolation, _ = row or ("", True, 0, "", "")
    if in_recovery:
        raise LogUnavailable("the log's server is a standby")
    if isolation != "read committed":
        raise LogRefused(f"the log's server ignores the isolation level that is asked for: it is {isolation}")
    return ServerIdentity(system, timeline)


def meaning_of(error: psycopg.Error) -> NotaryError:
    """Our error for a failure of the server."""
    detail = f"the log's server: {str(error).strip()}"
    if isinstance(error, _NO_LOG):
        return LogMissing(f"{detail}; make the log: notary log create")
    if isinstance(error, _NOT_OUR_SCHEMA):
        return LogRefused(f"{detail}; grant the rights: notary log roles", Code.TOPIC_UNSAFE)
    if error.sqlstate == "NL001":
        return LogRefused(detail)
    return LogUnavailable(detail)
