"""Folders of commands: gone with them, and removed by the next command when one was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replica.cli.work_folder import work_folder

HOLD = """
import sys
from pathlib import Path
from replica.cli.work_folder import work_folder
with work_folder(Path(sys.argv[1]), "job-") as folder:
    (folder / "claims").write_bytes(b"much")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_goes_with_its_command(tmp_path: Path) -> None:
    """Goal: nothing stays, whatever happens inside. Method: leave it in order, by an error, by renaming."""
    with work_folder(tmp_path / "new", "job-") as folder:
        (folder / "claims").write_bytes(b"much")
    with pytest.raises(KeyError), work_folder(tmp_path / "new", "job-") as folder:
        raise KeyError
    with work_folder(tmp_path / "new", "job-") as folder:
        (folder / "index").mkdir()
        (folder / "index").rename(tmp_path / "new" / "index")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["index"]


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    """Goal: disks do not fill up with leftovers, and no running job loses its files. Method: a holder, then SIGKILL."""
    (tmp_path / "other-1").mkdir()
    (tmp_path / "job-of-an-earlier-release").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with work_folder(tmp_path, "job-") as folder:
            assert folder != held and (held / "claims").exists()
        holder.send_signal(signal.SIGKILL)
    assert held.exists()
    with work_folder(tmp_path, "job-"):
        assert not held.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["other-1"]
