"""The runbook of the request log on Postgres, played on a cluster without a broker. See test_runbooks."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest

from replica.local.cluster import ClusterSettings
from tests.faults.audit import audit
from tests.runbooks.conftest import staged
from tests.runbooks.stage import Stage
from tests.runbooks.test_losses import history_before
from tests.runbooks.test_runbooks import about

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
PAGE = "postgres-log"


async def test_the_log_s_page_finds_what_is_unsafe_and_brings_a_replica_back(folder: Path) -> None:
    """Goal: each check reports what is wrong, and nothing is lost by playing the page.

    Method: notarise; make the head unlogged, which breaks the contract, and play the checks; make it logged again. Play
    the steps, which stop a passive and verify its index; take the index away, start, and verify."""
    async with staged(ClusterSettings(folder=folder / "postgres-log", log="postgres")) as stage:
        cluster = stage.cluster
        history = await history_before(stage)
        passive = (await cluster.passives())[0]
        await _alter(stage, "UNLOGGED")
        printed = await stage.play(PAGE, "Checks", **about(passive))
        assert "tables of notary_log are unlogged" in printed
        await _alter(stage, "LOGGED")
        printed = await stage.play(PAGE, "Checks", **about(passive))
        assert "unlogged" not in printed
        printed = await stage.play(PAGE, "Steps", **about(passive))
        assert "keeps the contract" in printed and printed.count("readable and whole") == 2, printed
        shutil.rmtree(cluster.config.replica_dir(passive.name) / "index")  # made anew from the log
        passive.start()
        await stage.play(PAGE, "Verification", **about(passive))
        await audit(cluster, [history])
    stage.assert_all_played(PAGE)


async def _alter(stage: Stage, persistence: str) -> None:
    async with await psycopg.AsyncConnection.connect(stage.admin(), autocommit=True) as owner:
        await owner.execute(f"ALTER TABLE notary_log.log_head SET {persistence}".encode())
