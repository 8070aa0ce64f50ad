"""Reads a request log from its start to its present end, for tools that judge it again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from replica.log.open import open_log
from replica.log.reading_on import open_reading_on
from replica.log.settings import LogSettings
from replica.notary.errors import LogRefused, LogUnavailable

READ_MAX_RECORDS = 5_000
READ_WAIT_S = 10.0


def read_topic(settings: LogSettings, topic_id: str | None) -> Iterator[tuple[int, bytes]]:
    """Every record up to the log's end at the start of reading, as (offset, value).

    For code without an event loop. `topic_id`: the identity that the log must have, None for any. Raises LogRefused
    when it is another log or has lost its beginning, and LogUnavailable.
    """
    with asyncio.Runner() as runner:
        log = open_log(settings)
        try:
            found = runner.run(log.check())
            if topic_id not in (None, found):
                raise LogRefused(f"the database belongs to topic id {topic_id}, the log's is {found}")
            end = runner.run(log.end_offset())
            reader = runner.run(open_reading_on(log, 0))
            offset = -1
            while offset < end - 1:
                records = runner.run(reader.read(READ_MAX_RECORDS, READ_WAIT_S))
                if not records:
                    raise LogUnavailable(f"no record after offset {offset} within {READ_WAIT_S} s")
                yield from records
                offset = records[-1][0]
        finally:
            runner.run(log.close())
