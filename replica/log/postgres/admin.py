"""The operations of tools on the request log on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg

from replica.log.admin import LogSurvey, Stretch
from replica.log.interface import LogMissing
from replica.log.postgres.install import install, read_sql
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.session import BATCHES_MAX, connection_parameters, meaning_of
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.errors import LogRefused, LogUnavailable

STANDBYS_MAX = 8


class PostgresLogAdmin:
    """A `LogAdmin`. It returns only replicated records, as a reader does."""

    def __init__(self, settings: PostgresLogSettings) -> None:
        self._settings = settings
        self._log = PostgresLog(settings)

    async def topic_id(self) -> str:
        """See `LogAdmin.topic_id`."""
        return (await self._log.survey()).log_id

    async def first_offset(self) -> int:
        """See `LogAdmin.first_offset`."""
        return (await self._log.survey()).first_offset

    async def end_offset(self) -> int:
        """See `LogAdmin.end_offset`: of what is replicated."""
        return await self._log.end_offset()

    async def server_count(self) -> int:
        """The number of servers: the primary, and the standbys with any WAL on disk, at most STANDBYS_MAX of them."""
        return 1 + await self._log.standby_count(STANDBYS_MAX)

    async def survey(self) -> LogSurvey:
        """See `LogAdmin.survey`."""
        return await self._log.survey()

    async def create(self) -> str:
        """See `LogAdmin.create`. Needs the schema's owner, except where there is a log already."""
        try:
            return await self._log.check()
        except LogMissing:
            await install(self._settings.login())
        return await self._log.check()

    def stretch(self, first: int, end: int) -> Iterator[Stretch]:
        """See `LogAdmin.stretch`. The records of one append share one time."""
        if end > (delivered := asyncio.run(self._end())):
            raise LogUnavailable(f"the log is replicated to below offset {delivered}, asked for is {end - 1}")
        try:
            with psycopg.connect(**connection_parameters(self._settings), autocommit=True) as connection:  # type: ignore[arg-type]
                while first < end:
                    values = {"first": first, "end": end, "batches_max": BATCHES_MAX}
                    found = connection.execute(read_sql("stretch"), values, binary=True).fetchall()
                    stretch = _stretch([(int(at), int(ms), list(records)) for at, ms, records in found], first, end)
                    yield stretch
                    first += len(stretch.values)
        except psycopg.Error as error:
            raise meaning_of(error) from error

    async def close(self) -> None:
        """See `LogAdmin.close`."""
        await self._log.close()

    async def _end(self) -> int:
        log = PostgresLog(self._settings)
        try:
            return await log.end_offset()
        finally:
            await log.close()


def _stretch(batches: list[tuple[int, int, list[bytes | None]]], first: int, end: int) -> Stretch:
    """The requested part of these batches. Raises LogRefused where an offset is missing. Pure."""
    times_ms: list[int] = []
    values: list[bytes | None] = []
    for at, time_ms, records in batches:
        following = first + len(values)
        taken = records[following - at : end - at] if at <= following else []
        if not taken:
            raise LogRefused(f"the log has no offset {following}: a batch begins at {at}")
        values += taken
        times_ms += [time_ms] * len(taken)
    if not values:
        raise LogRefused(f"the log has no offset {first}")
    return Stretch(first, times_ms, [None] * len(values), values, [None] * len(values))
