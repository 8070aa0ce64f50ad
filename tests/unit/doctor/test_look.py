"""The doctor's look at broken set-ups: whatever is missing becomes a finding with a fix, and the look goes on."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from haproxy.render import ReplicaAddress
from replica.active.signer import create_key
from replica.config.file import render_config
from replica.config.load import make_config
from replica.config.model import Config
from replica.doctor import look
from replica.doctor.checks import check_names
from replica.doctor.facts import BalancerFacts, DatabaseFacts, LogFacts, ReplicaFacts
from replica.doctor.look import look_at_balancer, look_at_issuer
from replica.doctor.look_here import look_at_files, look_at_machine
from tests.certificates import Authority

NOBODY = "127.0.0.1:1"
Values = dict[str, Any]


class SetUp:
    """A participant's folder with every file that it can have; none of its servers runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = Authority(folder / "pki")
        self.ca_file = authority.ca_file
        self.api, self.kafka, self.other = (authority.issue(name) for name in ("api", "kafka", "other"))
        self.key, self.keys = folder / "notary.key", folder / "notary-keys.toml"
        public = create_key(self.key)
        self.keys.write_text(f'[[keys]]\npublic_key = "{public.hex()}"\n')
        self.operators, self.revoked = folder / "operators.toml", folder / "revoked"
        self.operators.write_text(f'[[operators]]\nname = "anna"\npublic_key = "{public.hex()}"\n')
        self.revoked.touch()
        self.password, self.reader, self.sasl = (folder / f"{name}.password" for name in ("database", "reader", "sasl"))
        for path in (self.password, self.reader, self.sasl):
            path.touch(mode=0o600)
            path.write_text("secret\n")
        self.values: Values = {
            "data_dir": str(folder / "data"),
            "notary_key_file": str(self.key),
            "notary_keys_file": str(self.keys),
            "endpoint": {"host": "127.0.0.1", "port": 1},
            "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
            "database": {
                "conninfo": "host=127.0.0.1 port=1 dbname=notary user=notary",
                "password_file": str(self.password),
                "reader_user": "reader",
                "reader_password_file": str(self.reader),
                "scope": "notary",
            },
            "log": {
                "kafka": {
                    "bootstrap_servers": NOBODY,
                    "answer_max_s": 1.0,
                    "security": {
                        "protocol": "SASL_SSL",
                        "ca_file": str(self.ca_file),
                        "certificate_file": str(self.kafka[0]),
                        "key_file": str(self.kafka[1]),
                        "sasl_username": "notary",
                        "sasl_password_file": str(self.sasl),
                    },
                }
            },
            "api": {
                "tls": {
                    "certificate_file": str(self.api[0]),
                    "key_file": str(self.api[1]),
                    "client_ca_file": str(self.ca_file),
                },
                "tokens": {
                    "keys_file": str(self.other[0]),
                    "revoked_file": str(self.revoked),
                    "audience": "notary",
                },
            },
            "operators": {"keys_file": str(self.operators)},
            "tracing": {"endpoint": f"https://{NOBODY}/v1/traces", "ca_file": str(self.ca_file)},
            "haproxy": {"stats_socket": str(folder / "admin.sock"), "state_file": str(folder / "server.state")},
        }

    def config(self) -> Config:
        return make_config(self.values, self.folder, "test")

    def write(self) -> Path:
        path = self.folder / "notary.toml"
        path.write_text(render_config(self.values, "test"))
        return path

    def point(self, table: str, name: str) -> None:
        """Have a setting name a file that is not there."""
        found = self.values
        for part in table.split("."):
            found = found[part]
        found[name] = str(self.folder / "missing")


@pytest.fixture
def set_up(tmp_path: Path) -> SetUp:
    return SetUp(tmp_path)


def _token(set_up: SetUp) -> None:
    del set_up.values["notary_key_file"]
    pin = set_up.folder / "pin"
    set_up.values["pkcs11"] = {"module": "/no/module.so", "token_label": "t", "key_label": "k", "pin_file": str(pin)}


