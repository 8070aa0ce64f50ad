"""Every command against a broker with Kafka's defaults, which makes a topic for whoever asks for one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from confluent_kafka.admin import ConfigResource

from replica.cli.main import app
from replica.local.kafka import KafkaBroker, KafkaCluster, start_broker
from replica.local.ports import PortReservation
from tests.pipeline.test_commands import Operator, operator  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

SERVES_S = 6.0  # a command that runs until it is stopped
NO_BROKER = {
    "demo, demo-pipeline, up, try, recovery drill": "bring up servers of their own",
    "init, runbook, man, verify, sign, config reference": "read and write files",
    "keys create, keys show, party verify, trail verify": "read and write files",
    "log-node": "is the other kind of log",
    "topic create, log create": "make the topic, with all that its contract says",
    "status-page": "asks a running replica alone",
    "submit, completions": "call the endpoint alone",
}
UNTIL_STOPPED = {"replica --name r1", "watch"}
COMMANDS = """
import --party p --key notary.key
status
history
switchover --reason r
failover -y --reason r
pause because
resume
doctor
check {file}
audit
audit --no-database
report
config check
config show
keys rotate {file} --reason r
topic check
topic repair
topic access
store migrate
store prune --keep-days 400 --reason r
store roles
format show
format raise --reason r
haproxy render
haproxy check
haproxy servers
haproxy drain r1
haproxy ready r1
haproxy save-state
trail list
trail export
trail record failover --reason r
trail bring-back {file}
party export
party list
party officers notary.key --reason r
party add p {file} --reason r
party revoke p {file} --reason r
party rotate p {file} {file} --reason r
party import {file} --reason r
log check
log roles
log salvage --to {new}
log copy --to {other}
log fill {file}
log tail
log prove 0
log members
log add n1
log retire n1
log removable
site status
site take --reason r
index salvage {file} --name r1
index verify --name r1
index rebuild --name r1 --engine replay
index rebuild --name r1 --engine spark
index diff --name r1
index checkpoint {place} --name r1
trace state {tx}:0
trace tx {tx}
trace party p
archive run
archive run --engine spark
archive status
archive verify
tables run --engine process
tables run --engine spark
tables maintain
tables check
tables status
restore plan
restore run
restore adopt --reason r
recovery copy --to {place}
recovery ship {place} --to {place}
recovery verify {place}
recovery seed {place} --name r1
"""


@pytest.fixture(scope="module")
def kafka_broker(servers_folder: Path, ports: PortReservation) -> Iterator[KafkaCluster]:
    """As Kafka comes: `auto.create.topics.enable` is true."""
    as_ours = KafkaBroker.properties
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            KafkaBroker,
            "properties",
            lambda *given: as_ours(*given).replace("auto.create.topics.enable=false", "auto.create.topics.enable=true"),
        )
        cluster = asyncio.run(start_broker(servers_folder / "kafka-as-it-comes", ports))
        yield cluster
        asyncio.run(cluster.remove())


def test_every_command_is_played_or_has_no_broker() -> None:
    """Goal: a new command is played too. Method: the command line's own list."""
    played = [" ".join(words) for line in _typed() for words in _prefixes(line)]
    left_out = {name for names in NO_BROKER for name in names.split(", ")}
    assert [name for name in _leaves(typer.main.get_command(app)) if name not in {*played, *left_out}] == []


@pytest.mark.parametrize("there", [True, False], ids=["the log is there", "the log is missing"])
def test_no_command_makes_a_topic_by_asking(operator: Operator, there: bool, tmp_path: Path) -> None:  # noqa: F811
    """Goal: no command leaves a topic that forgets, as `archive run` once did. Method: look at new topics after each.

    `log copy` makes the second site's topic, as the contract says: it keeps records for ever.
    """
    given = {name: tmp_path / name for name in ("file", "place", "new")}
    given["file"].write_text("")
    given["place"].mkdir()
    given["other"] = operator.config.with_name("other.toml")
    given["other"].write_text(_with_another_topic(operator.config, "copied"))
    if not there:
        operator.config.write_text(_with_another_topic(operator.config, "missing"))
    wrong: dict[str, str] = {}
    for line in _typed():
        words = [word.format(**given, tx="00" * 32) for word in line.split()]
        printed = _until_stopped(operator, words) if line in UNTIL_STOPPED else operator.types(*words).output
        made = _forgetful_topics(operator)
        if made or "Usage:" in printed:
            wrong[line] = str(made or printed[-200:])
    assert wrong == {}


def _forgetful_topics(operator: Operator) -> list[str]:  # noqa: F811
    """The topics that do not keep records for ever: no command of ours makes one."""
    admin = operator.kafka.admin()
    names = [name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")]
    asked = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in names])
    return sorted(one.name for one, answer in asked.items() if answer.result()["retention.ms"].value != "-1")


def _with_another_topic(config: Path, name: str) -> str:
    text = config.read_text()
    assert '"commands-' in text
    return text.replace('"commands-', f'"{name}-')


def _typed() -> list[str]:
    return [*sorted(UNTIL_STOPPED), *COMMANDS.strip().splitlines()]


def _prefixes(line: str) -> list[list[str]]:
    words = line.split()
    return [words[:1], words[:2]]


def _leaves(command: object, name: str = "") -> Iterator[str]:
    inner: dict[str, object] = getattr(command, "commands", {})
    if not inner:
        yield name.strip()
    for word, one in inner.items():
        yield from _leaves(one, f"{name} {word}")


def _until_stopped(operator: Operator, words: list[str]) -> str:  # noqa: F811
    """What a command says that runs until it is stopped, in a process of its own."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(operator.config)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            return process.communicate(timeout=SERVES_S)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return process.communicate(timeout=20)[0]
