"""Whole replicas over the request log on Postgres: the product's own client over its server in memory.

Commits are visible before the standby has them, notifications get lost, connections are cut in the middle of a
statement, statements arrive late, and the server is promoted: what was not replicated is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import Any

import msgspec

from replica.log.postgres.delivery import Appended
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.memory import MemoryServer, MemorySession, MemoryWeather
from replica.log.postgres.session import Admit
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.errors import LogUnavailable
from tests.simulation.doubles.log import Topic
from tests.simulation.plan import FaultKind, Plan
from tests.simulation.process import Process
from tests.simulation.story import Story
from tests.simulation.weather import Skies
from tests.simulation.world import World

SETTINGS = PostgresLogSettings(conninfo="dbname=memory", answer_max_s=1.0, poll_every_s=0.05)
OF_A_TOPIC = (FaultKind.TAIL_LOST, FaultKind.LEADER_CUT, FaultKind.READER_SILENT)  # faults that brokers have
STANDBY_DOWN_S = 0.4


class ServerWeather(MemoryWeather):
    """Statements are struck as often as the worst of the replicas' connections."""

    def __init__(self, skies: Skies, names: Sequence[str]) -> None:
        self._skies = skies
        self._names = names
        self.nobody_waits = False  # `synchronous_standby_names` was emptied, as high-availability managers do

    def commit_s(self) -> float:
        return self._skies.random.uniform(0.0003, 0.002)

    def replication_s(self) -> float:
        return self._skies.random.choice((0.0005, 0.002, 0.2 if self._strikes() else 0.002))

    def notify_is_lost(self) -> bool:
        return self._skies.random.random() < 0.1  # in good weather as well: it is no fault

    def batches_shown(self) -> int:
        return self._skies.random.choice((1, 16, 256))

    def waits_for_standby(self) -> bool:
        return not self.nobody_waits and not self._strikes()

    def backend_is_ended(self) -> bool:
        return self._struck("log_backend_ended")

    def _strikes(self) -> bool:
        return self._skies.strikes_with(max(self._skies.of(name).log_share for name in self._names))

    def _struck(self, what: str) -> bool:
        strikes = self._strikes()
        if strikes:
            self._skies.struck(what, self._names[0])
        return strikes


