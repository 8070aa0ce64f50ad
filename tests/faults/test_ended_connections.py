"""Each connection that a replica or a log node keeps is ended: each is opened anew while nobody asks.

Not those whose end means the end of a lead, by design: the session that holds the lock, and lifelines.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, monotonic_ns

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ledger_api.client import NotaryClient, RetryPolicy
from replica.local.cluster import LocalCluster
from replica.notary.answers import Notarised
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.under_load import under_load
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

TIMES = 3
ONCE = RetryPolicy(deadline_s=0.0, attempt_max_s=10.0)  # what is not answered at once is seen
QUESTION_MAX_S = 0.5  # what is younger may have been opened for one question
GOAL_S = 0.1  # of those that callers depend on; what a replica asks by itself each second is opened for that question
REOPENED_MAX_S = 30.0
LOOK_EVERY_S = 0.005
ESTABLISHED, LISTENS = "01", "0A"  # of /proc/net/tcp
HELD = "SELECT client_port FROM pg_stat_activity WHERE pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"

Kept = dict[int, tuple[str, str]]  # by the client's port: whose it is, and to what


def kept(cluster: LocalCluster) -> Kept:
    """The connections that cores and log nodes have opened, but for those whose end is the end of a lead."""
    named = {one.pid: "replicas" for one in cluster.replicas.values()}  # whichever: under load the lead may move
    named |= {one.pid: "log nodes" for one in cluster.log_nodes.values()}
    owners = {inode: name for pid, name in named.items() for inode in _sockets(pid)}
    rows = list(_tcp())
    servers = {port for port, _, state, _ in rows if state == LISTENS}
    found = {
        port: (owners[inode], _what(cluster, server))
        for port, server, state, inode in rows
        if state == ESTABLISHED and server in servers and port not in servers and inode in owners
    }
    holding = _holding(cluster)
    return {port: one for port, one in found.items() if port not in holding}


def _what(cluster: LocalCluster, port: int) -> str:
    if port in {one.health_port for one in cluster.config.replicas}:
        return "a peer"
    return "Postgres" if not cluster.embedded and port == cluster.postgres.port else "the log"


def _sockets(pid: int) -> Iterator[str]:
    """The sockets of a process, by inode, but for lifelines, which it has twice."""
    links = Counter[str]()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                links[str(descriptor.readlink())] += 1
    yield from (
        name[len("socket:[") : -1] for name, times in links.items() if name.startswith("socket:") and times == 1
    )


def _tcp() -> Iterator[tuple[int, int, str, str]]:
    """Local port, remote port, state and inode of each socket."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            yield int(words[1].rpartition(":")[2], 16), int(words[2].rpartition(":")[2], 16), words[3], words[9]


def _holding(cluster: LocalCluster) -> set[int]:
    if cluster.embedded:
        return set()
    with psycopg.connect(cluster.postgres.dsn(str(conninfo_to_dict(cluster.conninfo)["dbname"]))) as connection:
        return {port for (port,) in connection.execute(HELD).fetchall()}


def _sessions(cluster: LocalCluster) -> Counter[str]:
    """What the sessions on Postgres say they are."""
    if cluster.embedded:
        return Counter()
    with psycopg.connect(cluster.postgres.dsn("postgres")) as connection:
        rows = connection.execute("SELECT application_name || ': ' || left(query, 80) FROM pg_stat_activity").fetchall()
        return Counter(name for (name,) in rows if name is not None)


async def end(connections: Kept) -> None:
    """A reset to both sides, of those that are still there."""
    ports = " or ".join(f"sport = :{port}" for port in connections)

    async def ended() -> bool:
        subprocess.run(
            ["ss", "-K", "-tn", "state", "established", f"( {ports} )"], stdout=subprocess.DEVNULL, check=False
        )  # it stops at one that is gone by then
        return not any(state == ESTABLISHED and port in connections for port, _, state, _ in _tcp())

    await eventually(ended)


async def lasting(cluster: LocalCluster) -> Kept:
    """Those that are older than a question."""
    before = kept(cluster)
    await asyncio.sleep(QUESTION_MAX_S)
    return {port: one for port, one in kept(cluster).items() if before.get(port) == one}


async def ended_and_back(cluster: LocalCluster, at_first: Counter[tuple[str, str]]) -> str:
    """End them all, and wait until each lasting one is there again; says which were missing at the goal.

    What there was not `at_first` was opened for questions about the log: it stays, and its end harms no caller."""
    expected = Counter((await lasting(cluster)).values()) & at_first
    now = kept(cluster)
    sessions = _sessions(cluster)
    began_s, late = monotonic(), Counter[tuple[str, str]]()
    await end(now)
    while missing := expected - Counter(kept(cluster).values()):
        if (took_s := monotonic() - began_s) > GOAL_S:
            late = late or missing
        assert took_s < REOPENED_MAX_S, (
            f"not opened anew: {_named(missing)}; gone from Postgres: {sessions - _sessions(cluster)}"
        )
        await asyncio.sleep(LOOK_EVERY_S)
    took_s = monotonic() - began_s
    return (
        f"{expected.total()} connections ended; missing after {GOAL_S:g} s: {_named(late)}; after {took_s:.1f} s: none"
    )


def _named(missing: Mapping[tuple[str, str], int]) -> str:
    return ", ".join(f"{count} of {owner} to {what}" for (owner, what), count in missing.items()) or "none"


async def epoch_of(cluster: LocalCluster) -> int:
    return max(health.epoch for health in (await cluster.healths()).values() if health is not None)


@pytest.mark.scenario("F56", "connections end while nobody asks")
async def test_what_idle_replicas_have_lost_no_caller_finds_out(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: the next submission is answered at once, under the same activation. Method: end all, submit once without a
    retry; three times."""
    await wait_for_return(cluster)
    async with NotaryClient(cluster.endpoint, ONCE) as client:
        promised(isinstance(await client.submit(cluster.parties[0].sign()), Notarised), "not served at first")
        epoch, at_first = await epoch_of(cluster), Counter((await lasting(cluster)).values())
        for _ in range(TIMES):
            scenario.fired(await ended_and_back(cluster, at_first))
            print(f"\n{scenario.faults[-1]}")
            await wait_for_return(cluster)
            answer = await client.submit(cluster.parties[0].sign())
            promised(isinstance(answer, Notarised), f"the next caller found out: {answer}")
    if not cluster.embedded or scenario.patience == 1.0:  # beside other work a lease of 0.9 s changes hands anyway
        promised(await epoch_of(cluster) == epoch, "the lead changed")
    scenario.checked(TIMES)


@pytest.mark.scenario("F56", "connections end under load", outage_goal_s=2.0)
async def test_what_busy_replicas_have_lost_they_open_anew(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: service goes on, and no answer is lost. Method: end all under load, three times."""
    async with under_load(cluster, scenario) as load:
        at_first = Counter((await lasting(cluster)).values())
        for _ in range(TIMES):
            moment_ns = monotonic_ns()
            scenario.fired(await ended_and_back(cluster, at_first))
            await wait_for_return(cluster)
            await asyncio.sleep(1)
            scenario.outage(load, moment_ns)
