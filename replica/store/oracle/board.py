"""The bulletin board on Oracle. See replica.store.bulletin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import oracledb

from replica.notary.codes import Code
from replica.notary.errors import ConfigError, StoreMismatch
from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMark
from replica.store.bulletin import NO_PAUSE_OF_SERVICE, PastActivation, Pause
from replica.store.oracle.errors import error_number, translate
from replica.store.oracle.looking import open_cursor
from replica.store.oracle.store import MARK_ROWS, named_statement, read_marks

REASON_MAX_BYTES = 1_000
LATE_S = 1.0
NUMBER_TAKEN = 1  # ORA-00001: unique constraint violated


@asynccontextmanager
async def oracle_board(login: Mapping[str, str], name: str) -> AsyncIterator[OracleBoard]:
    """A board on a connection of its own. Raises StoreUnavailable when it cannot connect."""
    async with open_cursor(name, login) as cursor:
        yield OracleBoard(cursor)


class OracleBoard:
    """See Board."""

    def __init__(self, cursor: oracledb.AsyncCursor) -> None:
        self._cursor = cursor

    async def paused(self) -> Pause | None:
        """See Board."""
        rows = await self._rows("paused")
        return Pause(*_in_utc(rows[0])) if rows else None

    async def pause(self, reason: str) -> Pause | None:
        """See Board."""
        await self._change("pause", {"reason": _short(reason)})
        await self._change("pause_reason", {"reason": _short(reason)})
        return await self.paused()

    async def resume(self) -> Pause | None:
        """See Board."""
        paused = await self.paused()
        await self._change("resume", {})
        return paused

    async def pause_service(self, reason: str) -> Pause | None:
        """See Board."""
        raise ConfigError(NO_PAUSE_OF_SERVICE, Code.NOT_POSSIBLE_NOW)

    async def resume_service(self) -> Pause | None:
        """See Board."""
        raise ConfigError(NO_PAUSE_OF_SERVICE, Code.NOT_POSSIBLE_NOW)

    async def history(self, limit: int) -> list[PastActivation]:
        """See Board."""
        rows = await self._rows("history", {"row_count": limit})
        return [PastActivation(int(epoch), *_in_utc(rest)) for epoch, *rest in rows]

    async def formats(self) -> Formats:
        """See Board."""
        rows = await self._rows("formats")
        if not rows:
            raise StoreMismatch("the database has lost its participant row; restore it from a backup")
        return Formats(*map(int, rows[0]))

    async def raise_formats(self, formats: Formats) -> Formats:
        """See Board."""
        await self._change("raise_formats", {"records": formats.records, "rules": formats.rules})
        return await self.formats()

    async def end_epoch(self, epoch: int, replica: str, reason: str, age_s: float) -> None:
        """See Board. The end gets the time of this call; the reason says how late the call is."""
        noted = _short(f"{reason} (recorded {age_s:.1f} s later)" if age_s >= LATE_S else reason)
        await self._change("end_epoch", {"epoch": epoch, "replica": replica, "reason": noted})

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ContradictedMarks."""
        return read_marks(await self._rows("contradicted_marks", MARK_ROWS))

    async def leave_mark(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""
        digest = sha256(left.mark).digest()
        values = {"replica": left.replica, "mark": left.mark, "digest": digest, "own_disk": int(left.own_disk)}
        whichever = {"replica": left.replica, "digest": None, "own_disk": None}
        await self._change("delete_mark", whichever, commit=False)
        await self._change("insert_mark", values)

    async def take_mark_away(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""
        digest = sha256(left.mark).digest()
        values = {"replica": left.replica, "digest": digest, "own_disk": int(left.own_disk)}
        await self._change("delete_mark", values)

    async def newest_of_trail(self) -> bytes | None:
        """See TrailKeeper."""
        return next((line.encode() for (line,) in await self._rows("newest_of_trail")), None)

    async def trail(self, after: int, limit: int) -> list[bytes]:
        """See TrailKeeper."""
        return [line.encode() for (line,) in await self._rows("read_trail", {"after_": after, "row_count": limit})]

    async def extend_trail(self, number: int, line: bytes) -> bool:
        """See TrailKeeper."""
        try:
            await self._cursor.execute(named_statement("extend_trail"), {"number_": number, "line": line.decode()})
            kept = self._cursor.rowcount == 1
            await self._cursor.connection.commit()
        except oracledb.Error as error:
            if error_number(error) == NUMBER_TAKEN:
                return False
            raise translate("extend_trail", error) from None
        return kept

    async def _rows(self, name: str, values: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        try:
            await self._cursor.execute(named_statement(name), dict(values or {}), fetch_lobs=False)
            rows: list[tuple[Any, ...]] = await self._cursor.fetchall()
            return rows
        except oracledb.Error as error:
            raise translate(name, error) from None

    async def _change(self, name: str, values: Mapping[str, object], *, commit: bool = True) -> None:
        try:
            await self._cursor.execute(named_statement(name), dict(values))
            if commit:
                await self._cursor.connection.commit()
        except oracledb.Error as error:
            raise translate(name, error) from None


def _short(reason: str) -> str:
    return reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore")


def _in_utc(values: Any) -> list[Any]:
    return [value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in values]
