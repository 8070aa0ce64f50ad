"""The greedy caller of the fault scenario: it closes what it opens, and a second caller that is not served is seen."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from tests.faults.greedy import ABOUT, FOLLOW, NOTHING, SUBMISSIONS, Place, held, repeated, serves_another
from tests.integration.test_api_feeds import Ledger
from tests.promises import PromiseBroken
from tests.waiting import eventually
from tests.worlds.api_world import ApiWorld

pytestmark = pytest.mark.thorough


async def test_it_takes_its_share_and_closes_all(tmp_path: Path) -> None:
    """Method: each thing it does, against a real front end with small bounds; unclosed sockets are errors here."""
    ledger = Ledger()
    ledger.publish(20)
    told: list[str] = []
    async with ApiWorld(ledger, connections_max=40, streams_max=8, scan_rows_per_s=1_000.0).serve() as world:
        place = Place("127.0.0.1", world.port)
        for count, raw, taken in ((100, b"", 0), (12, FOLLOW % 0, 200), (12, SUBMISSIONS, 101)):
            async with held(place, count, raw) as statuses:
                await serves_another(place, FOLLOW % 0, 200, 2, told.append)
                await serves_another(place, SUBMISSIONS, 101, 2, told.append)
                assert statuses[taken] == (4 if raw else 0)
        async with repeated(place, 4, NOTHING) as statuses:
            await eventually(lambda: _is(statuses[200] > 5))
            await serves_another(place, ABOUT, 200, 2, told.append)
        with pytest.raises(PromiseBroken, match="a second caller"):
            await serves_another(place, b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 1, told.append)
        await asyncio.sleep(0)
    gc.collect()
    assert len(told) == 7


async def _is(condition: bool) -> bool:
    return condition
