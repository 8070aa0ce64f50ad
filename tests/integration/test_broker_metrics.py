"""What a real broker shows through Prometheus' JMX exporter with monitoring/kafka-jmx.yml."""

from __future__ import annotations

import asyncio
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from replica.local import kafka
from replica.local.kafka import start_broker
from replica.local.ports import PortReservation
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "monitoring/kafka-jmx.yml"
READY_MAX_S = 60.0


def agent() -> Path:
    """The exporter's jar, checksum verified; fetched with Maven where it is not there yet."""
    subprocess.run([ROOT / "scripts/jars/fetch.sh", "jmx"], check=True, capture_output=True)
    (jar,) = (ROOT / ".tools/jmx/libs").glob("*.jar")
    return jar


def series(port: int) -> dict[str, set[tuple[tuple[str, str], ...]]]:
    """The names that the exporter shows, each with its sets of labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).add(tuple(sorted(sample.labels.items())))
    return found


@pytest.mark.slow
async def test_a_real_broker_shows_every_series_that_the_dashboard_asks_for(
    ports: PortReservation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no panel of the brokers stays empty. Method: a broker with the agent and the shipped file; records go in;
    each name that the file's rules give is shown, and nothing of one topic."""
    port = ports.take()
    option = f"-javaagent:{agent()}=127.0.0.1:{port}:{CONFIGURATION}"
    plain = kafka.KafkaBroker._command

    def with_agent(broker: kafka.KafkaBroker, name: str, *main: str) -> kafka.Command:
        command = plain(broker, name, *main)
        if main[0] == "kafka.Kafka":  # not the tool that formats the storage
            command.argv.insert(1, option)  # type: ignore[attr-defined]
        return command

    monkeypatch.setattr(kafka.KafkaBroker, "_command", with_agent)
    cluster = await start_broker(tmp_path / "kafka", ports)
    try:
        await cluster.create_topic("metrics")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(100):
            producer.produce("metrics", b"%d" % number)
        assert producer.flush(30) == 0
        wanted = {rule["name"] for rule in yaml.safe_load(CONFIGURATION.read_text())["rules"]}
        shown: dict[str, set[tuple[tuple[str, str], ...]]] = {}

        async def all_there() -> bool:
            shown.update(await asyncio.to_thread(series, port))
            return wanted <= shown.keys()

        try:
            await eventually(all_there, READY_MAX_S)
        finally:
            print("missing:", sorted(wanted - shown.keys()))
        assert {dict(labels).get("direction") for labels in shown["kafka_bytes_total"]} == {"In", "Out"}
        assert {"Produce", "FetchConsumer"} <= {
            dict(labels).get("request") for labels in shown["kafka_request_p99_seconds"]
        }
        of_a_topic = [name for name, sets in shown.items() if any("topic" in dict(labels) for labels in sets)]
        assert of_a_topic == []
    finally:
        await cluster.remove()
