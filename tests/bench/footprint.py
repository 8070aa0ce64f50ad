"""What a transaction costs on disk, in each place that keeps it: `python -m tests.bench.footprint`.

Transactions of two inputs come in by an import, with the texts that an import has; then everything is measured where it
lies: the topic's first segment at one broker, an index that was closed, the database's tables with their keys.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import psycopg

from ledger_api.client import NotaryClient, RetryPolicy
from replica.importing.sources import Consumed
from replica.importing.staging import Staging
from replica.importing.submit import submit_staged
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.requests import state_ref
from tests.faults.audit import wait_until_published

TRANSACTIONS = 100_000
_TABLES = ("completion", "command_accepted")


def rows() -> Iterator[Consumed]:
    """Transactions of two inputs each."""
    for number in range(TRANSACTIONS):
        tx_id = sha256(b"tx%d" % number).digest()
        for index in (0, 1):
            yield Consumed(tx_id, state_ref(sha256(b"made%d" % number).digest(), index))


def bytes_in(folder: Path, pattern: str) -> int:
    """Bytes of the files below a folder whose names fit."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


async def measure(folder: Path) -> dict[str, float]:
    """Bytes for each transaction, by place."""
    async with LocalCluster(ClusterSettings(folder=folder, parties=1)) as cluster:
        staging = Staging(folder / "import.work")
        staging.fill(rows(), "footprint")
        async with NotaryClient(cluster.endpoint, RetryPolicy(deadline_s=60.0)) as client:
            await submit_staged(staging, client, cluster.parties[0], lambda _: None)
        await wait_until_published(cluster)
        topic = bytes_in(folder / "kafka", f"{'0' * 20}.log")
        passive = (await cluster.passives())[0]
        await passive.stop()
        index = bytes_in(cluster.config.replica_dir(passive.name) / "index", "*.sst")
        async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn("notary")) as connection:
            sizes = {}
            for table in _TABLES:
                cursor = await connection.execute(b"SELECT pg_total_relation_size(%s::regclass)", (table,))
                row = await cursor.fetchone()
                assert row is not None
                sizes[table] = int(row[0])
    found = {"request log, one copy": topic, "index": index, **sizes}
    return {place: round(size / TRANSACTIONS, 1) for place, size in found.items()}


def main() -> None:
    """Measure and print bytes for each transaction, as JSON."""
    with tempfile.TemporaryDirectory(prefix="notary-footprint-") as parent:
        Path(parent).chmod(0o755)
        print(json.dumps(asyncio.run(measure(Path(parent) / "cluster")), indent=2))


if __name__ == "__main__":
    main()
