"""Where a participant's completions are: one class per kind of database, which joins its lock session and its store;
and one for replicas that share none, each of which derives a ledger of its own from the log.

The connection string selects the kind: `oracle://` at its start means Oracle, `sqlite:` ledgers of the replicas' own,
anything else is libpq's, so Postgres. Drivers are imported at their first use: a participant needs only that of its own
database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ha.lock.ids import Counter, lock_id
from ha.lock.interface import LockOwner, ServerLease, WriteSession
from replica.log.open import open_log
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, StoreMismatch
from replica.notary.words import WordsLog, replace
from replica.store.archive_head import ArchiveHeads, Heads, SaidHeads
from replica.store.neighbours import Neighbours
from replica.store.open import kind_of
from replica.store.oracle.login import parse_oracle, render_oracle
from replica.store.sqlite.kind import SQLITE
from replica.store.words import PRUNED, raised

if TYPE_CHECKING:
    from pathlib import Path

    from ha.clock import Clock
    from ha.settings import ElectionSettings
    from replica.log.interface import RequestLog
    from replica.log.settings import LogSettings
    from replica.store.bulletin import Board
    from replica.store.desk import Desk
    from replica.store.facts import Export, StoreStatus
    from replica.store.interface import ParticipantStore

Session: TypeAlias = WriteSession[Any]
HIDDEN = "***"
DATABASE = "the database"


class Ledgers(Protocol):
    """Where completions are, whoever writes them: what replicas and tools ask of any kind."""

    @property
    def conninfo(self) -> str:
        """The connection string with its password left out."""

    @property
    def reader_address(self) -> str:
        """Where front ends read completions, for `replica.store.reader`. It contains the password: never log it."""

    async def check_alone(self, name: str, settings: ElectionSettings) -> None:
        """Check, before a session is opened, that no other replica has this name and that our ledger is unambiguous.

        Raises ReplicaNameTaken, LedgersShareDatabase, StoreUnavailable. On Oracle a ledger has a user of its own, and a
        login may not see others' sessions: nothing is checked. Nor where each replica has a ledger of its own.
        """

    async def neighbours(self, name: str) -> Neighbours:
        """Who uses that replica's name, and copies of the ledger; nothing on other kinds than Postgres.

        Raises StoreUnavailable.
        """

    async def status(self) -> StoreStatus:
        """The participant's state as it is there. Raises StoreUnavailable and StoreMismatch."""

    def board(self, name: str) -> AbstractAsyncContextManager[Board]:
        """The bulletin board, on a connection of its own with this name; see replica.store.bulletin."""

    def export(self) -> AbstractContextManager[Export]:
        """All completions that are published. Raises StoreUnavailable and StoreMismatch, its rows as well."""

    def addresses(self) -> dict[str, str]:
        """Connection strings for `replica.store.open`, passwords included, each by what to call it. Never log them.

        Raises StoreMismatch where there is none.
        """

    def archive_heads(self) -> Heads:
        """Where the heads of archives are recorded."""


class Database(Ledgers, Protocol):
    """A database that the replicas share. Only sessions from `lock_session` write to it, but for `migrate`."""

    def lease(self, settings: ElectionSettings) -> ServerLease:
        """What is known of the server's lease before a session is open."""

    def lock_session(self, *, name: str, settings: ElectionSettings, clock: Clock) -> Session:
        """A lock session that is not open yet; `name` is the replica's."""

    def make_store(self, session: Session) -> ParticipantStore:
        """The store that writes through a session of this database's."""

    async def end_holder(self, owner: LockOwner, settings: ElectionSettings) -> bool:
        """End the session that holds the lock, if it is still this one; whether it was told to end.

        Raises ConfigError (NOT_POSSIBLE_NOW) where only an administrator may end sessions, and HaError.
        """

    async def migrate(self) -> list[str]:
        """Bring the schema up to date, guarded by a lock; the names of what was applied.

        Raises StoreUnavailable and StoreMismatch.
        """

    async def delete_pruned(self, report: Callable[[int], None]) -> int:
        """Delete completions below the bound that the active has moved; see replica.store.postgres.prune."""

    def desk(self, name: str) -> AbstractAsyncContextManager[Desk]:
        """What a notary worker asks, on a connection of its own with this name.

        Raises ConfigError (NOT_POSSIBLE_NOW) on a kind that has no numbers for workers; entering it StoreUnavailable.
        """

    def roles(self) -> str:
        """SQL that gives replicas and readers their rights."""


@dataclass(frozen=True, slots=True)
class Login:
    """A role of the database and its password, which may be empty."""

    user: str
    password: str = field(repr=False)


def participant_database(conninfo: str, scope: str, *, reader: Login | None = None) -> Database:
    """The database that a connection string, password included, leads to. Raises ConfigError.

    `reader`: what front ends log in as; None: as the connection string says.
    """
    match kind_of(conninfo).NAME:
        case "oracle":
            return OracleDatabase(parse_oracle(conninfo), scope, reader)
        case "postgres":
            return PostgresDatabase(conninfo, scope, reader)
        case _:
            raise ConfigError(
                "the replicas share no database: each derives a ledger of its own from the log", Code.NOT_POSSIBLE_NOW
            )


