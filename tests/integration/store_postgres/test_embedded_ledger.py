"""The embedded ledger of a log has what Postgres has for the same log: row for row, whatever the runs were."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest

from replica.active.completions import completions_of
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.log.interface import LogRecords
from replica.store.interface import Published, Row
from replica.store.open import open_reader
from replica.store.reader import CompletionReader
from replica.store.sqlite.ledger import EmbeddedLedger, open_or_make_anew
from replica.store.sqlite.reader import SqliteReader
from replica.store.sqlite.tables import FILE
from tests.contracts.store_contract import TOPIC, NewStore, activated
from tests.worlds.checker_world import good_world


def in_runs(records: LogRecords, chance: Random) -> list[LogRecords]:
    runs, begin = [], 0
    while begin < len(records):
        end = begin + chance.randrange(1, 60)
        runs.append(records[begin:end])
        begin = end
    return runs


async def to_postgres(new_store: NewStore, runs: list[LogRecords]) -> Published:
    store, applier = await activated(new_store), Applier(MemoryIndex(), TOPIC)
    for run in runs:
        applied = applier.apply(run)
        await store.publish(completions_of(applied), applied.position)
    return await store.published()


async def to_sqlite(folder: Path, runs: list[LogRecords]) -> Published:
    ledger, applier = EmbeddedLedger(open_or_make_anew(folder, TOPIC)), Applier(MemoryIndex(), TOPIC)
    task = asyncio.create_task(ledger.run())
    for run in runs:
        after = applier.position.offset
        applied = applier.apply(run)
        ledger.feed(completions_of(applied), [], after, applied.position)
        await ledger.room()
    progress = await ledger.reached(applier.position.offset)
    await ledger.stop()
    await task
    return progress


async def all_of(reader: CompletionReader, until: int) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < until:
        rows += await reader.read(len(rows), until)
    await reader.close()
    return rows


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_log_has_one_ledger(seed: int, new_store: NewStore, dsn: str, tmp_path: Path) -> None:
    """Goal: offsets and completions follow from the log alone. Method: a random log with conflicts,
    repeated commands and several activations; read in other runs by either store; every row, as bytes."""
    chance = Random(seed)
    records = list(enumerate(good_world(seed, steps=900).values))
    shared = await to_postgres(new_store, in_runs(records, chance))
    own = await to_sqlite(tmp_path, in_runs(records, chance))
    assert own == shared
    assert own.ledger_end > 100
    rows = [await all_of(reader, own.ledger_end) for reader in (SqliteReader(tmp_path / FILE), open_reader(dsn))]
    assert msgspec.msgpack.encode(rows[0]) == msgspec.msgpack.encode(rows[1])
    assert len({row[1].outcome for row in rows[0]}) > 4
