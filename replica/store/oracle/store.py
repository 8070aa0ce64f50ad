"""The participant store on Oracle 19c or newer, written through the connection that holds the lock.

It has the same transactions as on Postgres, in more round trips: no Oracle statement writes several tables and returns
rows. docs/decisions/0006 has the choices and reasons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import oracledb

from replica.notary.errors import InvariantBroken, StoreMismatch
from replica.notary.formats import Formats
from replica.notary.marks import PEERS_MAX, ContradictedMark
from replica.notary.position import BEGIN, Position, decode_position, encode_position
from replica.store.completions import starts_after, whole_from
from replica.store.interface import Completion, Pruned, Published, Row
from replica.store.oracle.errors import translate
from replica.store.oracle.migrate import newest_version
from replica.store.schema import check_bound, check_version, read_statement

CHARACTER_SET = "AL32UTF8"
MARK_ROWS = {"row_count": PEERS_MAX}
PARTIES_JOINT = "\n"  # party names are printable text, so it cannot occur in one


class Connection(Protocol):
    """The lock session's connection as far as the store needs it."""

    async def rows(self, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query."""

    async def run(self, text: str, values: Mapping[str, Any], *, commit: bool = False) -> object:
        """Run a statement that is no query; `commit` in the same round trip if it succeeds."""

    async def run_many(self, text: str, rows: Sequence[Mapping[str, Any]], *, commit: bool = False) -> None:
        """Run a statement for each row of values, in one round trip."""

    async def rollback(self) -> None:
        """Undo what is not committed."""


class StatementSession(Protocol):
    """The lock session as far as the store needs it."""

    def statement(self, name: str) -> AbstractAsyncContextManager[Connection]:
        """The connection for one transaction at a time. A failure inside with an unknown outcome ends the session."""


def read_marks(rows: Iterable[Sequence[Any]]) -> list[ContradictedMark]:
    """The rows of `contradicted_marks`."""
    return [ContradictedMark(replica, mark, bool(own_disk)) for replica, mark, own_disk in rows]


def named_statement(name: str) -> str:
    """The text of one of the SQL files, by name."""
    return read_statement("oracle", name)


class OracleStore:
    """See ParticipantStore."""

    def __init__(self, session: StatementSession) -> None:
        self._session = session
        self._published_offset: int | None = None  # None until it was asked for

    async def bind(self, topic_id: str, salvages: Collection[str] = ()) -> Formats:
        """See ParticipantStore."""
        async with self._transaction("bind") as connection:
            await connection.run(named_statement("bind_topic"), {"topic_id": topic_id}, commit=True)
            ((bound, version, usable_from, character_set, *formats),) = await connection.rows(named_statement("bound"))
        check_version(version or 0, usable_from or 0, newest_version())
        if bound is None:
            raise StoreMismatch("the database has lost its participant row; restore it from a backup")
        check_bound(bound, topic_id, salvages)
        if character_set != CHARACTER_SET:
            raise StoreMismatch(
                f"the database's character set is {character_set}; only {CHARACTER_SET} holds every text"
            )
        return Formats(*(int(version) for version in formats))

    async def raise_epoch(self, above: int, replica: str) -> int:
        """See ParticipantStore."""
        async with self._transaction("raise_epoch") as connection:
            granted, *_ = await _counters(connection)
            epoch = max(granted, above) + 1
            await connection.run(named_statement("found_over"), {"replica": replica})
            await connection.run(named_statement("grant_epoch"), {"epoch": epoch, "replica": replica})
            await connection.run(named_statement("raise_epoch"), {"epoch": epoch}, commit=True)
        return epoch

    async def service_paused(self) -> bool:
        """See ParticipantStore. Never: without a table of sequence numbers the active alone serves."""
        return False

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ParticipantStore."""
        async with self._transaction("contradicted_marks") as connection:
            return read_marks(await connection.rows(named_statement("contradicted_marks"), MARK_ROWS))

    async def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """See ParticipantStore."""
        async with self._transaction("end_epoch") as connection:
            values = {"epoch": epoch, "replica": replica, "reason": reason[:250]}
            await connection.run(named_statement("end_epoch"), values, commit=True)

    async def published(self) -> Published:
        """See ParticipantStore."""
        async with self._transaction("published") as connection:
            ((position, ledger_end, pruned_to),) = await connection.rows(named_statement("published"))
        read = None if position is None else decode_position(position)
        found = Published(read, int(ledger_end), int(pruned_to))
        self._published_offset = BEGIN if found.position is None else found.position.offset
        return found

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore.

        The times of judgement rise with the ledger offsets, so this is a binary search, one round trip for each step.
        Only this session moves the bound or the ledger end.
        """
        async with self._transaction("prune") as connection:
            ((_, ledger_end, found),) = await connection.rows(named_statement("published"))
            pruned_to = int(found)
            low, high = pruned_to + 1, int(ledger_end) + 1
            while low < high:
                middle = (low + high) // 2
                ((recorded_us,),) = await connection.rows(named_statement("recorded_at"), {"ledger_offset": middle})
                low, high = (middle + 1, high) if recorded_us < recorded_before_us else (low, middle)
            safe_to = low - 1
            wanted = safe_to if up_to is None else up_to
            if pruned_to < wanted <= safe_to:
                await connection.run(named_statement("prune"), {"pruned_to": wanted}, commit=True)
                pruned_to = wanted
        return Pruned(pruned_to, safe_to)

    async def publish(self, completions: Sequence[Row], position: Position) -> int:
        """See ParticipantStore."""
        if self._published_offset is None or position.offset <= self._published_offset:
            raise InvariantBroken(f"completions to offset {position.offset} do not go on from {self._published_offset}")
        async with self._transaction("publish") as connection:
            _, found_end, published_offset, pruned_to = await _counters(connection)
            ledger_end = position.ledger_offset
            if published_offset != self._published_offset or found_end > starts_after(completions, ledger_end):
                raise InvariantBroken(f"completions do not go on from offset {self._published_offset} any more")
            if found_end < (start := whole_from(completions, ledger_end)):
                pruned_to = start
            rows = [_row_of_completion(*row) for row in completions]
            if rows:
                await connection.run_many(named_statement("complete"), rows)
            moved = {
                "ledger_end": ledger_end,
                "pruned_to": pruned_to,
                "published_offset": position.offset,
                "published_position": encode_position(position),
            }
            await connection.run(named_statement("move_position"), moved, commit=True)
            self._published_offset = position.offset
        return pruned_to

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """The session's statement. An error is rolled back, and raised as the class that says what to do about it."""
        try:
            async with self._session.statement(name) as connection:
                try:
                    yield connection
                except Exception:
                    await connection.rollback()
                    raise
        except oracledb.DatabaseError as error:
            raise translate(name, error) from error


async def _counters(connection: Connection) -> tuple[int, int, int, int]:
    """Epoch, ledger end, published offset and bound. No other session moves them until the transaction ends."""
    ((epoch, ledger_end, published_offset, pruned_to),) = await connection.rows(named_statement("counters"))
    return int(epoch), int(ledger_end), int(published_offset), int(pruned_to)


def _row_of_completion(ledger_offset: int, completion: Completion) -> dict[str, Any]:
    return {
        "ledger_offset": ledger_offset,
        "log_offset": completion.log_offset,
        "change_id": completion.change_id,
        "user_id": completion.user_id,
        "command_id": completion.command_id,
        "submission_id": completion.submission_id,
        "tx_id": completion.tx_id,
        "content_digest": completion.content_digest,
        "outcome": completion.outcome,
        "notarised_offset": completion.notarised_offset,
        "recorded_us": completion.recorded_us,
        "deduplication_us": completion.deduplication_us,
        "deduplication_after": completion.deduplication_after,
        "act_as": PARTIES_JOINT.join(completion.act_as),
        "detail": completion.detail or None,  # an empty RAW is NULL here
    }


def parties(act_as: str) -> tuple[str, ...]:
    """The parties of a command as they are stored."""
    return tuple(act_as.split(PARTIES_JOINT))


def completion_of(row: Sequence[Any]) -> Completion:
    """The completion in a row of its table, which begins with the ledger offset."""
    _, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome, *rest = row
    notarised_offset, recorded_us, detail, *deduplication = rest
    return Completion(
        log_offset,
        change_id,
        user_id,
        command_id,
        parties(act_as),
        submission_id,
        tx_id,
        content_digest,
        outcome,
        notarised_offset,
        recorded_us,
        detail or b"",
        *deduplication,
    )
