"""A key management service that does not let the notary sign: what an operator sees, and how a start ends.

The service is a double in this process (tests/worlds/kms_double.py). A real one: tests/integration/test_signer_kms.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from replica.active.signer import check_signer, open_signer
from replica.cli.replica import replica_settings
from replica.config.load import load_config
from replica.failure import error_document, exit_code
from replica.notary.codes import Code
from replica.notary.errors import NotaryError, SignerUnavailable
from replica.process import _look
from replica.settings import KmsSettings
from tests.certificates import Authority
from tests.unit.cli.test_codes_that_people_see import told
from tests.unit.cli.test_what_people_see import folder, free_port, see, write  # noqa: F401  (fixtures)
from tests.worlds.kms_double import KmsDouble, kms_double

SECRET = "kms-secret-of-a-test"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "notary", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
START_MAX_S = 60.0  # the machine may be busy
CREDENTIALS, SERVICE = "renew the credentials in this command's environment", "check kms.key_id, kms.endpoint"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials in the environment, and none anywhere else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))


@pytest.fixture
def double() -> Iterator[KmsDouble]:
    with kms_double() as served:
        yield served


def point_to(folder: Path, port: int, scheme: str = "http", ca_file: Path | None = None) -> None:  # noqa: F811
    """The configuration's key is in the service at this port."""
    table = f'[kms]\nkey_id = "alias/notary-1"\nregion = "eu-west-2"\nendpoint = "{scheme}://127.0.0.1:{port}"\n'
    if ca_file is not None:
        table += f'ca_file = "{ca_file}"\n'
    write(folder, 'notary_key_file = "notary.key"\n', "")
    (folder / "notary.toml").write_text((folder / "notary.toml").read_text() + table)


def other_curve(double: KmsDouble) -> None:
    double.key = ec.generate_private_key(ec.SECP384R1())


def other_usage(double: KmsDouble) -> None:
    double.usage = "KEY_AGREEMENT"


def without_credentials(double: KmsDouble) -> None:
    del os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]  # `environment` puts them back


def refused(code: str, words: str, status: int = 400) -> Callable[[KmsDouble], None]:
    return lambda double: double.refuse(code, words, status=status)


DENIED, CONFIG, SILENT = Code.SIGNER_ACCESS_DENIED, Code.CONFIG_INVALID, Code.SIGNER_UNAVAILABLE
WRONG: dict[str, tuple[Callable[[KmsDouble], None], Code, str]] = {
    "no right": (
        refused("AccessDeniedException", "User: arn:aws:iam::1:user/n is not authorized to perform: kms:GetPublicKey"),
        DENIED,
        "AccessDeniedException: User: arn:aws:iam::1:user/n is not authorized to perform: kms:GetPublicKey",
    ),
    "an expired token": (
        refused("ExpiredTokenException", "The security token included in the request is expired"),
        DENIED,
        "ExpiredTokenException: The security token included in the request is expired",
    ),
    "a secret that is another's": (
        refused("InvalidSignatureException", "The request signature we calculated does not match"),
        DENIED,
        "InvalidSignatureException: The request signature",
    ),
    "a 403 of a server with codes of its own": (refused("permission denied", "no", 403), DENIED, "permission denied"),
    "no credentials": (without_credentials, DENIED, "no credentials for the key management service"),
    "no such key": (
        refused("NotFoundException", "Alias arn:aws:kms:eu-west-2:1:alias/notary-1 is not found."),
        CONFIG,
        "kms.key_id: the key management service refused get_public_key: NotFoundException: Alias",
    ),
    "a key of another algorithm": (other_curve, CONFIG, "kms.key_id: 'alias/notary-1' is no key of ECDSA P-256"),
    "a key for other uses": (other_usage, CONFIG, "kms.key_id: 'alias/notary-1' is for KEY_AGREEMENT, not for SIGN_"),
    "a disabled key": (refused("DisabledException", "key/1 is disabled."), SILENT, "DisabledException: key/1 is disa"),
}


