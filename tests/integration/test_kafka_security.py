"""The request log on a broker with TLS, certificates, SCRAM and an authorizer: what each principal may, and may not.

The rights are those that `notary topic access` prints, given by Kafka's own tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from structlog.testing import capture_logs
from typer.testing import CliRunner

from replica.cli.main import app
from replica.local.ports import PortReservation
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.stretch import read_stretch
from replica.log.kafka.topic import TopicAdmin, create_topic
from replica.notary.errors import LogUnavailable, NotaryError
from tests.certificates import Authority
from tests.secure_kafka import ADMINISTRATOR, MECHANISMS, SecureKafka
from tests.unit.cli.test_config import write_config
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

TOPIC, PASSWORD, ANSWER_MAX_S = "notary-requests", 'a "pass;word"', 30.0
DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError._NOENT,  # who may not even see the topic cannot ask its leader
}


@pytest.fixture(scope="module")
def kafka(servers_folder: Path, ports: PortReservation) -> Iterator[SecureKafka]:
    """A secure broker with the topic, made by the principal that may, and the rights that the command prints."""
    secure = SecureKafka(servers_folder / "kafka-secure", ports)
    try:
        asyncio.run(_prepare(secure))
        yield secure
    finally:
        asyncio.run(secure.stop())


async def _prepare(secure: SecureKafka) -> None:
    await secure.start()
    for name in ("notary", "archive", "stranger"):
        await secure.set_password(name, PASSWORD)
    folder = secure.folder / "config"
    folder.mkdir()
    write_config(folder)
    principals = ["--replicas", "User:notary", "--reader", "User:archive", "--creator", "User:CN=owner"]
    printed = CliRunner().invoke(app, ["topic", "access", "--config", str(folder / "notary.toml"), *principals])
    assert printed.exit_code == 0, printed.output
    certificates = CliRunner().invoke(
        app, ["topic", "access", "--config", str(folder / "notary.toml"), "--replicas", "User:CN=notary"]
    )
    await secure.grant(printed.output + certificates.output.splitlines()[0])
    await create_topic(secure.by_certificate("owner", TOPIC))


async def append_and_read(settings: KafkaSettings, value: bytes) -> None:
    """What an active does with the log: check it, append, read its own record back."""
    log = KafkaLog(settings)
    try:
        await log.check()
        start = await log.end_offset()
        writer, reader = await log.open_writer(), await log.open_reader(start)
        writer.append(value)
        seen: list[bytes | None] = []

        async def read_back() -> bool:
            seen.extend(record for _, record in await reader.read(100, 0.5))
            return value in seen

        await eventually(read_back, ANSWER_MAX_S)
    finally:
        await log.close()


def ways_in(kafka: SecureKafka) -> dict[str, KafkaSettings]:
    by_password = {name: kafka.by_password("notary", PASSWORD, TOPIC, name) for name in MECHANISMS}
    return by_password | {"mutual TLS": kafka.by_certificate("notary", TOPIC)}


@pytest.mark.parametrize("way", [*MECHANISMS, "mutual TLS"])
async def test_a_replica_works_over_every_way_in(kafka: SecureKafka, way: str) -> None:
    """Goal: the rights suffice for all that a replica does. Method: check, append, read back; each way in."""
    await append_and_read(ways_in(kafka)[way], way.encode())


@pytest.mark.parametrize("principal", ["notary", "archive", "stranger"])
async def test_nobody_may_harm_the_log(kafka: SecureKafka, principal: str) -> None:
    """Goal: what is in the log stays, with every replica's credentials. Method: each harmful call by each of them."""
    client = client_of(kafka.by_password(principal, PASSWORD, TOPIC))
    harmful = harmful_calls(client)
    assert {name: await denied(call) for name, call in harmful.items()} == dict.fromkeys(harmful, True)
    await append_and_read(kafka.by_password("notary", PASSWORD, TOPIC), b"still there")


