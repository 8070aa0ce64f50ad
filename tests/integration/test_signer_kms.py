"""The notary's signing key in a real key management service (local-kms): what only a service can do to its callers.

The contract of all signers: test_signer.py. Answers that no real service gives: tests/unit/active/test_kms.py.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from replica.active.receipt_signer import ReceiptSigner
from replica.active.signer import check_signer, create_key, open_signer
from replica.cli.main import app
from replica.config.load import load_config
from replica.doctor.look_here import look_at_files
from replica.notary.answers import Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, SignerUnavailable
from replica.notary.keys import known_keys
from replica.notary.receipts import verify_receipt
from tests.unit.cli.test_config import write_config
from tests.waiting import eventually
from tests.worlds import core_world
from tests.worlds.core_world import name_of, state, submission
from tests.worlds.kms_server import ENVIRONMENT, KmsServer

RECOVERS_MAX_S = 60.0


def test_a_restart_of_the_service_costs_nothing_after_it(kms: KmsServer) -> None:
    """Goal: a clear error meanwhile, and no restart of the replica. Method: kill the service, sign, start it, sign."""
    kms.create()
    signer = open_signer(kms.settings())
    kms.stop()
    for _ in range(2):
        with pytest.raises(SignerUnavailable, match="gave no answer"):
            signer.sign(b"x")
    with pytest.raises(SignerUnavailable, match="gave no answer"):
        open_signer(kms.settings())
    kms.start()
    check_signer(signer)


def test_a_refused_signature_is_told_with_the_service_s_reason(kms: KmsServer) -> None:
    """Goal: who disabled the key finds that out, and enabling it is enough. Method: disable, sign, enable, sign."""
    key_id = kms.create()
    signer = open_signer(kms.settings())
    kms.asked("disable_key", KeyId=key_id)
    with pytest.raises(SignerUnavailable, match=r"refused sign: .*is disabled"):
        signer.sign(b"x")
    with pytest.raises(SignerUnavailable, match=r"refused get_public_key: .*is disabled"):
        open_signer(kms.settings())
    kms.asked("enable_key", KeyId=key_id)
    check_signer(signer)


@pytest.mark.thorough
def test_an_alias_that_is_given_to_another_key_changes_no_running_signer(kms: KmsServer, tmp_path: Path) -> None:
    """Goal: receipts name the key that signed them, and a start with a key that nobody knows is refused. Method: move
    the alias under a signer, sign; open another, which has the list of the notary's keys refused."""
    kms.create()
    signer = open_signer(kms.settings())
    other = kms.create("alias/other")
    kms.asked("update_alias", AliasName="alias/notary-1", TargetKeyId=other)
    check_signer(signer)
    found = open_signer(kms.settings())
    assert found.public_key != signer.public_key
    listed = tmp_path / "notary-keys.toml"
    listed.write_text(f'[[keys]]\npublic_key = "{signer.public_key.hex()}"\n')
    with pytest.raises(ConfigError, match="nobody could verify its receipts"):
        known_keys(listed, found.public_key)


@pytest.mark.thorough
def test_another_key_under_the_id_is_not_signed_with(kms: KmsServer) -> None:
    """Goal: no receipt that does not verify. Method: a service restored with another key under the same id; sign."""
    key_id = kms.create()
    signer = open_signer(kms.settings(key_id=key_id))
    kms.stop()
    kms.start({key_id: ec.generate_private_key(ec.SECP256R1())})
    with pytest.raises(SignerUnavailable, match="signed with another key"):
        signer.sign(b"x")
    assert open_signer(kms.settings(key_id=key_id)).public_key != signer.public_key


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("spec", "changes", "refusal"),
    [
        ("ECC_NIST_P256", {"key_id": "alias/nobody"}, "NotFoundException"),
        ("ECC_NIST_P384", {}, "no key of ECDSA P-256"),
        ("ECC_SECG_P256K1", {}, "no key of ECDSA P-256"),
        ("RSA_2048", {}, "no key of ECDSA P-256"),
        ("ECC_NIST_P256", {"ca_file": Path("/nowhere/ca.pem"), "endpoint": "https://127.0.0.1:1"}, "kms.ca_file: "),
    ],
)
def test_what_is_wrong_is_named(kms: KmsServer, spec: str, changes: dict[str, Any], refusal: str) -> None:
    """Goal: an operator knows what to correct. Method: one wrong thing each."""
    kms.create(spec=spec)
    with pytest.raises((ConfigError, SignerUnavailable), match=refusal) as told:
        open_signer(kms.settings(**changes))
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in str(told.value)


