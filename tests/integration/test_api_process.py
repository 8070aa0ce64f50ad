"""A front end as the core starts it: a process of its own, with a real link and a real port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ha.clock import SystemClock
from ledger_api.client import NotaryClient, RetryPolicy, certifies
from replica.link.settings import LinkSettings
from replica.link.unix_server import LinkServer
from replica.local.ports import PortReservation
from replica.notary.answers import Notarised, NotNow
from replica.operators.front_ends import FrontEnds
from tests.closing import ended
from tests.waiting import eventually
from tests.worlds.api_world import NOTARY_KEY, PASSIVE, StubHandler, make_submission

GENERATION = "generation-of-this-test"
LINK = LinkSettings(keep_alive_s=0.05, standing_max_age_s=0.5)
ONCE = RetryPolicy(deadline_s=0.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: Unix sockets take 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="api-") as name:
        yield Path(name)


class Core:
    """What a core has to do with its front ends, over a stub handler."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.database = "dbname=unused"
        self.handler = StubHandler(at_once=True)
        self.link = LinkServer(folder / "link.sock", GENERATION, self.handler, LINK)
        self.processes: list[asyncio.subprocess.Process] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def document(self, name: str = "r1/api-1", **changes: object) -> dict[str, Any]:
        return {
            "name": name,
            "replica": "r1",
            "core_pid": os.getpid(),
            "database": self.database,
            "link_path": str(self.folder / "link.sock"),
            "generation": GENERATION,
            "link": LINK.model_dump(mode="json"),
            "api": {"port": self.port, "report_interval_s": 0.05},
            "notary_key": bytes(NOTARY_KEY.verify_key).hex(),
            "version": "0.0.0",
            **changes,
        }

    async def spawn(self, document: object) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ledger_api.server", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(document if isinstance(document, bytes) else json.dumps(document).encode())
        process.stdin.close()
        return process

    async def end_of(self, process: asyncio.subprocess.Process) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and log lines."""
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, [json.loads(line) for line in out.splitlines()]


@pytest.fixture
async def core(folder: Path, ports: PortReservation) -> AsyncIterator[Core]:
    """A core with its link up and no front end yet; whatever it starts is gone afterwards."""
    core = Core(folder, ports.take())
    await core.link.start()
    yield core
    await core.link.stop()
    for process in core.processes:
        await ended(process)


async def connected(core: Core, count: int = 1) -> None:
    await eventually(lambda: _holds(len(core.link.front_ends) == count), timeout_s=30)


async def test_a_front_end_listens_on_ipv6(core: Core) -> None:
    """Goal: an address in brackets, as the configuration has it, is one. Method: a front end; a call by IPv6."""
    document = core.document()
    document["api"]["host"] = "[::1]"
    await core.spawn(document)
    await connected(core)
    async with aiohttp.ClientSession() as session, session.get(f"http://[::1]:{core.port}/v1/notary") as answer:
        assert answer.status == 200


@pytest.mark.thorough
@pytest.mark.parametrize(("stopped_count", "hung_s"), [(1, 1.0), (2, 300.0)])
async def test_those_that_hang_do_not_count_and_are_started_anew(core: Core, stopped_count: int, hung_s: float) -> None:
    """Goal: an outage of front ends ends by itself, and where none counts nobody waits. Method: the supervisor of real
    processes; SIGSTOP one of two, or both with a setting that never kills."""
    core.link.settings = LINK.model_copy(update={"front_end_silent_s": 0.5, "front_end_hung_s": hung_s})
    front_ends = FrontEnds(
        (sys.executable, "-m", "ledger_api.server"),
        2,
        lambda number: core.document(f"r1/api-{number + 1}"),
        SystemClock(),
        core.link,
        drain_max_s=1.0,
    )
    running = asyncio.create_task(front_ends.run())
    try:
        await connected(core, 2)
        stopped = front_ends.pids[:stopped_count]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        await connected(core, 2 - stopped_count)
        await connected(core, 2)
        assert not set(stopped) & set(front_ends.pids)
        assert front_ends.restarts == stopped_count
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.thorough
async def test_who_stops_being_active_closes_its_clients_connections_after_their_answers(core: Core) -> None:
    """Goal: clients find the next active without a balancer's check. Method: an idle connection and one with a
    question under way; the core turns passive, then the answer comes."""
    core.handler.at_once = False
    await core.spawn(core.document())
    await connected(core)
    idle, writer = await asyncio.open_connection("127.0.0.1", core.port)
    async with NotaryClient(core.endpoint, ONCE) as client:
        await eventually(client.describe)
        waiting = asyncio.create_task(client.submit(make_submission()))
        await eventually(lambda: _holds(len(core.handler.waiting) == 1))
        core.handler.word = PASSIVE
        core.link.announce()
        assert await asyncio.wait_for(idle.read(), 5.0) == b""
        assert not waiting.done()
        core.handler.answer()
        assert isinstance(await waiting, Notarised)
        await client.describe()  # a passive still takes connections
    writer.close()


async def test_two_front_ends_serve_one_port(core: Core) -> None:
    """Goal: a submission goes the whole way; counts of both come together. Method: two processes, many connections."""
    first = await core.spawn(core.document())
    await core.spawn(core.document("r1/api-2"))
    await connected(core, 2)
    async with NotaryClient(core.endpoint) as client:
        submissions = [make_submission() for _ in range(40)]
        answers = await asyncio.gather(*map(client.submit, submissions[:20]), client.submit_batch(submissions[20:]))
        notary = await client.describe()
    flat = [*answers[:20], *answers[20]]  # type: ignore[misc]
    assert all(
        isinstance(answer, Notarised) and certifies(answer, submission, bytes.fromhex(notary.notary_key))
        for answer, submission in zip(flat, submissions, strict=True)
    )
    await eventually(lambda: _holds(core.link.api_counts().answers == {"NOTARISED": 40}))
    first.send_signal(signal.SIGTERM)
    code, lines = await core.end_of(first)
    assert code == 0
    assert [line["event"] for line in lines] == ["api_started"]
    assert lines[0]["front_end"] == "r1/api-1"
    await connected(core, 1)
    assert core.link.api_counts().answers == {"NOTARISED": 40}


@pytest.mark.thorough
async def test_an_idle_connection_does_not_delay_the_end(core: Core) -> None:
    """Goal: clients that keep connections open look for the next active at once, not when the drain is over. Method: a
    long drain, an answered request on a connection that stays open, SIGTERM; connection and process end."""
    document = core.document()
    document["api"]["drain_max_s"] = 300.0
    process = await core.spawn(document)
    await connected(core)
    reader, writer = await asyncio.open_connection("127.0.0.1", core.port)
    writer.write(b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await reader.read()  # to the end
    assert (await core.end_of(process))[0] == 0
    writer.close()


async def test_a_front_end_serves_only_on_the_cores_word(core: Core) -> None:
    """Goal: passive at the core is passive at the API, at once. Method: change the standing and announce it."""
    core.handler.word = PASSIVE
    await core.spawn(core.document())
    await connected(core)
    async with NotaryClient(core.endpoint, ONCE) as client:
        answer = await client.submit(make_submission())
        assert isinstance(answer, NotNow) and answer.code == "NOT_ACTIVE"
    assert core.handler.batches == []


async def test_a_front_end_ends_with_its_link(core: Core) -> None:
    """Goal: no front end serves after its core is gone, and waiting callers get "unknown". Method: stop the link
    meanwhile."""
    core.handler.at_once = False
    process = await core.spawn(core.document())
    await connected(core)
    async with NotaryClient(core.endpoint, ONCE) as client:
        waiting = asyncio.create_task(client.submit(make_submission()))
        await eventually(lambda: _holds(len(core.handler.waiting) == 1))
        await core.link.stop()
        answer = await waiting
    assert isinstance(answer, NotNow) and answer.code == "OUTCOME_UNKNOWN"
    code, lines = await core.end_of(process)
    assert (code, lines[-1]["event"]) == (1, "link_ended")


async def test_a_front_end_dies_with_a_killed_core(core: Core, folder: Path) -> None:
    """Goal: SIGKILL of the core ends its front ends at once. Method: a core in between that is killed."""
    script = textwrap.dedent(
        """
        import json, os, subprocess, sys, time
        document = json.load(sys.stdin)
        document["core_pid"] = os.getpid()
        child = subprocess.Popen([sys.executable, "-m", "ledger_api.server"], stdin=subprocess.PIPE)
        child.stdin.write(json.dumps(document).encode())
        child.stdin.close()
        print(child.pid, flush=True)
        time.sleep(60)
        """
    )
    between = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    core.processes.append(between)
    assert between.stdin is not None and between.stdout is not None
    between.stdin.write(json.dumps(core.document()).encode())
    between.stdin.close()
    front_end_pid = int(await between.stdout.readline())
    await connected(core)
    between.kill()
    await eventually(lambda: _holds(core.link.front_ends == ()))
    await eventually(lambda: _holds(not _is_running(front_end_pid)))


@pytest.mark.thorough
async def test_a_front_end_of_a_core_that_is_gone_does_not_start(core: Core) -> None:
    """Goal: the race before the parent-death signal is closed. Method: another parent's process id."""
    process = await core.spawn(core.document(core_pid=os.getpid() + 1))
    code, _ = await core.end_of(process)
    assert code == 1


