"""What Spark's Kafka connector is told of a secured Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.sources.log import _client_options
from replica.log.kafka.settings import KafkaSettings
from replica.notary.errors import ConfigError


def told(**security: Any) -> dict[str, str]:
    """What the connector is told of TLS and log-in."""
    settings = KafkaSettings.model_validate({"bootstrap_servers": "a:1,b:2", "topic": "log", "security": security})
    options = _client_options(settings)
    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    secured = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")
    return {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith(secured)}


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_without_security_nothing_is_added() -> None:
    """Goal: nothing is made up. Method: the defaults."""
    assert told() == {"security.protocol": "PLAINTEXT"}


def test_tls_trusts_the_authorities_that_are_named(tmp_path: Path) -> None:
    """Goal: only the brokers of our authority. Method: TLS, without a certificate of our own."""
    assert told(protocol="SSL", ca_file=tmp_path / "ca.pem") == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }


def test_mutual_tls_brings_certificate_and_key(tmp_path: Path) -> None:
    """Goal: the JVM gets the files' texts, since it wants both in one. Method: both; a key that others may read."""
    certificate = tmp_path / "own.pem"
    certificate.write_text("certificate")
    key = secret(tmp_path / "own.key", "key")
    found = told(protocol="SSL", certificate_file=certificate, key_file=key)
    assert found == {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "certificate",
        "ssl.keystore.key": "key",
    }
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"own\.key"):
        told(protocol="SSL", certificate_file=certificate, key_file=key)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("PLAIN", "plain.PlainLoginModule"),
    ],
)
def test_a_log_in_by_password(tmp_path: Path, mechanism: str, module: str) -> None:
    """Goal: mechanism and module go together. Method: each; a password file that others may read."""
    password = secret(tmp_path / "password", "pass")
    found = told(protocol="SASL_SSL", sasl_mechanism=mechanism, sasl_username="reader", sasl_password_file=password)
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'org.apache.kafka.common.security.{module} required username="reader" password="pass";',
    }
    password.chmod(0o644)
    with pytest.raises(ConfigError, match="password"):
        told(protocol="SASL_SSL", sasl_mechanism=mechanism, sasl_username="reader", sasl_password_file=password)
