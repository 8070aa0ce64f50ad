"""What a person sees when something is wrong: one line that names it, one that says what to do, never a traceback."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from replica.acting.admin_calls import ask_admin
from replica.active.signer import create_key
from replica.cli import main as command_line
from replica.cli import status
from replica.cli.common import TRACEBACK_VARIABLE
from replica.cli.main import main
from replica.config.load import load_config
from replica.health import ReplicaHealth
from replica.log.kafka.contract import LogTopics, TopicFacts, refuse_lost, refuse_unsafe
from replica.log.kafka.settings import KafkaSettings
from replica.notary.codes import Code, Retry
from replica.notary.errors import ConfigError, LogCopyRefused, PlaceAccessDenied
from replica.operators.admin import SWITCHOVER_PATH, SwitchoverAnswer, SwitchoverCall

CONFIG = """data_dir = "data"
notary_key_file = "notary.key"
[endpoint]
port = 15999
[[replicas]]
name = "r1"
host = "127.0.0.1"
api_port = 15991
health_port = {health_port}
[database]
conninfo = "host=127.0.0.1 port={database_port} dbname=notary user=notary connect_timeout=2"
password_file = "database.password"
scope = "notary"
[log]
kind = "memory"
memory.socket_path = "nobody.sock"
[api]
"""
KAFKA = KafkaSettings.model_validate({"bootstrap_servers": "a:1", "topic": "log"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def answering(raw: bytes) -> Iterator[int]:
    """A port that another program has: it sends this to whoever connects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(raw)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
        except OSError:
            return

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose servers do not run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "database.password").touch(mode=0o600)
    return tmp_path


def write(folder: Path, old: str = "", new: str = "", **ports: int) -> None:
    text = CONFIG.format(health_port=ports.get("health", free_port()), database_port=ports.get("database", free_port()))
    assert old in text
    (folder / "notary.toml").write_text(text.replace(old, new))


class Seen:
    """What a command printed, and its exit code."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err
        assert "Traceback" not in out + err
        assert "\n " not in err  # no text of a driver that goes on in further lines


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run `notary` with these words."""

    def run(*words: str) -> Seen:
        monkeypatch.setattr(sys, "argv", ["notary", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Seen(ended.value.code, *capsys.readouterr())

    return run


def test_the_release_is_printed(see) -> None:  # type: ignore[no-untyped-def]
    """Goal: a report can name the release. Method: --version."""
    seen = see("--version")
    assert (seen.code, seen.out.split()[0]) == (0, "replicated-notary")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("port = 15999", "prot = 15999", "endpoint.prot: there is no such setting; did you mean port?"),
        ("data_dir =", "datadir =", "datadir: there is no such setting; did you mean data_dir?"),
        ("[api]", "[election]\nlease = 3\n[api]", "election.lease: there is no such setting; did you mean lease_s?"),
        (
            "[database]",
            "maylead = true\n[database]",
            "replicas.0.maylead: there is no such setting; did you mean may_lead?",
        ),
        ("[api]", "[elections]\n[api]", "elections: there is no such setting; did you mean election?"),
        ("[api]", "[api]\nzzz = 1", "api.zzz: there is no such setting"),
        ('host = "127.0.0.1"\n', "", "replicas.0.host is required"),
    ],
)
def test_a_setting_that_does_not_exist_is_named_with_the_one_that_was_meant(  # type: ignore[no-untyped-def]
    folder: Path, see, old: str, new: str, said: str
) -> None:
    """Goal: a misspelt setting costs a second. Method: misspell one in each kind of table; leave one out."""
    write(folder, old, new)
    seen = see("config", "check")
    first, remedy = seen.err.rstrip().split("\n")
    assert (seen.code, said in first.split("; ", 1)[0] + "; " + first) == (2, True)
    assert "after validation" not in first
    assert remedy == Code.CONFIG_INVALID.remedy


def test_commands_and_replicas_that_do_not_exist(folder: Path, see) -> None:  # type: ignore[no-untyped-def]
    """Goal: so does a name on the command line, in each group as well. Method: one letter wrong in each."""
    for words, hint in (
        (("statsu",), "Did you mean 'status'?"),
        (("trail", "lst"), "Did you mean 'list'?"),
        (("trail", "list", "--limt", "3"), "--limit"),
    ):
        seen = see(*words)
        assert (seen.code, hint in seen.err) == (2, True), seen.err
    create_key(folder / "notary.key")
    soon = ("--at", (datetime.now(UTC) + timedelta(days=1)).isoformat())
    switchover = [("switchover", option, "r11", *more) for option in ("--to", "--if-active") for more in ((), soon)]
    for words in (("replica", "--name", "r11"), *switchover):  # one for tomorrow is refused today
        seen = see(*words)
        assert (seen.code, "no replica is called 'r11'; configured are r1; did you mean r1?" in seen.err) == (2, True)


