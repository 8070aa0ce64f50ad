"""A supervised replica: an end that nobody asked for is started again, and never forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ha.clock import SystemClock
from haproxy.render import ReplicaAddress
from replica.link.settings import LinkSettings
from replica.link.unix_server import LinkServer
from replica.local.replica import ReplicaProcess
from replica.operators.front_ends import FrontEnds
from tests.ends import ends_by_design, none_ends_unasked
from tests.promises import PromiseBroken
from tests.waiting import eventually
from tests.worlds.api_world import StubHandler

SERVES = "while [ ! -e {folder}/fail ]; do sleep 0.05; done; rm {folder}/fail; echo no lock, no index; exit {code}"


@asynccontextmanager
async def supervised(folder: Path, code: int = 3) -> AsyncIterator[ReplicaProcess]:
    """A stand-in for a replica: it writes down that it began, and fails once it finds a file `fail`."""
    stand_in = folder / "stand-in"
    stand_in.write_text(f"#!/bin/sh\necho x >> {folder}/began\n{SERVES.format(folder=folder, code=code)}\n")
    stand_in.chmod(0o755)
    address = ReplicaAddress(name="r1", host="127.0.0.1", api_port=1, health_port=2)
    replica = ReplicaProcess(address, folder / "config", folder, lambda part, text: None)
    replica.install(stand_in, folder / "config", {})
    replica.restart_pause_s = 0.05
    replica.start()
    try:
        yield replica
    finally:
        await replica.stop()


async def began(folder: Path, times: int) -> None:
    """Wait until the stand-in was started so often."""

    async def so_often() -> bool:
        path = folder / "began"
        return path.exists() and len(path.read_text().split()) == times

    await eventually(so_often)


async def fail(folder: Path) -> None:
    """Have the stand-in end by itself, and be started again."""
    (folder / "fail").touch()
    await began(folder, 2)


async def test_an_end_that_nobody_asked_for_breaks_a_promise(tmp_path: Path) -> None:
    """Goal: a restart hides no crash. Method: a replica ends by itself and comes back, as in mid-scenario."""
    async with supervised(tmp_path) as replica:
        await began(tmp_path, 1)
        with (
            pytest.raises(PromiseBroken, match=r"(?s)r1 ended with code 3.*no lock, no index"),
            none_ends_unasked({"r1": replica}),
        ):
            await fail(tmp_path)
        with none_ends_unasked({"r1": replica}):
            pass  # each end is reported once


@pytest.mark.parametrize("ask", [ReplicaProcess.kill_group, ReplicaProcess.kill_core, ReplicaProcess.terminate])
async def test_an_end_that_was_asked_for_is_none(tmp_path: Path, ask: Callable[[ReplicaProcess], None]) -> None:
    """Goal: faults on purpose are distinguished. Method: each of them; then an end of its own, which counts again."""
    async with supervised(tmp_path) as replica:
        await began(tmp_path, 1)
        with none_ends_unasked({"r1": replica}):
            ask(replica)
            await began(tmp_path, 2)
        with pytest.raises(PromiseBroken), none_ends_unasked({"r1": replica}):
            (tmp_path / "fail").touch()
            await began(tmp_path, 3)


async def test_an_end_by_design_is_declared(tmp_path: Path) -> None:
    """Goal: a full disk may end a replica. Method: the same end, declared; a stop before the supervisor has looked."""
    async with supervised(tmp_path) as replica:
        await began(tmp_path, 1)
        with none_ends_unasked({"r1": replica}), ends_by_design(replica):
            await fail(tmp_path)
        with pytest.raises(PromiseBroken, match="code 3"), none_ends_unasked({"r1": replica}):
            replica.restart_pause_s = 60.0
            (tmp_path / "fail").touch()
            await eventually(lambda: _holds(not replica.running))
            await replica.stop()
            replica.start()


async def test_one_that_needs_a_person_has_ended_too(tmp_path: Path) -> None:
    """Goal: a replica that stays down is no quiet end. Method: the exit code of a configuration that cannot be run."""
    async with supervised(tmp_path, code=2) as replica:
        await began(tmp_path, 1)
        with pytest.raises(PromiseBroken, match="code 2"), none_ends_unasked({"r1": replica}):
            (tmp_path / "fail").touch()
            await eventually(lambda: _holds(bool(replica.ended_unasked)))


async def test_a_front_end_that_ends_breaks_a_promise(tmp_path: Path) -> None:
    """Goal: a front end's crash is seen too. Method: the core's own words about one, before the block and in it."""
    line = json.dumps(await words_about_a_crash()) + "\n"
    async with supervised(tmp_path) as replica:
        await began(tmp_path, 1)
        replica.log_path.write_text(line)
        with none_ends_unasked({"r1": replica}):
            pass
        with (
            pytest.raises(PromiseBroken, match='"exit_code": 70'),
            none_ends_unasked({"r1": replica}),
            replica.log_path.open("a") as told,
        ):
            told.write(line)
            told.flush()


async def words_about_a_crash() -> MutableMapping[str, object]:
    """What a core logs when one of its front ends ends with code 70."""
    front_ends = FrontEnds(
        ["sh", "-c", "cat > /dev/null; exit 70"],
        1,
        lambda number: {"name": f"r1/api-{number}"},
        SystemClock(),
        LinkServer(Path("unused"), "generation", StubHandler(), LinkSettings()),
        drain_max_s=1.0,
    )
    with capture_logs() as told:
        running = asyncio.create_task(front_ends.run())
        await eventually(lambda: _holds(bool(told)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return told[0]


async def _holds(fact: bool) -> bool:
    return fact
