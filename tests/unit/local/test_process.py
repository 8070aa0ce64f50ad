"""A managed process: ready or explained, stopped or killed with all it started, and never an orphan."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replica.local.process import (
    Command,
    ManagedProcess,
    ServerFailed,
    SoftwareMissing,
    descendants,
    log_tail,
    run_to_end,
)
from replica.local.run_file import ProcessIdentity
from tests.waiting import eventually

FOREVER = "sleep 600"
IGNORES_TERM = f"trap '' TERM; echo ready; {FOREVER} & wait; wait"
CHILD_IN_ITS_OWN_SESSION = f"setsid {FOREVER} & echo ready; wait"


def shell(script: str, folder: Path) -> ManagedProcess:
    return ManagedProcess(Command(name="test", argv=["sh", "-c", script], log_path=folder / "log"))


def says(process: ManagedProcess, word: str) -> bool:
    return word in process.log_tail()


async def ready(process: ManagedProcess, word: str = "ready") -> None:
    async def said() -> bool:
        return says(process, word)

    await process.wait_ready(said, timeout_s=10)


async def never() -> bool:
    return False


async def has_ended(process: ProcessIdentity) -> bool:
    return not process.runs()


async def test_an_early_end_is_explained_with_the_log(tmp_path: Path) -> None:
    """Goal: the reason is in the message. Method: a process that complains and ends with code 3."""
    process = shell("echo cannot bind the port; exit 3", tmp_path)
    process.start()
    with pytest.raises(ServerFailed, match=r"(?s)code 3 before it was ready.*cannot bind the port"):
        await process.wait_ready(never, timeout_s=10)


async def test_one_that_is_never_ready_is_killed_and_explained(tmp_path: Path) -> None:
    """Goal: waiting is bounded and leaves nothing behind. Method: a probe that never succeeds."""
    process = shell(f"echo loading; {FOREVER}", tmp_path)
    process.start()
    await eventually(lambda: asyncio.sleep(0, says(process, "loading")))
    with pytest.raises(ServerFailed, match=r"(?s)not ready within 0.1 s.*loading"):
        await process.wait_ready(never, timeout_s=0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_command_that_cannot_run_is_named(tmp_path: Path) -> None:
    """Goal: the reader learns what is missing. Method: a working folder that does not exist."""
    process = ManagedProcess(Command(name="test", argv=["true"], log_path=tmp_path / "log", cwd=tmp_path / "absent"))
    with pytest.raises(SoftwareMissing, match="absent"):
        process.start()


async def test_stop_lets_a_process_end_in_good_order(tmp_path: Path) -> None:
    """Goal: the grace is used. Method: a process that prints a line on SIGTERM."""
    process = shell(f"trap 'echo goodbye; exit 0' TERM; echo ready; {FOREVER} & wait", tmp_path)
    process.start()
    await ready(process)
    await process.stop(grace_s=10)
    assert process.returncode == 0
    assert says(process, "goodbye")
    await process.stop()  # may repeat


async def test_stop_kills_what_ignores_it_with_its_children(tmp_path: Path) -> None:
    """Goal: nothing outlives the grace. Method: a shell that ignores SIGTERM, with a child."""
    process = shell(IGNORES_TERM, tmp_path)
    process.start()
    await ready(process)
    await eventually(lambda: asyncio.sleep(0, len(descendants(process.pid)) == 1))
    child = ProcessIdentity.of(descendants(process.pid)[0])
    await process.stop(grace_s=0.1)
    assert process.returncode == -signal.SIGKILL
    await eventually(lambda: has_ended(child))


async def test_the_whole_tree_is_killed_even_in_other_sessions(tmp_path: Path) -> None:
    """Goal: Postgres's backends, each in a group of its own, are reached. Method: a child that calls setsid."""
    process = shell(CHILD_IN_ITS_OWN_SESSION, tmp_path)
    process.start()
    await ready(process)
    await eventually(lambda: asyncio.sleep(0, len(descendants(process.pid)) == 1))
    child = ProcessIdentity.of(descendants(process.pid)[0])
    await eventually(lambda: asyncio.sleep(0, os.getpgid(child.pid) != process.pid))
    await process.kill()
    await eventually(lambda: has_ended(child))


async def test_a_frozen_process_runs_on_and_can_be_stopped(tmp_path: Path) -> None:
    """Goal: SIGSTOP is not an end, and no obstacle to one. Method: freeze, look, stop with a grace."""
    process = shell(f"trap 'exit 0' TERM; echo ready; {FOREVER} & wait", tmp_path)
    process.start()
    await ready(process)
    process.signal_group(signal.SIGSTOP)
    await eventually(lambda: asyncio.sleep(0, _state(process.pid) == "T"))
    assert process.running
    await process.stop(grace_s=10)
    assert process.returncode == 0


async def test_a_command_that_fails_or_hangs_is_an_error(tmp_path: Path) -> None:
    """Goal: a formatter's failure is not taken for success. Method: a bad exit code, then a command too slow."""
    log_path = tmp_path / "log"
    await run_to_end(Command(name="good", argv=["true"], log_path=log_path), timeout_s=10)
    with pytest.raises(ServerFailed, match=r"(?s)code 2.*no space"):
        await run_to_end(
            Command(name="bad", argv=["sh", "-c", "echo no space; exit 2"], log_path=log_path), timeout_s=10
        )
    with pytest.raises(ServerFailed, match="longer than"):
        await run_to_end(Command(name="slow", argv=["sleep", "600"], log_path=log_path), timeout_s=0.1)


async def test_a_process_ends_with_its_supervisor(tmp_path: Path) -> None:
    """Goal: no orphan after SIGKILL of the supervisor. Method: another Python starts a process and is killed."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom replica.local.process import Command, ManagedProcess\n"
        "p = ManagedProcess(Command(name='x', argv=['sleep', '600'], log_path=Path(sys.argv[1])))\n"
        "p.start(); print(p.pid, flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        orphan = ProcessIdentity.of(int(supervisor.stdout.readline()))
        await eventually(lambda: asyncio.sleep(0, _command(orphan.pid) == "sleep"))  # past setpriv
        supervisor.kill()
    await eventually(lambda: has_ended(orphan))


def test_the_tail_of_a_long_log_is_short(tmp_path: Path) -> None:
    """Goal: an error message stays readable, and reading a huge log is cheap. Method: many lines, one huge line."""
    log = tmp_path / "log"
    assert log_tail(log) == "(no log)"
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert log_tail(log, lines=2) == "line 99998\nline 99999"
    log.write_text("x" * 1_000_000)
    assert len(log_tail(log)) < 20_000


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
