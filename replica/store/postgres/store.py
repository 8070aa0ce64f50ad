"""The participant store on Postgres, written through the connection that holds the lock.

docs/decisions/0003 has the reasons for the tables, with measurements.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, Protocol

import psycopg
from psycopg import errors

from replica.notary.errors import InvariantBroken, NotaryError, StoreMismatch, StoreUnavailable, ValuesRefused
from replica.notary.formats import Formats
from replica.notary.position import BEGIN, Position, decode_position, encode_position
from replica.store.bulletin import NOBODY
from replica.store.in_flight import InFlight, Known
from replica.store.interface import (
    AdmissionResult,
    Command,
    Completion,
    OfEach,
    Pruned,
    Published,
    Reach,
    is_for_the_log,
    is_remembered,
    published_of,
)
from replica.store.postgres.arrays import bools, byteas, ids, int8s, register, texts
from replica.store.postgres.looking import check_encoding
from replica.store.postgres.migrate import newest_version
from replica.store.schema import check_bound, check_version, read_statement

Connection = psycopg.AsyncConnection[Any]
_PARTIES_JOINT = "\n"  # party names are printable text, so it cannot occur in one
CARRY_ROWS = 20_000  # completions that one statement reads to find what is in flight: well within its time limit
_NOT_OUR_SCHEMA = (errors.UndefinedTable, errors.UndefinedColumn, errors.InsufficientPrivilege)


class StatementSession(Protocol):
    """The lock session as far as the store needs it."""

    def statement(self, name: str) -> AbstractAsyncContextManager[Connection]:
        """The connection for one statement at a time; what fails inside ends the session."""


@cache
def named_statement(name: str) -> bytes:
    """The text of one of the SQL files, by name; the server's activity and statistics views show the name."""
    return read_statement("postgres", name).encode()