BROKEN: dict[str, tuple[str, Callable[[SetUp], object]]] = {
    "no database password": ("database-password", lambda it: it.password.unlink()),
    "a password for all to read": ("database-password", lambda it: it.password.chmod(0o644)),
    "a password that is no text": ("database-password", lambda it: it.password.write_bytes(b"\xff\xfe")),
    "no password of the reader": ("database-password", lambda it: it.reader.unlink()),
    "no key": ("notary-key", lambda it: it.key.unlink()),
    "a key that is none": ("notary-key", lambda it: it.key.write_text("secret")),
    "a key for all to read": ("notary-key", lambda it: it.key.chmod(0o644)),
    "no list of public keys": ("notary-key", lambda it: it.keys.unlink()),
    "another key's list": ("notary-key", lambda it: it.keys.write_text(f'[[keys]]\npublic_key = "{"ab" * 32}"\n')),
    "no token and no PIN": ("notary-key", _token),
    "operators' keys for the group to write": ("operator-keys", lambda it: it.operators.chmod(0o664)),
    "keys for tokens for the group to write": ("token-keys", lambda it: it.other[0].chmod(0o664)),
    "revoked tokens for all to write": ("token-keys", lambda it: it.revoked.chmod(0o646)),
    "no CA of the brokers": ("log-secrets", lambda it: it.point("log.kafka.security", "ca_file")),
    "no certificate for the brokers": ("log-secrets", lambda it: it.kafka[0].unlink()),
    "no key for the brokers": ("log-secrets", lambda it: it.kafka[1].unlink()),
    "a key for the brokers for all": ("log-secrets", lambda it: it.kafka[1].chmod(0o640)),
    "no password for the brokers": ("log-secrets", lambda it: it.sasl.unlink()),
    "a password for the brokers that is no text": ("log-secrets", lambda it: it.sasl.write_bytes(b"\xff")),
    "no certificate of the API": ("api-certificates", lambda it: it.api[0].unlink()),
    "a certificate that is none": ("api-certificates", lambda it: it.api[0].write_text("certificate")),
    "no key of the API": ("api-certificates", lambda it: it.api[1].unlink()),
    "another certificate's key": ("api-certificates", lambda it: it.api[1].write_bytes(it.other[1].read_bytes())),
    "no CA of the clients": ("api-certificates", lambda it: it.point("api.tls", "client_ca_file")),
    "no keys for tokens": ("token-keys", lambda it: it.point("api.tokens", "keys_file")),
    "keys for tokens that are none": ("token-keys", lambda it: it.other[0].write_text("{}")),
    "no CA of the collector": ("tracing", lambda it: it.point("tracing", "ca_file")),
}  # fmt: skip


def test_a_whole_set_up_has_every_file_as_a_replica_needs_it(set_up: SetUp) -> None:
    """Goal: what is broken below was well before. Method: look at all files of the set-up as it is made."""
    found = look_at_files(set_up.config())
    assert (found.problems, found.password_in_conninfo) == ({}, False)
    assert {"api.tls.certificate_file", "log.kafka.security.ca_file", "tracing.ca_file"} <= set(found.certificates)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_a_finding_of_its_own_check(set_up: SetUp, name: str) -> None:
    """Goal: one broken file, one finding, and all others are looked at as well. Method: break one at a time."""
    check, break_it = BROKEN[name]
    break_it(set_up)
    found = look_at_files(set_up.config()).problems
    assert set(found) == {check}
    assert found[check]


def test_salvages_are_found_by_replica_and_a_damaged_one_is_a_finding(set_up: SetUp) -> None:
    """Goal: a replica that could not start, or not lead, is found before it must. Method: none, an empty folder, one
    that is no salvage."""
    config = set_up.config()
    assert look_at_files(config).salvages == {}
    folder = config.replica_dir("r1") / "salvages"
    folder.mkdir(parents=True)
    assert look_at_files(config).salvages == {"r1": frozenset()}
    (folder / f"{'ab' * 32}.salvage").write_bytes(b"none")
    found = look_at_files(config)
    assert set(found.problems) == {"salvages"}
    assert found.salvages == {}


