"""The topic contract and the settings of the Kafka log, without a broker."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo
from pydantic import ValidationError

from replica.log.kafka import brokers
from replica.log.kafka.agreement import View, _ask_all, agreed, most_lack, settles
from replica.log.kafka.contract import (
    LogTopics,
    TopicFacts,
    all_violations,
    corrections,
    losses,
    refuse_lost,
    refuse_unsafe,
    violations,
)
from replica.log.kafka.librdkafka import MESSAGE_MAX_BYTES, TopicHidden, TopicMissing, meaning_of
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.settings import KafkaSecurity, KafkaSettings
from replica.log.kafka.topic import TopicAdmin
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, LogRefused, LogTruncated, LogUnavailable

SAFE = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_MAX_BYTES),
    "flush.messages": "1",
}
NEVER = str(2**63 - 1)  # Kafka's default of flush.messages


def facts(partitions: int = 1, copies: int = 3, **settings: str) -> TopicFacts:
    changed = {name.replace("_", "."): value for name, value in settings.items()}
    return TopicFacts("id", partitions, copies, SAFE | changed)


def kafka_settings(**given: object) -> KafkaSettings:
    return KafkaSettings.model_validate({"bootstrap_servers": "a:1", "topic": "log", **given})


def test_a_topic_that_keeps_the_contract_passes() -> None:
    """Goal: nothing more is asked than the contract. Method: the least that it allows, and more than that."""
    assert violations(facts(), kafka_settings()) == []
    assert violations(facts(copies=5, min_insync_replicas="3"), kafka_settings()) == []
    assert violations(facts(copies=1, min_insync_replicas="1"), kafka_settings(single_broker=True)) == []
    assert violations(facts(), kafka_settings(durability="replicated")) == []
    assert violations(facts(flush_messages=NEVER), kafka_settings(durability="replicated")) == []


@pytest.mark.parametrize(
    ("unsafe", "complaint"),
    [
        (facts(partitions=2), "partitions is 2, required is 1"),
        (facts(copies=2), "replication factor is 2, required is 3 or more"),
        (facts(min_insync_replicas="1"), "min.insync.replicas is 1, required is 2 or more"),
        (facts(unclean_leader_election_enable="true"), "unclean.leader.election.enable is true, required is false"),
        (facts(cleanup_policy="compact,delete"), "cleanup.policy is compact,delete, required is delete"),
        (facts(retention_ms="604800000"), "retention.ms is 604800000, required is -1"),
        (facts(retention_bytes="1"), "retention.bytes is 1, required is -1"),
        (facts(flush_messages=NEVER), f"flush.messages is {NEVER}, required is 1"),
        (facts(max_message_bytes="1000"), f"max.message.bytes is 1000, required is {MESSAGE_MAX_BYTES} or more"),
    ],
)
def test_each_unsafe_setting_is_refused(unsafe: TopicFacts, complaint: str) -> None:
    """Goal: no setting of the contract is forgotten. Method: break one at a time."""
    assert violations(unsafe, kafka_settings()) == [complaint]


def test_only_broken_settings_are_corrected() -> None:
    """Goal: an existing topic keeps what is stricter, and gets the rest. Method: broken ones of both kinds, by each
    durability and number of brokers."""
    assert corrections(facts(copies=5, min_insync_replicas="3"), kafka_settings()) == {}
    unsafe = facts(partitions=2, copies=1, min_insync_replicas="1", flush_messages="100", retention_ms="5")
    assert corrections(unsafe, kafka_settings()) == {
        "min.insync.replicas": "2",
        "retention.ms": "-1",
        "flush.messages": "1",
    }
    loose = kafka_settings(durability="replicated", single_broker=True)
    assert corrections(unsafe, loose) == {"retention.ms": "-1"}


def test_all_problems_are_told_at_once() -> None:
    """Goal: the operator repairs the topic in one go. Method: break three settings, one of them not reported at all."""
    unsafe = facts(partitions=0, retention_ms="5")
    with pytest.raises(LogRefused) as refused:
        found = LogTopics(TopicFacts("id", 0, 0, dict(unsafe.settings) | {"cleanup.policy": ""}), 0)
        refuse_unsafe(found, kafka_settings(topic="requests", single_broker=True))
    assert refused.value.code is Code.TOPIC_UNSAFE
    for name in ("topic requests", "partitions is 0", "replication factor is 0", "cleanup.policy", "retention.ms"):
        assert name in refused.value.detail
    nothing = violations(TopicFacts("id", 1, 3, {}), kafka_settings())
    assert nothing[0] == "min.insync.replicas is not known, required is 2 or more"


def test_one_broker_excuses_nothing_else() -> None:
    """Goal: the development setting relaxes two counts and no more. Method: break the others under it."""
    unsafe = facts(partitions=3, retention_ms="1", copies=1, min_insync_replicas="1", flush_messages=NEVER)
    assert violations(unsafe, kafka_settings(single_broker=True)) == [
        "partitions is 3, required is 1",
        "retention.ms is 1, required is -1",
        f"flush.messages is {NEVER}, required is 1",
    ]


@pytest.mark.parametrize(
    ("payloads", "written", "complaints"),
    [
        (None, 0, []),
        (facts(partitions=4), 0, []),  # nothing is written any more, and the log may point to what was
        (facts(partitions=4), 4, []),
        (facts(partitions=4), 3, []),
        (None, 3, ["topic log-payloads is not there, and payloads are to be written to it"]),
        (facts(partitions=4), 5, ["partitions is 4, required is 5 or more (topic log-payloads)"]),
        (facts(partitions=4, retention_ms="1"), 0, ["retention.ms is 1, required is -1 (topic log-payloads)"]),
        (facts(cleanup_policy="compact"), 1, ["cleanup.policy is compact, required is delete (topic log-payloads)"]),
        (facts(flush_messages="5"), 1, ["flush.messages is 5, required is 1 (topic log-payloads)"]),
        (facts(copies=1), 1, ["replication factor is 1, required is 3 or more (topic log-payloads)"]),
    ],
)
def test_the_topic_of_payloads_keeps_the_contract_too(
    payloads: TopicFacts | None, written: int, complaints: list[str]
) -> None:
    """Goal: payloads are kept as the log is, also when none is written any more. Method: with and without."""
    found = LogTopics(facts(), 0, payloads)
    assert all_violations(found, kafka_settings(payload_partitions=written)) == complaints


def test_a_beginning_that_is_gone_is_named_for_each_partition() -> None:
    """Goal: no lost record or payload goes unseen. Method: one partition of three, then the log as well."""
    settings = kafka_settings()
    refuse_lost(LogTopics(facts(), 0, facts(partitions=3), (0, 0, 0)), settings)
    found = LogTopics(facts(), 0, facts(partitions=3), (0, 7, 0))
    with pytest.raises(LogRefused, match="partition 1 of topic log-payloads begins at offset 7") as refused:
        refuse_lost(found, settings)
    assert refused.value.code is Code.LOG_PAYLOAD_MISSING
    both = LogTopics(facts(), 5, facts(partitions=3), (0, 7, 0))
    assert [text.split(":")[0] for text in losses(both, settings)] == [
        "it begins at offset 5",
        "partition 1 of topic log-payloads begins at offset 7",
    ]
    with pytest.raises(LogTruncated, match="topic log: it begins at offset 5"):
        refuse_lost(both, settings)


def test_the_topic_of_payloads_needs_a_name_that_kafka_takes() -> None:
    """Goal: a name that is too long is met at the start. Method: the longest, one more; and with none needed."""
    assert kafka_settings(topic="t" * 240, payload_partitions=1).payload_partitions == 1
    assert kafka_settings(topic="t" * 249).payload_partitions == 0
    with pytest.raises(ValidationError, match="has 250 characters"):
        kafka_settings(topic="t" * 241, payload_partitions=1)
    with pytest.raises(ValidationError, match="32"):
        kafka_settings(payload_partitions=33)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTO_OFFSET_RESET, LogRefused),
        (KafkaError.OFFSET_OUT_OF_RANGE, LogRefused),
        (KafkaError._LOG_TRUNCATION, LogRefused),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError._ALL_BROKERS_DOWN, LogUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, LogUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicHidden),
    ],
)
def test_an_error_is_refused_or_tried_again(code: int, kind: type[Exception]) -> None:
    """Goal: what is gone is not retried, what is down is. Method: map each kind of the client's errors."""
    error = meaning_of(KafkaError(code), "reading")
    assert type(error) is kind
    assert "reading" in str(error)


