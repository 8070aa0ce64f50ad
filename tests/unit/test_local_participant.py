"""What a local cluster keeps between two starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

from replica.core.signer import create_key
from replica.local.participant import ParticipantFiles


def test_a_rotated_key_goes_on_signing_after_the_next_start(tmp_path: Path) -> None:
    """Goal: a start never takes back what an operator has set. Method: start, rotate, start again."""
    files = ParticipantFiles(tmp_path)
    first = files.notary_key()
    files.write_config({"api_workers": 1}, "writer", "reader")
    assert files.settings()["notary_key_file"] == "notary.key"
    new = create_key(tmp_path / "notary-2.key")
    text = files.config_path.read_text().replace('"notary.key"', '"notary-2.key"')
    files.config_path.write_text(text)
    again = ParticipantFiles(tmp_path)
    assert again.notary_key() == new != first
    again.write_config({"api_workers": 2}, "writer", "reader")
    found = tomllib.loads(files.config_path.read_text())
    assert (found["notary_key_file"], found["api_workers"]) == ("notary-2.key", 2)


def test_a_key_on_a_token_is_not_joined_by_a_file(tmp_path: Path) -> None:
    """Goal: as above, of a key that is no file. Method: a configuration with a token, started again."""
    files = ParticipantFiles(tmp_path)
    files.config_path.write_text('[pkcs11]\nmodule = "x.so"\ntoken_label = "t"\nkey_label = "k"\npin_file = "p"\n')
    files.write_config({}, "writer", "reader")
    assert "notary_key_file" not in files.settings()
