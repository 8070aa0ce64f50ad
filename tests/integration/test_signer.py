"""The notary's signing key in a file, on a PKCS#11 token (SoftHSM), in a KMS: one contract, and what only a token can
do. What only a KMS can do: test_signer_kms.py."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from typer.testing import CliRunner

from replica.active.receipt_signer import ReceiptSigner
from replica.active.signer import Signer, check_signer, create_key, open_signer
from replica.cli.main import app
from replica.config.load import load_config
from replica.doctor.look_here import look_at_files
from replica.notary.answers import Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, SignerUnavailable
from replica.notary.keys import known_keys
from replica.notary.receipts import make_receipts, verify_receipt
from replica.settings import Pkcs11Settings
from tests.unit.cli.test_config import write_config
from tests.waiting import eventually
from tests.worlds import core_world
from tests.worlds.core_world import name_of, state, submission
from tests.worlds.kms_server import KmsServer

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
REMOTE_MODULE = Path("/usr/lib/x86_64-linux-gnu/pkcs11/p11-kit-client.so")
TOKEN, PIN, RECOVERS_MAX_S = "notary", "482913", 60.0
BATCH = [(number.to_bytes(32, "big"), bytes(32)) for number in range(7)]


class Token:
    """A SoftHSM token of its own, in a folder; it can be taken away and put back."""

    def __init__(self, folder: Path) -> None:
        self._tokens, self._away = folder / "tokens", folder / "away"
        self._tokens.mkdir(parents=True)
        self.pin_file = folder / "pin"
        self.pin_file.touch(mode=0o600)
        self.pin_file.write_text(f"{PIN}\n")
        configuration = folder / "softhsm2.conf"
        configuration.write_text(
            f"directories.tokendir = {self._tokens}\nobjectstore.backend = file\nlog.level = ERROR\n"
        )
        self.environment = {"SOFTHSM2_CONF": str(configuration)}
        argv = ["softhsm2-util", "--init-token", "--free", "--label", TOKEN, "--pin", PIN, "--so-pin", PIN]
        subprocess.run(argv, env=os.environ | self.environment, check=True, capture_output=True)

    def settings(self, **changes: Any) -> Pkcs11Settings:
        given = {"module": MODULE, "token_label": TOKEN, "key_label": "notary-1", "pin_file": self.pin_file}
        return Pkcs11Settings.model_validate(given | changes)

    def take_away(self) -> None:
        self._tokens.rename(self._away)
        self._tokens.mkdir()

    def put_back(self) -> None:
        self._tokens.rmdir()
        self._away.rename(self._tokens)


class Served:
    """The token in a process of its own, p11-kit's server: as a KMS is, with a module that asks it over a socket."""

    def __init__(self, token: Token, folder: Path) -> None:
        self.socket = folder / "p11-kit"
        argv = ["p11-kit", "server", "--foreground", "--name", str(self.socket), "--provider", str(MODULE)]
        self._server = subprocess.Popen(
            [*argv, f"pkcs11:token={TOKEN}"],
            env=os.environ | token.environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self._server.pid, number)  # it serves each connection in a process

    def stop(self) -> None:
        self.signal(signal.SIGKILL)
        self._server.wait()
        self.socket.unlink(missing_ok=True)


@pytest.fixture
async def served(
    token: Token, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    """The token behind a server that answers. Its socket has one name in all tests: the module reads it once."""
    if not REMOTE_MODULE.exists() or shutil.which("p11-kit") is None:
        pytest.skip("NOT CHECKED: Debian's packages p11-kit and p11-kit-modules are not on this machine")
    made = Served(token, tmp_path_factory.getbasetemp())

    async def listens() -> bool:
        with closing(socket.socket(socket.AF_UNIX)) as asks:
            return asks.connect_ex(str(made.socket)) == 0  # the name is there a little earlier

    try:
        await eventually(listens, RECOVERS_MAX_S)
        monkeypatch.setenv("P11_KIT_SERVER_ADDRESS", f"unix:path={made.socket}")
        yield made
    finally:
        made.stop()


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Token]:
    """A new token. SoftHSM reads where its tokens are whenever the module is initialised."""
    if not MODULE.exists() or shutil.which("softhsm2-util") is None:
        pytest.skip("NOT CHECKED: Debian's package softhsm2 is not on this machine")
    made = Token(tmp_path / "hsm")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made


