"""A real HAProxy in front of two stand-ins for replicas: each sends its name, and answers health checks as set."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter

import aiohttp
import pytest

from ha.supervision import after_failure
from haproxy.nodes import Node
from haproxy.render import Endpoint, HaproxySettings, ReplicaAddress, render_keepalived, write
from haproxy.runtime import RuntimeRefused
from replica.local.haproxy import (
    NO_STATE,
    RESTARTS,
    HaproxyServer,
    check_config,
    check_keepalived_config,
    find_keepalived,
)
from replica.local.ports import LOOPBACK, PortReservation
from replica.local.process import ServerFailed
from tests.closing import listening
from tests.waiting import eventually

OUTAGE_MAX_S = 5.0  # far above the fraction of a second that is expected: a busy machine must not fail the test


class StandIn:
    """What HAProxy sees of a replica: an API port that sends the name line by line, and a health port."""

    def __init__(self, name: str, ports: PortReservation) -> None:
        self.address = ReplicaAddress(name=name, host=LOOPBACK, api_port=ports.take(), health_port=ports.take())
        self.active = False
        self.connections = 0
        self._turns = asyncio.Event()  # cleared: it stalls, while the kernel takes its connections
        self._turns.set()

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[None]:
        self._turns.clear()
        try:
            yield
        finally:
            self._turns.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with (
            listening(self._tell_name, self.address.host, self.address.api_port),
            listening(self._tell_health, self.address.host, self.address.health_port),
        ):
            yield

    async def _tell_name(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while await reader.readline():
            await self._turns.wait()
            writer.write(self.address.name.encode() + b"\n")

    async def _tell_health(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            request = await reader.readuntil(b"\r\n\r\n")
            await self._turns.wait()
            good = self.active and request.startswith(b"GET /health/active ")
            writer.write(b"HTTP/1.1 200 OK\r\n" if good else b"HTTP/1.1 503 Service Unavailable\r\n")
            writer.write(b"Content-Length: 0\r\nConnection: close\r\n\r\n")


class Session:
    """One connection through HAProxy, kept open like an application's pooled one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Session]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def who(self) -> str | None:
        """The name of the replica at the other end; None once the connection is cut."""
        try:
            self._writer.write(b"who\n")
            return (await self._reader.readline()).decode().strip() or None
        except ConnectionError:
            return None


async def who_answers(port: int) -> str | None:
    """What a new connection meets; None when there is none to be had."""
    try:
        async with Session.open(port) as session:
            return await session.who()
    except ConnectionError:
        return None