class PostgresStore:
    """See ParticipantStore.

    Commands in flight are recorded in memory as well as in the database. Admissions and publications run concurrently,
    so memory is read and changed only while the statement is ours, in the same order as the database.
    """

    def __init__(self, session: StatementSession, *, fenced: bool = False) -> None:
        """`fenced`: nothing is published once another session was granted an epoch. The lock's own session need not be:
        it ends with the lock."""
        self._fenced = fenced
        self._session = session
        self._in_flight = InFlight()
        self._in_flight_by: Counter[int] = Counter()  # how many commands each admission still has
        self._admission = 0  # the newest number
        self._epoch: int | None = None  # granted to this session
        self._published_offset: int | None = None  # None until it was asked for
        self._over_until: int | None = None  # admissions of earlier activations, all settled; None until that is known
        self._uncarried = 0  # completions published since commands in flight were last carried on

    async def bind(self, topic_id: str, salvages: Collection[str] = ()) -> Formats:
        """See ParticipantStore."""
        async with self._statement("bind") as connection:
            register(connection)
            await _rows(connection, "prepare_session", {})
            rows = await _rows(connection, "bind_topic", {"topic_id": topic_id})
        if not rows:
            raise StoreMismatch("the database has lost its participant row; restore it from a backup")
        bound, version, usable_from, encoding, *formats = rows[0]
        check_version(version, usable_from, newest_version())
        check_bound(bound, topic_id, salvages)
        check_encoding(encoding)
        return Formats(*formats)

    async def raise_epoch(self, above: int, replica: str) -> int:
        """See ParticipantStore."""
        async with self._statement("raise_epoch") as connection:
            rows = await _rows(connection, "raise_epoch", {"above": above, "replica": replica})
            self._epoch, self._admission = rows[0]
        return int(rows[0][0])

    async def service_paused(self) -> bool:
        """See ParticipantStore."""
        async with self._statement("service_paused") as connection:
            return bool(await _rows(connection, "service_paused", {"keeper": NOBODY}))

    async def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """See ParticipantStore."""
        async with self._statement("end_epoch") as connection:
            values = {"epoch": epoch, "replica": replica, "reason": reason, "age_s": 0.0}
            await _rows(connection, "end_epoch", values)

    async def published(self) -> Published:
        """See ParticipantStore."""
        async with self._statement("published") as connection:
            position, *counters = (await _rows(connection, "published", {}))[0]
        found = published_of(None if position is None else decode_position(position), *counters)
        self._published_offset = BEGIN if found.position is None else found.position.offset
        return found

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore."""
        async with self._statement("prune") as connection:
            values = {"up_to": up_to, "recorded_before_us": recorded_before_us}
            ((pruned_to, safe_to),) = await _rows(connection, "prune", values)
        return Pruned(pruned_to, max(pruned_to, safe_to))

    async def log_offset_of(self, ledger_offset: int) -> int | None:
        """See ParticipantStore."""
        async with self._statement("log_offset") as connection:
            rows = await _rows(connection, "log_offset", {"ledger_offset": ledger_offset})
        return int(rows[0][0]) if rows else None

    async def pending(self, limit: int) -> list[Command]:
        """See ParticipantStore. A page of completions at a time: after a restore they may be those of months."""
        await self._carry()
        async with self._statement("pending") as connection:
            rows = await _rows(connection, "pending", {"limit": limit})
            if not rows:
                self._over_until = self._admission
        return [
            Command(change_id, user_id, command_id, tuple(act_as), submission_id, tx_id, digest, submitted_us)
            for change_id, user_id, command_id, act_as, submission_id, tx_id, digest, submitted_us in rows
        ]

    async def admit(
        self, commands: Sequence[Command], accepted_since_us: OfEach, accepted_after: OfEach = 0
    ) -> list[AdmissionResult]:
        """See ParticipantStore."""
        if self._over_until is None:
            raise InvariantBroken("commands of earlier activations are not known to be settled")
        async with self._statement("admit") as connection:
            fresh = self._in_flight.fresh(commands)
            accepted = await self._add(connection, fresh, Reach(commands, accepted_since_us, accepted_after))
            self._note_admitted(fresh.values())
            return self._in_flight.outcomes(commands, fresh, accepted)

    async def publish(self, completions: Sequence[Completion], position: Position) -> int:
        """See ParticipantStore."""
        if self._published_offset is None or position.offset <= self._published_offset:
            raise InvariantBroken(f"completions to offset {position.offset} do not go on from {self._published_offset}")
        values = _columns_of_completions(completions, position) | {
            "count": len(completions),
            "after": self._published_offset,
            "offset": position.offset,
            "epoch": self._epoch if self._fenced else None,
            "position": encode_position(position),
        }
        async with self._statement("publish") as connection:
            landing = self._in_flight.landing(completions)
            left = self._in_flight_by - Counter(known.admission for known in landing.values())
            over = {known.admission for known in landing.values()} - left.keys()
            values |= {"over": int8s(list(over)), "over_until": self._over_until or 0}
            rows = await _rows(connection, "publish", values, prepare=True)
            if not rows:
                raise await self._displaced(connection)
            self._published_offset = position.offset
            self._in_flight.remove(landing)
            self._in_flight_by = left
        if self._over_until is None:
            self._uncarried += len(completions)
            if self._uncarried >= CARRY_ROWS:
                await self._carry()
        return int(rows[0][0])

    async def _displaced(self, connection: Connection) -> NotaryError | InvariantBroken:
        """Why nothing was published: another epoch was granted, or the database is not where it was left."""
        ((epoch,),) = await _rows(connection, "granted_epoch", {})
        if self._fenced and self._epoch != epoch:
            return StoreUnavailable(f"epoch {epoch} was granted, and this session has epoch {self._epoch}")
        return InvariantBroken(f"completions are not published to offset {self._published_offset} any more")

    async def _carry(self) -> None:
        """Carry on what earlier activations left in flight, until little is left to look at after it.

        Each step stays when the next one fails, so an activation that is cut short does not repeat it.
        """
        self._uncarried = 0
        while True:
            async with self._statement("carry") as connection:
                ((low, ledger_end),) = await _rows(connection, "in_flight_span", {})
                if low is None or ledger_end - low <= CARRY_ROWS:
                    return
                values = {"low": low, "high": low + CARRY_ROWS}
                ((self._admission,),) = await _rows(connection, "carry", values)

    async def _add(self, connection: Connection, fresh: dict[bytes, Command], reach: Reach) -> dict[bytes, Known]:
        """Record what is fresh; what turns out to be accepted already is taken out of it and returned.

        One round trip, two if something was accepted already: then the first one records nothing.
        """
        accepted: dict[bytes, Known] = {}
        to_admit: set[bytes] = set()  # whatever was accepted before
        while fresh:
            values = _columns_to_admit(fresh.values()) | {
                "asked_ids": ids([change_id for change_id in fresh if change_id not in to_admit]),
                "number": self._admission + 1,
                "accepted_since_us": reach.since_us,
                "accepted_after": reach.after,
            }
            rows = await _rows(connection, "admit", values, prepare=True)
            if not rows:
                break
            for change_id, tx_id, digest, notarised_offset, ledger_offset, accepted_us, submission_id in rows:
                counts = reach.covers(change_id, accepted_us, ledger_offset)
                if not counts or is_for_the_log(fresh[change_id], tx_id, digest):
                    to_admit.add(change_id)
                    continue
                accepted[change_id] = Known(tx_id, digest, notarised_offset, submission_id or "", 0, ledger_offset)
                del fresh[change_id]
        return accepted

    def _note_admitted(self, commands: Collection[Command]) -> None:
        if not commands:
            return
        self._admission += 1
        self._in_flight_by[self._admission] = len(commands)
        self._in_flight.add(commands, self._admission)

    @asynccontextmanager
    async def _statement(self, name: str) -> AsyncIterator[Connection]:
        """The session's statement. A database error is raised as the class that says what to do about it."""
        try:
            async with self._session.statement(name) as connection:
                yield connection
        except psycopg.Error as error:
            raise _translate(name, error) from error