def harmful_calls(client: AdminClient) -> dict[str, Callable[[], object]]:
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[
        ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    ])  # fmt: skip
    begin = TopicPartition(TOPIC, 0, 1)
    return {
        "delete the topic": lambda: client.delete_topics([TOPIC])[TOPIC],
        "delete records": lambda: client.delete_records([begin])[begin],
        "change a setting": lambda: client.incremental_alter_configs([resource])[resource],
        "add a partition": lambda: client.create_partitions([NewPartitions(TOPIC, 2)])[TOPIC],
        "make another topic": lambda: client.create_topics([NewTopic("other", 1, 1)])["other"],
    }


async def test_an_archiver_reads_and_cannot_write(kafka: SecureKafka) -> None:
    """Goal: who copies the log cannot add to it. Method: read everything; append, which is denied and reported."""
    await append_and_read(kafka.by_password("notary", PASSWORD, TOPIC), b"one more")
    settings = kafka.by_password("archive", PASSWORD, TOPIC)
    log = KafkaLog(settings)
    end = await log.end_offset()
    reader = await log.open_reader(0)
    seen: list[int] = []

    async def has_all() -> bool:
        seen.extend(offset for offset, _ in await reader.read(100, 0.5))
        return len(seen) >= end

    await eventually(has_all, ANSWER_MAX_S)
    assert seen[:end] == list(range(end))
    with capture_logs() as logged:
        writer = await log.open_writer()
        writer.append(b"forged")

        async def is_told() -> bool:
            return writer.failed_count == 1

        await eventually(is_told, ANSWER_MAX_S)
        await log.close()
    (told,) = [line for line in logged if line["event"] == "log_append_failed"]
    assert "TOPIC_AUTHORIZATION_FAILED" in told["detail"]
    again = KafkaLog(settings)
    assert await again.end_offset() == end
    await again.close()


