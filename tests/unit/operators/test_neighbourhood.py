"""What else uses the participant's database: logged once, kept while the database does not answer, counted for
monitors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from structlog.testing import capture_logs

from ha.clock import SystemClock
from replica.notary.errors import StoreUnavailable
from replica.operators.neighbourhood import Neighbourhood, news
from replica.store.neighbours import Ledger, NamedSession, Neighbours

OURS = Ledger("public", "owner", True, True)
COPY = Ledger("copy", "x", False)
STRANGER = NamedSession(7, "r1", "x", "10.0.0.9", None, False)
REPLICA = NamedSession(8, "r1", "notary", "10.0.0.1", 1)
FOUND = Neighbours([REPLICA, STRANGER], [OURS, COPY])


def test_news_is_what_was_not_there_before() -> None:
    """Goal: one line for each. Method: nothing before, the same before, and a stranger who connects again."""
    assert news(Neighbours(), FOUND) == ([COPY], [STRANGER])
    assert news(FOUND, FOUND) == ([], [])
    again = Neighbours([NamedSession(9, "r1", "x", "", None, False)], [OURS, COPY])
    assert news(FOUND, again) == ([], [])
    assert news(FOUND, Neighbours([REPLICA], [OURS])) == ([], [])


async def test_what_is_found_is_told_once_and_stays_while_nobody_answers() -> None:
    """Goal: no line a minute, no false end of an alarm. Method: three looks, the last of which comes to nothing."""
    looks: Iterator[Neighbours | Exception] = iter([FOUND, FOUND, StoreUnavailable("gone")])
    over = asyncio.Event()

    class Clock(SystemClock):
        async def sleep_s(self, duration_s: float) -> None:
            await asyncio.sleep(0)

    async def look() -> Neighbours:
        found = next(looks, None)
        if found is None:
            over.set()
            await asyncio.Event().wait()
        if isinstance(found, Exception):
            raise found
        assert found is not None
        return found

    neighbourhood = Neighbourhood(look, Clock())
    with capture_logs() as lines:
        running = asyncio.create_task(neighbourhood.run())
        await over.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    told = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert told == ["ledger_copied", "name_borrowed"]
    assert neighbourhood.found == FOUND
    assert (neighbourhood.found.copies, neighbourhood.found.strangers) == ([COPY], [STRANGER])