async def doctor(set_up: SetUp, path: Path) -> tuple[int | None, dict[str, dict[str, str]]]:
    """The exit code of `notary doctor`, and its findings by check. Its standard output is JSON and nothing else."""
    argv = [sys.executable, "-m", "replica.cli", "doctor", "--json", "--config", str(path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return process.returncode, {found["check"]: found for found in json.loads(printed)["findings"]}


async def test_with_everything_broken_every_check_still_reports(set_up: SetUp) -> None:
    """Goal: no input of the doctor's ends it. Method: no file, no server, a socket of another program; the command."""
    path = set_up.write()
    for file in set_up.folder.rglob("*"):
        if file.is_file() and file != path:
            file.unlink()
    async with talking_nonsense(set_up.folder / "admin.sock"):
        code, findings = await doctor(set_up, path)
    assert (code, list(findings)) == (1, check_names())
    problems = {name for name, found in findings.items() if found["severity"] == "problem"}
    assert {check for check, _ in BROKEN.values()} <= problems
    assert {"active", "passives", "endpoint"} <= problems
    assert all(findings[name]["fix"] for name in problems)
    assert {findings[name]["severity"] for name in ("database-session", "log-servers", "haproxy")} == {"unknown"}


async def test_replicas_are_asked_before_anything_else_takes_time(
    set_up: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: on a busy machine no replica is called dead because the doctor itself was slow, loading libraries.
    Method: the other parts note which replicas have answered when they begin."""
    set_up.values["replicas"].append({"name": "r2", "host": "127.0.0.1", "api_port": 4, "health_port": 5})
    answered: list[str] = []
    answered_before: dict[str, list[str]] = {}

    async def replica(_: object, address: ReplicaAddress) -> ReplicaFacts:
        await asyncio.sleep(0)
        answered.append(address.name)
        return ReplicaFacts(name=address.name, answers=True)

    def noting(name: str, found: object) -> Callable[..., Awaitable[object]]:
        async def part(*_: object) -> object:
            answered_before[name] = list(answered)
            return found

        return part

    others = {
        "look_at_database": DatabaseFacts(),
        "look_at_log": LogFacts(),
        "look_at_balancer": BalancerFacts(),
        "look_at_issuer": None,
    }
    monkeypatch.setattr(look, "_look_at_replica", replica)
    for name, found in others.items():
        monkeypatch.setattr(look, name, noting(name, found))
    await look.look(set_up.config())
    assert answered_before == {name: ["r1", "r2"] for name in others}


async def test_the_logs_end_is_asked_after_what_was_published(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a busy log is not called truncated. Method: the log grows, and what is published follows it, while the
    doctor looks."""
    log_end = 10

    async def database(_: object) -> DatabaseFacts:
        nonlocal log_end
        await asyncio.sleep(0.05)
        log_end += 5
        return DatabaseFacts(published_offset=log_end - 1)

    async def log(_: object) -> LogFacts:
        return LogFacts(topic_id="t", end_offset=log_end)

    monkeypatch.setattr(look, "look_at_database", database)
    monkeypatch.setattr(look, "look_at_log", log)
    facts = await look.look(set_up.config())
    assert facts.database.published_offset < facts.log.end_offset


async def test_servers_that_are_away_are_findings(set_up: SetUp) -> None:
    """Goal: as above, with all files there. Method: nothing listens; what was met on the way to the brokers is
    reported."""
    _, findings = await doctor(set_up, set_up.write())
    problems = {name: found["text"] for name, found in findings.items() if found["severity"] == "problem"}
    assert list(problems) == ["database-session", "log-servers", "active", "passives", "endpoint"]
    assert "refused" in problems["log-servers"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("data_dir = [", "not TOML"),
        ("no_such_setting = 1", "no_such_setting"),
        ('[database]\nconninfo = "dbname"\nscope = "x"', "no libpq connection string"),
        ('[database]\nconninfo = "oracle://nobody"\nscope = "x"', "an Oracle connection string"),
    ],
    ids=["not TOML", "no such setting", "no libpq string", "no Oracle string"],
)
async def test_a_configuration_that_is_refused_is_a_finding(set_up: SetUp, text: str, told: str) -> None:
    """Goal: a program that runs the doctor gets its report. Method: files that no command takes."""
    path = set_up.folder / "notary.toml"
    path.write_text(text)
    code, findings = await doctor(set_up, path)
    assert (code, findings["configuration"]["severity"]) == (1, "problem")
    assert told in findings["configuration"]["text"]


def test_a_data_folder_that_cannot_be_looked_at_is_a_finding(set_up: SetUp) -> None:
    """Goal: no error of the file system ends the look. Method: a name that is too long, and one below a file."""
    for path in (Path("/") / ("x" * 300), set_up.key / "data"):
        set_up.values["data_dir"] = str(path)
        found = look_at_machine(set_up.config())
        assert (found.data_dir, found.size_bytes > 1) == (str(path), True)
    assert found.data_dir_problem == f"{set_up.key} is no folder"


async def test_an_issuer_that_gives_no_keys_is_a_finding(set_up: SetUp) -> None:
    """Goal: tokens that will be refused are noticed. Method: nobody listens where the keys are published."""
    set_up.values["api"]["tokens"] = {"jwks_url": f"https://{NOBODY}/keys", "audience": "notary"}
    found = await look_at_issuer(set_up.config().api.tokens)
    assert found is not None
    assert found.startswith(f"https://{NOBODY}/keys gives no keys")


@pytest.mark.parametrize("client_certificates", [False, True])
async def test_the_endpoint_is_tried_with_tls_and_shows_the_configured_certificate(
    set_up: SetUp, client_certificates: bool
) -> None:
    """Goal: TLS is no false alarm, an old certificate in use is found. Method: two servers, one with another's."""
    problems = {}
    for name, (certificate, key) in {"own": set_up.api, "other": set_up.other}.items():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=set_up.ca_file)
        context.load_cert_chain(certificate, key)
        context.verify_mode = ssl.CERT_REQUIRED if client_certificates else ssl.CERT_NONE
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        async with server, aiohttp.ClientSession() as session:
            set_up.values["endpoint"]["port"] = server.sockets[0].getsockname()[1]
            problems[name] = (await look_at_balancer(set_up.config(), session)).endpoint_problem
    assert problems["own"] is None
    assert "another certificate" in str(problems["other"])


@asynccontextmanager
async def talking_nonsense(path: Path) -> AsyncIterator[None]:
    """A program on HAProxy's socket that is not HAProxy."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"# pxname\nreplicas\n\xff\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield
