"""What a client shows and whom it believes: where a token may go, where it comes from, and that no output has it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ledger_api.client import Access, NotaryClient, SubmissionStream, SyncNotaryClient, TokenUnavailable
from ledger_api.client.access import Bearer, user_of
from ledger_api.wire.problems import problem_document
from replica.cli.ledger import access_of
from replica.config.client import ClientSettings
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.loopback import is_loopback
from tests.certificates import Authority
from tests.tokens import Issuer

TOKEN = "secret.secret.secret"
REFUSED = problem_document(Code.TOKEN_INVALID, "too old")


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """A file that takes the place of the one before at once, as a rotation of secrets does it."""
    fresh = path.with_name("fresh")
    fresh.touch()
    fresh.chmod(mode)
    fresh.write_text(text)
    fresh.rename(path)
    return path


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("127.0.0.1.example.com", False),
        ("127.example.com", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_what_loopback_is(host: str, local: bool) -> None:
    """Goal: a name is not taken for an address. Method: addresses, and names that look like one."""
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [
        ("http://notary.example:8080", Code.PLAINTEXT_EXPOSED),
        ("http://127.example.com", Code.PLAINTEXT_EXPOSED),
        ("ftp://127.0.0.1", Code.CONFIG_INVALID),
        ("notary.example:8080", Code.CONFIG_INVALID),
        ("https://", Code.CONFIG_INVALID),
        ("http://127.0.0.1:http", Code.CONFIG_INVALID),
    ],
)
def test_a_token_is_never_sent_in_the_clear(endpoint: str, code: Code) -> None:
    """Goal: the mistake is reported before anything is sent. Method: every kind of client."""
    for make in (NotaryClient, SyncNotaryClient):
        with pytest.raises(ConfigError) as refused:
            make(endpoint, access=Access(token=TOKEN))
        assert refused.value.code is code
        assert TOKEN not in str(refused.value)


async def test_a_stream_has_the_same_rule() -> None:
    """Goal: the stream is no way round it. Method: plain HTTP with a token, beyond loopback; TLS would do."""
    with pytest.raises(ConfigError) as refused:
        SubmissionStream("http://notary.example", access=Access(token=TOKEN))
    assert refused.value.code is Code.PLAINTEXT_EXPOSED
    SubmissionStream("https://notary.example", access=Access(token=TOKEN))
    SubmissionStream("http://127.0.0.1:1", access=Access(token=TOKEN))


def test_certificates_are_checked_when_a_client_is_made(tmp_path: Path) -> None:
    """Goal: no retries with files that cannot work. Method: half a pair, a key for all to read, no PEM, plain HTTP."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    good = Access(ca_file=authority.ca_file, certificate_file=certificate, key_file=key)
    NotaryClient("https://notary.example", access=good)
    for bad in (
        Access(certificate_file=certificate),
        Access(certificate_file=certificate, key_file=authority.ca_file),
        Access(ca_file=key),
        Access(ca_file=tmp_path / "missing.pem"),
    ):
        with pytest.raises(ConfigError):
            NotaryClient("https://notary.example", access=bad)
    with pytest.raises(ConfigError):
        NotaryClient("http://127.0.0.1", access=good)
    key.chmod(0o644)
    with pytest.raises(ConfigError) as unsafe:
        NotaryClient("https://notary.example", access=good)
    assert unsafe.value.code is Code.KEY_UNSAFE


@pytest.mark.parametrize("text", ["", "two words", "a\nHeader: b", "ä", "x" * 9_000, "a" + chr(0)])
async def test_what_cannot_be_a_token_is_refused(tmp_path: Path, text: str) -> None:
    """Goal: nothing gets into a header that does not belong there, and no error has it. Method: every source."""
    with pytest.raises(ConfigError) as refused:
        NotaryClient("https://notary.example", access=Access(token=text))
    assert not text or text not in str(refused.value)
    with pytest.raises(ConfigError):
        await Bearer(write(tmp_path / "token", text)).token()
    with pytest.raises(TokenUnavailable):
        await Bearer(lambda: text).token()


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """Goal: rotation needs nobody. Method: another text; a file that is gone, or open to all, leaves the last good."""
    path = write(tmp_path / "token", TOKEN + "\n")
    bearer = Bearer(path)
    assert await bearer.token() == TOKEN
    write(path, "second")
    assert await bearer.token() == "second"
    write(path, "third", mode=0o644)
    assert await bearer.token() == "second"
    path.unlink()
    assert await bearer.token() == "second"
    assert not await bearer.renew("second")
    assert "cannot be read" in bearer.explain(REFUSED).detail
    write(path, "fourth")
    assert await bearer.renew("second")
    assert await bearer.token() == "fourth"