@pytest.fixture
def folder(servers_folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    yield Path(mkdtemp(prefix=request.node.name[:30], dir=servers_folder))  # a socket's path is short


def settings_for(folder: Path, port: int, *stand_ins: StandIn, **changes: object) -> HaproxySettings:
    return HaproxySettings.model_validate(
        {
            "bind": Endpoint(port=port),
            "replicas": [stand_in.address for stand_in in stand_ins],
            "stats_socket": f"{folder}/admin.sock",
            "state_file": f"{folder}/server.state",
            **changes,
        }
    )


@asynccontextmanager
async def running(server: HaproxyServer) -> AsyncIterator[HaproxyServer]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def only_up(server: HaproxyServer, name: str) -> bool:
    return [state.name for state in (await server.servers()).values() if state.up] == [name]


async def all_up(server: HaproxyServer) -> bool:
    return all(state.up for state in (await server.servers()).values())


async def is_draining(server: HaproxyServer, name: str) -> bool:
    return (await server.servers())[name].draining


async def none_up(server: HaproxyServer) -> bool:
    return not any(state.up for state in (await server.servers()).values())


async def reaches(port: int, name: str) -> bool:
    return await who_answers(port) == name


async def is_cut(session: Session) -> bool:
    return await session.who() is None


async def refuses(port: int) -> bool:
    try:
        async with Session.open(port):
            return False
    except ConnectionRefusedError:
        return True


async def has_ended(pid: int) -> bool:
    """True for a zombie as well: an orphan waits for the machine's first process to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_haproxy_accepts_what_is_rendered_and_explains_what_it_does_not(
    folder: Path, ports: PortReservation
) -> None:
    """Goal: every option renders to valid text. Method: `haproxy -c` on all options, then on a broken file."""
    options = {
        "exporter": Endpoint(port=ports.take()),
        "worker_user": "haproxy",
        "balance": "leastconn",
        "take_out": {},
    }
    settings = settings_for(folder, ports.take(), StandIn("A", ports), **options)
    config, log_path = folder / "haproxy.cfg", folder / "check.log"
    write(settings, config)
    (folder / "server.state").write_text(NO_STATE)
    await check_config(config, log_path)
    said = log_path.read_text()
    assert "[WARNING]" not in said and "ignored" not in said
    broken = folder / "broken.cfg"
    broken.write_text(config.read_text().replace("mode tcp", "mode carrier-pigeon"))
    with pytest.raises(ServerFailed, match="carrier-pigeon"):
        await check_config(broken, log_path=folder / "broken.log")


async def test_a_demoted_replica_loses_its_sessions_and_the_next_one_gets_them(
    folder: Path, ports: PortReservation
) -> None:
    """Goal: nobody stays connected to a passive. Method: flip the health of two stand-ins under an open session."""
    old, new, port = StandIn("old", ports), StandIn("new", ports), ports.take()
    old.active = True
    async with (
        old.serving(),
        new.serving(),
        running(HaproxyServer(folder, settings_for(folder, port, old, new))) as lb,
        AsyncExitStack() as stack,
    ):
        await eventually(lambda: only_up(lb, "old"))
        pooled = await stack.enter_async_context(Session.open(port))
        assert await pooled.who() == "old"

        flipped_at = perf_counter()
        old.active, new.active = False, True
        await eventually(lambda: reaches(port, "new"), OUTAGE_MAX_S)
        turned_s = perf_counter() - flipped_at
        await eventually(lambda: is_cut(pooled), OUTAGE_MAX_S)
        print(f"\nHAProxy: orderly role change to first answer of the new active: {turned_s:.3f} s")
        assert {await who_answers(port) for _ in range(20)} == {"new"}
        assert (await lb.servers())["old"].sessions == 0


@pytest.mark.parametrize("stall_s", [0.9, 1.3, 1.9, 2.5])
async def test_a_replica_that_stalls_is_not_marked_down(folder: Path, ports: PortReservation, stall_s: float) -> None:
    """Goal: nobody else may take over in this time, so no session is cut. Method: the only active stands still."""
    active, passive, port = StandIn("active", ports), StandIn("passive", ports), ports.take()
    active.active = True
    settings = settings_for(folder, port, active, passive)
    async with (
        active.serving(),
        passive.serving(),
        running(HaproxyServer(folder, settings)) as lb,
        Session.open(port) as pooled,
    ):
        await eventually(lambda: only_up(lb, "active"))
        assert await pooled.who() == "active"
        async with active.stalled():
            await asyncio.sleep(stall_s)
        assert await pooled.who() == "active"
        assert (await lb.servers())["active"].downs == 0


async def test_a_replica_that_is_silent_for_longer_loses_its_sessions(folder: Path, ports: PortReservation) -> None:
    """Goal: a freeze is found within the printed bound. Method: the only active stands still until it is cut."""
    active, port = StandIn("active", ports), ports.take()
    active.active = True
    settings = settings_for(folder, port, active)
    async with active.serving(), running(HaproxyServer(folder, settings)) as lb, Session.open(port) as pooled:
        await eventually(lambda: only_up(lb, "active"))
        assert await pooled.who() == "active"
        async with active.stalled():
            since = perf_counter()
            await eventually(lambda: none_up(lb), OUTAGE_MAX_S)
            assert perf_counter() - since > settings.stall_max_s - settings.check_interval_s
            assert await pooled.who() is None


@pytest.mark.parametrize(("cut_after_s", "stays"), [(30.0, True), (0.3, False)])
async def test_where_all_serve_one_that_stalls_is_left_by_new_connections(
    folder: Path, ports: PortReservation, cut_after_s: float, stays: bool
) -> None:
    """Goal: the other one serves soon, and who stalled keeps its sessions until the cut. Method: one of two stands
    still until it is drained, and then until it is cut."""
    slow, other, port = StandIn("slow", ports), StandIn("other", ports), ports.take()
    slow.active = other.active = True
    settings = settings_for(folder, port, slow, other, take_out={"cut_after_s": cut_after_s}, balance="leastconn")
    async with (
        slow.serving(),
        other.serving(),
        running(HaproxyServer(folder, settings)) as lb,
        Session.open(port) as one,
        Session.open(port) as two,
    ):
        assert {await one.who(), await two.who()} == {"slow", "other"}
        pooled = one if await one.who() == "slow" else two
        async with slow.stalled():
            await eventually(lambda: is_draining(lb, "slow"))
            assert {await who_answers(port) for _ in range(10)} == {"other"}
            if not stays:
                async with asyncio.timeout(OUTAGE_MAX_S):
                    assert await pooled.who() is None
        assert (await pooled.who() == "slow") == stays
        await eventually(lambda: all_up(lb))
        assert [state.downs for state in (await lb.servers()).values()] == [0, 0]


@pytest.mark.thorough
async def test_where_all_serve_and_all_stall_nobody_is_cut(folder: Path, ports: PortReservation) -> None:
    """Goal: where nobody else answers, a cut helps nobody. Method: both stand still, twice; then one of them for
    good."""
    first, second, port = StandIn("first", ports), StandIn("second", ports), ports.take()
    first.active = second.active = True
    settings = settings_for(folder, port, first, second, take_out={})
    async with first.serving(), second.serving(), running(HaproxyServer(folder, settings)) as lb:
        for _ in range(2):
            async with Session.open(port) as one, Session.open(port) as two:
                assert {await one.who(), await two.who()} == {"first", "second"}
                async with first.stalled(), second.stalled():
                    await asyncio.sleep(2.3)
                assert {await one.who(), await two.who()} == {"first", "second"}
        await eventually(lambda: all_up(lb))
        assert [state.downs for state in (await lb.servers()).values()] == [0, 0]


async def test_an_operators_drain_outlasts_the_looks(folder: Path, ports: PortReservation) -> None:
    """Goal: who drains a replica finds it drained, where all serve as well. Method: drain, stall and return, end the
    drain."""
    first, second, port = StandIn("first", ports), StandIn("second", ports), ports.take()
    first.active = second.active = True
    settings = settings_for(folder, port, first, second, take_out={})
    async with first.serving(), second.serving(), running(HaproxyServer(folder, settings)) as lb:
        await eventually(lambda: all_up(lb))
        await lb.runtime.drain("first")
        await eventually(lambda: is_draining(lb, "first"))
        async with first.stalled():
            await asyncio.sleep(1.5)
        await asyncio.sleep(0.5)
        assert {await who_answers(port) for _ in range(10)} == {"second"}
        assert await is_draining(lb, "first")
        await lb.runtime.ready("first")
        await eventually(lambda: all_up(lb))


async def test_a_takeover_that_haproxy_is_told_of_waits_for_no_check(folder: Path, ports: PortReservation) -> None:
    """Goal: a switchover costs no health check's time. Method: checks far apart; flip two stand-ins, command
    HAProxy."""
    old, new, port = StandIn("old", ports), StandIn("new", ports), ports.take()
    old.active = True
    rare = {"check_interval_s": 60.0, "check_interval_changing_s": 60.0, "check_interval_down_s": 60.0}
    settings = settings_for(folder, port, old, new, fall=1, **rare)
    async with old.serving(), new.serving(), running(HaproxyServer(folder, settings)) as lb, AsyncExitStack() as stack:
        await lb.runtime.point_at("old")
        assert await only_up(lb, "old")
        pooled = await stack.enter_async_context(Session.open(port))
        assert await pooled.who() == "old"
        old.active, new.active = False, True
        told_at = perf_counter()
        await lb.runtime.point_at("new")
        assert await pooled.who() is None
        assert await who_answers(port) == "new"
        print(f"\nHAProxy: told of a takeover to first answer of the new active: {perf_counter() - told_at:.3f} s")
        assert {await who_answers(port) for _ in range(20)} == {"new"}
        with pytest.raises(RuntimeRefused, match="No such server"):
            await lb.runtime.point_at("nobody")


async def test_a_load_balancer_that_is_killed_is_started_again_and_it_is_told(
    folder: Path, ports: PortReservation
) -> None:
    """Goal: `notary up` goes on without a person. Method: kill HAProxy while it is kept, and reach a replica again."""
    only, port, told = StandIn("only", ports), ports.take(), list[str]()
    only.active = True
    async with only.serving(), running(HaproxyServer(folder, settings_for(folder, port, only))) as lb:
        await eventually(lambda: reaches(port, "only"))
        keeping = asyncio.create_task(lb.keep(lambda part, text: told.append(f"{part} {text}")))
        before = lb.process.pid
        lb.process.signal_leader(signal.SIGKILL)
        await eventually(lambda: asyncio.sleep(0, lb.process.pid != before))
        await eventually(lambda: reaches(port, "only"))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert told == ["HAProxy was ended by SIGKILL; starts again"]


async def test_a_load_balancer_that_does_not_start_is_tried_again_after_growing_pauses(
    folder: Path, ports: PortReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a start that fails is neither the end nor a busy loop. Method: two starts that fail, with their pauses."""
    only, port, said, tried_s = StandIn("only", ports), ports.take(), list[str](), list[float]()
    only.active = True
    async with only.serving(), running(HaproxyServer(folder, settings_for(folder, port, only))) as lb:
        start, failures = lb.start, iter(["no room", "no luck"])

        async def failing() -> None:
            tried_s.append(perf_counter())
            if problem := next(failures, None):
                raise ServerFailed(problem)
            await start()

        monkeypatch.setattr(lb, "start", failing)
        keeping = asyncio.create_task(lb.keep(lambda part, text: said.append(f"{part} {text}")))
        lb.process.signal_leader(signal.SIGKILL)
        await eventually(lambda: asyncio.sleep(0, len(tried_s) == 3))
        await eventually(lambda: reaches(port, "only"))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert said == [
        "HAProxy was ended by SIGKILL; starts again",
        "HAProxy does not start: no room",
        "HAProxy does not start: no luck",
    ]
    for failures, (before_s, after_s) in enumerate(pairwise(tried_s), 1):  # a pause is never shorter
        assert after_s - before_s >= after_failure(failures, 0.0, RESTARTS).pause_s > RESTARTS.pause_s


async def test_a_drained_replica_keeps_its_sessions_and_gets_no_new_one(folder: Path, ports: PortReservation) -> None:
    """Goal: maintenance without a cut. Method: drain under an open session, connect, end the drain, connect."""
    only, port = StandIn("only", ports), ports.take()
    only.active = True
    async with (
        only.serving(),
        running(HaproxyServer(folder, settings_for(folder, port, only))) as lb,
        AsyncExitStack() as stack,
    ):
        await eventually(lambda: only_up(lb, "only"))
        pooled = await stack.enter_async_context(Session.open(port))
        assert await pooled.who() == "only"
        await lb.runtime.drain("only")
        assert (await lb.servers())["only"].draining
        assert await who_answers(port) is None
        assert await pooled.who() == "only"
        await lb.runtime.ready("only")
        await eventually(lambda: reaches(port, "only"))


async def test_the_statistics_page_and_the_metrics_name_each_replica(folder: Path, ports: PortReservation) -> None:
    """Goal: what monitoring and keepalived ask is answered. Method: HTTP to the exporter's port."""
    only, port, exporter = StandIn("only", ports), ports.take(), ports.take()
    settings = settings_for(folder, port, only, exporter=Endpoint(port=exporter), take_out={})
    async with only.serving(), running(HaproxyServer(folder, settings)), aiohttp.ClientSession() as session:
        for path, expected in (
            ("/metrics", 'haproxy_server_status{proxy="replicas",server="only"'),
            ("/metrics", 'haproxy_server_check_up_down_total{proxy="replicas",server="only"'),
            ("/metrics", 'haproxy_server_check_failures_total{proxy="watched",server="only"'),
            ("/stats", "replicas"),
            ("/alive", "OK"),
        ):
            async with session.get(f"http://{LOOPBACK}:{exporter}{path}") as answer:
                assert (answer.status, expected in await answer.text()) == (200, True), path


async def test_keepalived_accepts_what_is_rendered_for_both_nodes(folder: Path, ports: PortReservation) -> None:
    """Goal: the pair's files are valid. Method: keepalived itself reads them, and a broken one."""
    interfaces = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo")
    if find_keepalived() is None or not interfaces:
        pytest.skip("NOT CHECKED: no keepalived, or no interface but loopback, on this machine")
    pair = {
        "virtual_address": "10.0.0.10/24",
        "interface": interfaces[0],
        "primary_address": "10.0.0.11",
        "backup_address": "10.0.0.12",
    }
    settings = settings_for(
        folder, ports.take(), StandIn("A", ports), exporter=Endpoint(port=ports.take()), keepalived=pair
    )
    path = folder / "keepalived.conf"
    for node in Node:
        path.write_text(render_keepalived(settings, node))
        await check_keepalived_config(path)
    path.write_text(path.read_text().replace("virtual_router_id", "virtual_rooter_id"))
    with pytest.raises(ServerFailed, match="virtual_rooter_id"):
        await check_keepalived_config(path)


async def test_with_no_active_replica_connections_are_closed_at_once(folder: Path, ports: PortReservation) -> None:
    """Goal: during the gap a client may retry at once instead of hanging. Method: both passive, connect."""
    first, second, port = StandIn("first", ports), StandIn("second", ports), ports.take()
    settings = settings_for(folder, port, first, second)
    async with first.serving(), second.serving(), running(HaproxyServer(folder, settings)) as lb:
        await eventually(lambda: none_up(lb))
        async with asyncio.timeout(1.0):
            assert await who_answers(port) is None


async def test_a_reload_refuses_no_connection_and_lets_open_ones_finish(folder: Path, ports: PortReservation) -> None:
    """Goal: settings change without an outage. Method: connect without pause while HAProxy is reloaded."""
    active, passive, port = StandIn("active", ports), StandIn("passive", ports), ports.take()
    active.active = True
    settings = settings_for(folder, port, active, passive, old_worker_max_s=1.5)
    async with (
        active.serving(),
        passive.serving(),
        running(HaproxyServer(folder, settings)) as lb,
        AsyncExitStack() as stack,
    ):
        await eventually(lambda: only_up(lb, "active"))
        pooled = await stack.enter_async_context(Session.open(port))
        assert await pooled.who() == "active"
        seen_by_passive = passive.connections
        answers: list[str | None] = []

        async def connect_for_ever() -> None:
            while True:
                answers.append(await who_answers(port))

        client = asyncio.create_task(connect_for_ever())
        await lb.reload(settings.model_copy(update={"check_interval_s": 0.4}))
        assert await pooled.who() == "active"
        await asyncio.sleep(0.5)  # the new worker's first checks
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        assert "inter 400ms" in lb.config_path.read_text()
        assert len(answers) > 10
        assert set(answers) == {"active"}
        assert passive.connections == seen_by_passive
        await eventually(lambda: is_cut(pooled))  # the old worker checks no health: it must not keep sessions for long


async def test_an_invalid_reload_changes_nothing(folder: Path, ports: PortReservation) -> None:
    """Goal: a bad configuration cannot take the endpoint down. Method: reload with an unknown host name."""
    active, port = StandIn("active", ports), ports.take()
    active.active = True
    settings = settings_for(folder, port, active)
    async with active.serving(), running(HaproxyServer(folder, settings)) as lb:
        before = lb.config_path.read_text()
        nowhere = settings_for(folder, port, active, worker_user="no-such-account")
        with pytest.raises(ServerFailed, match="no-such-account"):
            await lb.reload(nowhere)
        assert lb.config_path.read_text() == before
        assert await who_answers(port) == "active"


async def test_master_and_worker_end_with_their_supervisor(folder: Path, ports: PortReservation) -> None:
    """Goal: a killed supervisor leaves no endpoint behind. Method: SIGKILL a process that started HAProxy."""
    port = ports.take()
    settings = settings_for(folder, port, StandIn("A", ports))
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from haproxy.render import HaproxySettings\nfrom replica.local.haproxy import HaproxyServer\n"
        "server = HaproxyServer(Path(sys.argv[1]), HaproxySettings.model_validate_json(sys.argv[2]))\n"
        "asyncio.run(server.start()); print(server.process.pid, flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, str(folder), settings.model_dump_json()]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        master = int(await asyncio.to_thread(supervisor.stdout.readline))
        async with Session.open(port):
            pass
        supervisor.send_signal(signal.SIGKILL)
    await eventually(lambda: refuses(port))  # the worker has ended
    await eventually(lambda: has_ended(master))
