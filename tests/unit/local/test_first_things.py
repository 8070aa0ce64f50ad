"""What would stop `notary up` late, or for no reason, is looked at first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.postgres import _drop_stale_lock
from replica.notary.errors import ConfigError
from replica.notary.socket_paths import PATH_MAX_BYTES, check_socket_path


async def test_a_folder_too_deep_for_sockets_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 25)
    with pytest.raises(ConfigError, match="use a shorter folder"):
        await LocalCluster(ClusterSettings(folder=folder)).start()
    assert not folder.exists()


def test_the_longest_path_is_taken() -> None:
    longest = Path("/" + "x" * (PATH_MAX_BYTES - 1))
    check_socket_path(longest)
    with pytest.raises(ConfigError, match="at most 107 bytes, this one 108"):
        check_socket_path(longest.with_name(longest.name + "x"))


def locked(folder: Path, number: object) -> Path:
    lock = folder / "postmaster.pid"
    lock.write_text(f"{number}\n{folder}\n")
    return lock


def test_a_lock_whose_process_is_another_one_is_removed(tmp_path: Path) -> None:
    """Goal: after a power cut the number belongs to anybody. Method: a lock with this process' own number."""
    lock = locked(tmp_path, os.getpid())
    _drop_stale_lock(tmp_path)
    assert not lock.exists()


def test_the_lock_of_a_server_that_runs_there_stays(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as server:
        lock = locked(tmp_path, server.pid)
        _drop_stale_lock(tmp_path)
        server.kill()
        assert lock.exists()


@pytest.mark.parametrize("number", ["", "no number", 2**22 + 1])
def test_a_lock_that_says_nothing_is_left_to_postgres(tmp_path: Path, number: object) -> None:
    lock = locked(tmp_path, number)
    _drop_stale_lock(tmp_path)
    assert lock.exists()
    lock.unlink()
    _drop_stale_lock(tmp_path)
