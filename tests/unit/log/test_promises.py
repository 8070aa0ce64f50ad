"""What an answer rests on, in the words of README; and what `notary config check` warns of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from replica.cli.config import warnings
from replica.config.load import make_config
from replica.log.kafka.settings import KafkaSettings
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.promises import NOTHING, promise
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.settings import LogSettings
from tests.unit.config.test_exposure import REPLICA, values

README = Path(__file__).parents[3] / "README.md"
NODES = "r1=127.0.0.1:1,r2=127.0.0.1:2,r3=127.0.0.1:3"


def kafka(**given: object) -> KafkaSettings:
    return KafkaSettings.model_validate({"bootstrap_servers": "127.0.0.1:1", **given})


def test_readme_has_the_promises_in_the_words_of_config_check() -> None:
    """Goal: the page and the command never differ. Method: README's rows against those of each kind's defaults."""
    rows = re.findall(r"^\| (`(?:kafka|postgres|raft)`.*) \|$", README.read_text(), flags=re.M)
    plain = [re.sub(r"[`*]| \(default\)| \(embedded\)", "", row).split(" | ") for row in rows]
    kinds = [
        kafka(),
        kafka(durability="replicated"),
        PostgresLogSettings(conninfo="host=127.0.0.1"),
        RaftLogSettings(group="g", nodes=NODES),
    ]
    assert plain == [list(promise(settings)) for settings in kinds]


@pytest.mark.parametrize(
    "settings",
    [
        kafka(single_broker=True),
        kafka(single_broker=True, durability="replicated"),
        PostgresLogSettings(conninfo="host=127.0.0.1", single_server=True),
        RaftLogSettings(group="g", nodes="r1=127.0.0.1:1", members_min=1),
    ],
)
def test_the_only_disk_is_named(settings: LogSettings) -> None:
    """Goal: nobody takes one server for safe. Method: each kind on one; only its own promise about power stays."""
    found = promise(settings)
    assert found.one_machine_lost.startswith("everything lost")
    assert "leader" not in found.answered_when and "standby" not in found.answered_when
    assert (found.all_power_lost == NOTHING) == settings.survives_power_loss


@pytest.mark.parametrize(
    ("hosts", "durability", "warned"),
    [
        (["127.0.0.1", "127.0.0.1", "127.0.0.2"], "replicated", ["r1 and r2 are on one host, 127.0.0.1:"]),
        (["127.0.0.1", "127.0.0.2", "127.0.0.3"], "replicated", []),
        (["127.0.0.1", "127.0.0.1", "127.0.0.1"], "synced", []),
    ],
)
def test_seen_files_on_one_host_are_warned_of(
    tmp_path: Path, hosts: list[str], durability: str, warned: list[str]
) -> None:
    """Goal: whoever relies on a peer's mark has it on another machine. Method: hosts shared and not, by durability."""
    replicas: list[dict[str, Any]] = [
        {**REPLICA, "name": f"r{number}", "host": host, "api_port": 10 * number, "health_port": 10 * number + 1}
        for number, host in enumerate(hosts, 1)
    ]
    log = {"kafka": {"bootstrap_servers": "127.0.0.1:1", "durability": durability}}
    given = values(log=log, replicas=replicas)
    found = warnings(make_config(given, tmp_path, "test"))
    assert [text[: len(start)] for text, start in zip(found, warned, strict=True)] == warned
