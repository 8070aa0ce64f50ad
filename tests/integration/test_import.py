"""`notary import` on a whole cluster: from a file, with the active killed under way, and from a table a second time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from replica.checker.history import HistoryWriter
from replica.importing.sources import CORDA
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, Refused
from replica.notary.requests import format_state_ref, state_ref
from replica.notary.rules import hash_of_tx_id
from replica.store.postgres.status import read_status
from tests.closing import ended
from tests.ends import guarded
from tests.waiting import eventually

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

TRANSACTIONS = 6_000


def tx_id(number: int) -> bytes:
    return sha256(b"imported" + number.to_bytes(4, "big")).digest()


def states(number: int) -> list[bytes]:
    return [state_ref(sha256(b"made" + number.to_bytes(4, "big")).digest(), index) for index in range(1 + number % 3)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    log = request.config.getoption("--log-kind")
    settings = ClusterSettings(folder=servers_folder / "import", api_workers=1, parties=2, log=log)
    async with guarded(LocalCluster(settings)) as running:
        yield running


async def start_import(cluster: LocalCluster, work: str, *source: str) -> asyncio.subprocess.Process:
    argv = [sys.executable, "-m", "replica.cli", "import", *source, "--json", "--config", str(cluster.config_path)]
    argv += ["--party", cluster.parties[0].name, "--key", str(cluster.folder / "parties" / "bank-1.key")]
    argv += ["--work", str(cluster.folder / work)]
    return await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)


async def finished(process: asyncio.subprocess.Process) -> dict[str, Any]:
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed
    report: dict[str, Any] = json.loads(printed)
    return report


async def test_a_file_is_imported_across_a_fail_over_and_a_killed_import(cluster: LocalCluster) -> None:
    """Goal: every consumed state arrives, whatever dies. Method: kill import and active under way, run again, spend."""
    source = cluster.folder / "states.csv"
    rows = [f"{format_state_ref(state)},{tx_id(n).hex()}" for n in range(TRANSACTIONS) for state in states(n)]
    source.write_text("\n".join(["state,consumed_by", *rows]) + "\n")

    first = await start_import(cluster, "import.work", str(source))
    await eventually(lambda: _accepted(cluster, 500), 30.0)
    await ended(first)
    second = await start_import(cluster, "import.work", str(source))
    (await cluster.wait_for_active()).kill_group()
    report = await finished(second)
    assert (report["transactions"], report["done"], report["refused"]) == (TRANSACTIONS, TRANSACTIONS, 0)
    assert report["states"] == len(rows)

    history_path = cluster.folder / "history.jsonl"
    with history_path.open("wb") as stream:
        async with RecordingClient(cluster.endpoint, HistoryWriter(stream), "spender") as client:
            for number in (0, 1, TRANSACTIONS - 1):
                assert isinstance(await client.look_up(tx_id(number)), Notarised)
                answer = await client.submit(cluster.parties[1].sign(os.urandom(32), [states(number)[0]]))
                assert isinstance(answer, Refused)
                assert [conflict.consumed_by_hash for conflict in answer.conflicts] == [hash_of_tx_id(tx_id(number))]
    assert await _check(cluster, history_path) == []


async def test_the_same_from_a_table_changes_nothing(cluster: LocalCluster) -> None:
    """Goal: a second import is harmless, from wherever. Method: a Corda notary's table; count what was accepted."""
    before = await _accepted_count(cluster)
    assert before >= TRANSACTIONS
    async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(), autocommit=True) as connection:
        await connection.execute(
            f"CREATE TABLE notary_committed_states ({CORDA.state_tx} varchar(64), {CORDA.state_index} int,"
            f" {CORDA.consumed_by} varchar(64))".encode()
        )
        async with connection.cursor().copy("COPY notary_committed_states FROM STDIN") as copy:
            for number in range(TRANSACTIONS):
                for state in states(number):
                    index = int.from_bytes(state[32:], "big")
                    await copy.write_row((state[:32].hex().upper(), index, tx_id(number).hex().upper()))
    secret = cluster.folder / "other-notary.dsn"
    secret.touch(mode=0o600)
    secret.write_text(cluster.postgres.dsn())
    report = await finished(await start_import(cluster, "table.work", "--database", str(secret)))
    assert (report["done"], report["refused"]) == (TRANSACTIONS, 0)
    assert await _accepted_count(cluster) == before


async def _accepted(cluster: LocalCluster, count: int) -> bool:
    return (await read_status(cluster.conninfo)).ledger_end >= count


async def _accepted_count(cluster: LocalCluster) -> int:
    """Acceptances: one for each imported transaction, however often it is sent."""
    async with await psycopg.AsyncConnection.connect(cluster.conninfo) as connection:
        row = await (
            await connection.execute(b"SELECT count(*) FROM completion WHERE outcome = 'NOTARISED'")
        ).fetchone()
        assert row is not None
        return int(row[0])


async def _check(cluster: LocalCluster, history: Path) -> list[object]:
    argv = [sys.executable, "-m", "replica.cli", "check", str(history), "--partial", "--json"]
    argv += ["--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    findings: list[object] = json.loads(printed)["findings"]
    return findings
