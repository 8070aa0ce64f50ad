"""The configuration file that is written from the model, and the origins of values in `notary config show`."""

from __future__ import annotations

import tomllib
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from ledger_api.client import Access
from replica.cli.config import DEFAULT, ENVIRONMENT, FILE, effective
from replica.cli.init import EXAMPLE, TITLE, write_config
from replica.cli.ledger import make_client
from replica.cli.profiles import Profile
from replica.config.client import ClientSettings
from replica.config.file import REQUIRED, render_config, render_reference, tables
from replica.config.load import load_config, make_config
from replica.config.model import Config
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

BASE = Path("/base")


def _config(values: dict[str, Any]) -> Config:
    return make_config(values, BASE, "test")


def test_the_file_that_init_writes_loads_with_its_values_and_all_defaults(tmp_path: Path) -> None:
    """Goal: a newcomer's first file is right. Method: write it, load it, compare with the example's own values."""
    write_config(tmp_path)
    assert load_config(tmp_path / "notary.toml") == make_config(EXAMPLE, tmp_path, "example")


@pytest.mark.parametrize("profile", Profile)
def test_the_front_ends_of_what_init_writes_know_whose_connection_haproxy_passes_on(
    profile: Profile, tmp_path: Path
) -> None:
    """Goal: what one address may have is not what all that come through HAProxy share. Method: every profile's file."""
    write_config(tmp_path, profile)
    config = load_config(tmp_path / "notary.toml")
    assert all(replica.proxy_port for replica in config.replicas)
    assert not all(ip_network(one).is_loopback for one in config.haproxy_settings().proxies)


def test_init_never_overwrites(tmp_path: Path) -> None:
    """Goal: no configuration is lost. Method: write twice."""
    write_config(tmp_path)
    before = (tmp_path / "notary.toml").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        write_config(tmp_path)
    assert (tmp_path / "notary.toml").read_bytes() == before


def test_every_setting_says_what_it_is_for() -> None:
    """Goal: no setting without a reason. Method: look for empty descriptions."""
    assert [setting.path for table in tables() for setting in table.settings if not setting.description] == []
    assert [table.path for table in tables() if not table.description] == []


def test_every_default_that_is_shown_is_the_default() -> None:
    """Goal: taking a '#' away changes nothing. Method: uncomment every default of the file, load it, compare."""
    shown = render_config(EXAMPLE, TITLE).splitlines()
    kept, optional = [], False
    for line in shown:
        if line.startswith(("[", "#[")):
            optional = line.startswith("#")  # a table that is left out as a whole
        kept += [] if optional else [line]
    lines = [line[1:] if line[:1] == "#" and line[1:2].isalpha() and not line.endswith("=") else line for line in kept]
    assert sum(line != old for line, old in zip(lines, kept, strict=True)) > 60
    uncommented, example = _config(tomllib.loads("\n".join(lines))), _config(EXAMPLE)
    assert uncommented.haproxy_settings() == example.haproxy_settings()
    assert uncommented.model_copy(update={"haproxy": {}}) == example.model_copy(update={"haproxy": {}})


def test_what_is_set_survives_a_round_trip() -> None:
    """Goal: values of every kind come back. Method: render, parse, compare with what went in."""
    values = EXAMPLE | {
        "election": {"lease_s": 4.5},
        "log": {
            "kafka": EXAMPLE["log"]["kafka"]
            | {"single_broker": True, "security": {"protocol": "SSL", "ca_file": 'a "b".pem'}}
        },
        "haproxy": {"fall": 3, "exporter": {"port": 9101}},
        "core": {},
        "link": {},
        "archive": {},
        "tables": {},
        "log_copy": {},
        "operators": {},
        "admin": {},
        "watch": {},
        "client": {},
        "tracing": {},
    }
    assert tomllib.loads(render_config(values, "title")) == values


@pytest.mark.parametrize("extra", [{"nonsense": 1}, {"election": {"leese_s": 1.0}}, {"api": {"port": 1}}])
def test_a_value_that_is_no_setting_is_refused(extra: dict[str, Any]) -> None:
    """Goal: nothing is dropped silently. Method: unknown names, and one that is each replica's own."""
    merged = EXAMPLE | {
        name: {**EXAMPLE.get(name, {}), **value} if isinstance(value, dict) else value for name, value in extra.items()
    }
    with pytest.raises(ConfigError, match="no such setting"):
        render_config(merged, "title")


