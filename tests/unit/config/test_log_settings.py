"""The request log's settings: of one kind, each with its own bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replica.cli.config import ENVIRONMENT, FILE, effective
from replica.config.load import make_config
from replica.config.model import Config
from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.kafka.settings import KafkaSettings
from replica.log.open import refill_log
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.settings import LogSettings, dump_settings, load_settings
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, RestoreRefused
from tests.unit.config.test_exposure import REPLICA, values

KAFKA = {"bootstrap_servers": "127.0.0.1:9092", "topic": "t", "security": {"ca_file": "ca.pem"}}
RAFT = {"group": "g", "nodes": "r1=127.0.0.1:7001,r2=127.0.0.1:7002,r3=127.0.0.1:7003"}
POSTGRES = {"kind": "postgres", "postgres": {"conninfo": "host=127.0.0.1 dbname=notary", "password_file": "pw"}}
MEMORY = {"kind": "memory", "memory": {"socket_path": "log.sock"}}


def config_of(base: Path, log: dict[str, Any], **changes: Any) -> Config:
    """A configuration with this table `[log]` and no other log."""
    return make_config(values(log=log, **changes), base, "test")


def test_a_variable_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a unit's environment overrides the file. Method: single and nested names, over the table."""
    monkeypatch.setenv("NOTARY_LOG__KAFKA__TOPIC", "from-the-environment")
    monkeypatch.setenv("NOTARY_LOG__KAFKA__SECURITY__CA_FILE", "/other.pem")
    given = values(log={"kafka": KAFKA})
    config = make_config(given, tmp_path, "test")
    settings = config.log.settings
    assert isinstance(settings, KafkaSettings)
    assert (settings.topic, settings.bootstrap_servers) == ("from-the-environment", KAFKA["bootstrap_servers"])
    assert settings.security.ca_file == Path("/other.pem")
    origins = {name: origin for name, _, origin in effective(config, given, {"NOTARY_LOG__KAFKA__TOPIC": "x"})}
    assert (origins["log.kafka.topic"], origins["log.kafka.bootstrap_servers"]) == (ENVIRONMENT, FILE)


def test_a_kind_without_its_table_is_refused(tmp_path: Path) -> None:
    """Goal: the mistake is reported at the start. Method: each kind beside the other's table."""
    for log, needed in (
        ({"kind": "memory", "kafka": KAFKA}, "log.memory"),
        ({"memory": MEMORY["memory"]}, "log.kafka"),
        ({"kind": "raft", "kafka": KAFKA}, "log.raft"),
        ({"kind": "postgres", "kafka": KAFKA}, "log.postgres"),
    ):
        with pytest.raises(ConfigError, match=rf"needs the table \[{needed}\]"):
            config_of(tmp_path, log)


def test_a_log_in_memory_stays_on_one_machine(tmp_path: Path) -> None:
    """Goal: nobody serves from memory. Method: on loopback it loads; a replica or an endpoint beyond is refused."""
    config = config_of(tmp_path, MEMORY)
    assert config.log.settings == MemoryLogSettings(socket_path=tmp_path / "log.sock")
    assert list(config.log.settings.plaintext_connections()) == []
    tls = {"certificate_file": "a", "key_file": "b"}
    api = {"tls": tls}
    for changes in ({"replicas": [REPLICA | {"host": "10.0.0.1"}]}, {"endpoint": {"host": "*", "port": 9000}}):
        with pytest.raises(ConfigError, match="for tests on one machine"):
            config_of(tmp_path, MEMORY, api=api, **changes)


def test_each_kind_has_its_own_bound_of_the_queue(tmp_path: Path) -> None:
    """Goal: what is in flight fits whatever log there is. Method: a queue that is too short, of each kind."""
    postgres = POSTGRES["postgres"]
    for kind, table in (("kafka", KAFKA), ("memory", MEMORY["memory"]), ("raft", RAFT), ("postgres", postgres)):
        with pytest.raises(ConfigError, match=f"log.{kind}.append_queue_max = 10"):
            config_of(tmp_path, {"kind": kind, kind: table | {"append_queue_max": 10}})


@pytest.mark.parametrize(
    "settings",
    [
        KafkaSettings(bootstrap_servers="a:1", topic="t"),
        MemoryLogSettings(socket_path=Path("/s")),
        RaftLogSettings.model_validate(RAFT | {"node": "r2"}),
        PostgresLogSettings(conninfo="host=h", password_file=Path("/p")),
    ],
)
def test_settings_reach_another_process_whole(settings: LogSettings) -> None:
    """Goal: a task reads the log that the driver looked at. Method: there and back."""
    assert load_settings(dump_settings(settings)) == settings


def test_each_kind_says_whether_its_records_outlive_a_power_cut(tmp_path: Path) -> None:
    """Goal: whoever must care needs to know no kind of log. Method: each kind, a topic of both durabilities."""
    logs = {
        "synced": {"kafka": KAFKA},
        "replicated": {"kafka": KAFKA | {"durability": "replicated"}},
        "postgres": POSTGRES,
        "raft": {"kind": "raft", "raft": RAFT},
        "memory": MEMORY,
    }
    survives = {name: config_of(tmp_path, log).log.settings.survives_power_loss for name, log in logs.items()}
    assert survives == {"synced": True, "replicated": False, "postgres": True, "raft": True, "memory": False}