def file_signer(folder: Path) -> Signer:
    create_key(folder / "notary.key")
    return open_signer(folder / "notary.key")


def token_signer(token: Token) -> Signer:
    from replica.active.pkcs11 import create_token_key

    public_key = create_token_key(token.settings())
    signer = open_signer(token.settings())
    assert signer.public_key == public_key
    return signer


def p256_file_signer(folder: Path) -> Signer:
    created = create_key(folder / "notary.key", "p256")
    signer = open_signer(folder / "notary.key")
    assert signer.public_key == created
    return signer


def p256_token_signer(token: Token) -> Signer:
    from replica.active.pkcs11 import create_token_key

    public_key = create_token_key(token.settings(), "p256")
    signer = open_signer(token.settings())
    assert (signer.public_key, len(public_key)) == (public_key, 65)
    return signer


def verify_with_another_library(public_key: bytes, signature: bytes, message: bytes) -> None:
    """Raises InvalidSignature."""
    assert len(signature) == 64
    if len(public_key) == 32:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
        return
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public_key)
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    point.verify(encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))


def kms_signer(kms: KmsServer) -> Signer:
    kms.create()
    return open_signer(kms.settings())


KINDS = [
    (file_signer, "tmp_path"),
    (p256_file_signer, "tmp_path"),
    (token_signer, "token"),
    (p256_token_signer, "token"),
    (kms_signer, "kms"),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind[0].__name__)
def signer(request: pytest.FixtureRequest) -> Signer:
    """A signer of each kind, with a new key."""
    make, needed = request.param
    made: Signer = make(request.getfixturevalue(needed))
    return made


# ---- the contract ----


def test_signatures_are_of_the_key_that_is_shown_and_its_algorithm(signer: Signer) -> None:
    """Goal: anybody can verify. Method: another library, messages of all sizes."""
    for message in (b"", b"a", b"notary" * 20, bytes(100_000)):
        verify_with_another_library(signer.public_key, signer.sign(message), message)
    check_signer(signer)


def test_receipts_verify(signer: Signer) -> None:
    """Goal: what clients get is proof. Method: a batch of receipts, each by the key alone."""
    receipts = make_receipts(BATCH, signer.public_key, signer.sign)
    assert all(verify_receipt(receipt, signer.public_key) for receipt in receipts)