class EmbeddedLedgers:
    """See Ledgers: each replica writes a ledger of its own. The log decides all that is in it."""

    def __init__(self, files: Sequence[Path], log: LogSettings | None = None, names: Sequence[str] = ()) -> None:
        """`files`: a replica's own; or, for tools, those of the replicas that this machine may have, with their names.

        `log`: the request log, in which operators' words are; None: nobody asks for them.
        """
        self._files = files
        self._names = names or [str(file) for file in files]
        self._log = log

    @property
    def conninfo(self) -> str:
        return SQLITE

    @property
    def reader_address(self) -> str:
        return f"{SQLITE}{self._files[0].absolute()}"

    @property
    def folder(self) -> Path:
        """Where a replica keeps its ledger."""
        return self._files[0].parent

    async def check_alone(self, name: str, settings: ElectionSettings) -> None:
        return

    async def neighbours(self, name: str) -> Neighbours:
        return Neighbours()

    async def status(self) -> StoreStatus:
        from replica.store.sqlite.looking import read_status

        return await asyncio.to_thread(read_status, self._files)

    @asynccontextmanager
    async def board(self, name: str) -> AsyncIterator[Board]:
        from replica.store.sqlite.looking import LedgerBoard

        async with self._words() as words:
            yield LedgerBoard(self._files, words)

    def board_over(self, log: RequestLog) -> Board:
        """The same over a replica's own access to the log: no connection is made."""
        from replica.store.sqlite.looking import LedgerBoard

        return LedgerBoard(self._files, log if isinstance(log, WordsLog) else None)

    async def prune_all(self, pruned_to: int) -> None:
        """Let every replica delete its completions up to that ledger offset. Raises LogUnavailable and ConfigError."""
        async with self._words() as words:
            if words is None:
                raise ConfigError("one bound for all replicas needs log nodes", Code.NOT_POSSIBLE_NOW)
            await replace(words, PRUNED, lambda value: raised(value, pruned_to))

    def addresses(self) -> dict[str, str]:
        """See Ledgers: of each replica that this machine has."""
        found = [(name, file) for name, file in zip(self._names, self._files, strict=True) if file.exists()]
        if not found:
            raise StoreMismatch("no replica of this machine has a ledger yet: start one", Code.NOT_POSSIBLE_NOW)
        return {f"the ledger of {name}": f"{SQLITE}{file.absolute()}" for name, file in found}

    def archive_heads(self) -> Heads:
        return SaidHeads(self._sure_words)

    @asynccontextmanager
    async def _sure_words(self) -> AsyncIterator[WordsLog]:
        async with self._words() as words:
            if words is None:
                raise ConfigError("the archive's head needs log nodes, or a database", Code.NOT_POSSIBLE_NOW)
            yield words

    @asynccontextmanager
    async def _words(self) -> AsyncIterator[WordsLog | None]:
        """The log, where operators' words are; None for one that has none."""
        async with AsyncExitStack() as stack:
            log = None if self._log is None else open_log(self._log)
            if log is not None:
                stack.push_async_callback(log.close)
            yield log if isinstance(log, WordsLog) else None

    def export(self) -> AbstractContextManager[Export]:
        from replica.store.sqlite.looking import export_completions

        return export_completions(self._files)