class SilentLeader:
    """An AdminClient whose broker does not answer in time: it then reports an invalid offset, and no error."""

    def list_topics(self, topic: str, timeout: float) -> None:
        """Another broker has answered."""

    def list_offsets(self, asked: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, Future[object]]:
        future: Future[object] = Future()
        future.set_result(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
        return dict.fromkeys(asked, future)


async def test_no_answer_is_not_taken_for_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: silence is no empty log. Method: a client that reports what librdkafka reports for a frozen leader."""
    admin = TopicAdmin(KafkaSettings(bootstrap_servers="a:1"))
    monkeypatch.setattr(admin, "client", SilentLeader)
    for ask in (admin.end_offset, admin.first_offset):
        with pytest.raises(LogUnavailable, match="did not answer"):
            await ask()


class NewClient(SilentLeader):
    """An AdminClient that fails when it is asked for an offset before it is connected, as a busy machine's does."""

    def __init__(self) -> None:
        self.connections = 0

    def list_topics(self, topic: str, timeout: float) -> None:
        """Wait for the connection."""
        self.connections += 1

    def list_offsets(self, asked: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, Future[object]]:
        future: Future[object] = Future()
        if self.connections:
            future.set_result(ListOffsetsResultInfo(7, -1, -1))
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed to query partition leaders")))
        return dict.fromkeys(asked, future)


async def test_a_new_client_is_connected_before_it_is_asked_for_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a busy machine is no outage. Method: a client that fails when asked at once; it is waited for only once."""
    admin, client = TopicAdmin(KafkaSettings(bootstrap_servers="a:1")), NewClient()
    monkeypatch.setattr(admin, "client", lambda: client)
    assert [await admin.end_offset(), await admin.first_offset(), client.connections] == [7, 7, 1]


class RefusedClient:
    """An AdminClient that the brokers do not let in: questions run out of time, and the reason comes only when
    polled."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._tell = config["error_cb"]
        self._asked = False

    def describe_cluster(self, **_: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "Timed out waiting for broker")))
        self._asked = True
        return future

    def poll(self, timeout: float) -> None:
        if self._asked:
            self._tell(KafkaError(KafkaError._TRANSPORT, "connection closed"))
            self._tell(KafkaError(KafkaError._AUTHENTICATION, "invalid credentials"))
            self._tell(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))