def test_any_thread_may_sign(signer: Signer) -> None:
    """Goal: no signature of another message, no crash. Method: eight threads, each its own messages."""
    messages = [b"message %d" % number for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        for message, signature in zip(messages, threads.map(signer.sign, messages), strict=True):
            verify_with_another_library(signer.public_key, signature, message)


async def test_a_notary_answers_with_it(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the core works with either. Method: a whole core; many submissions, one again, a look-up; every receipt."""
    monkeypatch.setattr(core_world, "SIGNER", signer)
    async with core_world.World() as world:
        replica = await world.replica()
        await replica.until_active()
        asked = [submission(number, [state(number)]) for number in range(1, 41)]
        answers = await replica.submit(*asked)
        answers += await replica.submit(asked[0])
        answers.append(await replica.link.look_up(name_of(2)))
        for answer in answers:
            assert isinstance(answer, Notarised)
            assert verify_receipt(answer.receipt, signer.public_key)


# ---- a token ----


def test_the_private_key_never_leaves_the_token(token: Token, signer: Signer) -> None:
    """Goal: who has the machine has not the key. Method: ask the token for the private value, as the user."""
    import pkcs11

    from replica.active.pkcs11 import create_token_key, open_session

    create_token_key(token.settings(key_label="other"))
    session = open_session(token.settings())
    key = session.get_key(object_class=pkcs11.ObjectClass.PRIVATE_KEY, label="other")
    assert key[pkcs11.Attribute.SENSITIVE]
    assert not key[pkcs11.Attribute.EXTRACTABLE]
    with pytest.raises(pkcs11.PKCS11Error):
        key[pkcs11.Attribute.VALUE]
    session.close()
    check_signer(signer)  # whose session that other one ended


def test_a_lost_session_is_opened_again(token: Token) -> None:
    """Goal: a restart of the token costs nothing. Method: end all sessions under the signer, four ways; sign."""
    import pkcs11

    signer = token_signer(token)
    library = pkcs11.lib(str(MODULE))
    losses: list[Callable[[], object]] = [
        library.reinitialize,
        library.finalize,
        signer.close,  # type: ignore[attr-defined]
        signer._session.close,  # type: ignore[attr-defined]
    ]
    for lose in losses:
        lose()
        check_signer(signer)


def test_a_token_that_is_gone_is_told_and_serves_again_when_it_is_back(token: Token) -> None:
    """Goal: a clear error, and no restart needed. Method: take the token away, sign, put it back, sign."""
    signer = token_signer(token)
    token.take_away()
    signer.close()  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(SignerUnavailable, match="there is no token 'notary'"):
            signer.sign(b"x")
    with pytest.raises(SignerUnavailable):
        open_signer(token.settings())
    token.put_back()
    check_signer(signer)


def test_another_key_under_the_label_is_not_signed_with(token: Token) -> None:
    """Goal: receipts name the key that signed them. Method: a token restored with a new key while a session is lost."""
    import pkcs11

    from replica.active.pkcs11 import create_token_key, open_session

    signer = token_signer(token)
    session = open_session(token.settings(), writable=True)
    for found in session.get_objects({pkcs11.Attribute.LABEL: "notary-1"}):
        found.destroy()
    session.close()
    with pytest.raises(SignerUnavailable, match="no Ed25519 or P-256 key pair"):
        signer.sign(b"x")
    create_token_key(token.settings())
    with pytest.raises(SignerUnavailable, match="another key"):
        signer.sign(b"x")


def test_a_refused_pin_is_tried_once(token: Token) -> None:
    """Goal: no replica locks the token by trying again and again. Method: a PIN that changes under a signer; count."""
    from replica.active import pkcs11 as room

    signer = token_signer(token)
    tries = []
    original = room.open_session
    token.pin_file.write_text("000000")
    signer.close()  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "open_session", lambda settings, **how: (tries.append(1), original(settings, **how))[1])
        for _ in range(5):
            with pytest.raises(SignerUnavailable, match="does not take the PIN"):
                signer.sign(b"x")
    assert len(tries) == 1
    with pytest.raises(ConfigError, match="does not take the PIN"):
        open_signer(token.settings())


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"module": Path("/nowhere/module.so")}, "no PKCS#11 module"),
        ({"module": Path("/bin/true")}, "no PKCS#11 module"),
        ({"key_label": "other"}, "no Ed25519 or P-256 key pair 'other'"),
        ({"pin_file": Path("/nowhere/pin")}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(token: Token, changes: dict[str, Any], refusal: str) -> None:
    """Goal: an operator knows what to correct. Method: one wrong setting each."""
    token_signer(token)
    with pytest.raises(ConfigError, match=refusal):
        open_signer(token.settings(**changes))


async def test_a_token_that_is_silent_while_it_is_opened_again_stops_no_event_loop(
    token: Token, served: Served
) -> None:
    """Goal: callers wait no longer than for a late signature, and the process goes on. Method: a token behind a server,
    whose session is lost and which then freezes; sign. A process outside thaws it, should this one have stopped."""
    from replica.active.pkcs11 import create_token_key

    create_token_key(token.settings())
    signer = open_signer(token.settings(module=REMOTE_MODULE))
    signer.close()  # type: ignore[attr-defined]
    served.signal(signal.SIGSTOP)
    server = served._server.pid
    thaws = subprocess.Popen(["sh", "-c", f"sleep 20; kill -CONT -{server}"])
    with pytest.raises(SignerUnavailable, match=r"no signature within 0\.5 s"):
        await ReceiptSigner(signer, 0.5, lambda reason, code: None).check()
    assert thaws.poll() is None
    thaws.kill()
    thaws.wait()
    served.signal(signal.SIGCONT)

    async def is_done() -> bool:
        return all(thread.name != "signer" for thread in threading.enumerate())

    await eventually(is_done, RECOVERS_MAX_S)
    signer.close()  # type: ignore[attr-defined]


async def test_a_silent_token_is_given_up_at_a_start(token: Token, served: Served) -> None:
    """Goal: a start, or the doctor, ends with an error that names the token. Method: open a key on a frozen server."""
    served.signal(signal.SIGSTOP)
    with pytest.raises(SignerUnavailable, match=r"the notary's key gave no answer within 0\.5 s"):
        open_signer(token.settings(module=REMOTE_MODULE), open_max_s=0.5)
    served.signal(signal.SIGCONT)

    async def is_done() -> bool:
        return all(thread.name != "signer" for thread in threading.enumerate())

    await eventually(is_done, RECOVERS_MAX_S)


async def test_a_replica_whose_token_fails_steps_down_and_comes_back_with_it(
    token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no client gets a success without a receipt, nothing is lost. Method: take the token from a running core,
    ask; it steps down and does not serve; put it back; the same request gets the recorded answer and its receipt."""
    signer = token_signer(token)
    monkeypatch.setattr(core_world, "SIGNER", signer)
    async with core_world.World() as world:
        replica = await world.replica()
        await replica.until_active()
        token.take_away()
        signer.close()  # type: ignore[attr-defined]
        asked = submission(1, [state(1)])
        (answer,) = await replica.submit(asked)
        assert isinstance(answer, NotNow)
        assert answer.code == Code.OUTCOME_UNKNOWN.name

        async def is_down() -> bool:
            return not replica.participant.standing().active

        await eventually(is_down, RECOVERS_MAX_S)
        await asyncio.sleep(1.0)
        assert await is_down()
        token.put_back()
        async with asyncio.timeout(RECOVERS_MAX_S):
            await replica.until_active()
            (answer,) = await replica.submit(asked)
        assert isinstance(answer, Notarised)
        assert verify_receipt(answer.receipt, signer.public_key)
        assert (answer.tx_id, answer.duplicate) == (name_of(1), True)


# ---- commands ----


def test_commands_make_show_and_rotate_a_key_on_the_token(token: Token, tmp_path: Path) -> None:
    """Goal: an operator needs no vendor tool. Method: create, twice, show, doctor, rotate."""
    write_config(tmp_path)
    path = tmp_path / "notary.toml"
    (tmp_path / "database.password").touch(mode=0o600)
    text = path.read_text().replace('notary_key_file = "notary.key"', "")
    settings = token.settings().model_dump(mode="json")
    path.write_text(text + "\n[pkcs11]\n" + "\n".join(f"{name} = {json.dumps(of)}" for name, of in settings.items()))

    def run(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "--config", str(path), "--json"], catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return result.exception
        return json.loads(result.stdout)

    created = run("keys", "create", "--pkcs11")["public_key"]
    assert isinstance(run("keys", "create", "--pkcs11"), ConfigError)
    assert run("keys", "show", "--pkcs11")["public_key"] == created
    config = load_config(path)
    assert config.notary_signer().public_key.hex() == created
    assert "notary-key" not in look_at_files(config).problems
    rotated = run("keys", "rotate", "notary-2")
    signer = open_signer(token.settings(key_label="notary-2"))
    assert signer.public_key.hex() == rotated["public_key"] != created
    keys = known_keys(Path(rotated["keys_file"]), signer.public_key)
    assert [key.public_key for key in keys] == [created, rotated["public_key"]]
    token.take_away()
    assert "no token" in look_at_files(config).problems["notary-key"]


def test_no_thread_is_left(token: Token) -> None:
    """Goal: a token does not keep a process from ending. Method: the names of all threads that are not daemons."""
    check_signer(token_signer(token))
    assert [thread.name for thread in threading.enumerate() if not thread.daemon] == ["MainThread"]