def test_a_setting_without_a_default_must_be_given() -> None:
    """Goal: no half a file. Method: leave each required value of a table out."""
    required = [
        s.path for t in tables() if not t.repeated and not t.optional for s in t.settings if s.default is REQUIRED
    ]
    assert ("database", "conninfo") in required
    for path in required:
        values = {name: dict(value) if isinstance(value, dict) else value for name, value in EXAMPLE.items()}
        table = values[path[0]] if len(path) == 2 else values
        del table[path[-1]]
        with pytest.raises(ConfigError, match="has no default"):
            render_config(values, "title")


def test_the_origin_of_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody has to guess where a value comes from. Method: one of each origin, and a table given as a whole."""
    environment = {"NOTARY_ELECTION__LEASE_S": "4", "NOTARY_CORE": '{"standby": "disconnected"}'}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    in_file = EXAMPLE | {"link": {"keep_alive_s": 0.1}}
    found = {name: (value, origin) for name, value, origin in effective(_config(in_file), in_file, environment)}
    assert found["election.lease_s"] == (4.0, ENVIRONMENT)
    assert found["core.standby"] == ("disconnected", ENVIRONMENT)
    assert found["link.keep_alive_s"] == (0.1, FILE)
    assert found["link.hello_max_s"] == (2.0, DEFAULT)
    assert found["haproxy.fall"] == (3, DEFAULT)
    assert found["replicas.r2.api_port"] == (8081, FILE)
    assert "haproxy.exporter.port" not in found


def test_relative_paths_count_from_the_file() -> None:
    """Goal: a replica finds its files from any folder. Method: a relative path in each place that takes one."""
    kafka = EXAMPLE["log"]["kafka"] | {"security": {"protocol": "SSL", "ca_file": "ca.pem"}}
    config = _config(EXAMPLE | {"log": {"kafka": kafka}})
    paths = [config.data_dir, config.notary_key_file, config.database.password_file]
    assert [*paths, config.log.settings.security.ca_file] == [
        BASE / name for name in ("data", "notary.key", "database.password", "ca.pem")
    ]


REPLICA = {"name": "r1", "host": "h", "api_port": 1, "health_port": 2}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"replicas": [REPLICA, REPLICA]}, "name of its own"),
        (
            {"replicas": [REPLICA, REPLICA | {"name": "r2", "health_port": 3}]},
            "h:1 is given twice: api_port",
        ),
        ({"replicas": [REPLICA, REPLICA | {"name": "r2", "api_port": 2, "health_port": 3}]}, "h:2 is given twice"),
        ({"replicas": [REPLICA | {"api_port": 2}]}, "h:2 is given twice: api_port of r1, health_port of r1"),
        (
            {"replicas": [REPLICA], "endpoint": {"host": "h", "port": 2}},
            "h:2 is given twice: the endpoint",
        ),
        ({"replicas": [REPLICA | {"name": ".."}]}, "name of its folder"),
        ({"core": {"drain_answers_s": 0.6}}, "more than election.drain_max_s"),
        ({"core": {"in_flight_max": 60_000}}, "kafka.append_queue_max"),
    ],
)
def test_what_cannot_work_together_is_refused(changed: dict[str, Any], told: str) -> None:
    """Goal: the mistake is reported at the start, not met in a fail-over. Method: one contradiction at a time."""
    with pytest.raises(ConfigError, match=told):
        _config(EXAMPLE | changed)


def test_replicas_on_machines_of_their_own_may_use_equal_ports() -> None:
    """Goal: the usual deployment is not refused. Method: two hosts, one pair of ports."""
    _config(EXAMPLE | {"replicas": [REPLICA, REPLICA | {"name": "r2", "host": "g"}]})


def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Goal: every secret is guarded as the notary's key is. Method: modes 0600 and 0640, then no file."""
    path = tmp_path / "database.password"
    path.write_text("hunter2\n")
    config = make_config(EXAMPLE, tmp_path, "test")
    path.chmod(0o600)
    assert "hunter2" in config.conninfo()
    path.chmod(0o640)
    with pytest.raises(ConfigError) as refused:
        config.conninfo()
    assert refused.value.code is Code.KEY_UNSAFE
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        config.conninfo()


