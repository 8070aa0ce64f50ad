"""The participant store on Postgres, written through the connection that holds the lock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import psycopg

from replica.notary.errors import InvariantBroken, StoreMismatch
from replica.notary.position import Position, decode_position, encode_position
from replica.store.interface import NOTARISED, Admission, Admitted, Command, Completion, Published

Connection = psycopg.AsyncConnection[Any]
_PARTIES_JOINT = "\n"  # party names are printable text, so it cannot occur in one


class StatementSession(Protocol):
    """The lock session as far as the store needs it."""

    def statement(self, name: str) -> AbstractAsyncContextManager[Connection]:
        """The connection for one statement at a time; what fails inside ends the session."""


@cache
def named_statement(name: str) -> bytes:
    """The text of one of the SQL files, by name."""
    return files("replica.store").joinpath(f"sql/postgres/{name}.sql").read_bytes()


class PostgresStore:
    """See ParticipantStore."""

    def __init__(self, session: StatementSession) -> None:
        self._session = session

    async def bind(self, topic_id: str) -> None:
        """See ParticipantStore."""
        try:
            await self._rows("prepare_session")
            bound = (await self._rows("bind_topic", topic_id))[0][0]
        except psycopg.errors.UndefinedTable:
            raise StoreMismatch("the database has no schema; run `notary store migrate`") from None
        if bound != topic_id:
            raise StoreMismatch(f"the database belongs to topic id {bound}, the log's is {topic_id}")

    async def raise_epoch(self, above: int, replica: str) -> int:
        """See ParticipantStore."""
        return int((await self._rows("raise_epoch", above, replica))[0][0])

    async def published(self) -> Published:
        """See ParticipantStore."""
        position, ledger_end = (await self._rows("published"))[0]
        return Published(None if position is None else decode_position(position), ledger_end)

    async def admit(self, commands: Sequence[Command], accepted_since_us: int) -> list[Admission]:
        """See ParticipantStore."""
        first: dict[bytes, Command] = {}
        for command in commands:
            first.setdefault(command.change_id, command)
        fresh = await self._add_in_flight(list(first.values()), accepted_since_us)
        if fresh is None and len(first) == len(commands):
            return [Admission(Admitted.FRESH)] * len(commands)
        fresh_ids = set(first) if fresh is None else fresh
        known = await self._known(list(first.keys() - fresh_ids), accepted_since_us)
        admissions = []
        for command in commands:
            if command.change_id in fresh_ids:
                fresh_ids.remove(command.change_id)  # a second one of this call is not fresh any more
                admissions.append(Admission(Admitted.FRESH))
            else:
                tx_id, digest, offset = known.get(command.change_id) or _row_of(first[command.change_id])
                admissions.append(_compare(command, tx_id, digest, offset))
        return admissions

    async def publish(self, completions: Sequence[Completion], position: Position) -> int:
        """See ParticipantStore."""
        offsets = [completion.log_offset for completion in completions]
        accepting = {c.change_id: at for at, c in enumerate(completions) if c.outcome == NOTARISED}
        rows = await self._rows(
            "publish",
            len(completions),
            position.offset,
            encode_position(position),
            position.offset,
            offsets,
            offsets,
            [completion.change_id for completion in completions],
            [completion.user_id for completion in completions],
            [completion.command_id for completion in completions],
            [_PARTIES_JOINT.join(completion.act_as) for completion in completions],
            [completion.submission_id for completion in completions],
            [completion.tx_id for completion in completions],
            [completion.content_digest for completion in completions],
            [completion.outcome for completion in completions],
            [completion.notarised_offset for completion in completions],
            [completion.recorded_us for completion in completions],
            [completion.detail for completion in completions],
            [accepting.get(completion.change_id) == at for at, completion in enumerate(completions)],
        )
        if not rows:
            raise InvariantBroken(f"completions are published past offset {position.offset} already")
        return int(rows[0][0])

    async def pending(self, limit: int) -> list[Command]:
        """See ParticipantStore."""
        return [
            Command(change_id, user_id, command_id, tuple(act_as), submission_id, tx_id, digest, submitted_us)
            for change_id, user_id, command_id, act_as, submission_id, tx_id, digest, submitted_us in await self._rows(
                "pending", limit
            )
        ]

    async def _add_in_flight(self, commands: list[Command], accepted_since_us: int) -> set[bytes] | None:
        """Record commands that are not known; the change ids recorded, None for all of them (the usual case)."""
        async with self._session.statement("admit") as connection:
            cursor = await connection.execute(
                named_statement("admit"),
                (
                    [command.change_id for command in commands],
                    [command.user_id for command in commands],
                    [command.command_id for command in commands],
                    [_PARTIES_JOINT.join(command.act_as) for command in commands],
                    [command.submission_id for command in commands],
                    [command.tx_id for command in commands],
                    [command.content_digest for command in commands],
                    [command.submitted_us for command in commands],
                    accepted_since_us,
                ),
                prepare=True,
                binary=True,
            )
            if cursor.rowcount == len(commands):
                return None
            return {row[0] for row in await cursor.fetchall()}

    async def _known(
        self, change_ids: list[bytes], accepted_since_us: int
    ) -> dict[bytes, tuple[bytes, bytes, int | None]]:
        if not change_ids:
            return {}
        rows = await self._rows("known_commands", change_ids, change_ids, accepted_since_us)
        return {change_id: (tx_id, digest, offset) for change_id, tx_id, digest, offset in rows}

    async def _rows(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        async with self._session.statement(name) as connection:
            cursor = await connection.execute(named_statement(name), values, prepare=True, binary=True)
            return await cursor.fetchall()


def _row_of(command: Command) -> tuple[bytes, bytes, int | None]:
    """A command of the same call that came first is in flight."""
    return command.tx_id, command.content_digest, None


def _compare(command: Command, tx_id: bytes, digest: bytes, notarised_offset: int | None) -> Admission:
    if (tx_id, digest) != (command.tx_id, command.content_digest):
        return Admission(Admitted.REUSED)
    if notarised_offset is None:
        return Admission(Admitted.IN_FLIGHT)
    return Admission(Admitted.ACCEPTED, notarised_offset)
