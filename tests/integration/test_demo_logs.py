"""The seam for other logs: the whole demo on logs that are no Kafka, from the configuration to the checker."""

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
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.raft.log_settings import RaftLogSettings

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


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        pytest.param(["--memory-log"], MemoryLogSettings, marks=pytest.mark.slow),
        (["--profile", "postgres"], PostgresLogSettings),
        pytest.param(["--profile", "raft"], RaftLogSettings, marks=pytest.mark.slow),
    ],
    ids=["memory", "postgres", "raft"],
)
def test_the_demo_runs_without_any_broker(folder: Path, options: list[str], kind: type[object]) -> None:
    """Goal: nothing but the log's own room needs Kafka or Java. Method: the demo, its kill included, over other logs.

    No broker could be started: its jars are looked for where there are none, and a Java that is called leaves a mark.
    The history is checked by `notary check`, in a process of its own, which reads the log again.
    """
    requests, mark = folder / "requests.jsonl", folder / "java-was-called"
    lines = (ROOT / "replica/cli/demo/mainnet-excerpt.jsonl").read_text().splitlines(keepends=True)
    requests.write_text("".join(lines[:REQUESTS]))
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    java.chmod(0o755)
    argv = ["demo", "--exit", *options, "--json", "report.json", "--requests", str(requests)]
    none = {"NOTARY_KAFKA_LIBS": str(folder / "none"), "JAVA_HOME": "", "PATH": f"{java.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "replica.cli", *argv],
        cwd=folder,
        env=os.environ | none | {"PYTHONPATH": str(ROOT)},
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
    assert isinstance(config.log.settings, kind)
    assert not (folder / "data/demo/kafka").exists()
    assert not mark.exists()
