"""Spark's Kafka connector by its coordinates, without the pinned jars: a real resolver, a folder as repository."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.maven_folder import CONNECTOR, maven_folder, spark_conf
from tests.pipeline.test_commands import VALUES, Operator, operator  # noqa: F401

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
]

ARCHIVE = ("archive", "run", "--engine", "spark", "--connector", "spark", "--json")


def typed(operator: Operator, conf: Path, *words: str) -> subprocess.CompletedProcess[str]:  # noqa: F811
    """A command in a process of its own, which has no pinned jars."""
    none = conf / "no-jars"
    none.mkdir(exist_ok=True)
    environment = os.environ | {"NOTARY_SPARK_JARS": str(none), "SPARK_CONF_DIR": str(conf)}
    command = [sys.executable, "-m", "replica.cli", *words, "--config", str(operator.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environment)


def test_the_connector_comes_by_its_coordinates(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    """Goal: a machine without the pinned jars reads the log by Spark's own connector. Method: a repository in a folder,
    one package named, the others by its pom; without the option the same command says what is missing."""
    conf = spark_conf(tmp_path / "conf", maven_folder(tmp_path / "repository"))
    without = typed(operator, conf, *ARCHIVE)
    assert (without.returncode, "CONFIG_INVALID" in without.stderr) == (2, True), without.stderr
    assert "Spark has no Kafka connector here" in without.stderr
    done = typed(operator, conf, *ARCHIVE, "--packages", CONNECTOR)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["archived_now"] == len(VALUES)
    assert done.stderr == ""
    assert operator.told("archive", "verify")["findings"] == []


def test_wrong_coordinates_and_a_repository_that_is_away(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    """Goal: one sentence and a code, no trace. Method: a version that nobody has; a port that nobody listens on."""
    conf = spark_conf(tmp_path / "conf", maven_folder(tmp_path / "repository"))
    wrong = CONNECTOR.rpartition(":")[0] + ":0.0.1"
    refused = typed(operator, conf, *ARCHIVE, "--packages", wrong)
    assert (refused.returncode, "CONFIG_INVALID" in refused.stderr) == (2, True), refused.stderr
    assert f"no repository has {wrong}" in refused.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = spark_conf(tmp_path / "away", f"http://127.0.0.1:{taken.getsockname()[1]}/")
        failed = typed(operator, away, *ARCHIVE, "--packages", CONNECTOR)
    assert (failed.returncode, "PACKAGES_UNAVAILABLE" in failed.stderr) == (1, True), failed.stderr
    for said in (refused.stderr, failed.stderr):
        assert "Exception in thread" not in said and "\tat " not in said and "Traceback" not in said
