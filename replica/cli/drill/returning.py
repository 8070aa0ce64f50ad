"""The site that was lost gets its power back, with all that it had. It must not serve, whatever it reaches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from psycopg.conninfo import make_conninfo

from ha.site.core import Standing
from ledger_api.client import RetryPolicy
from replica.cli.common import DATA_FOLDER, say
from replica.cli.demo.phases import fresh_state
from replica.cli.drill.under_load import opened_client
from replica.cli.steps import notary
from replica.local.cluster import LocalCluster
from replica.local.participant import ParticipantFiles
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.local.process import ServerFailed, until
from replica.local.replica import ReplicaProcess
from replica.notary.answers import Notarised
from replica.notary.requests import TX_ID_BYTES

WITNESS_FOLDER = DATA_FOLDER / "drill-witness"
WITNESS = "notary_site"  # database and role
LEASE_S = 10.0
REFUSES_MAX_S = 120.0
WATCHED_S = 2 * LEASE_S  # for so long it is asked to notarise
GIVES_UP = RetryPolicy(deadline_s=1.0)


@asynccontextmanager
async def witness_server() -> AsyncIterator[PostgresServer]:
    """The database that keeps the term, at neither site."""
    folder = WITNESS_FOLDER.absolute()
    with PortReservation() as ports:
        server = PostgresServer(folder, ports.take())
        if folder.exists():
            await server.remove()
        folder.mkdir(parents=True)
        try:
            await server.start()
            await server.ensure_role(WITNESS, ParticipantFiles(folder).password(WITNESS))
            await server.ensure_database(WITNESS, WITNESS)
            yield server
        finally:
            await server.stop()


def site_settings(name: str, witness: PostgresServer) -> dict[str, Any]:
    """The table [site] of one of the two sites."""
    address = make_conninfo(host=witness.machine.address, port=witness.port, dbname=WITNESS, user=WITNESS)
    file = witness.folder / ParticipantFiles(witness.folder).password_file(WITNESS)
    return {"site": {"name": name, "witness": address, "witness_password_file": str(file), "lease_s": LEASE_S}}


class FirstSite(LocalCluster):
    """It takes the first term."""

    async def prepare_log(self) -> str:
        """See LocalCluster; replicas serve once the site has the term."""
        topic_id = await super().prepare_log()
        await notary("site", "take", "--config", str(self.config_path))
        return topic_id


class ReturnedSite(LocalCluster):
    """The first site again. Nothing of it becomes active."""

    async def wait_for_active(self, other_than: str | None = None, timeout_s: float = REFUSES_MAX_S) -> ReplicaProcess:
        """Return once every replica has its log and its lock, and says that it may not serve. Raises ServerFailed."""
        await self.say(Standing.UNCONFIRMED, timeout_s)
        return next(iter(self.replicas.values()))

    async def register_parties(self) -> None:
        """Nobody would log it."""

    async def wait_until_ready(self, names: object, timeout_s: float = REFUSES_MAX_S) -> None:
        """None of them is to be ready."""

    async def say(self, standing: Standing, timeout_s: float = REFUSES_MAX_S) -> None:
        """Return once every replica says so of its site. Raises ServerFailed, also when one of them leads."""

        async def all_say() -> bool:
            found = [health for health in (await self.healths()).values() if health is not None and health.front_ends]
            if leading := [health.replica for health in found if health.active or health.leads]:
                raise ServerFailed(f"the site that was taken over serves: {', '.join(leading)} of it leads")
            return len(found) == len(self.replicas) and all(
                health.site == standing and health.reaches_log for health in found
            )

        try:
            async with asyncio.timeout(timeout_s):
                await until(all_say)
        except TimeoutError:
            said = {name: health and health.site for name, health in (await self.healths()).items()}
            raise ServerFailed(f"not every replica says {standing} within {timeout_s:g} s: {said}") from None

    async def refuse(self, standing: Standing) -> None:
        """Ask it to notarise for `WATCHED_S`. Raises ServerFailed when it does, or says anything else."""
        ends_s = monotonic() + WATCHED_S
        async with opened_client(self, "returned", GIVES_UP) as client:
            while monotonic() < ends_s:
                answer = await client.submit(self.parties[0].sign(os.urandom(TX_ID_BYTES), [fresh_state()]))
                if isinstance(answer, Notarised):
                    raise ServerFailed("the site that was taken over notarises")
                await self.say(standing, 5.0)


async def return_alone(first: LocalCluster, second: LocalCluster, witness: PostgresServer) -> None:
    """Start the lost site while it reaches nobody, then let it see the witness. Raises ServerFailed when it serves."""
    say("drill", "the first site gets its power back; it reaches neither the witness nor the second site")
    await witness.stop()
    async with ReturnedSite(first.settings, say) as returned:
        await returned.refuse(Standing.UNCONFIRMED)
        say("drill", "it refuses, and reaches the witness now")
        await witness.start()
        await returned.say(Standing.TAKEN_OVER)
        await returned.refuse(Standing.TAKEN_OVER)
        await second.wait_for_active()
        say("drill", "it refuses; the second site serves")