def completion_of(row: Sequence[Any]) -> Completion:
    """The completion in a row of the statements that read completions; the ledger offset comes first in it."""
    _, log_offset, change_id, user_id, command_id, act_as, *rest = row
    return Completion(log_offset, change_id, user_id, command_id, tuple(act_as), *rest)


async def _rows(
    connection: Connection, name: str, values: Mapping[str, object], *, prepare: bool = False
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(named_statement(name), values, prepare=prepare, binary=True)
    return await cursor.fetchall()


def _columns_to_admit(commands: Iterable[Command]) -> dict[str, object]:
    """Raises ValuesRefused: a column cannot be put together, before anything was sent."""
    try:
        return _columns_of_commands(commands)
    except (ValueError, struct.error) as error:
        raise ValuesRefused(f"admit: {error}") from error


def _columns_of_commands(given: Iterable[Command]) -> dict[str, object]:
    commands = list(given)
    return {
        "change_ids": ids([c.change_id for c in commands]),
        "user_ids": texts([c.user_id for c in commands]),
        "command_ids": texts([c.command_id for c in commands]),
        "act_as": texts([_PARTIES_JOINT.join(c.act_as) for c in commands]),
        "submission_ids": texts([c.submission_id for c in commands]),
        "tx_ids": ids([c.tx_id for c in commands]),
        "content_digests": ids([c.content_digest for c in commands]),
        "submitted_us": int8s([c.submitted_us for c in commands]),
    }


def _columns_of_completions(completions: Sequence[Completion], position: Position) -> dict[str, object]:
    accepting = {c.change_id: at for at, c in enumerate(completions) if is_remembered(c, position)}  # the last counts
    return {
        "log_offsets": int8s([c.log_offset for c in completions]),
        "change_ids": ids([c.change_id for c in completions]),
        "user_ids": texts([c.user_id for c in completions]),
        "command_ids": texts([c.command_id for c in completions]),
        "act_as": texts([_PARTIES_JOINT.join(c.act_as) for c in completions]),
        "submission_ids": texts([c.submission_id for c in completions]),
        "tx_ids": ids([c.tx_id for c in completions]),
        "content_digests": ids([c.content_digest for c in completions]),
        "outcomes": texts([c.outcome for c in completions]),
        "notarised_offsets": int8s([c.notarised_offset for c in completions]),
        "recorded_us": int8s([c.recorded_us for c in completions]),
        "details": byteas([c.detail for c in completions]),
        "deduplication_us": int8s([c.deduplication_us for c in completions]),
        "deduplication_after": int8s([c.deduplication_after for c in completions]),
        "accepting": bools([accepting.get(c.change_id) == at for at, c in enumerate(completions)]),
    }


def _translate(name: str, error: psycopg.Error) -> NotaryError | InvariantBroken:
    """Our error for a database error in place of rows: nothing was written."""
    detail = f"{name}: {str(error).strip()}"
    if isinstance(error, _NOT_OUR_SCHEMA):
        return StoreMismatch(f"{detail}; run `notary store migrate`, and grant the rights of sql/postgres/roles.sql")
    if isinstance(error, psycopg.OperationalError | errors.ReadOnlySqlTransaction):
        return StoreUnavailable(detail)
    if name == "admit" and isinstance(error, psycopg.DataError):
        return ValuesRefused(detail)
    return InvariantBroken(detail)