async def test_another_generation_is_refused(core: Core) -> None:
    """Goal: a front end of another core life neither serves nor stays. Method: another token."""
    process = await core.spawn(core.document(generation="another generation"))
    code, lines = await core.end_of(process)
    assert (code, lines[-1]["event"]) == (1, "link_refused")


async def test_what_needs_a_person_has_its_own_exit_code(core: Core) -> None:
    """Goal: the core can distinguish a bad configuration from an accident. Method: four that cannot run."""
    taken = await core.spawn(core.document(api={"port": 1, "host": "192.0.2.1"}))
    unknown = await core.spawn(core.document(colour="red"))
    garbage = await core.spawn(b"not json")
    tokens = {"keys_file": str(core.folder / "none.json"), "audience": "notary"}
    missing = await core.spawn(core.document(api={"port": core.port, "tokens": tokens}))
    for process, said in ((taken, "192.0.2.1"), (unknown, "colour"), (garbage, "JSON"), (missing, "none.json")):
        code, lines = await core.end_of(process)
        assert code == 2
        assert (lines[-1]["event"], lines[-1]["code"]) == ("front_end_misconfigured", "CONFIG_INVALID")
        assert said in lines[-1]["detail"]
        assert GENERATION not in json.dumps(lines)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def _holds(what: bool) -> bool:
    return what


async def test_a_client_that_ends_its_side_is_answered(core: Core) -> None:
    """Goal: the event loop that we serve with does it, too. Method: a request, the end of the client's side, read."""
    await core.spawn(core.document())
    await connected(core)
    reader, writer = await asyncio.open_connection("127.0.0.1", core.port)
    writer.write(b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n")
    writer.write_eof()
    async with asyncio.timeout(30):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
