"""The loss of a site whose log was copied: the second site goes on with the copy, and the first may not serve again."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

from ledger_api.client import RetryPolicy
from replica.cli.common import DATA_FOLDER, say
from replica.cli.demo.phases import fresh_state
from replica.cli.drill.report import Failure, find_lost
from replica.cli.drill.returning import FirstSite, return_alone, site_settings, witness_server
from replica.cli.drill.under_load import PATIENCE, opened_client, submitting
from replica.cli.steps import notary
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.kept import Say
from replica.local.participant import PARTIES
from replica.local.postgres import PostgresServer
from replica.local.process import Command, ManagedProcess, ServerFailed, until
from replica.log.interface import LogMissing
from replica.log.open import open_log_admin
from replica.notary.answers import Notarised
from replica.notary.errors import LogUnavailable
from replica.notary.own_process import module_argv
from replica.notary.requests import TX_ID_BYTES
from replica.notary.tasks import cancelled

FOLDER = DATA_FOLDER / "drill-first-site"
SECOND_FOLDER = DATA_FOLDER / "drill-copied-site"
COPIES_EVERY_S = 1.0
COPIED_FOR_S = 5.0  # under load, before the site is lost
COPY_BEGINS_MAX_S = 120.0
GIVES_UP = RetryPolicy(deadline_s=1.0)  # clients of a site that does not come back


class SecondSite(LocalCluster):
    """Its servers run while the first site serves. Its log is the copy. Its replicas start once it takes over."""

    def __init__(self, settings: ClusterSettings, first: Path, say: Say) -> None:
        super().__init__(settings, say)
        self.waits = asyncio.Event()  # servers and configuration are there
        self.takes_over = asyncio.Event()
        self.copy_end = -1  # the copied records, once it takes over
        self._first = first

    async def prepare_log(self) -> str:
        """Wait until this site takes over, then take the term and make the copy the log, as the runbooks say."""
        self.waits.set()
        await self.takes_over.wait()
        await notary("site", "take", "--config", str(self.config_path))
        await notary("log", "copy", "--finish", "--to", str(self.config_path), "--config", str(self._first))
        self.copy_end = await self.log_end()
        await notary("restore", "adopt", "--config", str(self.config_path))
        return await super().prepare_log()

    async def log_end(self) -> int:
        """Where this site's log ends; 0 before there is one."""
        admin = open_log_admin(self.config.log.settings)
        try:
            return await admin.end_offset()
        except LogMissing:
            return 0
        finally:
            await admin.close()


async def run() -> Failure:
    """Lose a site and everything at it under load, and let the second one take over. Then start the first one again.

    Raises NotaryError, also when the first one serves again.
    """
    for folder in (FOLDER, SECOND_FOLDER):
        await remove_cluster(folder)
    async with witness_server() as witness:
        return await _run(witness)


async def _run(witness: PostgresServer) -> Failure:
    further = {"log_copy": {"interval_s": COPIES_EVERY_S}, **site_settings("a", witness)}
    settings = ClusterSettings(folder=FOLDER, further=further)
    async with FirstSite(settings, say) as first, _second_site(first, witness) as (second, starting):
        async with submitting(first, "before", GIVES_UP) as load, _copier(first, second):
            await _copies(second)
            await asyncio.sleep(COPIED_FOR_S)
            lost_s = monotonic()
            await _lose(first)
        say("drill", f"the first site is lost; {len(load.acknowledged):,} transactions were notarised there")
        second.takes_over.set()
        await starting
        async with opened_client(second, "after", PATIENCE) as client:
            answer = await client.submit(second.parties[0].sign(os.urandom(TX_ID_BYTES), [fresh_state()]))
            if not isinstance(answer, Notarised):
                raise ServerFailed(f"the second site does not notarise: {answer!r:.500}")
            rto_s = monotonic() - lost_s
            lost = await find_lost(client, load.acknowledged)
        await return_alone(first, second, witness)
        return Failure(
            failure="site-copy",
            what=f"a site killed whole; the log copied every {COPIES_EVERY_S:g} s, servers of the second site run",
            acknowledged=len(load.acknowledged),
            lost=len(lost),
            lost_though_kept=sum(offset < second.copy_end for offset in lost.values()),
            rto_s=rto_s,
        )


@asynccontextmanager
async def _second_site(
    first: LocalCluster, witness: PostgresServer
) -> AsyncIterator[tuple[SecondSite, asyncio.Task[None]]]:
    """The second site as it waits, with the keys and the parties of the first, and the task of its start."""
    SECOND_FOLDER.mkdir(parents=True)
    for name in ("notary.key", "officer.key", "operators.toml", "parties.toml"):
        shutil.copy(FOLDER / name, SECOND_FOLDER / name)
    shutil.copytree(FOLDER / PARTIES, SECOND_FOLDER / PARTIES)
    second = SecondSite(
        ClusterSettings(folder=SECOND_FOLDER, further=site_settings("b", witness)), first.config_path, say
    )
    starting = asyncio.create_task(second.start())
    waiting = asyncio.create_task(second.waits.wait())
    try:
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
        yield second, starting
    finally:
        await cancelled(waiting, starting)
        await second.stop()


@asynccontextmanager
async def _copier(first: LocalCluster, second: SecondSite) -> AsyncIterator[None]:
    """`notary log copy --follow`, until the end of this."""
    words = ["log", "copy", "--follow", "--to", str(second.config_path), "--config", str(first.config_path)]
    argv = module_argv("replica.cli", *words)
    copier = ManagedProcess(Command(name="log copy", argv=argv, log_path=SECOND_FOLDER / "log-copy.log"))
    copier.start()
    try:
        yield
    finally:
        await copier.stop()


async def _copies(second: SecondSite) -> None:
    """Return once the copy has begun. Raises ServerFailed."""

    async def begun() -> bool:
        with suppress(LogUnavailable):  # a topic that was just made has no leader yet
            return await second.log_end() > 0
        return False

    try:
        async with asyncio.timeout(COPY_BEGINS_MAX_S):
            await until(begun)
    except TimeoutError:
        raise ServerFailed(f"nothing is copied: {SECOND_FOLDER / 'log-copy.log'}") from None


async def _lose(cluster: LocalCluster) -> None:
    """SIGKILL for everything at a site, which stays down."""
    for one in cluster.replicas.values():
        one.kill_group()
    servers = [broker.process for broker in cluster.kafka.brokers]
    await asyncio.gather(*(server.kill() for server in servers), cluster.postgres.kill(), cluster.stop())