def test_a_replica_reads_from_the_log_node_of_its_name(tmp_path: Path) -> None:
    """Goal: one file serves all replicas. Method: each one's settings, a stranger's, a given node, and Kafka's."""
    log = config_of(tmp_path, {"kind": "raft", "raft": RAFT}).log
    beside = {name: log.beside(name) for name in ("r1", "r3", "x")}
    assert {name: getattr(found, "node", None) for name, found in beside.items()} == {"r1": "r1", "r3": "r3", "x": None}
    given = config_of(tmp_path, {"kind": "raft", "raft": RAFT | {"node": "r2"}}).log.beside("r1")
    assert getattr(given, "node", None) == "r2"
    kafka = config_of(tmp_path, {"kafka": KAFKA}).log
    assert kafka.beside("r1") == kafka.settings


def test_a_log_node_has_its_settings_from_the_participants(tmp_path: Path) -> None:
    """Goal: no second file that could differ. Method: one node's settings; a name that is no node's."""
    settings = config_of(tmp_path, {"kind": "raft", "raft": RAFT | {"message_timeout_ms": 20}}).log.settings
    assert isinstance(settings, RaftLogSettings)
    node = settings.node_settings("r2")
    assert (node.name, node.listen, node.message_timeout_ms) == ("r2", "127.0.0.1:7002", 20)
    assert node.peers == {"r1": "127.0.0.1:7001", "r3": "127.0.0.1:7003"}
    assert node.data_dir == tmp_path / "log" / "r2"
    with pytest.raises(ConfigError, match="no log node is called 'r9'"):
        settings.node_settings("r9")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"message_timeout_ms": 101}, r"message_timeout_ms is 101, more than election_timeout_ms / 6 = 100"),
        ({"nodes": "r1=127.0.0.1:1,r1=127.0.0.1:2"}, "names a node twice"),
        ({"nodes": "127.0.0.1:1"}, "String should match"),
        ({"nodes": "r1=127.0.0.1:1,"}, "String should match"),
        ({"node": "r9"}, "must be one of"),
        ({"nodes": "r1=10.0.0.1:1"}, "set log.raft.tls"),
    ],
)
def test_wrong_settings_of_log_nodes_are_refused(tmp_path: Path, wrong: dict[str, object], why: str) -> None:
    """Goal: mistakes show at the start. Method: each mistake, by the participant's configuration."""
    with pytest.raises(ConfigError, match=why):
        config_of(tmp_path, {"kind": "raft", "raft": RAFT | wrong})


def test_what_only_a_topic_can_do_is_refused_with_a_code(tmp_path: Path) -> None:
    """Goal: a sentence instead of a crash. Method: `topic`, a restore and another place, of a log in memory; the first
    and another topic, of a log on Postgres."""
    from replica.cli.topic import _topic

    config = config_of(tmp_path, MEMORY)
    for refused in (lambda: _topic(config), lambda: config.log.settings.elsewhere("t", None)):
        with pytest.raises(ConfigError, match=r"log\.kind is memory") as told:
            refused()
        assert told.value.code is Code.CONFIG_INVALID
    config_on_postgres = config_of(tmp_path, POSTGRES)
    for refused in (lambda: _topic(config_on_postgres), lambda: config_on_postgres.log.settings.elsewhere("t", None)):
        with pytest.raises(ConfigError, match=r"log\.kind is postgres"):
            refused()
    nodes = config_of(tmp_path, {"kind": "raft", "raft": RAFT}).log.settings
    assert nodes.elsewhere(None, None) == nodes
    assert nodes.elsewhere(None, "r9=127.0.0.1:9").address == "127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"log\.kind is raft"):
        nodes.elsewhere("t", None)
    with pytest.raises(RestoreRefused, match="not restored"):
        refill_log(config.log.settings, [], 0, 0, lambda count: None)


def test_a_log_on_postgres_names_files_of_secrets_and_shows_none(tmp_path: Path) -> None:
    """Goal: paths count from the file, and neither address nor representation has a password. Method: one given."""
    config = config_of(tmp_path, POSTGRES)
    settings = config.log.settings
    assert isinstance(settings, PostgresLogSettings)
    assert settings.password_file == tmp_path / "pw"
    (tmp_path / "pw").write_text("from the file")
    (tmp_path / "pw").chmod(0o640)
    with pytest.raises(ConfigError, match="pw"):
        settings.check_files()
    (tmp_path / "pw").chmod(0o600)
    settings.check_files()
    assert "from the file" in settings.login()
    named = PostgresLogSettings(conninfo="host=a,b port=1,2 dbname=n user=u password=secret")
    assert (named.address, named.label) == ("n@a:1,b:2", "notary_log in n@a:1,b:2")
    assert "secret" not in repr(named)
    inline = config_of(tmp_path, {"kind": "postgres", "postgres": {"conninfo": "host=127.0.0.1 password=secret"}})
    assert "secret" not in str(list(effective(inline, {}, {})))


def test_one_postgres_is_lock_log_and_store(tmp_path: Path) -> None:
    """Goal: what nobody has tested together is refused. Method: the log on Postgres beside an Oracle; loose strings."""
    oracle = {"conninfo": "oracle://notary@127.0.0.1:1521/notary", "scope": "NOTARY"}
    with pytest.raises(ConfigError, match="one Postgres is lock, log and store"):
        config_of(tmp_path, POSTGRES, database=oracle)
    with pytest.raises(ConfigError, match="no libpq connection string"):
        config_of(tmp_path, {"kind": "postgres", "postgres": {"conninfo": "nothing at all"}})
