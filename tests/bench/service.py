"""Service throughput without HTTP: a core in this process, with real Postgres, Kafka and RocksDB.

Submissions go in as front ends hand them over, checked and in canonical bytes; signatures are random, because the core
does not look at them. No other replica follows.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from ha.clock import SystemClock
from ha.election.driver import Election
from ha.lock.ids import Counter, lock_id
from ha.lock.postgres import PostgresLockSession
from replica.active.serving import HolderServes
from replica.index.rocks import RocksIndex
from replica.link.memory import MemoryLink
from replica.local.cluster import LocalCluster
from replica.local.participant import ROLE
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.topic import create_topic
from replica.marks.keeper import MarkKeeper
from replica.marks.lead import NO_LEAD
from replica.marks.seen_file import MemorySeenFile
from replica.notary.acceptances import VALUE_BYTES, first_key
from replica.notary.answers import Notarised
from replica.notary.position import begin
from replica.notary.requests import Submission
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import NO_SALVAGES
from replica.participant import Covering, Leading, Ledger, Participant, Resources
from replica.store.postgres.migrate import migrate
from replica.store.postgres.store import PostgresStore
from replica.telemetry.core_spans import UNTRACED
from tests.bench.report import Report, number
from tests.bench.sizes import Sizes
from tests.bench.workload import fresh_states, unsigned_submission
from tests.worlds.core_world import KeptNotes

SERVING_MAX_S = 60.0
WARM_UP_SUBMISSIONS = 20_000
INDEX_RUNS = (1, 4, 16)  # requests that the index alone looks up and writes at a time


class Rung:
    """One number of inputs: how much is measured and how it is handed over."""

    def __init__(self, inputs: int, per_call: int, calls_at_a_time: int, submissions: int) -> None:
        self.inputs = inputs
        self.per_call = per_call
        self.calls_at_a_time = calls_at_a_time
        self.submissions = submissions


RUNGS = (Rung(1, 100, 20, 60_000), Rung(4, 100, 20, 60_000), Rung(1_000, 4, 20, 1_200))


async def measure_service(cluster: LocalCluster, sizes: Sizes, report: Report) -> None:
    """Submissions a second for each number of inputs."""
    report.section("Service alone: core, log, index and store, no HTTP, no signature checks, no passive")
    async with _core(cluster) as link:
        await _rate(link, Rung(4, 100, 20, WARM_UP_SUBMISSIONS))
        for rung in RUNGS:
            rates = [await _rate(link, rung) for _ in range(sizes.runs)]
            label = f"{rung.inputs:,} input{'s' if rung.inputs > 1 else ''}"
            middle = report.add_runs(f"service_tps_{rung.inputs}_inputs", rates, label, "submissions/s")
            report.figures[f"service_states_per_s_{rung.inputs}_inputs"] = round(middle * rung.inputs)
        await _compare_with_index(cluster.folder / "index-alone", middle * rung.inputs, sizes, report)


async def _compare_with_index(folder: Path, states_per_s: float, sizes: Sizes, report: Report) -> None:
    """The states a second of the largest requests, over those that the index alone looks up and writes.

    Its limit is that of the size of run at which it does best. What it has grown by is the same as the service's.
    """
    requests = RUNGS[-1].submissions
    best = 0.0
    for per_run in INDEX_RUNS:
        rates = []
        for attempt in range(sizes.runs):
            rates.append(await asyncio.to_thread(_index_rate, folder / f"{per_run}-{attempt}", requests, per_run))
        best = max(best, median(rates))
        report.line(f"index alone, {per_run} requests a run", f"{number(median(rates))} states/s")
    report.figures["index_states_per_s"] = round(best)
    ratio = round(states_per_s / best, 3)
    shown = f"{ratio:.2f}   ({number(states_per_s)} of {number(best)})"
    report.add("states_per_s_ratio", ratio, "states a second, service over index alone", shown)


def _index_rate(folder: Path, requests: int, per_run: int) -> float:
    """States a second that a new index looks up and writes, with their transactions and acceptances."""
    source, inputs = random.Random(os.urandom(16)), RUNGS[-1].inputs
    runs = [
        [
            [STATE_KEY + ref for ref in fresh_states(source, inputs)] + [TX_KEY + source.randbytes(32)]
            for _ in range(per_run)
        ]
        for _ in range(requests // per_run)
    ]
    folder.parent.mkdir(exist_ok=True)
    index = RocksIndex(folder)
    try:
        began_s = perf_counter()
        for at, of_requests in enumerate(runs):
            keys = [key for of_request in of_requests for key in of_request]
            commands = [first_key(of_request[-1][1:]) for of_request in of_requests]
            assert not any(index.lookup([*keys, *commands]))
            offset = at.to_bytes(8, "big")
            added = dict.fromkeys(keys, bytes(32) + offset) | dict.fromkeys(commands, bytes(VALUE_BYTES - 8) + offset)
            index.write(added, replace(begin("alone"), offset=at))
        return len(runs) * per_run * inputs / (perf_counter() - began_s)
    finally:
        index.close()


async def _rate(link: MemoryLink, rung: Rung) -> float:
    """Submissions a second from `calls_at_a_time` closed loops."""
    prepared = await asyncio.to_thread(_prepare, rung)
    calls = iter([prepared[at : at + rung.per_call] for at in range(0, len(prepared), rung.per_call)])
    began_s = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(rung.calls_at_a_time):
            group.create_task(_submit(link, calls))
    return len(prepared) / (perf_counter() - began_s)


async def _submit(link: MemoryLink, calls: Iterator[list[Submission]]) -> None:
    for call in calls:
        answers = await link.submit(call)
        if not all(isinstance(answer, Notarised) for answer in answers):
            raise RuntimeError(f"not notarised: {next(a for a in answers if not isinstance(a, Notarised))!r:.500}")


def _prepare(rung: Rung) -> list[Submission]:
    source = random.Random(os.urandom(16))
    return [unsigned_submission(source, rung.inputs) for _ in range(rung.submissions)]


@asynccontextmanager
async def _core(cluster: LocalCluster) -> AsyncIterator[MemoryLink]:
    """A core that leads, on a database and a topic of its own."""
    name = "service"
    await cluster.postgres.ensure_database(name, ROLE)
    conninfo = make_conninfo(cluster.conninfo, dbname=name)
    await migrate(conninfo, lock_id(name, Counter.NODE_MIGRATIONS))
    kafka = cluster.kafka_settings.model_copy(update={"topic": "service"})
    await create_topic(kafka)
    clock, election_settings = SystemClock(), cluster.config.election
    async with AsyncExitStack() as stack:
        index = RocksIndex(cluster.folder / "service-index")
        stack.callback(index.close)
        request_log = KafkaLog(kafka)
        stack.push_async_callback(request_log.close)

        def lock_session() -> PostgresLockSession:
            return PostgresLockSession(conninfo, scope=name, name="r1", settings=election_settings, clock=clock)

        election: Election[PostgresLockSession] = Election(
            lock_session, clock=clock, settings=election_settings, random=random.Random()
        )
        participant: Participant[PostgresLockSession] = Participant(
            Resources(
                name="r1",
                request_log=request_log,
                index=index,
                salvages=NO_SALVAGES,
                signer=cluster.config.notary_signer(),
                clock=clock,
                random_bytes=os.urandom,
                settings=cluster.config.core,
                trace=UNTRACED,
            ),
            Covering(MarkKeeper("r1", MemorySeenFile(), clock), NO_LEAD),
            Ledger(PostgresStore, None),
            Leading(election, KeptNotes(), may_lead=True, in_term=lambda: True),
            HolderServes,
        )
        participant.start()
        stack.push_async_callback(participant.stop)
        leading = asyncio.create_task(election.run(participant))
        try:
            async with asyncio.timeout(SERVING_MAX_S):
                while not participant.standing().active:
                    await asyncio.sleep(0.05)
            yield MemoryLink(participant)
        finally:
            election.stop()
            await leading
