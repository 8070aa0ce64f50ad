"""A client process of the fault lab ends with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.client import given_up_path

pytestmark = pytest.mark.thorough

END_MAX_S = 60.0
STARTER = """
import sys, time
from tests.faults.client import ClientOrder
from tests.faults.load import ClientLoad

order = ClientOrder(endpoint="http://127.0.0.1:1", process="p", history=sys.argv[1], parties=[("A", bytes(32))],
                    ledger_id=bytes(16), give_up_s=0.5)
load = ClientLoad(order)
load.start()
print(load._process.pid, flush=True)
time.sleep(600)
"""


def test_a_client_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Goal: a bench that failed left its client, which went on for hours. Method: SIGKILL of the starter."""
    history = tmp_path / "history.jsonl"
    with subprocess.Popen([sys.executable, "-c", STARTER, str(history)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    try:
        until_s = time.monotonic() + END_MAX_S
        while not given_up_path(history).exists():
            assert time.monotonic() < until_s, "the client goes on"
            time.sleep(0.05)
    finally:
        if not given_up_path(history).exists():
            os.kill(pid, signal.SIGKILL)
