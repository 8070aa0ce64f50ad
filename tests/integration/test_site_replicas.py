"""A replica of a configuration with [site] asks the witness before it serves, and stops once another site has the term.

What is decided is tested in tests/unit/ha and tests/simulation; here is that a real process is wired to it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ha.site.core import Standing, Term, next_term
from ha.site.witness import PostgresWitness
from ledger_api.client import RetryPolicy
from replica.cli.demo.phases import fresh_state
from replica.cli.drill.returning import ReturnedSite
from replica.cli.drill.under_load import opened_client
from replica.cli.steps import notary
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.notary.answers import Notarised, NotNow

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.postgres]

LEASE_S = 3.0
GIVES_UP = RetryPolicy(deadline_s=2.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="site-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


def _site(folder: Path, witness_dsn: str) -> dict[str, object]:
    """The table [site], its password in a file."""
    given = conninfo_to_dict(witness_dsn)
    file = folder.with_name("witness.password")
    file.write_text(str(given.pop("password")))
    file.chmod(0o600)
    witness = make_conninfo(**given)
    return {"site": {"name": "a", "witness": witness, "witness_password_file": str(file), "lease_s": LEASE_S}}


async def _submit(cluster: LocalCluster, number: int) -> object:
    """The answer to a request that is new."""
    async with opened_client(cluster, f"client-{number}", GIVES_UP) as client:
        return await client.submit(cluster.parties[0].sign(bytes([number]) * 32, [fresh_state()]))


async def _take_for_b(witness: PostgresWitness) -> Term:
    """Another site's term, without the wait for the lease: renewals come between, so it is tried until one does not."""
    while True:
        seen = await witness.see()
        assert seen is not None
        following = next_term(seen, "b", "copy", LEASE_S)
        if await witness.take(seen, following):
            return following


async def _says(cluster: LocalCluster, standing: Standing) -> None:
    """Return once the replica says so, and leads no more."""
    while True:
        (health,) = (await cluster.healths()).values()
        if health is not None and health.site == standing and not health.leads:
            return
        await asyncio.sleep(0.1)


async def test_a_replica_serves_in_its_sites_term_alone(folder: Path, database_dsn: str) -> None:
    """Goal: no replica answers without its site's term. Method: a replica with log and lock, asked before its site took
    a term, while it has it, and once another site has the next one."""
    settings = ClusterSettings(
        folder=folder, replicas=1, parties=1, log="postgres", further=_site(folder, database_dsn)
    )
    async with ReturnedSite(settings) as cluster:  # it starts, and does not lead
        assert isinstance(await _submit(cluster, 1), NotNow)
        await notary("site", "take", "--config", str(cluster.config_path))
        await LocalCluster.wait_for_active(cluster)
        await LocalCluster.register_parties(cluster)
        assert isinstance(await _submit(cluster, 2), Notarised)
        await _take_for_b(PostgresWitness(database_dsn))
        await _says(cluster, Standing.TAKEN_OVER)
        assert isinstance(await _submit(cluster, 3), NotNow)
    await remove_cluster(folder)