def test_the_status_without_a_password_file_is_one_line(folder: Path, see) -> None:  # type: ignore[no-untyped-def]
    """Goal: the rest is shown all the same. Method: the file is gone; then nothing answers at the database's port."""
    (folder / "database.password").unlink()
    seen = see("status")
    problems = [line for line in seen.out.splitlines() if line.startswith(("database: ", "request log: "))]
    assert seen.code == 1
    assert problems[0].startswith("database: CONFIG_INVALID: ")
    assert "database.password cannot be read: No such file or directory" in problems[0]
    assert len(problems) == 2
    (folder / "database.password").touch(mode=0o600)
    seen = see("status")
    problems = [line for line in seen.out.splitlines() if line.startswith(("database: ", "request log: "))]
    assert (seen.code, len(problems)) == (1, 2)
    assert "Connection refused" in problems[0]
    assert "r1       does not answer" in seen.out


@pytest.mark.parametrize("raw", [b"SSH-2.0-other\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b""])
def test_the_status_with_a_port_that_another_program_has(folder: Path, see, raw: bytes) -> None:  # type: ignore[no-untyped-def]
    """Goal: a taken port is no replica, and no traceback. Method: another program at both ports."""
    with answering(raw) as taken:
        write(folder, health=taken, database=taken)
        seen = see("status")
    assert (seen.code, "r1       does not answer" in seen.out) == (1, True)
    assert sum(line.startswith("database: ") for line in seen.out.splitlines()) == 1


@pytest.mark.parametrize("words", [("pause", "work"), ("history",), ("store", "migrate"), ("resume",)])
def test_a_database_that_is_down_is_one_line(folder: Path, see, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    """Goal: the same for each command that asks it. Method: nothing answers at its port."""
    seen = see(*words)
    first, remedy = seen.err.rstrip().split("\n")
    assert (seen.code, first.split(":")[0], remedy) == (1, "STORE_UNAVAILABLE", Code.STORE_UNAVAILABLE.remedy)


def unsafe() -> None:
    refuse_unsafe(LogTopics(TopicFacts("id", 3, 1, {}), 0), KAFKA)


def without_payloads() -> None:
    refuse_lost(LogTopics(TopicFacts("id", 1, 3, {}), 0, TopicFacts("id", 2, 3, {}), (0, 7)), KAFKA)


def without_credentials() -> None:
    raise PlaceAccessDenied("s3://bank/archive: the store answered 403")


def no_copy() -> None:
    raise LogCopyRefused("the record at offset 4 of requests at site B is not the log's")


@pytest.mark.parametrize(
    ("fails", "said", "remedy"),
    [
        (unsafe, "TOPIC_UNSAFE: topic log: partitions is 3, required is 1; ", "Correct what is named; see runbooks/"),
        (
            without_payloads,
            "LOG_PAYLOAD_MISSING: partition 1 of topic log-payloads begins at offset 7: the payloads before are gone",
            "Do not serve, and write nothing to either topic. ",
        ),
        (
            without_credentials,
            "PLACE_ACCESS_DENIED: s3://bank/archive: the store answered 403",
            "Check who runs the command, the credentials in the environment, and ",
        ),
        (
            no_copy,
            "LOG_COPY_REFUSED: the record at offset 4 of requests at site B is not the log's",
            "Nothing more is copied. Find out who wrote there; ",
        ),
    ],
)
def test_what_a_person_must_mend_is_said_in_two_lines(  # type: ignore[no-untyped-def]
    folder: Path, see, monkeypatch: pytest.MonkeyPatch, fails: Callable[[], None], said: str, remedy: str
) -> None:
    """Goal: the case, then what to do; no process that meets it is started again. Method: a command that meets it."""

    async def meets(config: object) -> None:
        fails()

    monkeypatch.setattr(status, "_find_out", meets)
    seen = see("status")
    first, second = seen.err.rstrip().split("\n")
    assert (seen.code, first[: len(said)], second[: len(remedy)]) == (1, said, remedy)
    code = Code[first.split(":")[0]]
    assert (second, code.retry, code.person) == (code.remedy, Retry.NO, True)


def test_a_defect_of_a_command_is_no_traceback_unless_it_is_asked_for(  # type: ignore[no-untyped-def]
    folder: Path, see, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: what nobody expects is a line, too. Method: a command that breaks; then with the variable that it names."""

    async def broken(config: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(status, "_find_out", broken)
    seen = see("status")
    assert (seen.code, seen.err.split("\n")[0]) == (1, "INTERNAL: KeyError: 'a bug'")
    assert TRACEBACK_VARIABLE in seen.err
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    monkeypatch.setattr(sys, "argv", ["notary", "status"])
    with pytest.raises(SystemExit):
        command_line.main()
    assert "Traceback" in capsys.readouterr().err


async def test_a_replica_that_refuses_says_what_to_do(folder: Path) -> None:
    """Goal: the remedy fits: a paused switchover is no wrong setting. Method: a listener that refuses; none at all."""
    body = b'{"code": "FAILOVER_PAUSED", "detail": "nobody may take over while fail-over is paused: notary resume"}'
    head = f"HTTP/1.1 409 Conflict\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def refuse(reader, writer) -> None:  # type: ignore[no-untyped-def]
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        writer.close()
        await writer.wait_closed()

    async def ask() -> ConfigError:
        with pytest.raises(ConfigError) as refused:
            call = SwitchoverCall("r1", None, 1)
            await ask_admin(load_config(Path("notary.toml")), "r1", call, SwitchoverAnswer, path=SWITCHOVER_PATH)
        return refused.value

    (folder / "data" / "r1").mkdir(parents=True)
    async with await asyncio.start_unix_server(refuse, folder / "data" / "r1" / "admin.sock"):
        refused = await ask()
    assert refused.code is Code.NOT_POSSIBLE_NOW
    assert refused.detail.startswith("r1: nobody may take over while fail-over is paused: notary resume")
    assert (await ask()).code is Code.REPLICA_UNREACHABLE


def test_runbooks_are_read_wherever_the_release_is_installed(folder: Path, see) -> None:  # type: ignore[no-untyped-def]
    """Goal: an operator at night needs no clone. Method: the list; a page by each of its names; a misspelt one."""
    pages = Path(__file__).parents[3] / "runbooks"
    listed = see("runbook")
    assert listed.code in (0, None)
    assert max(len(line.rstrip()) for line in listed.out.splitlines()) <= 80
    assert {line.split()[0] for line in listed.out.splitlines()[1:]} == {
        page.stem for page in pages.glob("*.md") if page.stem != "README"
    }
    for name in ("failover", "failover.md", "runbooks/failover.md"):
        assert see("runbook", name).out == (pages / "failover.md").read_text(encoding="utf-8")
    seen = see("runbook", "failovr")
    assert (seen.code, "did you mean failover?" in seen.err) == (2, True)


def test_a_narrow_terminal_cuts_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: 80 columns show all that matters. Method: the status of replicas with long names, and of none."""
    write(folder, 'host = "127.0.0.1"', 'host = "notary-1.a-long-domain-of-a-bank.example"')
    text = (folder / "notary.toml").read_text().replace('kind = "memory"\nmemory.socket_path = "nobody.sock"', "")
    text = text.replace("[log]", '[log.kafka]\nbootstrap_servers = "kafka:9093"\nsecurity.protocol = "SSL"')
    text = text.replace("[api]", '[api]\ntls = {certificate_file = "a", key_file = "b"}\ntokens = "none"')
    text = text.replace("host=127.0.0.1 ", "host=db sslmode=verify-full sslrootcert=ca.pem ")
    (folder / "notary.toml").write_text(text)
    config = load_config(folder / "notary.toml")
    health = ReplicaHealth(
        replica="r1",
        version="0.2.0",
        role="active",
        active=True,
        ready=True,
        epoch=123_456,
        applied_offset=1_234_567_890_123,
        lag_records=1_234_567_890_000,
        reaches_log=True,
        front_ends=2,
        lock_owner="r1",
        hold_down_s=0.0,
        ledger_end=1,
        activation_steps_s={},
        lock_answer_age_s=0.4,
    )
    store = {"epoch": 123_456, "replica": "r1", "published_offset": 1_234_567_890_122, "ledger_end": 123_456}
    store["ledger_end"] = 1_234_567_890_121
    for found in (health, None):
        shown = io.StringIO()
        known = status.Status({"r1": found}, "r1", None, None, store, 1_234_567_890_124, None, [])
        Console(file=shown, width=80).print(status._render(folder / "notary.toml", config, known))
        printed = shown.getvalue()
        assert "…" not in printed
        assert max(map(len, printed.splitlines())) <= 80
        numbers = [1_234_567_890_124 + less for less in (0, -2, -3)] + ([] if found is None else [1_234_567_890_123])
        assert all(str(number) in printed for number in numbers), printed  # a number is on one line
        assert found is None or str(found.lag_records) in printed
        whole = "".join(printed.split())
        for part in ("notary-1", "a-bank.example"):
            assert part in whole
