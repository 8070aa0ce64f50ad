"""A real front end behind TLS, with tokens: who gets in, what changes without a restart, and what it logs."""

# ruff: noqa: F811 (fixtures come by import)
from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from ledger_api.wire.submissions import submission_to_document
from tests.certificates import Authority
from tests.integration.test_api_process import Core, connected, core, folder  # noqa: F401 (fixtures)
from tests.tokens import AUDIENCE, Issuer
from tests.waiting import eventually
from tests.worlds.api_world import BANK, make_submission

SUBMISSIONS = "/v1/submissions"


def client_context(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """What a client trusts, and what it shows."""
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def body() -> bytes:
    return msgspec.json.encode(submission_to_document(make_submission(user_id="treasury")))


class Guarded:
    """The document of a front end with TLS, client certificates and tokens; and a client that has it all."""

    def __init__(self, core: Core) -> None:
        self.authority, self.issuer = Authority(core.folder / "pki"), Issuer()
        self.server_files = self.authority.issue("api")
        self.client_files = self.authority.issue("client")
        self.keys_file = self.issuer.write(core.folder / "keys.json")
        self.core = core
        self.endpoint = f"https://127.0.0.1:{core.port}"

    def document(self, **api: Any) -> dict[str, Any]:
        certificate_file, key_file = map(str, self.server_files)
        document = self.core.document()
        document["api"] |= {
            "log_level": "debug",
            "tls": {
                "certificate_file": certificate_file,
                "key_file": key_file,
                "client_ca_file": str(self.authority.ca_file),
            },
            "tokens": {"keys_file": str(self.keys_file), "audience": AUDIENCE},
        } | api
        return document

    def token(self, **claims: object) -> str:
        """A token for the bank."""
        return self.issuer.token(expires_at_s=time.time() + 60, **{"notary": {"act_as": [BANK.name]}} | claims)

    async def post(self, token: str | None, context: ssl.SSLContext | None = None) -> tuple[int, str]:
        """Status and code of one submission on a connection of its own."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        context = context or client_context(self.authority, self.client_files)
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(self.endpoint + SUBMISSIONS, data=body(), headers=headers) as answer,
        ):
            return answer.status, json.loads(await answer.read())["code"]


async def test_only_known_clients_with_a_good_token_get_in(core: Core) -> None:
    """Goal: mutual TLS and tokens hold on the wire. Method: plain HTTP, no certificate, bad tokens, a good one."""
    guarded = Guarded(core)
    process = await core.spawn(guarded.document())
    await connected(core)
    assert await guarded.post(guarded.token()) == (200, "NOTARISED")
    assert await guarded.post(None) == (401, "TOKEN_MISSING")
    assert await guarded.post(Issuer().token(expires_at_s=time.time() + 60)) == (401, "TOKEN_INVALID")
    assert await guarded.post(guarded.token(notary={})) == (403, "PERMISSION_DENIED")
    with pytest.raises(aiohttp.ClientError):
        await guarded.post(guarded.token(), client_context(guarded.authority))
    stranger = Authority(core.folder / "elsewhere").issue("client")
    with pytest.raises(aiohttp.ClientError):
        await guarded.post(guarded.token(), client_context(guarded.authority, stranger))
    with pytest.raises(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://127.0.0.1:{core.port}/v1/notary")
    process.terminate()
    await core.end_of(process)


async def test_keys_and_certificates_change_without_a_restart(core: Core) -> None:
    """Goal: rotation. Method: a new token key, a new server certificate, a key taken from the party; SIGHUP."""
    guarded = Guarded(core)
    process = await core.spawn(guarded.document())
    await connected(core)
    old, new = guarded.issuer, Issuer("k2")
    assert (await guarded.post(guarded.token()))[0] == 200
    guarded.issuer = new
    assert (await guarded.post(guarded.token())) == (401, "TOKEN_INVALID")
    new.write(guarded.keys_file)
    guarded.authority.issue("api")  # the same files
    process.send_signal(signal.SIGHUP)

    async def answers(code: str) -> bool:
        return (await guarded.post(guarded.token()))[1] == code

    await eventually(lambda: answers("NOTARISED"))
    guarded.issuer = old
    assert await answers("TOKEN_INVALID")
    guarded.issuer = new
    process.terminate()
    await core.end_of(process)


async def test_a_key_that_others_can_read_does_not_start(core: Core) -> None:
    """Goal: KEY_UNSAFE, and a person is needed. Method: chmod 0644 on the API's key."""
    guarded = Guarded(core)
    guarded.server_files[1].chmod(0o644)
    code, lines = await core.end_of(await core.spawn(guarded.document()))
    assert code == 2
    assert lines[-1]["code"] == "KEY_UNSAFE"


async def test_token_keys_that_others_can_write_are_not_read(core: Core) -> None:
    """Goal: TRUST_UNSAFE, and a person is needed. Method: chmod 0666 on the keys of tokens."""
    guarded = Guarded(core)
    guarded.keys_file.chmod(0o666)
    code, lines = await core.end_of(await core.spawn(guarded.document()))
    assert (code, lines[-1]["code"]) == (2, "TRUST_UNSAFE")


async def test_a_user_has_no_more_than_its_share(core: Core) -> None:
    """Goal: 429 with the time to wait. Method: a burst of one, two connections of one user."""
    guarded = Guarded(core)
    process = await core.spawn(guarded.document(rate_per_s=0.001, rate_burst=1, batch_max=1))
    await connected(core)
    assert await guarded.post(guarded.token()) == (200, "NOTARISED")
    assert await guarded.post(guarded.token()) == (429, "RATE_EXCEEDED")
    process.terminate()
    await core.end_of(process)


async def test_nothing_secret_is_logged(core: Core) -> None:
    """Goal: logs may be shown to anybody. Method: every kind of refusal at level debug; then look for each secret."""
    guarded = Guarded(core)
    document = guarded.document() | {"database": "dbname=unused password=hunter2"}
    process = await core.spawn(document)
    await connected(core)
    tokens = [guarded.token(), guarded.token(aud="other"), guarded.token(notary={}), Issuer().token(), "not.a.token"]
    for token in tokens:
        await guarded.post(token)
    process.send_signal(signal.SIGHUP)
    await asyncio.sleep(0)
    process.terminate()
    code, lines = await core.end_of(process)
    assert code == 0
    text = json.dumps(lines)
    assert "request_refused" in text
    secrets = [*tokens, "hunter2", core.document()["generation"], guarded.server_files[1].read_text().splitlines()[1]]
    secrets += [part for token in tokens[:4] for part in token.split(".")[1:]]
    assert [secret for secret in secrets if secret in text] == []