async def no_signer_s_thread() -> bool:
    return all(thread.name != "signer" for thread in threading.enumerate())


@pytest.mark.thorough
async def test_a_silent_service_stops_no_event_loop_and_no_start(kms: KmsServer) -> None:
    """Goal: callers wait no longer than for a late signature. Method: freeze the service; sign, while the loop counts;
    open the key anew; thaw, sign."""
    kms.create()
    signer = open_signer(kms.settings(timeout_s=5.0))
    receipts = ReceiptSigner(signer, 0.5, lambda reason, code: None)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    kms.freeze()
    counting = asyncio.create_task(count())
    with pytest.raises(SignerUnavailable, match=r"no signature within 0\.5 s"):
        await receipts.check()
    counting.cancel()
    assert turns > 10
    with pytest.raises(SignerUnavailable, match=r"gave no answer within 0\.5 s"):
        open_signer(kms.settings(timeout_s=5.0), open_max_s=0.5)
    kms.thaw()
    await eventually(no_signer_s_thread, RECOVERS_MAX_S)
    await receipts.check()


async def test_a_replica_whose_service_refuses_steps_down_and_comes_back_with_it(
    kms: KmsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no client gets a success without a receipt, nothing is lost. Method: disable the key under a running core,
    ask; it steps down and does not serve; enable it; the same request gets the recorded answer and its receipt."""
    key_id = kms.create()
    signer = open_signer(kms.settings())
    monkeypatch.setattr(core_world, "SIGNER", signer)
    async with core_world.World() as world:
        replica = await world.replica()
        await replica.until_active()
        kms.asked("disable_key", KeyId=key_id)
        asked = submission(1, [state(1)])
        (answer,) = await replica.submit(asked)
        assert isinstance(answer, NotNow)
        assert answer.code == Code.OUTCOME_UNKNOWN.name

        async def is_down() -> bool:
            return not replica.participant.standing().active

        await eventually(is_down, RECOVERS_MAX_S)
        await asyncio.sleep(1.0)
        assert await is_down()
        kms.asked("enable_key", KeyId=key_id)
        async with asyncio.timeout(RECOVERS_MAX_S):
            await replica.until_active()
            (answer,) = await replica.submit(asked)
        assert isinstance(answer, Notarised)
        assert verify_receipt(answer.receipt, signer.public_key)
        assert (answer.tx_id, answer.duplicate) == (name_of(1), True)


@pytest.mark.thorough
def test_commands_show_and_rotate_to_a_key_of_the_service(kms: KmsServer, tmp_path: Path) -> None:
    """Goal: a key moves from a file into the service, and on to another one there. Method: rotate to the next
    configuration, show, doctor, rotate to a second alias; keys that do not sign change no list."""
    first = create_key(tmp_path / "notary.key").hex()
    write_config(tmp_path)
    path, following = tmp_path / "notary.toml", tmp_path / "notary-next.toml"
    (tmp_path / "database.password").touch(mode=0o600)
    text = path.read_text()
    settings = kms.settings().model_dump(mode="json", exclude_none=True)
    table = "\n[kms]\n" + "\n".join(f"{name} = {json.dumps(of)}" for name, of in settings.items())
    following.write_text(text.replace('notary_key_file = "notary.key"', "") + table)

    def run(*words: str, config: Path = path) -> Any:
        result = CliRunner().invoke(app, [*words, "--config", str(config), "--json"], catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return result.exception
        return json.loads(result.stdout)

    assert isinstance(run("keys", "rotate", "--next-config", str(following)), ConfigError)  # no key under the alias
    kms.create()
    rotated = run("keys", "rotate", "--next-config", str(following))
    second = open_signer(kms.settings()).public_key.hex()
    assert rotated["public_key"] == second
    assert run("keys", "show", "--kms", config=following)["public_key"] == second

    path.write_text(f'notary_keys_file = "{rotated["keys_file"]}"\n' + following.read_text())
    config = load_config(path)
    assert config.notary_signer().public_key.hex() == second
    assert "notary-key" not in look_at_files(config).problems
    kms.asked("disable_key", KeyId=kms.create("alias/notary-2"))
    assert isinstance(run("keys", "rotate", "alias/notary-2"), SignerUnavailable)
    kms.create("alias/notary-3")
    third = run("keys", "rotate", "alias/notary-3")["public_key"]
    keys = known_keys(Path(rotated["keys_file"]), bytes.fromhex(third))
    assert [key.public_key for key in keys] == [first, second, third]
    kms.stop()
    assert "no answer" in look_at_files(config).problems["notary-key"]