class PostgresDatabase:
    """See Database. `scope` is the database's name as the server reports it."""

    def __init__(self, conninfo: str, scope: str, reader: Login | None = None) -> None:
        self._conninfo = conninfo
        self._scope = scope
        self._reader = reader

    @property
    def conninfo(self) -> str:
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        given: Mapping[str, object] = conninfo_to_dict(self._conninfo)
        return make_conninfo(self._conninfo, password=HIDDEN) if "password" in given else self._conninfo

    @property
    def reader_address(self) -> str:
        from psycopg.conninfo import make_conninfo

        if self._reader is None:
            return self._conninfo
        login = {"user": self._reader.user, "password": self._reader.password or None}
        return make_conninfo(self._conninfo, **login)

    def lease(self, settings: ElectionSettings) -> ServerLease:
        return ServerLease(settings.lease_s, True, "idle_session_timeout, set by each session to lease_s")

    def lock_session(self, *, name: str, settings: ElectionSettings, clock: Clock) -> Session:
        from ha.lock.postgres import PostgresLockSession

        return PostgresLockSession(self._conninfo, scope=self._scope, name=name, settings=settings, clock=clock)

    def make_store(self, session: Session) -> ParticipantStore:
        from replica.store.postgres.store import PostgresStore

        return PostgresStore(session)

    async def end_holder(self, owner: LockOwner, settings: ElectionSettings) -> bool:
        from ha.clock import SystemClock
        from ha.lock.postgres import PostgresLockSession

        name = "notary-failover"
        session = PostgresLockSession(
            self._conninfo, scope=self._scope, name=name, settings=settings, clock=SystemClock()
        )
        try:
            await session.open()
            return await session.end_holder(owner.pid)
        finally:
            await session.close()

    async def check_alone(self, name: str, settings: ElectionSettings) -> None:
        from replica.store.postgres.neighbours import check_alone

        await check_alone(self._conninfo, name, settings.lease_s)

    async def neighbours(self, name: str) -> Neighbours:
        from replica.store.postgres.neighbours import look_at_neighbours

        return await look_at_neighbours(self._conninfo, [name], 0.0)

    async def migrate(self) -> list[str]:
        from replica.store.postgres.migrate import migrate

        return await migrate(self._conninfo, lock_id(self._scope, Counter.NODE_MIGRATIONS))

    async def status(self) -> StoreStatus:
        from replica.store.postgres.status import read_status

        return await read_status(self._conninfo)

    def board(self, name: str) -> AbstractAsyncContextManager[Board]:
        from replica.store.postgres.board import postgres_board

        return postgres_board(self._conninfo, name)

    def export(self) -> AbstractContextManager[Export]:
        from replica.store.postgres.export import export_completions

        return export_completions(self._conninfo)

    def addresses(self) -> dict[str, str]:
        return {DATABASE: self._conninfo}

    def archive_heads(self) -> Heads:
        return ArchiveHeads(self._conninfo)

    async def delete_pruned(self, report: Callable[[int], None]) -> int:
        from replica.store.postgres.prune import delete_pruned

        return await delete_pruned(self._conninfo, report)

    def desk(self, name: str) -> AbstractAsyncContextManager[Desk]:
        from replica.store.postgres.desk import postgres_desk

        return postgres_desk(self._conninfo, name)

    def roles(self) -> str:
        from replica.store.schema import read_statement

        return read_statement("postgres", "roles")


class OracleDatabase:
    """See Database. `login`: user, password and dsn; `scope` is the user as the server writes it."""

    def __init__(self, login: Mapping[str, str], scope: str, reader: Login | None = None) -> None:
        self._login = dict(login)
        self._scope = scope
        self._reader = reader
        if find_spec("oracledb") is None:
            raise ConfigError("Oracle needs python-oracledb: pip install 'replicated-notary[oracle]'")

    @property
    def conninfo(self) -> str:
        return render_oracle(self._login | ({"password": HIDDEN} if "password" in self._login else {}))

    @property
    def reader_address(self) -> str:
        if self._reader is None:
            return render_oracle(self._login)
        reader = {"user": self._reader.user, "password": self._reader.password, "schema": self._scope}
        return render_oracle(self._login | reader)

    def lease(self, settings: ElectionSettings) -> ServerLease:
        return ServerLease(None, False, "IDLE_TIME or MAX_IDLE_TIME; not asked, no replica is active")

    def lock_session(self, *, name: str, settings: ElectionSettings, clock: Clock) -> Session:
        from ha.lock.oracle import OracleLockSession

        return OracleLockSession(self._login, scope=self._scope, name=name, settings=settings, clock=clock)

    def make_store(self, session: Session) -> ParticipantStore:
        from replica.store.oracle.store import OracleStore

        return OracleStore(session)

    async def end_holder(self, owner: LockOwner, settings: ElectionSettings) -> bool:
        raise ConfigError(
            f"Oracle lets only an administrator end {owner}: ALTER SYSTEM KILL SESSION, see runbooks/oracle.md",
            Code.NOT_POSSIBLE_NOW,
        )

    async def check_alone(self, name: str, settings: ElectionSettings) -> None:
        return

    async def neighbours(self, name: str) -> Neighbours:
        return Neighbours()

    async def migrate(self) -> list[str]:
        from replica.store.oracle.migrate import migrate

        return await migrate(self._login, lock_id(self._scope, Counter.NODE_MIGRATIONS))

    async def status(self) -> StoreStatus:
        from replica.store.oracle.status import read_status

        return await read_status(self._login)

    def board(self, name: str) -> AbstractAsyncContextManager[Board]:
        from replica.store.oracle.board import oracle_board

        return oracle_board(self._login, name)

    def export(self) -> AbstractContextManager[Export]:
        from replica.store.oracle.export import export_completions

        return export_completions(self._login)

    def addresses(self) -> dict[str, str]:
        return {DATABASE: render_oracle(self._login)}

    def archive_heads(self) -> Heads:
        return ArchiveHeads(render_oracle(self._login))

    async def delete_pruned(self, report: Callable[[int], None]) -> int:
        from replica.store.oracle.prune import delete_pruned

        return await asyncio.to_thread(delete_pruned, self._login, report)

    def desk(self, name: str) -> AbstractAsyncContextManager[Desk]:
        raise ConfigError("workers are not supported with Oracle: it has no table of numbers", Code.NOT_POSSIBLE_NOW)

    def roles(self) -> str:
        from replica.store.schema import read_statement

        return read_statement("oracle", "roles").replace(" TO notary;", f' TO "{self._scope}";')
