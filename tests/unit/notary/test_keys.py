"""The notary's public keys across rotations."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from replica.active.signer import create_key, load_notary_signer, load_signer
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


def test_a_notary_moves_from_ed25519_to_p256_and_back(tmp_path: Path) -> None:
    """Goal: a rotation may change the algorithm, and receipts of both verify by one list. Method: rotate to P-256, to
    another of P-256 without saying so, and back; a receipt of each key by `verify` and the checker."""
    write_config(tmp_path)
    create_key(tmp_path / "notary.key")
    runner, files = CliRunner(), [tmp_path / "notary.key"]
    for name, choice, digits in (
        ("b", ["--algorithm", "p256"], 130),
        ("c", [], 130),
        ("d", ["--algorithm", "ed25519"], 64),
    ):
        config, new = tmp_path / "notary.toml", tmp_path / f"{name}.key"
        done = runner.invoke(app, ["keys", "rotate", str(new), *choice, "--json", "--config", str(config)])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        shown = runner.invoke(app, ["keys", "show", str(new)]).stdout.strip()
        assert (len(shown), shown, new.stat().st_mode & 0o777) == (digits, told["public_key"], 0o600)
        config.write_text(config.read_text().replace(files[-1].name, new.name))
        files.append(new)
    listed = ["--notary-keys", told["keys_file"]]
    raws = tuple(key.raw for key in read_keys(Path(told["keys_file"])))
    assert len(raws) == len(files) == 4
    for file, scheme in zip(files, ("ed25519", "ecdsa-p256-sha256", "ecdsa-p256-sha256", "ed25519"), strict=True):
        signer = load_notary_signer(file)
        (receipt,) = make_receipts([(b"t" * 32, b"d" * 32)], signer.public_key, signer.sign)
        (tmp_path / "receipt.json").write_text(json.dumps(msgspec.to_builtins(receipt_to_document(receipt))))
        verified = runner.invoke(app, ["verify", str(tmp_path / "receipt.json"), *listed, "--json"])
        assert verified.exit_code == 0, verified.output
        assert json.loads(verified.stdout)["signature_scheme"] == scheme
        own = ["--notary-key", signer.public_key.hex()]
        assert runner.invoke(app, ["verify", str(tmp_path / "receipt.json"), *own]).exit_code == 0
        others = [key for key in raws if key != signer.public_key]
        assert receipt_verifier(*raws)(receipt)
        assert not receipt_verifier(*others)(receipt)
    with pytest.raises(ConfigError, match="no Ed25519 key"):  # parties, operators and archives sign with Ed25519
        load_signer(files[1])