async def test_a_refused_log_in_is_not_told_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a wrong password is named. Method: a client that is refused, as librdkafka reports it: by the way."""
    monkeypatch.setattr(brokers, "connect", lambda kind, config: RefusedClient(config))
    admin = TopicAdmin(KafkaSettings(bootstrap_servers="a:1"))
    with pytest.raises(LogUnavailable, match=r"Timed out.*; authentication failed: invalid credentials$"):
        await admin.server_count()


class HalfDeafAdmin:
    """A topic whose leader answers while its id is known, hidden, or another one."""

    def __init__(self) -> None:
        self.told: str | None = "first"

    async def topic_id(self) -> str:
        if self.told is None:
            raise LogUnavailable("waiting for the controller")
        return self.told

    async def first_offset(self) -> int:
        return 0

    async def end_offset(self) -> int:
        return 5


@pytest.fixture
async def half_deaf(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaLog, HalfDeafAdmin]:
    log, admin = KafkaLog(KafkaSettings(bootstrap_servers="a:1")), HalfDeafAdmin()
    monkeypatch.setattr(log, "_admin", admin)
    return log, admin


async def test_a_dead_controller_does_not_take_the_log_away(
    half_deaf: tuple[KafkaLog, HalfDeafAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an active keeps its log while the leader answers, for a bounded time. Method: hide the topic's id."""
    log, admin = half_deaf
    assert await log.end_offset() == 5
    admin.told = None
    assert await log.end_offset() == 5
    with pytest.raises(LogUnavailable):  # a new reader is never opened on trust
        await log.open_reader(0)
    monkeypatch.setattr("replica.log.kafka.log.IDENTITY_AGE_MAX_S", -1.0)
    with pytest.raises(LogUnavailable, match="lately"):
        await log.end_offset()


async def test_another_topic_is_refused_and_silence_before_the_first_answer_too(
    half_deaf: tuple[KafkaLog, HalfDeafAdmin],
) -> None:
    """Goal: silence is tolerated, evidence is not. Method: no id at the very first, then one, then another."""
    log, admin = half_deaf
    admin.told = None
    with pytest.raises(LogUnavailable, match="lately"):
        await log.end_offset()
    admin.told = "first"
    assert await log.end_offset() == 5
    admin.told = "second"
    for ask in (log.end_offset, lambda: log.open_reader(0)):
        with pytest.raises(LogRefused, match="created anew"):
            await ask()


def secret_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text("s3cret-of-the-test\n")
    path.chmod(mode)
    return path