def test_a_password_in_a_connection_string_is_not_shown() -> None:
    """Goal: no secret on a screen. Method: a connection string that breaks our own advice."""
    database = EXAMPLE["database"] | {"conninfo": "host=a password=hunter2 sslmode=verify-full"}
    values = EXAMPLE | {"database": database}
    shown = {name: value for name, value, _ in effective(_config(values), values, {})}
    assert "hunter2" not in str(shown)
    assert shown["database.conninfo"] == "password=*** host=a sslmode=verify-full"


def test_the_page_of_settings_is_current() -> None:
    """Goal: the documentation cannot drift from the model. Method: render it again: notary config reference."""
    page = (Path(__file__).parents[3] / "docs/settings.md").read_text()
    assert page == render_reference(), "notary config reference > docs/settings.md"
    assert [line for line in page.splitlines() if line.startswith("- ") and line.endswith(": ")] == []


def test_commands_use_the_configured_endpoint_and_files(tmp_path: Path) -> None:
    """Goal: no option is needed where a configuration is. Method: what init writes, with a token; then an option."""
    write_config(tmp_path)
    path = tmp_path / "notary.toml"
    path.write_text(path.read_text().replace("[client]\n", '[client]\ntoken_file = "token"\n'))
    settings = load_config(path)
    assert settings.client == ClientSettings(token_file=tmp_path / "token")
    assert settings.endpoint_url == "https://127.0.0.1:8080"
    connection = make_client(None, path)._connection
    assert (connection.endpoints.current, connection.access) == (
        settings.endpoint_url,
        Access(token=tmp_path / "token"),
    )
    connection = make_client(None, path, token_file=Path("other"), ca_file=None)._connection
    assert connection.access == Access(token=Path("other"))
    assert make_client("http://127.0.0.1:1", None)._connection.access == Access()


def test_the_admin_socket_lies_in_the_replicas_folder_or_where_a_group_may_enter() -> None:
    """Goal: one place, that nobody else enters unless somebody says so. Method: none configured; both; one alone."""
    config = _config(EXAMPLE)
    assert config.admin_socket("r1") == config.replica_dir("r1") / "admin.sock"
    shared = _config(EXAMPLE | {"admin": {"folder": "/run/notary", "group": "operators"}})
    assert shared.admin_socket("r1") == Path("/run/notary/r1.sock")
    for alone in ({"folder": "/run/notary"}, {"group": "operators"}):
        with pytest.raises(ConfigError, match="go together"):
            _config(EXAMPLE | {"admin": alone})


@pytest.mark.parametrize(
    ("host", "tls", "url"),
    [
        ("*", True, "https://127.0.0.1:9000"),
        ("127.0.0.1", False, "http://127.0.0.1:9000"),
        ("notary.example", True, "https://notary.example:9000"),
        ("[::1]", True, "https://[::1]:9000"),
    ],
)
def test_the_endpoint_as_a_url(host: str, tls: bool, url: str) -> None:
    """Goal: what people are shown can be used. Method: every address, a name, IPv6, with TLS and without."""
    api = EXAMPLE["api"] if tls else {}
    replicas = [EXAMPLE["replicas"][0] | {"host": "127.0.0.1"}]
    changes = {"endpoint": {"host": host, "port": 9000}, "api": api, "replicas": replicas}
    assert _config(EXAMPLE | changes).endpoint_url == url


def test_the_endpoint_is_where_applications_reach_it() -> None:
    """Goal: nobody is shown loopback where HAProxy is elsewhere. Method: a shared address; a URL for applications."""
    pair = {"interface": "eth0", "virtual_address": "10.0.0.10/24"}
    pair |= {"primary_address": "10.0.0.11", "backup_address": "10.0.0.12"}
    haproxy = {"exporter": {"host": "*", "port": 9101}, "keepalived": pair}
    changes = EXAMPLE | {"endpoint": {"host": "*", "port": 9000}, "haproxy": haproxy}
    assert _config(changes).endpoint_url == "https://10.0.0.10:9000"
    url = "https://notary.example"
    assert _config(changes | {"public_url": url}).endpoint_url == url
