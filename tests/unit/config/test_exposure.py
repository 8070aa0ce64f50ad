"""Plaintext beyond loopback, and an API there without tokens: refused at the start, each with a code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replica.config.exposure import open_listeners
from replica.config.load import make_config
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

REPLICA = {"name": "r1", "host": "127.0.0.1", "api_port": 8080, "health_port": 8081}
TLS = {"certificate_file": "api.crt", "key_file": "api.key"}
WITH_TLS = {"tls": TLS}
TOKENS = {"keys_file": "issuer.pem", "audience": "notary"}
ELSEWHERE = {"replicas": [REPLICA | {"host": "10.0.0.1"}]}
ALL_ADDRESSES = {"endpoint": {"host": "*", "port": 9000}}


def values(**changes: Any) -> dict[str, Any]:
    """A configuration on loopback, with changes."""
    return {
        "data_dir": "data",
        "notary_key_file": "notary.key",
        "endpoint": {"host": "127.0.0.1", "port": 9000},
        "replicas": [REPLICA],
        "database": {"conninfo": "host=127.0.0.1 dbname=notary", "scope": "notary"},
        "log": {"kafka": {"bootstrap_servers": "127.0.0.1:9092"}},
    } | changes


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """The same, without tables that are None."""
    return {name: value for name, value in values(**changes).items() if value is not None}


KMS = {"key_id": "alias/notary-1", "region": "eu-west-2"}
EXPOSED = [
    ELSEWHERE,
    ALL_ADDRESSES,
    {"log": {"kafka": {"bootstrap_servers": "127.0.0.1:9092,broker-2:9092"}}},
    {
        "log": {
            "kafka": {
                "bootstrap_servers": "broker:9092",
                "security": {"protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password_file": "p"},
            }
        }
    },
    {"database": {"conninfo": "host=db-1,db-2 dbname=notary", "scope": "notary"}},
    {"database": {"conninfo": "host=db dbname=notary sslmode=require", "scope": "notary"}},
    {"database": {"conninfo": "oracle://notary@db-1:1521/notary", "scope": "NOTARY"}},
    {"tracing": {"endpoint": "http://collector:4318/v1/traces"}},
    {"kms": KMS | {"endpoint": "http://kms:8080"}, "notary_key_file": None},
    {"log": {"kind": "postgres", "postgres": {"conninfo": "host=db sslmode=require"}}},
    {"site": {"name": "a", "witness": "host=witness dbname=notary_site"}},
    {"tables": {"catalogue": {"host": "metastore"}}},
]
PROTECTED = [
    {},
    ELSEWHERE | {"api": WITH_TLS | {"tokens": TOKENS}},
    ALL_ADDRESSES | {"api": WITH_TLS | {"tokens": "none"}},
    {"api": WITH_TLS},
    {"log": {"kafka": {"bootstrap_servers": "broker:9093", "security": {"protocol": "SSL"}}}},
    {"database": {"conninfo": "host=db dbname=notary sslmode=verify-full", "scope": "notary"}},
    {"database": {"conninfo": "host=/run/postgresql dbname=notary", "scope": "notary"}},
    {"database": {"conninfo": "oracle://notary@tcps://db-1:2484/notary", "scope": "NOTARY"}},
    {"tracing": {"endpoint": "https://collector:4318/v1/traces"}},
    {"tracing": {"endpoint": "http://127.0.0.1:4318/v1/traces"}},
    {"kms": KMS, "notary_key_file": None},
    {"kms": KMS | {"endpoint": "https://kms:8080"}, "notary_key_file": None},
    {"kms": KMS | {"endpoint": "http://127.0.0.1:8080"}, "notary_key_file": None},
    {"log": {"kind": "postgres", "postgres": {"conninfo": "host=db sslmode=verify-full"}}},
    {"site": {"name": "a", "witness": "host=witness sslmode=verify-full"}},
    {"log": {"kind": "postgres", "postgres": {"conninfo": "host=/run/postgresql"}}},
    {"tables": {"catalogue": {"host": "metastore", "ca_file": "ca.pem"}}},
    {"tables": {"catalogue": {"host": "127.0.0.1"}}},
]


@pytest.mark.parametrize("changes", EXPOSED)
def test_plaintext_beyond_loopback_does_not_start(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Goal: nothing leaves the machine unprotected by mistake. Method: each connection beyond loopback, unprotected."""
    with pytest.raises(ConfigError) as refused:
        make_config(given(changes), tmp_path, "test")
    assert refused.value.code is Code.PLAINTEXT_EXPOSED


@pytest.mark.parametrize("changes", PROTECTED)
def test_what_is_protected_or_local_starts(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Goal: the check is no nuisance. Method: the same connections, protected; paths count from the file."""
    config = make_config(given(changes), tmp_path, "test")
    if config.api.tls is not None:
        assert config.api.tls.key_file == tmp_path / "api.key"


@pytest.mark.parametrize("changes", [ELSEWHERE, ALL_ADDRESSES])
def test_an_api_beyond_loopback_needs_tokens_or_a_word(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Goal: nobody shows the ledger to a network by leaving a table out. Method: a replica there, and the endpoint;
    nothing said, another word, then `none` in the file and in the environment."""
    with pytest.raises(ConfigError) as refused:
        make_config(given(changes | {"api": WITH_TLS}), tmp_path, "test")
    assert refused.value.code is Code.API_OPEN
    with pytest.raises(ConfigError) as refused:
        make_config(given(changes | {"api": WITH_TLS | {"tokens": "off"}}), tmp_path, "test")
    assert refused.value.code is Code.CONFIG_INVALID
    said = make_config(given(changes | {"api": WITH_TLS | {"tokens": "none"}}), tmp_path, "test")
    assert (said.api.tokens, len(open_listeners(said))) == (None, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTARY_API__TOKENS", "none")
        assert make_config(given(changes | {"api": WITH_TLS}), tmp_path, "test").api.tokens is None


def test_what_callers_reach_with_a_token_or_from_here_alone_is_not_open(tmp_path: Path) -> None:
    """Goal: the doctor names no listener that is protected. Method: tokens beyond loopback, and none on it."""
    for changes in (ELSEWHERE | ALL_ADDRESSES | {"api": WITH_TLS | {"tokens": TOKENS}}, {}):
        assert open_listeners(make_config(given(changes), tmp_path, "test")) == []
