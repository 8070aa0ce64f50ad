"""By which names a participant is asked for, and from where HAProxy names its clients to it."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname

import pytest

from replica.cli.init import EXAMPLE
from replica.cli.replica import replica_settings
from replica.config.model import Config
from replica.notary.errors import ConfigError


def config_with(folder: Path, **changes: object) -> Config:
    database = {**EXAMPLE["database"], "password_file": None}
    return Config.model_validate({**EXAMPLE, "database": database, "data_dir": folder, **changes})


def test_every_name_of_the_configuration_is_known(tmp_path: Path) -> None:
    replicas = [{**one, "api_url": f"https://api-{one['name']}.example:8081"} for one in EXAMPLE["replicas"]]
    known = config_with(tmp_path, replicas=replicas, host_names=["monitored.example"]).known_hosts
    assert {"notary-1.example", "notary-3.example", "api-r2.example", "monitored.example", gethostname()} <= set(known)
    assert "notary.example" in config_with(tmp_path, public_url="https://notary.example").known_hosts


def test_front_ends_listen_for_haproxy_where_a_port_says_so(tmp_path: Path) -> None:
    without = [{**one, "proxy_port": None} for one in EXAMPLE["replicas"]]
    assert replica_settings(config_with(tmp_path, replicas=without), "r1").proxy_document is None
    config = config_with(tmp_path, haproxy={"sources": ["10.0.0.9"]})
    assert replica_settings(config, "r1").proxy_document == {
        "port": 8084,
        "sources": ("10.0.0.9/32",),
        "handshake_max_s": 5.0,
    }
    assert "notary-1.example:8084 send-proxy-v2 check port 8082" in _rendered(config)


def test_front_ends_beyond_loopback_have_to_know_where_haproxy_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"say in haproxy\.sources which addresses HAProxy connects"):
        config_with(tmp_path, haproxy={})


def test_a_port_is_given_once(tmp_path: Path) -> None:
    replicas = [{**one, "host": "127.0.0.1", "proxy_port": one["api_port"]} for one in EXAMPLE["replicas"]]
    with pytest.raises((ConfigError, ValueError), match="is given twice: api_port of r1, proxy_port of r1"):
        config_with(tmp_path, replicas=replicas)


def _rendered(config: Config) -> str:
    from haproxy.render import render

    return render(config.haproxy_settings())
