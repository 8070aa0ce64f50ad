"""What is decided before a server starts: which programs, which folders, which settings."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from replica.local import postgres
from replica.local.kafka import KafkaCluster, find_java, find_libs
from replica.local.postgres import find_binaries
from replica.local.process import Command, ServerFailed, SoftwareMissing


def installed(root: Path, version: str) -> Path:
    binaries = root / version / "bin"
    binaries.mkdir(parents=True)
    (binaries / "initdb").touch()
    return binaries


def test_the_newest_postgres_is_taken_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: 15 is newer than 9; a named one counts. Method: three versions and a stray folder; one of them named."""
    installed(tmp_path, "9")
    newest = installed(tmp_path, "15")
    older = installed(tmp_path, "14")
    installed(tmp_path, "common")
    assert find_binaries(tmp_path) == newest
    monkeypatch.setenv("NOTARY_POSTGRES_BIN", str(older))
    assert find_binaries(tmp_path) == older
    monkeypatch.setenv("NOTARY_POSTGRES_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(SoftwareMissing, match="nowhere, which NOTARY_POSTGRES_BIN names"):
        find_binaries(tmp_path)


def test_missing_software_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the message names what to install. Method: an empty path and an empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("NOTARY_KAFKA_LIBS", str(tmp_path))
    with pytest.raises(SoftwareMissing, match="`postgresql`"):
        find_binaries(tmp_path)
    with pytest.raises(SoftwareMissing, match="`default-jre-headless`"):
        find_java()
    with pytest.raises(SoftwareMissing, match=str(tmp_path)):
        find_libs()


def test_a_private_folder_is_out_of_reach_of_another_account(tmp_path: Path) -> None:
    """Goal: a home of mode 0700 is noticed before Postgres fails in it. Method: close and open a folder on the way."""
    nobody = pwd.getpwuid(65_534)
    private = tmp_path / "private"
    data = private / "data"
    data.mkdir(parents=True)
    data.chmod(0o755)
    private.chmod(0o755)
    assert postgres.may_enter(private.stat(), nobody.pw_uid, {nobody.pw_gid})
    private.chmod(0o700)
    assert not postgres.may_enter(private.stat(), nobody.pw_uid, {nobody.pw_gid})
    assert not postgres.reachable(data, nobody.pw_name)


def test_each_broker_needs_two_ports(tmp_path: Path) -> None:
    """Goal: a wrong count is refused at once. Method: none, and three."""
    for ports in ([], [1, 2, 3]):
        with pytest.raises(ServerFailed, match="each broker needs two"):
            KafkaCluster(tmp_path, ports, libs=tmp_path)


def test_three_brokers_survive_the_loss_of_one(tmp_path: Path) -> None:
    """Goal: copies and in-sync copies follow the number of brokers. Method: read the settings of one and of three."""

    def settings(count: int) -> dict[str, str]:
        broker = KafkaCluster(tmp_path, list(range(1, 2 * count + 1)), libs=tmp_path).brokers[0]
        return dict(line.split("=", 1) for line in broker.properties("1@127.0.0.1:2", count).splitlines())

    one, three = settings(1), settings(3)
    assert (one["offsets.topic.replication.factor"], one["min.insync.replicas"]) == ("1", "1")
    assert (three["offsets.topic.replication.factor"], three["min.insync.replicas"]) == ("3", "2")
    for each in (one, three):
        assert each["auto.create.topics.enable"] == "false"
        assert each["unclean.leader.election.enable"] == "false"
        assert each["delete.topic.enable"] == "false"


def test_topics_are_deleted_on_purpose_only(tmp_path: Path) -> None:
    """Goal: no slip of the hand takes the log. Method: brokers' settings by default, when set, and after."""
    kafka = KafkaCluster(tmp_path, [1, 2], libs=tmp_path)
    seen = []
    for allowed in (None, True, False):
        if allowed is not None:
            kafka.allow_deletion(allowed)
        (line,) = [x for x in kafka.brokers[0].properties("1@127.0.0.1:2", 1).splitlines() if x.startswith("delete.")]
        seen.append(line)
    assert seen == [f"delete.topic.enable={value}" for value in ("false", "true", "false")]


def test_the_account_is_changed_before_the_death_signal_is_asked_for(tmp_path: Path) -> None:
    """Goal: a change of account would clear the signal. Method: the order of words for setpriv."""
    argv = Command(name="x", argv=["server", "--flag"], log_path=tmp_path / "log", user="nobody").full_argv()
    assert argv.index("--reuid=nobody") < argv.index("--pdeathsig=KILL") < argv.index("--")
    assert argv[-2:] == ["server", "--flag"]
