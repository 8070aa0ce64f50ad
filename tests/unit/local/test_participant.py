"""What a local cluster keeps between two starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replica.active.signer import create_key
from replica.config.file import render_config
from replica.local.participant import ParticipantFiles

ADDRESSES: dict[str, Any] = {
    "endpoint": {"host": "127.0.0.1", "port": 1},
    "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
    "database": {"conninfo": "host=127.0.0.1 dbname=notary user=notary", "scope": "notary"},
    "log": {"kafka": {"bootstrap_servers": "127.0.0.1:4"}},
}
TOKEN = {"module": "x.so", "token_label": "t", "key_label": "k", "pin_file": "p"}


def test_a_rotated_key_goes_on_signing_after_the_next_start(tmp_path: Path) -> None:
    """Goal: a start never takes back what an operator has set. Method: start, rotate, start again."""
    files = ParticipantFiles(tmp_path)
    first = files.notary_key()
    files.write_config(ADDRESSES, ("writer", "reader"))
    assert files.settings()["notary_key_file"] == "notary.key"
    new = create_key(tmp_path / "notary-2.key")
    files.config_path.write_text(files.config_path.read_text().replace('"notary.key"', '"notary-2.key"'))
    again = ParticipantFiles(tmp_path)
    again.write_config({**ADDRESSES, "api_workers": 3}, ("writer", "reader"))
    assert again.notary_key() == new != first
    assert (files.settings()["notary_key_file"], files.settings()["api_workers"]) == ("notary-2.key", 3)


def test_a_key_on_a_token_is_not_joined_by_a_file(tmp_path: Path) -> None:
    """Goal: as above, of a key that is no file. Method: a configuration with a token, started again."""
    files = ParticipantFiles(tmp_path)
    files.config_path.write_text(render_config({**ADDRESSES, "pkcs11": TOKEN, "data_dir": "d"}, ""))
    files.write_config(ADDRESSES, ("writer", "reader"))
    assert "notary_key_file" not in files.settings()
    assert files.settings()["pkcs11"] == TOKEN
