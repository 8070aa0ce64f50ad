"""`notary try`: what it prints for programs, `notary verify` reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from nacl.signing import SigningKey
from typer.testing import CliRunner

from ledger_api.client import NotaryClient, Party
from ledger_api.wire.answers import NotaryDocument
from replica.active.signer import create_key
from replica.cli.init import write_config
from replica.cli.main import app
from replica.cli.try_it import _configured_key, _play
from replica.notary.answers import Notarised, Refused
from replica.notary.canonical import summarise
from replica.notary.errors import ConfigError
from replica.notary.receipts import make_receipts
from replica.notary.requests import Submission
from tests.tokens import Issuer
from tests.worlds.beginning import LEDGER

KEY = SigningKey(b"k" * 32)
OTHER = SigningKey(b"o" * 32)


class ClientHere:
    """Notarises the first submission, and refuses the next ones."""

    def __init__(self) -> None:
        self.answered = 0

    async def __aenter__(self) -> ClientHere:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def user_id(self) -> str:
        return "anonymous"

    async def describe(self) -> NotaryDocument:
        of = {"version": "1", "replica": "r1", "batch_max": 1, "body_max_bytes": 1}
        return NotaryDocument(ledger_id=LEDGER.hex(), notary_key=bytes(KEY.verify_key).hex(), **of)

    async def submit(self, submission: Submission) -> Notarised | Refused:
        self.answered += 1
        tx_id, digest, _ = summarise(submission.request)
        if self.answered > 1:
            return Refused("STATE_CONFLICT", tx_id, 8)
        made = make_receipts([(tx_id, digest)], bytes(KEY.verify_key), lambda message: KEY.sign(message).signature)
        return Notarised(tx_id, digest, 7, 7, duplicate=False, receipt=made[0])


def test_what_try_prints_is_an_input_of_verify(tmp_path: Path) -> None:
    """Goal: a newcomer's next step works. Method: the document of --json as a file; the right key, another one."""
    client, party = cast(NotaryClient, ClientHere()), Party("O=A,L=London,C=GB", LEDGER)
    played = asyncio.run(_play(client, party, bytes(KEY.verify_key).hex()))
    printed: dict[str, Any] = json.loads(json.dumps(played))
    assert printed["verified"]
    assert printed["answer"]["log_offset"] == 7
    file = tmp_path / "tried.json"
    file.write_text(json.dumps(printed))
    for key, code in ((KEY, 0), (OTHER, 1)):
        words = ["verify", str(file), "--notary-key", bytes(key.verify_key).hex()]
        assert CliRunner().invoke(app, words).exit_code == code


def test_the_key_of_a_configuration_near_is_used_with_an_endpoint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody asks an API for the key that its receipts are checked by, where it is known. Method: a folder
    without a configuration, with one whose key is missing, and with its key."""
    monkeypatch.chdir(tmp_path)
    assert _configured_key(None, needed=False) is None
    write_config(tmp_path)
    (tmp_path / "notary.key").unlink(missing_ok=True)
    assert _configured_key(None, needed=False) is None
    with pytest.raises(ConfigError):
        _configured_key(None, needed=True)
    created = create_key(tmp_path / "notary.key")
    assert _configured_key(None, needed=False) == created.hex()


def test_sign_signs_for_the_user_of_the_token(tmp_path: Path) -> None:
    """Goal: whoever has a token need not name its user. Method: a token's file; none; and a user that is named."""
    key, token = tmp_path / "party.key", tmp_path / "token"
    create_key(key)
    token.touch(0o600)
    token.write_text(Issuer().token(sub="treasury"))

    def user(*words: str) -> str:
        of = ["--key", str(key), "--party", "O=A,L=London,C=GB", "--ledger", LEDGER.hex(), "--input", f"{'ab' * 32}:0"]
        told = CliRunner().invoke(app, ["sign", *of, *words])
        assert told.exit_code == 0, told.output
        return str(json.loads(told.output).get("user_id", "anonymous"))

    assert user("--token-file", str(token)) == "treasury"
    assert user("--token-file", str(token), "--user", "cashier") == "cashier"
    assert user() == "anonymous"
