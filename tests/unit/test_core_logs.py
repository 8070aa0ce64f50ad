"""Log lines of cores and front ends: JSON, one a line, and never the reason why a process ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CORE = "from replica.core.logs import set_up_logging; set_up_logging(replica='r1')"
FRONT_END = "from ledger_api.server.logs import set_up_logging; set_up_logging('info', replica='r1')"
SPEAK = "import structlog; log = structlog.get_logger(); log.critical('one', detail='ä'); log.info('two'); print('x')"


@pytest.mark.parametrize("set_up", [CORE, FRONT_END], ids=["core", "front end"])
def test_lines_are_json_in_order(set_up: str) -> None:
    """Goal: each line stands for itself. Method: a process that logs twice; parse what it wrote."""
    code = f"{set_up}; {SPEAK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, _ = done.stdout.splitlines()
    assert (json.loads(first)["event"], json.loads(first)["detail"]) == ("one", "ä")
    assert (json.loads(second)["event"], json.loads(second)["replica"]) == ("two", "r1")


@pytest.mark.parametrize("set_up", [CORE, FRONT_END], ids=["core", "front end"])
def test_a_full_disk_takes_lines_and_nothing_else(set_up: str, tmp_path: Path) -> None:
    """Goal: no step-down fails for want of a log line. Method: a process whose standard output is always full."""
    code = (
        f"{set_up}; {SPEAK.replace('print', 'str')}; from pathlib import Path; Path({str(tmp_path / 'on')!r}).touch()"
    )
    with Path("/dev/full").open("w") as full:
        subprocess.run([sys.executable, "-c", code], stdout=full, check=True)
    assert (tmp_path / "on").exists()
