"""What scenarios of power cuts share: racks, publication that is held up, what replicas say."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import psycopg

from replica.local.process import until
from replica.local.replica import ReplicaProcess
from tests.faults.lab.lab import BROKERS
from tests.faults.lab.power import LabOnDisks
from tests.faults.scenarios import RETURN_MAX_S, all_back
from tests.faults.tools import Words

SET_BACK = "less than it once acknowledged"


async def rack_of(lab: LabOnDisks, replica: ReplicaProcess) -> list[str]:
    """The machines of a replica, the log node on it included, and of the broker that leads."""
    if lab.log_kind != "kafka":
        return [replica.name]
    leader = await asyncio.to_thread(lab.leader)
    return [replica.name, BROKERS[lab.kafka.brokers.index(leader)]]


async def kept_out(lab: LabOnDisks, name: str) -> bool:
    """Once all are back, or a machine's log node has ended since the leader found that its disk is an older one:
    whether it has. The leader knows only if it had acknowledgements of that node. Raises TimeoutError."""
    refused = lab.log_nodes[name].log_path if name in lab.log_nodes else None
    before = refused.read_text().count(SET_BACK) if refused else 0
    found = False

    async def decided() -> bool:
        nonlocal found
        found = refused is not None and refused.read_text().count(SET_BACK) > before
        return found or await all_back(lab)

    async with asyncio.timeout(RETURN_MAX_S):
        await until(decided)
    return found


@asynccontextmanager
async def publication_held_up(lab: LabOnDisks) -> AsyncIterator[None]:
    """Nothing is written to the table of completions while the block runs, as during a long change of the table."""
    connection = await psycopg.AsyncConnection.connect(lab.owner_dsn())
    try:
        await connection.execute("LOCK TABLE completion IN SHARE MODE")
        yield
    finally:
        await connection.close()


def codes_in(words: Iterable[Words]) -> dict[str, int]:
    """How often replicas have named each code."""
    return Counter(code for one in words for code in re.findall(r'"code": "([A-Z_]+)"', one.text()))
