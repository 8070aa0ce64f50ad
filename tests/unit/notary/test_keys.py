"""The notary's public keys across rotations."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from replica.active.signer import create_key, load_signer
from replica.checker.check import receipt_verifier
from replica.cli.main import app
from replica.notary.errors import ConfigError
from replica.notary.keys import known_keys, read_keys, rotated, write_keys
from replica.notary.receipts import make_receipts, receipt_to_document
from tests.unit.cli.test_config import write_config

OLD, NEW, NEWEST = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
FIRST, SECOND = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def test_keys_come_and_go_and_all_are_kept(tmp_path: Path) -> None:
    """Goal: every key that ever signed stays in the file, with its period. Method: rotate twice, write, read."""
    once = rotated([], OLD, NEW, FIRST)
    assert [(key.raw, key.from_, key.until) for key in once] == [(OLD, None, FIRST), (NEW, FIRST, None)]
    twice = rotated(once, NEW, NEWEST, SECOND)
    assert [(key.raw, key.from_, key.until) for key in twice][1:] == [(NEW, FIRST, SECOND), (NEWEST, SECOND, None)]
    write_keys(tmp_path / "keys.toml", twice)
    assert read_keys(tmp_path / "keys.toml") == twice
    with pytest.raises(ConfigError):
        rotated(twice, NEWEST, OLD, SECOND)


def test_a_replica_whose_key_nobody_could_verify_does_not_start(tmp_path: Path) -> None:
    """Goal: no receipt is given that the list does not cover. Method: a list without the key, no list, a bad list."""
    path = tmp_path / "keys.toml"
    write_keys(path, rotated([], OLD, NEW, FIRST))
    assert [key.raw for key in known_keys(path, OLD)] == [OLD, NEW]
    assert [key.raw for key in known_keys(None, NEWEST)] == [NEWEST]
    with pytest.raises(ConfigError):
        known_keys(path, NEWEST)
    for bad in ("", "[[keys]]\npublic_key = 'x'", "[[keys]]\npublic_key = 5", "keys = []", "[[keys]]\nname = 'x'"):
        path.write_text(bad)
        with pytest.raises(ConfigError):
            read_keys(path)


def test_receipts_of_old_keys_verify_after_a_rotation(tmp_path: Path) -> None:
    """Goal: a rotation invalidates nothing. Method: a receipt, `keys rotate`, `verify`, the checker."""
    write_config(tmp_path)
    create_key(tmp_path / "notary.key")
    old = load_signer(tmp_path / "notary.key")
    (receipt,) = make_receipts([(b"t" * 32, b"d" * 32)], old.public_key, old.sign)
    (tmp_path / "receipt.json").write_text(json.dumps(msgspec.to_builtins(receipt_to_document(receipt))))
    runner = CliRunner()
    config = ["--config", str(tmp_path / "notary.toml")]
    rotated_ = runner.invoke(app, ["keys", "rotate", str(tmp_path / "new.key"), "--json", *config])
    assert rotated_.exit_code == 0, rotated_.output
    told = json.loads(rotated_.stdout)
    keys = ["--notary-keys", told["keys_file"]]
    assert runner.invoke(app, ["verify", str(tmp_path / "receipt.json"), *keys]).exit_code == 0
    only_new = ["--notary-key", told["public_key"]]
    assert runner.invoke(app, ["verify", str(tmp_path / "receipt.json"), *only_new]).exit_code == 1
    assert receipt_verifier(NEW, old.public_key)(receipt)
    assert not receipt_verifier(NEW)(receipt)