@pytest.mark.thorough
async def test_the_rights_suffice_for_split_topics(kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is printed with the setting covers both topics. Method: a large request by a replica, read by an
    archiver, who cannot write payloads; before that, with the rights to the log's topic alone, all of it is refused."""
    name, record = "split", b"\x9d\x01\x02" + bytes(9_000)
    monkeypatch.setenv("NOTARY_LOG__KAFKA__TOPIC", name)
    principals = ["--replicas", "User:notary", "--reader", "User:archive", "--creator", "User:CN=owner"]
    words = ["topic", "access", "--config", str(kafka.folder / "config" / "notary.toml"), *principals]
    plain = CliRunner().invoke(app, words).output.splitlines(keepends=True)
    to_read = [line for line in plain if "--topic split-payloads" in line]  # what was written before the setting was 0
    assert len(to_read) == 2 and not any("Write" in line or "Create" in line for line in to_read)
    whole = "".join(plain[:3])
    monkeypatch.setenv("NOTARY_LOG__KAFKA__PAYLOAD_PARTITIONS", "2")
    split = CliRunner().invoke(app, words).output
    assert split.startswith(whole) and split.count("--topic split-payloads") == 3

    ways = (
        kafka.by_certificate("owner", name),
        *(kafka.by_password(one, PASSWORD, name) for one in ("notary", "archive")),
    )
    owner, replica, archiver = (way.model_copy(update={"payload_partitions": 2}) for way in ways)
    await kafka.grant(whole)
    with pytest.raises(LogUnavailable, match="AUTHORIZATION_FAILED"):
        await create_topic(owner)
    await append_and_read(ways[1], b"without the setting")  # the second topic is hidden, and need not be there
    await kafka.grant(split[len(whole) :])
    await create_topic(owner)
    await append_and_read(replica, record)
    stored = await asyncio.to_thread(lambda: list(read_stretch(archiver, 0, 2)))
    assert [value for stretch in stored for value in stretch.values] == [b"without the setting", record]
    log = KafkaLog(archiver)
    writer = await log.open_writer()
    writer.append(record)

    async def is_refused() -> bool:
        return writer.failed_count == 1

    await eventually(is_refused, ANSWER_MAX_S)
    await log.close()


async def test_a_principal_without_rights_learns_nothing(kafka: SecureKafka) -> None:
    """Goal: a good certificate alone opens nothing. Method: check, look, read, write as a stranger."""
    for settings in (kafka.by_password("stranger", PASSWORD, TOPIC), kafka.by_certificate("stranger", TOPIC)):
        log, admin = KafkaLog(settings), TopicAdmin(settings)
        for ask in (log.check, log.open_writer, lambda log=log: log.open_reader(0)):
            with pytest.raises(NotaryError, match="AUTHORIZATION_FAILED"):
                await ask()
        with pytest.raises(NotaryError):
            await admin.end_offset()
        await log.close()
        await admin.close()


def impostors(kafka: SecureKafka) -> dict[str, KafkaSettings]:
    """Settings of clients that no broker of ours lets in, and of one that would be led to another broker."""
    elsewhere = Authority(kafka.folder / "elsewhere")
    good = kafka.by_certificate("notary", TOPIC)
    bare = good.security.model_copy(update={"certificate_file": None, "key_file": None})
    misled = good.security.model_copy(update={"ca_file": elsewhere.ca_file})
    plain = good.security.model_copy(update={"protocol": "PLAINTEXT"})
    return {
        "a wrong password": kafka.by_password("notary", "guess", TOPIC),
        "an unknown user": kafka.by_password("nobody", PASSWORD, TOPIC),
        "no certificate": good.model_copy(update={"security": bare}),
        "a stranger's certificate": kafka.by_certificate("notary", TOPIC, elsewhere),
        "a broker of another authority": good.model_copy(update={"security": misled}),
        "plain text": good.model_copy(update={"security": plain}),
    }


async def test_nobody_gets_in_who_does_not_prove_himself(kafka: SecureKafka) -> None:
    """Goal: log-in and TLS hold on both sides. Method: each kind of impostor asks for the topic."""
    for name, settings in impostors(kafka).items():
        admin = TopicAdmin(settings.model_copy(update={"answer_max_s": 1.0, "connect_timeout_s": 1.0}))
        with pytest.raises(LogUnavailable) as refused:
            await admin.topic_id()
            pytest.fail(f"{name} gets in")
        if "password" in name or "user" in name:  # and not: no answer in time
            assert "authentication failed" in refused.value.detail
        await admin.close()


async def test_passwords_are_never_logged(kafka: SecureKafka) -> None:
    """Goal: logs may be shown to anybody. Method: a good log-in and a refused one, with the client's own lines."""
    with capture_logs() as logged:
        await append_and_read(kafka.by_password("notary", PASSWORD, TOPIC), b"quiet")
        admin = TopicAdmin(kafka.by_password("notary", "wrong-secret", TOPIC).model_copy(update={"answer_max_s": 1.0}))
        with pytest.raises(LogUnavailable):
            await admin.topic_id()
        await admin.close()
    text = str(logged)
    assert PASSWORD not in text
    assert "wrong-secret" not in text


async def test_the_administrator_alone_may_do_what_the_others_may_not(kafka: SecureKafka) -> None:
    """Goal: the denials above are the authorizer's, not a broken call's. Method: harmless forms, as administrator."""
    client = client_of(kafka.by_certificate(ADMINISTRATOR, TOPIC))
    future = client.create_topics([NewTopic("passing", 1, 1)])["passing"]
    await asyncio.to_thread(future.result, ANSWER_MAX_S)
    offsets = client.list_offsets({TopicPartition("passing", 0): OffsetSpec.latest()})
    for asked in (*offsets.values(), client.create_partitions([NewPartitions("passing", 2)])["passing"]):
        await asyncio.to_thread(asked.result, ANSWER_MAX_S)
    await asyncio.to_thread(client.delete_topics(["passing"])["passing"].result, ANSWER_MAX_S)


def client_of(settings: KafkaSettings) -> AdminClient:
    config = {"bootstrap.servers": settings.bootstrap_servers, "log_level": 2} | settings.security.client_config()
    return AdminClient(config)


async def denied(call: Callable[[], object]) -> bool:
    """Whether the broker's authorizer refuses it."""
    future = call()
    try:
        await asyncio.to_thread(future.result, ANSWER_MAX_S)  # type: ignore[attr-defined]
    except KafkaException as refused:
        return refused.args[0].code() in DENIED
    return False