def seen_by_an_operator(folder: Path, see, code: Code, words: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """What the doctor, `keys show` and a replica's start say: the code, the words, what to do."""
    fix = CREDENTIALS if code is DENIED else SERVICE
    found = {one["check"]: one for one in json.loads(see("doctor", "--json").out)["findings"]}["notary-key"]
    assert (found["severity"], found["text"].startswith(f"{code.name}: ")) == ("problem", True), found
    assert (words in found["text"], found["fix"].startswith(fix)) == (True, True), found
    assert "\n" not in found["text"]
    shown = see("keys", "show", "--kms")
    assert (told(shown.err, code.name), words in shown.err) == (True, True), shown.err
    with pytest.raises(NotaryError) as ended:
        _look(replica_settings(load_config(folder / "notary.toml"), "r1"))
    document = error_document(ended.value)
    assert (document["code"], document["remedy"], words in document["detail"]) == (code.name, code.remedy, True)
    assert exit_code(ended.value) == (2 if code.person else 1)
    for text in (found["text"], shown.err, document["detail"]):
        assert SECRET not in text
        assert "Traceback" not in text


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRONG)
def test_each_refusal_has_its_code_and_its_remedy(folder: Path, see, double: KmsDouble, name: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: one line says what is wrong, another what to do, wherever it shows. Method: one wrong thing each."""
    break_it, code, words = WRONG[name]
    point_to(folder, double.port)
    break_it(double)
    seen_by_an_operator(folder, see, code, words)


@pytest.mark.parametrize("name", ["an expired token", "no such key", "a disabled key"])
def test_the_steps_of_an_installation_say_it_too(folder: Path, see, double: KmsDouble, name: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: an installation that is stuck there says why. Method: a refusal of each code, `notary init --check`."""
    break_it, code, _ = WRONG[name]
    point_to(folder, double.port)
    break_it(double)
    checked = see("init", str(folder), "--check")
    row = " ".join(checked.out.split())
    assert (checked.code, f"{code.name}: " in row, SECRET in row) == (1, True, False), row
    assert (CREDENTIALS if code is DENIED else SERVICE) in row, row


def test_a_replica_that_starts_says_so_in_its_log(folder: Path, double: KmsDouble) -> None:  # noqa: F811
    """Goal: its supervisor starts it again, and its last line says what to do. Method: the program; no right."""
    break_it, code, words = WRONG["no right"]
    point_to(folder, double.port)
    break_it(double)
    argv = [sys.executable, "-m", "replica.cli", "replica", "--name", "r1"]
    start = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=START_MAX_S, check=False)
    assert (start.returncode, "Traceback" in start.stdout + start.stderr) == (1, False), start.stderr
    line = json.loads(start.stdout.splitlines()[-1])
    assert (line["event"], line["code"], line["remedy"]) == ("replica_failed", code.name, code.remedy), start.stdout
    assert words in line["detail"]
    assert line["code"] == "SIGNER_ACCESS_DENIED"


def test_a_service_that_is_well_is_no_finding(folder: Path, see, double: KmsDouble) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: the double refuses nothing by itself. Method: the doctor, with nothing wrong."""
    point_to(folder, double.port)
    found = {one["check"]: one for one in json.loads(see("doctor", "--json").out)["findings"]}["notary-key"]
    assert found["severity"] == "ok", found
    assert set(double.access_keys) == {"notary"}


def test_an_authority_that_does_not_vouch_for_the_service(folder: Path, see, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: nobody looks for an outage where the CA is wrong. Method: TLS; another authority, none, its own."""
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    with kms_double(authority.issue("kms")) as served:
        point_to(folder, served.port, "https", other.ca_file)
        seen_by_an_operator(folder, see, SILENT, "check kms.ca_file and kms.endpoint: SSLError: ")
        point_to(folder, served.port, "https", tmp_path / "nowhere.pem")
        seen_by_an_operator(folder, see, CONFIG, "kms.ca_file: ")
        point_to(folder, served.port, "https", authority.ca_file)
        assert see("keys", "show", "--kms").code == 0


def test_a_service_that_speaks_no_tls_where_tls_is_asked(folder: Path, see, double: KmsDouble) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Goal: the endpoint is named. Method: https to a plain listener."""
    point_to(folder, double.port, "https")
    shown = see("keys", "show", "--kms")
    assert (told(shown.err, "SIGNER_UNAVAILABLE"), "kms.endpoint: SSLError" in shown.err) == (True, True), shown.err


def test_credentials_that_are_renewed_in_their_file_need_no_restart(
    double: KmsDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a replica that runs signs again once its file is renewed. Method: refuse the old ones; renew; sign."""
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text(f"[default]\naws_access_key_id = old\naws_secret_access_key = {SECRET}\n")
    settings = {"key_id": "alias/notary-1", "region": "eu-west-2", "endpoint": f"http://127.0.0.1:{double.port}"}
    signer = open_signer(KmsSettings.model_validate(settings))
    check_signer(signer)
    double.refuse("ExpiredTokenException", "expired", "Sign")
    with pytest.raises(SignerUnavailable) as failed:
        signer.sign(b"x")
    assert failed.value.code is DENIED
    file.write_text(f"[default]\naws_access_key_id = new\naws_secret_access_key = {SECRET}\n")
    double.refusals.clear()
    check_signer(signer)
    assert (double.access_keys[0], double.access_keys[-1]) == ("old", "new")
