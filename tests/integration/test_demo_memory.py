"""The seam for other logs: the whole demo on a log that is no Kafka, from the configuration to the checker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from replica.config.load import load_config
from replica.log.in_memory.settings import MemoryLogSettings

pytestmark = pytest.mark.cluster

DEMO_MAX_S = 240
REQUESTS = 200
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter: for the socket, and for Postgres."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_demo_runs_on_a_log_in_memory_without_any_broker(folder: Path) -> None:
    """Goal: nothing but the log's own room needs Kafka. Method: the demo, its kill included, over the log in memory.

    No broker could be started: its jars are looked for where there are none. The history is checked by `notary
    check`, in a process of its own, which reads the log again.
    """
    requests = folder / "requests.jsonl"
    lines = (ROOT / "replica/cli/demo/mainnet-excerpt.jsonl").read_text().splitlines(keepends=True)
    requests.write_text("".join(lines[:REQUESTS]))
    argv = ["demo", "--exit", "--memory-log", "--json", "report.json", "--requests", str(requests)]
    done = subprocess.run(
        [sys.executable, "-m", "replica.cli", *argv],
        cwd=folder,
        env=os.environ | {"NOTARY_KAFKA_LIBS": str(folder / "none"), "PYTHONPATH": str(ROOT)},
        timeout=DEMO_MAX_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert report["clean"]
    assert {phase["title"]: phase["expected"] for phase in report["phases"]}["notarise"] == REQUESTS
    assert report["kill"]["successor"] not in ("", report["kill"]["killed"])
    summary = report["check"]["summary"]
    assert summary["records"] > REQUESTS
    assert len(summary["epochs"]) >= 2
    config = load_config(folder / "data/demo/notary.toml")
    assert isinstance(config.log.settings, MemoryLogSettings)
    assert not (folder / "data/demo/kafka").exists()
