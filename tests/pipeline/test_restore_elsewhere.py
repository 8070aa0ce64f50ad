"""`notary restore` to another cluster of brokers, up to a moment or an offset, and with a loss that is accepted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from pipeline.sources.topic import look_at
from replica.config.load import load_config
from replica.local.kafka import KafkaCluster, start_broker
from replica.local.ports import PortReservation
from replica.local.topic_reader import read_topic
from replica.notary.errors import RestoreRefused
from replica.notary.salvage import decode_salvage
from tests.pipeline.test_commands import Operator, operator  # noqa: F401
from tests.pipeline.test_salvage_commands import PUBLISHED, VALUES, forget, lose

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def second(servers_folder: Path, ports: PortReservation) -> Iterator[KafkaCluster]:
    """Another cluster of brokers, which the configuration does not know."""
    cluster = asyncio.run(start_broker(servers_folder / "kafka-second", ports, topics_deletable=True))
    yield cluster
    asyncio.run(cluster.remove())


def has_topic(cluster: KafkaCluster, topic: str) -> bool:
    found = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30)
    return topic in found.topics


def values_in(operator: Operator, second: KafkaCluster) -> list[bytes]:  # noqa: F811
    """What the restored topic has, from its first offset on."""
    settings = load_config(operator.config).log.settings.elsewhere(None, second.bootstrap_servers)
    records = list(read_topic(settings, None))
    assert [offset for offset, _ in records] == list(range(len(records)))
    return [value for _, value in records]


def test_up_to_an_offset_and_up_to_a_moment(
    operator: Operator,  # noqa: F811
    second: KafkaCluster,
    tmp_path: Path,
) -> None:
    """Goal: another cluster gets the archive's records up to the point that was named, and the log's own cluster gets
    none. Method: restore to an offset, go on to a moment between two batches of records, and to the end."""
    time.sleep(0.1)
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    time.sleep(0.1)
    operator.produce(VALUES[40:50])
    assert operator.told("archive", "run")["archived_now"] == 50
    settings = load_config(operator.config).log.settings
    to = ("--to-servers", second.bootstrap_servers)
    evidence = ("--evidence", str(tmp_path / "evidence.json"))
    assert operator.told("restore", "plan", *to, "--until-offset", "9")["last"] == 9
    assert not has_topic(second, settings.topic)
    assert operator.told("restore", "run", *to, *evidence, "--until-offset", "9")["last"] == 9
    assert values_in(operator, second) == VALUES[:10]
    again = operator.types("restore", "run", *to, *evidence, "--until-time", moment)
    assert isinstance(again.exception, RestoreRefused)
    restored = operator.told("restore", "run", *to, *evidence, "--until-time", moment, "--resume")
    assert (restored["last"], values_in(operator, second)) == (39, VALUES[:40])
    whole = operator.told("restore", "run", *to, *evidence, "--resume")
    assert (whole["last"], values_in(operator, second)) == (49, VALUES[:50])
    assert look_at(settings).topic_id != whole["topic_id"]
    assert look_at(settings).end == 50


def test_a_loss_is_accepted_by_its_number(operator: Operator, second: KafkaCluster, tmp_path: Path) -> None:  # noqa: F811
    """Goal: what nothing tells is lost only if a person says how much. Method: an old index is all that is left;
    restore to another cluster with no number, a wrong one and the right one; the participant moves there."""
    settings = lose(operator)
    forget(settings)
    file = tmp_path / "tail.salvage"
    assert operator.told("log", "salvage", "--to", str(file))["accept_loss"] == 7
    words = ("--to-servers", second.bootstrap_servers, "--salvage", str(file))
    evidence = ("--evidence", str(tmp_path / "evidence.json"))
    for wrong in ((), ("--accept-loss", "0"), ("--accept-loss", "8")):
        refused = operator.types("restore", "run", *words, *evidence, *wrong)
        assert isinstance(refused.exception, RestoreRefused), refused.output
        assert not has_topic(second, settings.log.settings.label)
    restored = operator.told("restore", "run", *words, *evidence, "--accept-loss", "7")
    assert restored["last"] == PUBLISHED
    salvage = decode_salvage(file.read_bytes())
    lost = [salvage.lost_record(offset) for offset in range(40, PUBLISHED + 1)]
    assert values_in(operator, second) == [*VALUES[:40], *lost]
    assert not has_topic(operator.kafka, settings.log.settings.label)

    moved = operator.config.with_name("moved.toml")
    moved.write_text(operator.config.read_text().replace(operator.kafka.bootstrap_servers, second.bootstrap_servers))
    there = replace(operator, config=moved, kafka=second)
    adopt = ("restore", "adopt", "--salvage", str(file), "--accept-loss")
    assert isinstance(there.types(*adopt, "6").exception, RestoreRefused)
    adopted = there.types(*adopt, "7")  # the old index is of records that are lost: it is rebuilt
    assert adopted.exit_code == 0, adopted.output + repr(adopted.exception)
    assert there.told("archive", "status")["topic_id"] == restored["topic_id"]
    assert there.told("archive", "run")["archived_now"] == len(lost)


def test_a_shorter_log_to_look_at(operator: Operator, second: KafkaCluster, tmp_path: Path) -> None:  # noqa: F811
    """Goal: completions are not left without their records unknowingly. Method: restore without a salvage to before
    the published position: refused, and done for who names the number of records."""
    settings = lose(operator)
    words = ("--to-servers", second.bootstrap_servers, "--to-topic", f"{settings.log.settings.label}-short")
    missing = PUBLISHED - 29
    told = operator.told("restore", "plan", *words, "--until-offset", "29", code=1)
    assert f"--accept-loss {missing}" in str(told["checks"])
    run = ("restore", "run", *words, "--until-offset", "29", "--evidence", str(tmp_path / "evidence.json"))
    assert isinstance(operator.types(*run, "--accept-loss", str(missing - 1)).exception, RestoreRefused)
    assert operator.told(*run, "--accept-loss", str(missing))["last"] == 29
