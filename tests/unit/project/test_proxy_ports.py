"""What people install with: HAProxy names its clients to the front ends, so that each has a share of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haproxy.render import render
from replica.config.load import load_config

ROOT = Path(__file__).parents[3]
INSTALLED = ("docs/install.md", "docs/install-embedded.md", "deploy/container/notary.toml")
VALUES = {
    "DB_TLS": "sslmode=verify-full sslrootcert=ca.pem",
    "KAFKA": "kafka-1:9092",
    "KAFKA_SECURITY": '{protocol = "SSL", ca_file = "kafka-ca.pem"}',
    "VIRTUAL_ADDRESS": "10.0.0.10/24",
    "INTERFACE": "eth0",
    "HAPROXY_1": "10.0.0.11",
    "HAPROXY_2": "10.0.0.12",
    "R1_HOST": "10.0.0.1",
    "R2_HOST": "10.0.0.2",
    "R3_HOST": "10.0.0.3",
    "ENDPOINT_PORT": "8080",
    "API_PORT": "8081",
    "HEALTH_PORT": "8082",
    "PROXY_PORT": "8086",
    "EXPORTER_PORT": "9101",
    "LOG_PORT": "7400",
    "DB_PORT": "5432",
}


def configuration_in(path: Path) -> str:
    """The configuration that a page writes, its variables filled in; or the file itself."""
    text = path.read_text()
    if path.suffix == ".md":
        found = re.search(r"^cat > notary\.toml <<END\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)
        assert found is not None, path
        text = re.sub(r"\$(\w+)", lambda name: VALUES.get(name[1], "x"), found[1])
    return text


@pytest.mark.parametrize("path", INSTALLED)
def test_haproxy_names_its_clients_to_every_replica(path: str, tmp_path: Path) -> None:
    """Goal: no caller has the share of all that come through HAProxy. Method: what HAProxy is told, by each page."""
    (tmp_path / "notary.toml").write_text(configuration_in(ROOT / path))
    config = load_config(tmp_path / "notary.toml")
    servers = re.findall(r"^    server \S+ (\S+) .*send-proxy-v2", render(config.haproxy_settings()), re.MULTILINE)
    assert servers == [f"{replica.host}:{replica.proxy_port}" for replica in config.replicas]
    assert len(servers) == 3