async def test_a_file_that_was_never_good_is_told(tmp_path: Path) -> None:
    """Goal: a client does not start without its token. Method: no file; one that others can read."""
    with pytest.raises(ConfigError):
        await Bearer(tmp_path / "missing").token()
    client = SyncNotaryClient("http://127.0.0.1:1", access=Access(token=write(tmp_path / "t", TOKEN, mode=0o640)))
    with pytest.raises(ConfigError) as unsafe, client:
        pass
    assert unsafe.value.code is Code.KEY_UNSAFE


async def test_many_that_are_refused_ask_once() -> None:
    """Goal: an expired token is no flood at the issuer. Method: a hundred at once, of a source that is slow."""
    asked = 0

    async def issue() -> str:
        nonlocal asked
        asked += 1
        number = asked
        await asyncio.sleep(0)
        return f"token-{min(number, 2)}"

    bearer = Bearer(issue)
    assert set(await asyncio.gather(*(bearer.token() for _ in range(100)))) == {"token-1"}
    assert asked == 1
    assert await asyncio.gather(*(bearer.renew("token-1") for _ in range(100))) == [True] * 100
    assert (asked, await bearer.token()) == (2, "token-2")
    assert await asyncio.gather(*(bearer.renew("token-2") for _ in range(100))) == [False] * 100
    assert asked == 3
    assert await bearer.renew("token-1"), "who was late finds that there is another one already"
    assert asked == 3


async def test_whether_to_wait_for_another_token() -> None:
    """Goal: what may change is waited for, once it was good. Method: each source, a problem of another kind."""
    for source, was_good, waits in ((TOKEN, True, False), (lambda: TOKEN, True, True), (lambda: TOKEN, False, False)):
        bearer = Bearer(source)
        assert await bearer.outlives(REFUSED, await bearer.token(), was_good) is waits
    assert not await Bearer(lambda: TOKEN).outlives(problem_document(Code.PERMISSION_DENIED, "x"), None, True)


async def test_a_source_that_raises_is_a_typed_error() -> None:
    """Goal: one kind of error to catch, and no secret in its text. Method: a function that raises with one."""

    def fails() -> str:
        raise RuntimeError(TOKEN)

    with pytest.raises(TokenUnavailable) as missing:
        async with NotaryClient("http://127.0.0.1:1", access=Access(token=fails)):
            pass
    assert missing.value.code is Code.TOKEN_MISSING
    assert TOKEN not in str(missing.value)


def test_nothing_shows_a_token(tmp_path: Path) -> None:
    """Goal: an access may be logged with all else. Method: its repr; settings name files and have no value."""
    assert TOKEN not in repr(Access(token=TOKEN))
    settings = ClientSettings(token_file=write(tmp_path / "token", TOKEN))
    assert TOKEN not in repr(settings)
    assert access_of(settings).token == tmp_path / "token"
    assert access_of(ClientSettings()) == Access()
    assert os.fspath(tmp_path) in repr(settings)


@pytest.mark.parametrize("token", [TOKEN, "a.b.c", "a.bnVsbA.c", "a.eyJzdWIiOjF9.c", "a.eyJ4IjoxfQ.c"])
def test_a_token_that_names_no_user_is_an_error(token: str) -> None:
    """Goal: no crash on what an application gives. Method: no claims, no base64, no object, no text, no `sub`."""
    with pytest.raises(ConfigError, match="sub"):
        user_of(token)


def test_the_user_of_a_token_is_its_sub() -> None:
    """Goal: who has a token knows whom to sign for. Method: a user in two alphabets; no token."""
    assert user_of(Issuer().token(sub="Казна 1")) == "Казна 1"
    assert user_of(None) == "anonymous"
