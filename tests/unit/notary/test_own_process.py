"""What each process of ours makes sure of: standard streams, UTF-8, open files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replica.notary.own_process import module_argv

ENDS_S = 60.0
CLOSED = "import os\nfor number in (0, 1, 2): os.close(number)\nos.execv(argv[0], argv)\n"


def test_closed_standard_streams_are_not_given_to_other_files(tmp_path: Path) -> None:
    """Goal: log lines never go into the file that got a closed stream's number. Method: with all three closed, open a
    file, print, log."""
    file, found = tmp_path / "data", tmp_path / "found"
    script = (
        "from replica.notary.own_process import keep_standard_streams\n"
        "keep_standard_streams()\n"
        f"file = open({str(file)!r}, 'wb')\n"
        "print('printed', flush=True)\n"
        "from replica.telemetry.log_lines import set_up_logging\n"
        "import structlog\n"
        "set_up_logging(); structlog.get_logger().info('logged')\n"
        f"open({str(found)!r}, 'w').write(str(file.fileno()))\n"
    )
    argv = [sys.executable, "-c", script]
    subprocess.run([sys.executable, "-c", f"argv = {argv!r}\n{CLOSED}"], timeout=ENDS_S, check=True)
    assert int(found.read_text()) > 2
    assert file.read_bytes() == b""


@pytest.mark.thorough
def test_commands_speak_utf8_whatever_the_locale(tmp_path: Path) -> None:
    """Goal: an ASCII locale neither ends a command nor changes what it reads. Method: a setting whose name is
    not ASCII, in the C locale with Python's own way out switched off."""
    config = tmp_path / "notary.toml"
    config.write_text('"Zürich" = 1\n', encoding="utf-8")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    argv = module_argv("replica.cli", "config", "check", "--config", str(config))
    done = subprocess.run(argv, env=plain, capture_output=True, timeout=ENDS_S, check=False)
    assert done.returncode == 2
    assert "Zürich" in done.stderr.decode("utf-8") + done.stdout.decode("utf-8")
    argv = module_argv("replica.cli", "--help")
    assert subprocess.run(argv, env=plain, capture_output=True, timeout=ENDS_S, check=False).returncode == 0


@pytest.mark.parametrize(("soft", "hard", "raised"), [(64, 256, 256), (256, 256, 256)])
def test_open_files_are_raised_as_far_as_allowed(soft: int, hard: int, raised: int) -> None:
    script = (
        "import json, resource\n"
        "from replica.notary.own_process import raise_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "print(json.dumps([raise_open_files(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=ENDS_S, check=True)
    assert json.loads(done.stdout) == [raised, raised]
