"""The command line as a whole: help, exit codes, errors with code and remedy, and how soon it is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from nacl.signing import SigningKey
from typer.core import TyperCommand, TyperGroup

from ledger_api.client.signing import Party, encode_submission
from replica.cli.main import app
from replica.notary.canonical import summarise
from replica.notary.receipts import Place, make_receipts, receipt_to_document
from tests.worlds.beginning import LEDGER

Command = TyperCommand | TyperGroup
ROOT = typer.main.get_command(app)
HEAVY = ("aiohttp", "confluent_kafka", "psycopg", "rocksdict", "pydantic", "structlog", "uvloop", "cryptography")


def _notary(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "replica.cli", *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def _commands(command: Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in _commands(ROOT)], ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    """Goal: --help answers what each command does. Method: every command and group of the tree has a text."""
    command = dict(_commands(ROOT))[path]
    assert command.help, path
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{path}: {parameter.name}"


def test_help_needs_nothing_that_is_slow_to_import() -> None:
    """Goal: the command line answers at once. Method: import it in a fresh process, look for heavy packages."""
    script = f"import sys, replica.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_an_error_has_a_code_and_a_remedy_and_exits_with_2_for_a_configuration(tmp_path: Path) -> None:
    """Goal: no traceback for what is expected. Method: a configuration that is not there, and one that is wrong."""
    done = _notary("status", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("CONFIG_INVALID: ")
    (tmp_path / "notary.toml").write_text("api_workers = 0\n")
    done = _notary("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    assert "api_workers" in done.stderr
    assert "Traceback" not in done.stderr


def test_keys_are_made_shown_and_refused_when_others_can_read_them(tmp_path: Path) -> None:
    """Goal: `keys` as the README shows. Method: make, show, make again, open to others."""
    made = _notary("keys", "create", "a.key", cwd=tmp_path)
    assert re.fullmatch("[0-9a-f]{64}\n", made.stdout)
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    assert _notary("keys", "show", "a.key", cwd=tmp_path).stdout == made.stdout
    assert _notary("keys", "create", "a.key", cwd=tmp_path).returncode == 2
    os.chmod(tmp_path / "a.key", 0o644)
    refused = _notary("keys", "show", "a.key", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.split(":")[0]) == (2, "KEY_UNSAFE")


@pytest.mark.thorough
def test_a_receipt_is_shown_with_its_place(tmp_path: Path) -> None:
    """Goal: verify says where and when, and only what was signed. Method: a right receipt, then each part changed."""
    notary = SigningKey.generate()
    key, place = bytes(notary.verify_key), Place("raft:log", 41, 7, 1_700_000_000_000_000)
    (receipt,) = make_receipts([(bytes(32), bytes(32))], key, lambda message: notary.sign(message).signature, [place])

    def verify(*more: str, **changes: object) -> subprocess.CompletedProcess[str]:
        document = msgspec.to_builtins(receipt_to_document(receipt))
        document["place"] |= changes
        (tmp_path / "receipt.json").write_text(json.dumps(document))
        return _notary("verify", "receipt.json", "--notary-key", key.hex(), *more, cwd=tmp_path)

    told = verify()
    assert told.returncode == 0
    assert "log          raft:log\noffset       41, under epoch 7\njudged at    2023-11-14T22:13:20" in told.stdout
    shown = json.loads(verify("--json").stdout)
    assert (shown["valid"], shown["version"], shown["place"]["epoch"]) == (True, 2, 7)
    changes = {"log_id": "raft:lot", "log_offset": 42, "epoch": 8, "judged_us": place.judged_us + 1}
    assert [verify(**{name: value}).returncode for name, value in changes.items()] == [1] * 4


def test_a_receipt_is_verified_offline(tmp_path: Path) -> None:
    """Goal: exit codes of `verify` distinguish true from false. Method: a right receipt, another key, another
    content."""
    notary, party = SigningKey.generate(), Party("O=Bank A,L=London,C=GB", LEDGER)
    submission = party.sign(bytes(32), [bytes(36)])
    tx_id, content_digest, _ = summarise(submission.request)
    key = bytes(notary.verify_key)
    (receipt,) = make_receipts([(tx_id, content_digest)], key, lambda message: notary.sign(message).signature)
    document = receipt_to_document(receipt)
    answer = {"status": 200, "receipt": {name: getattr(document, name) for name in document.__struct_fields__}}
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    (tmp_path / "same.json").write_bytes(encode_submission(submission))
    (tmp_path / "other.json").write_bytes(encode_submission(party.sign(bytes(32), [])))

    def verify(*more: str, by: str = key.hex()) -> int:
        return _notary("verify", "answer.json", "--notary-key", by, *more, cwd=tmp_path).returncode

    assert verify() == 0
    assert verify("--request", "same.json") == 0
    assert verify("--request", "other.json") == 1
    assert verify(by="00" * 32) == 1
    assert verify(by="xyz") == 2
    assert verify("--request", "answer.json") == 2
    old = "ab" * 32
    (tmp_path / "keys.toml").write_text(
        f'[[keys]]\npublic_key = "{old}"\nuntil = 2026-01-01T00:00:00Z\n[[keys]]\npublic_key = "{key.hex()}"\n'
    )
    told = _notary("verify", "answer.json", "--notary-keys", "keys.toml", cwd=tmp_path).stdout
    assert told.split()[:3] == ["valid", "transaction", tx_id.hex()]
    assert f"receipt's key\n             {key.hex()}\n" in told
    assert f"other keys that are trusted\n             {old} until 2026-01-01T00:00:00Z\n" in told
    told = _notary("verify", "answer.json", "--notary-key", old, cwd=tmp_path).stdout
    assert f"{key.hex()}, which is not trusted here" in told
    found = json.loads(_notary("verify", "answer.json", "--notary-keys", "keys.toml", "--json", cwd=tmp_path).stdout)
    assert (found["notary_key"], found["known_keys"]) == (key.hex(), [old, key.hex()])