def test_no_password_is_ever_part_of_a_setting(tmp_path: Path) -> None:
    """Goal: settings can be logged. Method: look for the password in the text forms; it is in the client's alone."""
    security = KafkaSecurity(protocol="SASL_SSL", sasl_username="notary", sasl_password_file=secret_file(tmp_path))
    settings = KafkaSettings(bootstrap_servers="a:1,b:2", security=security)
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "s3cret" not in text
    assert security.client_config()["sasl.password"] == "s3cret-of-the-test"


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """Goal: a leaked password is noticed. Method: files with group's and everybody's right to read."""
    path = secret_file(tmp_path, mode)
    password = KafkaSecurity(protocol="SASL_SSL", sasl_username="notary", sasl_password_file=path)
    key = KafkaSecurity(protocol="SSL", certificate_file=tmp_path / "c.pem", key_file=path)
    for security in (password, key):
        with pytest.raises(ConfigError) as refused:
            security.client_config()
        assert refused.value.code is Code.KEY_UNSAFE


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    """Goal: the operator reads which file. Method: point to none."""
    missing = tmp_path / "nowhere"
    security = KafkaSecurity(protocol="SASL_SSL", sasl_username="notary", sasl_password_file=missing)
    with pytest.raises(ConfigError, match="nowhere cannot be read"):
        security.client_config()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"protocol": "SASL_SSL"}, "needs sasl_username"),
        ({"key_file": "k.pem"}, "belong together"),
        (
            {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "n", "sasl_password_file": "p"},
            "use it with SASL_SSL only",
        ),
    ],
)
def test_half_a_protection_is_refused(wrong: dict[str, str], complaint: str) -> None:
    """Goal: nobody believes in a protection that is not there. Method: leave a part out."""
    with pytest.raises(ValidationError, match=complaint):
        KafkaSecurity.model_validate(wrong)


@pytest.mark.parametrize("servers", ["", "host", "host:x", "a:1,,b:2", "a:1, b:2"])
def test_broker_addresses_have_a_host_and_a_port(servers: str) -> None:
    """Goal: a typing error is met at the start. Method: malformed lists."""
    with pytest.raises(ValidationError):
        KafkaSettings(bootstrap_servers=servers)


ALL = {1: "a:1", 2: "b:1", 3: "c:1"}


@pytest.mark.parametrize(
    ("views", "leader"),
    [
        ([View(1, 1, ALL)], None),  # who is cut off with one broker does not believe it
        ([View(1, 1, ALL), View(2, 2, ALL)], None),
        ([View(1, 1, ALL), View(2, 2, {2: "b:1", 3: "c:1"}), View(3, 2, ALL)], 2),
        ([View(2, 2, {2: "b:1", 3: "c:1"}), View(3, 2, ALL)], 2),
        ([View(2, 2, ALL), View(2, 2, ALL)], None),  # one broker at two addresses
        ([View(1, -1, ALL), View(2, -1, ALL), View(3, 1, ALL)], None),
        ([View(1, 1, {1: "a:1"})], 1),
        ([], None),
    ],
)
def test_a_leader_is_whom_most_brokers_name(views: list[View], leader: int | None) -> None:
    """Goal: a broker alone does not say that records are gone. Method: each mix of views, the unreachable left out."""
    if leader is None:
        with pytest.raises(LogUnavailable, match="do not agree"):
            agreed(views)
    else:
        assert agreed(views).leader == leader