class PostgresTopic(Topic):
    """The log's server, as the world sees a topic."""

    def __init__(self, story: Story, server: MemoryServer, context: Context) -> None:
        super().__init__(story)
        self.server = server
        self._context = context
        self._statements: list[asyncio.Task[Any]] = []  # some wait for ever, on a server that is gone

    @property
    def end_offset(self) -> int:
        return self.server.end_offset

    @property
    def values(self) -> list[bytes]:
        shown = sorted(self.server.batches, key=lambda batch: batch.first_offset)
        return [value or b"" for batch in shown for value in batch.records]

    @property
    def stored_at_s(self) -> list[float]:
        return self.server.stored_at_s

    def store(self, value: bytes) -> None:
        """Somebody else's append."""
        self.run(self.server.append([value]))

    def run(self, statement: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        """Run a statement in no process: a backend lives on when its client is killed."""
        task = asyncio.get_running_loop().create_task(statement, context=self._context.copy())
        self._statements.append(task)
        return task

    async def end(self) -> None:
        """The run is over: no statement waits any more."""
        for statement in self._statements:
            statement.cancel()
        await asyncio.gather(*self._statements, return_exceptions=True)

    def promote(self) -> None:
        """The standby becomes the server: what it lacks is gone."""
        self.server = self.server.promote()


class SimulatedSession(MemorySession):
    """One connection of a replica's process."""

    def __init__(self, topic: PostgresTopic, name: str, skies: Skies) -> None:
        super().__init__(topic.server)
        self._name = name
        self._skies = skies
        self._topic = topic

    async def append(self, log_id: str, values: Sequence[bytes], standbys: int) -> Appended:
        if self._skies.strikes_with(self._skies.of(self._name).log_share):
            self._skies.struck("append_cut", self._name)
            asyncio.get_running_loop().call_later(self._skies.random.uniform(0.0, 0.006), self.hang_up)
        return await super().append(log_id, values, standbys)

    def _begin(self, values: Sequence[bytes]) -> asyncio.Future[int]:
        late_s = self._skies.of(self._name).log_clogged_until_s - asyncio.get_running_loop().time()
        if late_s > 0:
            self._skies.struck("append_held", self._name)
        return self._topic.run(self._arrive(max(0.0, late_s), values))

    async def _arrive(self, late_s: float, values: Sequence[bytes]) -> int:
        self._skies.note_landing(asyncio.get_running_loop().time() + late_s)
        await asyncio.sleep(late_s)
        if not self._server.is_up:
            raise LogUnavailable("the server is gone")
        return await self._server.append(values, self.backend)

    async def _asked(self) -> None:
        self._require_open()
        await travel(self._skies, self._name)
        self._require_open()

    async def _answered(self, answer: Any) -> Any:
        await travel(self._skies, self._name)
        self._require_open()
        return answer


async def travel(skies: Skies, name: str) -> None:
    """One way to the server, or back. Raises LogUnavailable after a while when it is out of reach."""
    weather, random = skies.of(name), skies.random
    if weather.log_cut:
        await asyncio.sleep(random.uniform(0.1, 1.0))
        if weather.log_cut:
            skies.struck("log_unreachable", name)
            raise LogUnavailable("out of reach")
    late_s = weather.reads_late_s
    await asyncio.sleep(random.uniform(0.0002, 0.001) + (random.uniform(0.0, late_s) if late_s else 0.0))


class SimulatedPostgresLog(PostgresLog):
    """One process' access to the log."""

    reader = None  # see FaultKind.READER_SILENT, which is a broker's


class PostgresWorld(World):
    """A world whose log is on Postgres. In half of the plans its server is promoted."""

    topic: PostgresTopic

    def __init__(self, plan: Plan) -> None:
        super().__init__(without_topic_faults(plan))
        random = Random(f"{plan.seed}/log")
        if random.random() < 0.5:
            self.loop.call_later(random.uniform(0.2, plan.duration_s), self._lose_server)

    def make_topic(self) -> Topic:
        self.weather = ServerWeather(self.skies, [replica.name for replica in self.plan.replicas])
        server = self.make_server(self.weather)
        server.store(self.beginning)
        return PostgresTopic(self.story, server, copy_context())

    def make_server(self, weather: MemoryWeather) -> MemoryServer:
        """The first primary."""
        return MemoryServer(weather=weather)

    def make_log(self, name: str, process: Process) -> Any:
        async def connect(_: PostgresLogSettings, admit: Admit) -> MemorySession:
            await travel(self.skies, name)
            server = self.topic.server
            if not server.is_up:
                raise LogUnavailable("the server is down")
            admit(server.identity)
            session = SimulatedSession(self.topic, name, self.skies)
            server.sessions[session] = None
            return session

        return SimulatedPostgresLog(SETTINGS, connect)

    def lose_log(self, end: int, off_s: float) -> None:
        """The server loses power, and nothing that was committed."""
        server = self.topic.server
        server.stop()
        self.loop.call_later(off_s, self._start_again, server)

    def _start_again(self, server: MemoryServer) -> None:
        server.is_up = server is self.topic.server

    def _lose_server(self) -> None:
        """The standby is lost for a moment, and then promoted: commits that were shown meanwhile are gone."""
        self.topic.server.standby_is_up = False
        self.weather.nobody_waits = True
        self.skies.struck("log_promoted", self.replicas[0].name)
        self.loop.call_later(STANDBY_DOWN_S, self._promote_log)

    def _promote_log(self) -> None:
        self.topic.promote()
        self.weather.nobody_waits = False


def without_topic_faults(plan: Plan) -> Plan:
    """The plan with the faults that a log on Postgres can have."""
    faults = tuple(fault for fault in plan.faults if fault.kind not in OF_A_TOPIC)
    return msgspec.structs.replace(plan, faults=faults)
