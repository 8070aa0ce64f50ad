"""A configuration without a database: what belongs together, what is refused, and what its commands say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haproxy.render import render
from replica.cli.config import effective
from replica.cli.init import example, write_config
from replica.cli.profiles import Profile
from replica.cli.replica import replica_settings
from replica.config.exposure import plaintext_connections
from replica.config.load import load_config, make_config
from replica.config.model import Config
from replica.database import EmbeddedLedgers
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.store.sqlite.tables import FILE
from tests.unit.config.test_exposure import values
from tests.unit.config.test_log_settings import MEMORY, POSTGRES, RAFT

LOG = {"kind": "raft", "raft": RAFT}
LEASE = {"kind": "lease"}


def config_of(base: Path, **changes: Any) -> Config:
    given = values(**({"database": {"conninfo": "sqlite:"}, "election": LEASE, "log": LOG} | changes))
    return make_config(given, base, "test")


def test_each_replica_has_a_ledger_in_its_own_folder(tmp_path: Path) -> None:
    """Goal: one file serves all replicas. Method: what a replica is built from, and what tools look at."""
    config = config_of(tmp_path)
    name = config.replicas[0].name
    own = config.ledgers(name)
    assert isinstance(own, EmbeddedLedgers)
    assert own.folder == tmp_path / "data" / name / "ledger"
    assert own.reader_address == f"sqlite:{own.folder / FILE}"
    assert isinstance(replica_settings(config, name).database, EmbeddedLedgers)
    assert plaintext_connections(config) == []
    shown = {setting: value for setting, value, _ in effective(config, {}, {})}
    assert (shown["database.conninfo"], shown["database.scope"]) == ("sqlite:", "")
    with pytest.raises(ConfigError, match="share no database") as refused:
        config.shared_database()
    assert refused.value.code is Code.NOT_POSSIBLE_NOW


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"election": {}}, "set election.kind = lease"),
        ({"log": POSTGRES}, "is supported with log.kind = raft only, not with postgres|one Postgres is lock"),
        ({"log": {"kafka": {"bootstrap_servers": "127.0.0.1:9092"}}}, "with log.kind = raft only, not with kafka"),
        ({"core": {"standby": "disconnected"}}, "needs core.standby = following"),
        ({"database": {"conninfo": "sqlite:/var/lib/ledger.sqlite"}}, "write `sqlite:` without a path"),
        ({"database": {"conninfo": "sqlite:", "scope": "notary"}}, "leave out scope"),
        ({"database": {"conninfo": "sqlite:", "password_file": "p", "reader_user": "r"}}, "password_file, reader_user"),
        ({"database": {"conninfo": "host=127.0.0.1 dbname=notary"}}, "needs `scope`"),
        ({"database": {"conninfo": "oracle://n@127.0.0.1:1/n", "scope": "N"}}, "share no database"),
        ({"database": {"conninfo": "host=127.0.0.1 dbname=notary", "scope": "N"}}, "Leave election.kind out, or set"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """Goal: nobody finds out later. Method: each mistake, by the words that name it."""
    with pytest.raises(ConfigError, match=why):
        config_of(tmp_path, **changes)


def test_a_log_in_memory_goes_with_it_for_tests(tmp_path: Path) -> None:
    """Goal: tests need no log nodes. Method: load it."""
    assert config_of(tmp_path, log=MEMORY).database.is_embedded


@pytest.mark.parametrize("profile", list(Profile))
def test_the_file_of_every_profile_loads(tmp_path: Path, profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a newcomer's first file is right, whatever the profile. Method: write it, load it, compare; the steps."""
    write_config(tmp_path, profile)
    config = load_config(tmp_path / "notary.toml")
    assert config == make_config(example(profile), tmp_path, "example")
    assert config.database.is_embedded == (profile is Profile.EMBEDDED)
    assert ("notary store migrate" in capsys.readouterr().out) == (profile is not Profile.EMBEDDED)


KAFKA = {"kind": "kafka", "kafka": {"bootstrap_servers": "127.0.0.1:9092"}}
SHARED: dict[str, Any] = {
    "database": {"conninfo": "host=127.0.0.1 dbname=notary", "scope": "N"},
    "election": {},
    "log": KAFKA,
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (SHARED | {"log": LOG}, "log.kind = raft is supported without a database only"),
        ({"log": MEMORY}, "not supported with log.kind = memory"),
        (SHARED | {"database": {"conninfo": "oracle://n@127.0.0.1:1/n", "scope": "N"}}, "needs a database on Post"),
        (SHARED | {"core": {"standby": "disconnected"}}, "needs core.standby = following"),
        (SHARED | {"log": MEMORY}, "not supported with log.kind = memory"),
    ],
)
def test_where_all_cannot_serve_it_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """Goal: nobody finds out by a replica that never serves. Method: each mistake, by the words that name it."""
    assert config_of(tmp_path, **changes, serving="one").serving == "one"
    with pytest.raises(ConfigError, match=why):
        config_of(tmp_path, **changes, serving="all")


def test_all_may_serve_without_a_database(tmp_path: Path) -> None:
    """Goal: the profile with the fewest servers has workers. Method: its configuration, from an example and by hand."""
    assert config_of(tmp_path, serving="all").serving == "all"
    assert make_config(example(Profile.EMBEDDED) | {"serving": "all"}, tmp_path, "example").serving == "all"


def may_lead(*answers: bool) -> list[dict[str, Any]]:
    ports = [{"api_port": 7_000 + 10 * at, "health_port": 7_001 + 10 * at} for at in range(len(answers))]
    return [{"name": f"w{at}", "host": "127.0.0.1", "may_lead": may, **ports[at]} for at, may in enumerate(answers)]


def test_more_replicas_may_serve_than_may_lead(tmp_path: Path) -> None:
    """Goal: somebody may lead, and only with all serving is another choice of use. Method: some, none, and with one."""
    some = SHARED | {"replicas": may_lead(True, False, False)}
    config = config_of(tmp_path, **some, serving="all")
    assert config.candidate("w0").name == "w0"
    assert replica_settings(config, "w0").barred == {"w1", "w2"}
    with pytest.raises(ConfigError, match=r"w1 may not hold the lock .*: w0$"):
        config.candidate("w1")
    with pytest.raises(ConfigError, match="needs serving = all"):
        config_of(tmp_path, **some)
    with pytest.raises(ConfigError, match="nobody could hold the lock"):
        config_of(tmp_path, **SHARED | {"replicas": may_lead(False, False)}, serving="all")


def test_connections_are_spread_where_all_serve(tmp_path: Path) -> None:
    """Goal: HAProxy sends new connections to whoever has fewest; another choice is the operator's. Method: render."""
    choices = {
        "one": config_of(tmp_path, **SHARED),
        "all": config_of(tmp_path, **SHARED, serving="all"),
        "own": config_of(tmp_path, **SHARED, serving="all", haproxy={"balance": "roundrobin"}),
    }
    said = "\nbackend replicas\n    balance leastconn\n"
    shown = {name: said in render(config.haproxy_settings()) for name, config in choices.items()}
    assert shown == {"one": False, "all": True, "own": False}