@pytest.mark.parametrize(
    ("payload", "log", "lost"),
    [
        ({1: -2, 2: -2, 3: -2}, {1: 1, 2: 1, 3: 1}, True),
        ({1: -2, 2: -2, 3: 3}, {1: 1, 2: 1, 3: 1}, True),
        ({1: -2, 2: -2}, {1: 1, 2: 1}, True),
        ({1: -2, 2: 3, 3: 3}, {1: 1, 2: 1, 3: 1}, False),
        ({1: -2}, {1: 1}, False),  # one of three answers
        ({1: -2, 2: -2, 3: -2}, {1: -2, 2: -2, 3: -2}, False),  # they start, and know no topic at all
        ({1: -2, 2: -2, 3: -2}, {1: 1, 2: -2, 3: -2}, False),
        ({1: -1, 2: -1, 3: -1}, {1: 1, 2: 1, 3: 1}, False),  # there, without a leader
    ],
)
def test_a_topic_of_payloads_is_gone_when_most_brokers_know_the_log_only(
    payload: dict[int, int], log: dict[int, int], lost: bool
) -> None:
    """Goal: brokers that start or are cut off do not end replicas. Method: mixes of views, the unreachable left out."""
    views = [[View(broker, leader, ALL) for broker, leader in each.items()] for each in (payload, log)]
    assert most_lack(*views) is lost


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
async def test_the_cause_is_kept_until_a_question_is_answered(order: list[int]) -> None:
    """Goal: "all brokers are down" hides no cause, and a cause that the client reports once is not forgotten. Method:
    both reports in either order; two questions without an answer; one with an answer."""
    admin = TopicAdmin(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    reports = [KafkaError(KafkaError._TRANSPORT, "refused"), KafkaError(KafkaError._ALL_BROKERS_DOWN, "0/1 up")]
    for number in order:
        admin._note_trouble(reports[number])
    for _ in range(2):
        never: Future[int] = Future()
        never.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out")))
        with pytest.raises(LogUnavailable, match="_TRANSPORT: refused"):
            await admin.answered(never, "asking")
    answered: Future[int] = Future()
    answered.set_result(1)
    assert await admin.answered(answered, "asking") == 1
    assert admin._trouble is None


def test_silent_brokers_are_not_awaited_once_the_others_settle_it() -> None:
    """Goal: a dead broker does not hold up a fail-over, and no minority is believed. Method: views as they come."""
    both = {1: "a:1", 2: "b:1"}
    three = both | {3: "c:1"}
    assert not settles([], 3)
    assert not settles([View(1, 1, three)], 3)
    assert settles([View(1, 1, three), View(2, 1, three)], 3)
    assert not settles([View(1, 1, three), View(2, 2, three)], 3)
    assert not settles([View(1, 1, {1: "a:1"})], 3)  # it was cut off, and knows of itself only
    assert not settles([View(1, 1, both), View(2, 1, both)], 5)
    assert settles([View(1, 1, {1: "a:1"})], 1)


def test_each_broker_that_becomes_known_is_asked_and_the_silent_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: as above, over the driver. Method: brokers that answer by address; one is silent until released."""
    three, released = {1: "a:1", 2: "b:1", 3: "c:1"}, threading.Event()
    asked: list[tuple[int, str]] = []

    def answer(settings: KafkaSettings, broker: int, topic: str, partition: int) -> View | None:
        address = settings.bootstrap_servers
        asked.append((broker, address))
        if address == "c:1":
            released.wait(20.0)
            return None
        return View(broker, 1, three)

    async def ask(enough: bool) -> int:
        settings = KafkaSettings(bootstrap_servers="a:1,b:1,c:1")
        found = await _ask_all(settings, "log", 0, lambda views: enough and settles(views, 3))
        assert found.addresses == three
        return len(found.views)

    monkeypatch.setattr("replica.log.kafka.agreement._ask_view", answer)

    async def play() -> None:
        assert await ask(enough=True) == 2  # although the third one is silent
        assert not released.is_set()
        released.set()
        assert await ask(enough=False) == 2  # waits for all, and the third one gives no answer

    asyncio.run(play())
    assert {(1, "a:1"), (2, "b:1"), (3, "c:1")} <= set(asked)


@pytest.mark.parametrize("code", [KafkaError._DESTROY_BROKER, KafkaError.NOT_LEADER_FOR_PARTITION])
async def test_a_question_that_the_wrong_broker_got_is_asked_again(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Goal: a leader that moves is no error of a tool. Method: each question gets that error first."""
    partition = SimpleNamespace(replicas=[1], leader=1)
    described = SimpleNamespace(topic_id="id", partitions=[partition])
    answers = {
        "describe_topics": described,
        "describe_configs": {"retention.ms": SimpleNamespace(value="-1")},
        "describe_cluster": SimpleNamespace(nodes=[SimpleNamespace(id=1)]),
        "list_offsets": SimpleNamespace(offset=7, leader_epoch=2),
    }
    asked: list[str] = []

    class Client:
        def __getattr__(self, question: str) -> object:
            return lambda about=None, **_: self.answer(question, about)

        def answer(self, question: str, about: object) -> object:
            asked.append(question)
            future: Future[object] = Future()
            if asked.count(question) == 1:
                future.set_exception(KafkaException(KafkaError(code)))
            else:
                future.set_result(answers[question])
            return future if about is None else defaultdict(lambda: future)

        def poll(self, _: float) -> None: ...

        def list_topics(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr("replica.log.kafka.brokers.AdminClient", lambda _: Client())
    admin = TopicAdmin(KafkaSettings(bootstrap_servers="127.0.0.1:1", topic="t", single_broker=True))
    assert await admin.facts() == TopicFacts("id", 1, 1, {"retention.ms": "-1"})
    assert (await admin.server_count(), await admin.end_and_term()) == (1, (7, 2))
    assert {question: asked.count(question) for question in answers} == dict.fromkeys(answers, 2)
