"""The participant store on Postgres, written through the connection that holds the lock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, Protocol

import psycopg
from psycopg import errors

from replica.notary.errors import InvariantBroken, NotaryError, StoreMismatch, StoreUnavailable
from replica.notary.formats import Formats
from replica.notary.marks import PEERS_MAX, ContradictedMark
from replica.notary.position import BEGIN, Position, decode_position, encode_position
from replica.store.bulletin import NOBODY
from replica.store.completions import starts_after, whole_from
from replica.store.interface import Completion, Pruned, Published, Row
from replica.store.postgres.arrays import byteas, ids, int8s, register, texts
from replica.store.postgres.looking import check_encoding
from replica.store.postgres.migrate import newest_version
from replica.store.schema import check_bound, check_version, read_statement

Connection = psycopg.AsyncConnection[Any]
_PARTIES_JOINT = "\n"  # party names are printable text, so it cannot occur in one
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
    """See ParticipantStore."""

    def __init__(self, session: StatementSession) -> None:
        self._session = session
        self._published_offset: int | None = None  # None until it was asked for

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
            ((epoch,),) = await _rows(connection, "raise_epoch", {"above": above, "replica": replica})
        return int(epoch)

    async def service_paused(self) -> bool:
        """See ParticipantStore."""
        async with self._statement("service_paused") as connection:
            return bool(await _rows(connection, "service_paused", {"keeper": NOBODY}))

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ParticipantStore."""
        async with self._statement("contradicted_marks") as connection:
            rows = await _rows(connection, "contradicted_marks", {"limit": PEERS_MAX})
        return [ContradictedMark(*row) for row in rows]

    async def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """See ParticipantStore."""
        async with self._statement("end_epoch") as connection:
            values = {"epoch": epoch, "replica": replica, "reason": reason, "age_s": 0.0}
            await _rows(connection, "end_epoch", values)

    async def published(self) -> Published:
        """See ParticipantStore."""
        async with self._statement("published") as connection:
            ((position, *counters),) = await _rows(connection, "published", {})
        found = Published(None if position is None else decode_position(position), *counters)
        self._published_offset = BEGIN if found.position is None else found.position.offset
        return found

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore."""
        async with self._statement("prune") as connection:
            values = {"up_to": up_to, "recorded_before_us": recorded_before_us}
            ((pruned_to, safe_to),) = await _rows(connection, "prune", values)
        return Pruned(pruned_to, max(pruned_to, safe_to))

    async def publish(self, completions: Sequence[Row], position: Position) -> int:
        """See ParticipantStore."""
        if self._published_offset is None or position.offset <= self._published_offset:
            raise InvariantBroken(f"completions to offset {position.offset} do not go on from {self._published_offset}")
        values = _columns_of_completions(completions) | {
            "ledger_end": position.ledger_offset,
            "starts_after": starts_after(completions, position.ledger_offset),
            "whole_from": whole_from(completions, position.ledger_offset),
            "after": self._published_offset,
            "offset": position.offset,
            "position": encode_position(position),
        }
        async with self._statement("publish") as connection:
            rows = await _rows(connection, "publish", values, prepare=True)
            if not rows:
                raise InvariantBroken(f"completions do not go on from offset {self._published_offset} any more")
            self._published_offset = position.offset
        return int(rows[0][0])

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


def _columns_of_completions(rows: Sequence[Row]) -> dict[str, object]:
    completions = [completion for _, completion in rows]
    return {
        "ledger_offsets": int8s([ledger_offset for ledger_offset, _ in rows]),
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
    }


def _translate(name: str, error: psycopg.Error) -> NotaryError | InvariantBroken:
    """Our error for a database error in place of rows: nothing was written."""
    detail = f"{name}: {str(error).strip()}"
    if isinstance(error, _NOT_OUR_SCHEMA):
        return StoreMismatch(f"{detail}; run `notary store migrate`, and grant the rights of sql/postgres/roles.sql")
    if isinstance(error, psycopg.OperationalError | errors.ReadOnlySqlTransaction):
        return StoreUnavailable(detail)
    return InvariantBroken(detail)
