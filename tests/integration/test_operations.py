"""What operators do to a running participant: look, hand over, pause, read history. Real servers, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from rich.console import Console

from ha.clock import SystemClock
from ledger_api.client import NotaryClient
from replica.acting.healths import fetch_health
from replica.active.signer import create_key, load_signer
from replica.config.load import load_config
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.participant import DATABASE, ROLE
from replica.local.replica import ReplicaProcess
from replica.notary.answers import Notarised
from replica.notary.requests import state_ref
from tests.ends import guarded
from tests.waiting import eventually

EXPORT, LIST, VERIFY = ("trail", "export", "--cursor-file"), ("trail", "list"), ("trail", "verify")
TERMINAL = 80  # columns
README = Path(__file__).parents[2] / "README.md"

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """A cluster that the tests of this module share."""
    log = request.config.getoption("--log-kind")
    further = {"operators": {"trail_look_s": 2.0}}
    settings = ClusterSettings(folder=servers_folder / "operations", api_workers=1, parties=1, log=log, further=further)
    async with guarded(LocalCluster(settings)) as cluster:
        for replica in cluster.replicas.values():
            replica.restart_pause_s = 0.5
        yield cluster


async def notary(cluster: LocalCluster, *words: str, further: dict[str, str] | None = None) -> tuple[int, str, str]:
    """A command of the command line: its exit code, standard output and standard error. `further`: variables."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path)]
    pipe = asyncio.subprocess.PIPE
    environment = os.environ | (further or {})
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe, env=environment)
    printed, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), errors.decode()


async def document(cluster: LocalCluster, *words: str) -> Any:
    code, printed, errors = await notary(cluster, *words, "--json")
    assert code == 0, (printed, errors)
    return json.loads(printed)


async def settled(cluster: LocalCluster) -> tuple[ReplicaProcess, list[ReplicaProcess]]:
    """The active and the passives, once every one of them could take over."""
    await cluster.wait_until_ready(list(cluster.replicas))
    active = await cluster.wait_for_active()
    return active, [one for one in cluster.replicas.values() if one.name != active.name]


async def test_a_switchover_under_load_reaches_its_target_and_no_client_sees_an_error(cluster: LocalCluster) -> None:
    """Goal: maintenance goes unnoticed. Method: clients of the library submit without a break; hand over; look."""
    active, (target, _) = await settled(cluster)
    stopping = asyncio.Event()
    answers: list[object] = []

    async def submit(client: NotaryClient) -> None:
        while not stopping.is_set():
            submission = cluster.parties[0].sign(os.urandom(32), [state_ref(os.urandom(32), 0)])
            answers.append(await client.submit(submission))

    async with NotaryClient(cluster.endpoint) as client, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(submit(client))
        await asyncio.sleep(0.3)
        before = len(answers)
        outcome = await document(cluster, "switchover", "--to", target.name)
        await asyncio.sleep(0.3)
        stopping.set()
    assert (outcome["done"], outcome["before"], outcome["active"]) == (True, active.name, target.name)
    assert 0 < before < len(answers)
    assert all(isinstance(answer, Notarised) for answer in answers)
    newest, previous = (await document(cluster, "history", "-n", "2"))["epochs"]
    assert (newest["replica"], newest["why"]) == (target.name, "")
    assert (previous["replica"], previous["why"]) == (active.name, f"switchover to {target.name}")


@pytest.mark.thorough
async def test_a_switchover_to_a_replica_that_cannot_activate_is_undone(cluster: LocalCluster) -> None:
    """Goal: an unfit target costs a moment, not the service. Method: one that gives every activation up at once."""
    active, (target, other) = await settled(cluster)
    unfit = {"NOTARY_ELECTION__ACTIVATION_MAX_S": "0.001", "NOTARY_ELECTION__TICK_S": "0.002"}
    await restarted(cluster, target, unfit)
    await settled(cluster)
    await other.stop()  # or it may be the one that takes the lock when the target lets go: as good, but not undone
    async with NotaryClient(cluster.endpoint) as client:
        handing_over = asyncio.create_task(notary(cluster, "switchover", "--to", target.name))
        while not handing_over.done():
            answer = await client.submit(cluster.parties[0].sign(os.urandom(32), [state_ref(os.urandom(32), 0)]))
            assert isinstance(answer, Notarised)
        code, _, told = handing_over.result()
    assert code == 1
    assert told.startswith("undone: ")
    assert told.endswith(f"{active.name} is active again\n")
    (newest,) = (await document(cluster, "history", "-n", "1"))["epochs"]
    assert (newest["replica"], newest["why"]) == (active.name, "")
    other.start()
    await restarted(cluster, target, {})


async def restarted(cluster: LocalCluster, replica: ReplicaProcess, environment: dict[str, str]) -> None:
    """Stop a replica in order, and start it with these variables."""
    await replica.stop()
    replica.install(Path(sys.executable), cluster.config_path, environment)
    replica.start()


async def test_a_switchover_that_cannot_be_is_refused_and_changes_nothing(cluster: LocalCluster) -> None:
    """Goal: no outage for a typing error. Method: to itself, to nobody, to a replica that is down, from afar."""
    active, (down, _) = await settled(cluster)
    assert (await notary(cluster, "switchover", "--to", "r9"))[0] == 2
    code, _, errors = await notary(cluster, "switchover", "--to", active.name)
    assert (code, "active already" in errors) == (1, True)
    await down.stop()
    code, _, errors = await notary(cluster, "switchover", "--to", down.name)
    assert (code, "is not ready" in errors) == (1, True)
    down.start()
    connector = aiohttp.UnixConnector(str(cluster.config.admin_socket(active.name)))
    async with aiohttp.ClientSession(connector=connector) as session:
        for body, headers, status, code in (
            ({"replica": down.name}, {}, 409, "WRONG_REPLICA"),
            ({"replica": active.name, "to": "r9"}, {}, 409, "NO_SUCH_PEER"),
            ({"replica": active.name, "too": "r9"}, {}, 400, "MALFORMED_REQUEST"),
            ({"replica": active.name}, {"Content-Type": "text/plain"}, 415, "MALFORMED_REQUEST"),
            ({"replica": active.name}, {}, 409, "NOT_IN_TRAIL"),
            ({"replica": active.name, "entry": 1}, {}, 409, "NOT_IN_TRAIL"),
        ):
            async with session.post("http://localhost/admin/v1/switchover", json=body, headers=headers) as answer:
                assert (answer.status, code in await answer.text()) == (status, True), (body, await answer.text())
    assert (await cluster.wait_for_active()).name == active.name


async def test_a_status_page_is_shown_to_one_browser(cluster: LocalCluster) -> None:
    """Goal: whoever ran the command sees the page, no other account. Method: its URL twice; other ways in."""
    active, _ = await settled(cluster)
    argv = [sys.executable, "-m", "replica.cli", "status-page", active.name, "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        url = line.split()[-1]
        origin = url[: url.index("?")]
        jar = aiohttp.CookieJar(unsafe=True)  # an address is no name
        async with aiohttp.ClientSession(cookie_jar=jar) as browser, aiohttp.ClientSession() as other:

            async def status_of(session: aiohttp.ClientSession, url: str, **headers: str) -> int:
                async with session.get(url, headers=headers) as answer:
                    return answer.status

            assert await status_of(browser, url) == 200
            for path in ("", "page.js", "page.css", "page/data", "admin/v1/status"):
                assert await status_of(browser, origin + path) == 200
                assert await status_of(browser, origin + path, Host="evil.example") == 403
                assert await status_of(other, origin + path) == 403
            assert await status_of(other, url) == 403  # it was used
            async with browser.post(f"{origin}admin/v1/switchover", json={"replica": active.name}) as answer:
                assert answer.status == 404
    finally:
        process.terminate()
        await process.wait()


async def test_three_commands_of_the_readme_tell_a_newcomer_how_things_stand(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Goal: who is active, why did it fail over last, is anything wrong. Method: as the README describes, after a
    kill."""
    commands = re.findall(r"^    \.venv/bin/notary (status|history|doctor)\b", README.read_text(), re.MULTILINE)
    assert sorted(commands) == ["doctor", "history", "status"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cluster").symlink_to(cluster.folder)  # where `notary up` would have put it
    active, _ = await settled(cluster)
    active.kill_group()
    successor = await cluster.wait_for_active(other_than=active.name)
    await settled(cluster)
    told = {}
    for command in commands:
        argv = [sys.executable, "-m", "replica.cli", command]
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, env=os.environ | {"COLUMNS": str(TERMINAL)}
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0
        told[command] = printed.decode().rstrip()
    assert re.search(rf"{successor.name}\s+(active|ACTIVE)\b", told["status"]), told["status"]
    assert f"{successor.name} found the lock free" in " ".join(told["history"].split())
    assert "checks: 0 problems" in told["doctor"], told["doctor"]
    if os.environ.get("RENEW_SCREENSHOTS"):
        picture = Console(record=True, width=TERMINAL, file=StringIO())
        for command, text in told.items():
            picture.print(f"$ notary {command}\n{text}\n", markup=False, highlight=False)
        drawn = re.sub(
            r"@font-face \{.*?\}", "", picture.export_svg(title="notary"), flags=re.DOTALL
        )  # no font from afar
        (README.parent / "docs" / "screenshots" / "command-line.svg").write_text(drawn)


async def test_history_tells_what_nobody_could_say(cluster: LocalCluster) -> None:
    """Goal: "why did it fail over last" after a kill. Method: SIGKILL; the successor records what it saw."""
    active, _ = await settled(cluster)
    active.kill_group()
    successor = await cluster.wait_for_active(other_than=active.name)
    newest, previous = (await document(cluster, "history", "-n", "2"))["epochs"]
    assert (newest["replica"], previous["replica"]) == (successor.name, active.name)
    assert previous["why"] == f"not recorded: killed, crashed or cut off; {successor.name} found the lock free"
    code, printed, _ = await notary(cluster, "history")
    assert (code, f"{successor.name} found the lock free" in printed) == (0, True)


@pytest.mark.thorough
async def test_a_paused_participant_waits_for_its_keeper(cluster: LocalCluster) -> None:
    """Goal: operators can keep the others off. Method: pause, kill the active: it leads again, nobody else did."""
    active, _ = await settled(cluster)
    code, printed, _ = await notary(cluster, "pause", "a test")
    assert (code, active.name in printed) == (0, True)
    assert (await notary(cluster, "switchover"))[0] == 2
    assert (await document(cluster, "status"))["pause"]["reason"] == "a test"
    epoch = (await document(cluster, "history", "-n", "1"))["epochs"][0]["epoch"]
    active.kill_group()
    await asyncio.sleep(1.0)
    assert (await cluster.wait_for_active()).name == active.name
    newest, previous = (await document(cluster, "history", "-n", "2"))["epochs"]
    assert (newest["replica"], newest["epoch"], previous["epoch"]) == (active.name, epoch + 1, epoch)
    assert (await notary(cluster, "resume"))[0] == 0
    assert (await document(cluster, "status"))["pause"] is None


@pytest.mark.thorough
@pytest.mark.timeout(900)  # a dozen commands, each a process
async def test_what_operators_do_is_in_the_trail(cluster: LocalCluster, tmp_path: Path) -> None:
    """Goal: who, when, why and how it ended, for acts that are done and for those that are not. Method: hand over,
    pause, resume, one that is refused; list, export in two parts, verify; the tables' owner deletes the newest."""
    active, (target, _) = await settled(cluster)
    assert (await notary(cluster, "switchover", "--to", target.name, "--reason", "a disk"))[0] == 0
    await settled(cluster)
    first = await notary(cluster, *EXPORT, str(tmp_path / "cursor"))
    assert (await notary(cluster, "switchover", "--to", target.name))[0] == 1
    assert (await notary(cluster, "pause", "--reason", "a rack"))[0] == 0
    assert (await notary(cluster, "resume"))[0] == 0
    second = await notary(cluster, *EXPORT, str(tmp_path / "cursor"))
    entries = [json.loads(line) for line in (first[1] + second[1]).splitlines()]
    told = [(one["act"], one["phase"], one.get("reason", ""), one.get("outcome", "")) for one in entries][-8:]
    assert told[0] == ("switchover", "begun", "a disk", "")
    assert told[1][:2] == ("switchover", "done")
    assert told[1][3].startswith(f"{target.name} took over from {active.name}")
    assert told[2:4] == [
        ("switchover", "begun", "", ""),
        ("switchover", "failed", "", f"{target.name} is active already; nothing was done"),
    ]
    assert told[4:6] == [("pause", "begun", "a rack", ""), ("pause", "done", "", f"only {target.name} may lead")]
    assert told[6:] == [("resume", "begun", "", ""), ("resume", "done", "", "fail-over goes on")]
    assert await document(cluster, *LIST, "-n", "8") == entries[-8:]
    whole = await document(cluster, *VERIFY, "--head", (tmp_path / "cursor").read_text())
    assert (whole["whole"], whole["entries"]) == (True, len(entries))
    await eventually(trail_seen(cluster, "entries", len(entries)), 90.0)
    await as_superuser(cluster, f"DELETE FROM operator_trail WHERE number = {len(entries)}")
    assert (await document(cluster, *VERIFY))["whole"] is True
    code, _, errors = await notary(cluster, *EXPORT, str(tmp_path / "cursor"))
    assert (code, f"TRAIL_BROKEN: entry {len(entries)} is gone" in errors) == (1, True)
    export = tmp_path / "export.jsonl"
    export.write_text(first[1] + second[1])
    assert (await notary(cluster, "trail", "bring-back", str(export)))[1] == "1 entries were added\n"
    assert (await notary(cluster, *EXPORT, str(tmp_path / "cursor")))[:2] == (0, "")
    await as_superuser(cluster, f"DELETE FROM operator_trail WHERE number = {len(entries)}")
    await eventually(trail_seen(cluster, "broken", 1), 90.0)
    assert (await notary(cluster, "trail", "bring-back", str(export)))[0] == 0


def trail_seen(cluster: LocalCluster, name: str, wanted: int) -> Callable[[], Awaitable[bool]]:
    """Whether all replicas show this value of the trail."""

    async def seen() -> bool:
        async with aiohttp.ClientSession() as session:
            for address in cluster.config.replicas:
                async with session.get(f"http://{address.host}:{address.health_port}/metrics") as answer:
                    if f"notary_trail_{name} {float(wanted)}" not in await answer.text():
                        return False
        return True

    return seen


async def test_a_trail_that_cannot_be_written_hinders_an_act_only_where_it_must(cluster: LocalCluster) -> None:
    """Goal: a fail-over does not wait for its record, unless somebody wants that. Method: the right is revoked."""
    await settled(cluster)
    await as_superuser(cluster, "REVOKE INSERT ON operator_trail FROM notary_writer")
    try:
        code, printed, errors = await notary(cluster, "resume")
        assert (code, printed) == (0, "fail-over was not paused\n")
        assert "TRAIL_UNAVAILABLE" in errors
        for setting, wanted in (("TRAIL_REQUIRED", "TRAIL_UNAVAILABLE"), ("REASON_REQUIRED", "REASON_MISSING")):
            code, _, errors = await notary(cluster, "resume", further={f"NOTARY_OPERATORS__{setting}": "true"})
            assert (code != 0, wanted in errors, "not paused" in errors) == (True, True, False)
    finally:
        await as_superuser(cluster, "GRANT INSERT ON operator_trail TO notary_writer")


def people(cluster: LocalCluster) -> Path:
    """The folder with the operators' keys: one for all tests, because the trail keeps what they signed."""
    return cluster.config_path.parent / "people"


def operators(cluster: LocalCluster) -> dict[str, str]:
    """The public keys of two people, whose files are in the folder, and of the cluster's own operator."""
    folder = people(cluster)
    folder.mkdir(exist_ok=True)
    files = {name: folder / f"{name}.key" for name in ("anna", "ben")} | {"local": cluster.folder / "officer.key"}
    keys = {
        name: (load_signer(file).public_key if file.exists() else create_key(file)).hex()
        for name, file in files.items()
    }
    (folder / "operators.toml").write_text(
        "".join(f'[[operators]]\nname = "{name}"\npublic_key = "{key}"\n' for name, key in keys.items())
    )
    return keys


def known_people(cluster: LocalCluster) -> dict[str, str]:
    """The variable of a configuration that knows them, once there are any."""
    keys_file = people(cluster) / "operators.toml"
    return {"NOTARY_OPERATORS__KEYS_FILE": str(keys_file)} if keys_file.exists() else {}


def four_eyes(cluster: LocalCluster) -> dict[str, str]:
    """The variables of a configuration that wants two people."""
    return known_people(cluster) | {"NOTARY_OPERATORS__FOUR_EYES": '["prune"]'}


async def prune_as(cluster: LocalCluster, who: str, *words: str) -> tuple[int, str]:
    """One of the two prunes up to the first of these words: exit code, and what was printed."""
    further = four_eyes(cluster) | {"NOTARY_OPERATORS__KEY_FILE": str(people(cluster) / f"{who}.key")}
    asked = ("store", "prune", "--as", cluster.owner_dsn(), "--up-to", *words)
    code, printed, errors = await notary(cluster, *asked, further=further)
    return code, printed + errors


@pytest.mark.thorough
@pytest.mark.timeout(900)  # a dozen commands, each a process
async def test_four_eyes_are_two_people(cluster: LocalCluster, tmp_path: Path) -> None:
    """Goal: no single person prunes, whatever a command thinks. Method: a command that does not want two; alone;
    proposed and confirmed by the same one; other arguments; another person; again with the same proposal; then the
    trail by the people's keys, without a configuration."""
    keys = operators(cluster)
    for replica in cluster.replicas.values():
        await restarted(cluster, replica, four_eyes(cluster))

    async def prune(who: str, *words: str) -> tuple[int, str]:
        return await prune_as(cluster, who, *words)

    await settled(cluster)
    asked = ("store", "prune", "--as", cluster.owner_dsn(), "--up-to", "0")
    code, _, errors = await notary(cluster, *asked, further=known_people(cluster))
    assert (code, "NOT_POSSIBLE_NOW" in errors, "FOUR_EYES_NEEDED" in errors) == (2, True, True)
    assert "FOUR_EYES_NEEDED" in (await prune("anna", "0"))[1]
    code, told = await prune("anna", "0", "--propose", "--reason", "the disk is full")
    assert (code, told.split(";")[0].split()[0]) == (0, "proposal")
    number = told.split()[1].rstrip(";")
    assert "FOUR_EYES_SAME_PERSON" in (await prune("anna", "0", "--confirm", number))[1]
    assert "PROPOSAL_INVALID" in (await prune("ben", "1", "--confirm", number))[1]
    assert (await prune("ben", "0", "--confirm", number))[0] == 0
    assert "PROPOSAL_INVALID" in (await prune("ben", "0", "--confirm", number))[1]
    proposed, begun, done = (await document(cluster, *LIST, "-n", "3"))[-3:]
    assert [one["operator"] for one in (proposed, begun, done)] == ["anna", "ben", "ben"]
    assert (proposed["phase"], begun["of"], done["of"], done["phase"]) == (
        "proposed",
        proposed["number"],
        begun["number"],
        "done",
    )
    _, lines, _ = await notary(cluster, *EXPORT[:2])
    (tmp_path / "trail.jsonl").write_text(lines)
    assert cluster.config.notary_key_file is not None
    known = keys | {"notary": load_signer(cluster.config.notary_key_file).public_key.hex()}
    options = [word for name, key in known.items() for word in ("--key", f"{name}={key}")]
    assert (await document(cluster, *VERIFY, str(tmp_path / "trail.jsonl"), *options))["whole"] is True
    code, _, errors = await notary(cluster, *VERIFY, str(tmp_path / "trail.jsonl"), *options[:2])
    assert (code, "TRAIL_BROKEN" in errors) == (1, True)
    for replica in cluster.replicas.values():
        await restarted(cluster, replica, {})
    await settled(cluster)


@pytest.mark.thorough
async def test_a_session_of_nobody_that_holds_the_lock_is_ended(cluster: LocalCluster) -> None:
    """Goal: a fail-over is forced where the database has not noticed that its holder is gone. Method: stop all; take
    the lock under a replica's name; start the others: none leads until the fail-over is forced."""
    await settled(cluster)
    gone, *others = cluster.replicas.values()
    await asyncio.gather(*(replica.stop() for replica in cluster.replicas.values()))
    config = load_config(cluster.config_path)
    settings = replace(config.election, lease_s=60.0)
    held = config.shared_database().lock_session(name=gone.name, settings=settings, clock=SystemClock())
    await held.open()
    assert (await held.try_lock()).granted
    for replica in others:
        replica.start()
    await asyncio.gather(*(eventually(replica_answers(replica), 60.0) for replica in others))
    assert (await notary(cluster, "status"))[0] == 1
    forced = await document(cluster, "failover", "--yes")
    assert forced["active"] in {replica.name for replica in others}
    await held.close()
    gone.start()
    await settled(cluster)


def replica_answers(replica: ReplicaProcess) -> Callable[[], Awaitable[bool]]:
    """Whether it answers, follows and reaches the log."""

    async def answers() -> bool:
        async with aiohttp.ClientSession() as session:
            health = await fetch_health(session, replica.address)
        return health is not None and health.reaches_log

    return answers


@pytest.mark.thorough
async def test_a_switchover_waits_for_its_time(cluster: LocalCluster) -> None:
    """Goal: hand over at a set time. Method: two seconds from now; nothing happens before, then it is done."""
    active, _ = await settled(cluster)
    at = datetime.now(UTC) + timedelta(seconds=6)
    code, printed, errors = await notary(cluster, "switchover", "--at", at.isoformat())
    assert code == 0, errors
    assert datetime.now(UTC) >= at
    assert "Ctrl-C calls it off" in errors
    assert f"took over from {active.name}" in printed


@pytest.mark.thorough
async def test_a_new_ledger_has_nothing_to_raise(cluster: LocalCluster) -> None:
    """Goal: what a newcomer starts is of today's formats. Method: what is written, in force, refused and unknown."""
    await settled(cluster)
    shown = await document(cluster, "format", "show")
    assert shown["writes"] == {"records": 2, "rules": 3}
    assert shown["rules_in_force"] == dict.fromkeys(cluster.replicas, 3)
    code, printed, _ = await notary(cluster, "format", "raise")
    assert (code, "nothing to raise" in printed) == (0, True)
    for rules in ("2", "4"):
        code, _, errors = await notary(cluster, "format", "raise", "--rules", rules)
        assert (code, f"does not know record format 2, rules version {rules}" in errors) == (2, True), errors


async def test_status_follows(cluster: LocalCluster) -> None:
    """Goal: a terminal to leave open. Method: two documents of one run; each names the active and its heartbeat."""
    active, _ = await settled(cluster)
    argv = [sys.executable, "-m", "replica.cli", "status", "--follow", "--json", "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        for _ in range(2):
            status = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
            assert status["lock_owner"] == active.name
            assert 0 <= status["replicas"][active.name]["lock_answer_age_s"] < cluster.config.election.lease_s
            assert status["replicas"][active.name]["lock_owner"] == active.name
    finally:
        process.terminate()
        await process.communicate()


# ---- the doctor ----


async def findings(cluster: LocalCluster, **environment: str) -> dict[str, str]:
    """What `notary doctor` finds worse than a warning: check and fix."""
    argv = [sys.executable, "-m", "replica.cli", "doctor", "--json", "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, env={**os.environ, **known_people(cluster), **environment}
    )
    printed, _ = await process.communicate()
    report = json.loads(printed)
    found = {one["check"]: one["fix"] for one in report["findings"] if one["severity"] == "problem"}
    assert process.returncode == (1 if found else 0)
    assert all(found.values()), "a problem without a fix"
    return found


async def few_at_a_time(*asked: Coroutine[Any, Any, dict[str, str]]) -> list[dict[str, str]]:
    """Their results, in order. With all at once a replica's health page may take longer than a doctor waits for it."""
    turn = asyncio.Semaphore(2)

    async def in_turn(one: Coroutine[Any, Any, dict[str, str]]) -> dict[str, str]:
        async with turn:
            return await one

    return await asyncio.gather(*map(in_turn, asked))


async def as_superuser(cluster: LocalCluster, statement: str) -> None:
    await cluster.postgres.run_script(statement.encode(), DATABASE)


async def test_the_doctor_finds_nothing_wrong_with_a_running_participant(cluster: LocalCluster) -> None:
    """Goal: no false alarm on real servers. Method: the cluster as it is; HAProxy's own check included."""
    await settled(cluster)
    assert await findings(cluster) == {}


@pytest.mark.thorough
@pytest.mark.only_kafka("it breaks the topic: log_postgres/test_commands.py has the findings about another log")
async def test_the_doctor_finds_what_is_broken_on_real_servers(cluster: LocalCluster, tmp_path: Path) -> None:
    """Goal: the facts are looked at where they are. Method: files, database and topic, broken and mended in turn."""
    await settled(cluster)
    key = cluster.config.notary_key_file
    closed_port = "127.0.0.1:1"
    wrong_password = tmp_path / "wrong.password"
    wrong_password.touch(mode=0o600)
    wrong_password.write_text("not this one\n")
    wrong = await few_at_a_time(
        findings(cluster, NOTARY_DATABASE__SCOPE="elsewhere"),
        findings(cluster, NOTARY_DATABASE__PASSWORD_FILE=str(tmp_path / "missing")),
        findings(cluster, NOTARY_DATABASE__PASSWORD_FILE=str(wrong_password)),
        findings(cluster, NOTARY_LOG__KAFKA__BOOTSTRAP_SERVERS=closed_port),
        findings(cluster, NOTARY_LOG__KAFKA__TOPIC="no-such-topic"),
        findings(cluster, NOTARY_DATA_DIR=str(key)),
        findings(cluster, NOTARY_ENDPOINT__PORT="1"),
        findings(cluster, NOTARY_LOG__KAFKA__SECURITY__CA_FILE=str(_expired_certificate(tmp_path))),
    )
    assert [sorted(found) for found in wrong] == [
        ["database-session"],
        ["database-password"],
        ["database-session"],
        ["log-servers"],
        ["log-contract"],
        ["data-folder"],
        ["endpoint"],
        ["certificates"],
    ]
    key.chmod(0o644)
    await as_superuser(cluster, f"ALTER ROLE {ROLE} SET synchronous_commit = off")
    await as_superuser(cluster, "REVOKE DELETE ON failover_pause FROM notary_writer")
    try:
        found = await findings(cluster)
        assert sorted(found) == ["database-rights", "database-session", "notary-key", "synchronous-commit"]
        assert "notary store roles" in found["database-rights"]
    finally:
        key.chmod(0o600)
        await as_superuser(cluster, f"ALTER ROLE {ROLE} RESET synchronous_commit")
        await as_superuser(cluster, "GRANT DELETE ON failover_pause TO notary_writer")
    assert await findings(cluster) == {}


def _expired_certificate(folder: Path) -> Path:
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    end = datetime(2020, 1, 2, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = builder.serial_number(1).not_valid_before(end - timedelta(1)).not_valid_after(end).sign(key, None)
    path = folder / "old.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path


async def test_the_log_is_shown_and_searched(cluster: LocalCluster) -> None:
    """Goal: an operator finds a transaction's record. Method: notarise one, look for it by its id, and at the end."""
    await settled(cluster)
    tx_id = os.urandom(32)
    async with NotaryClient(cluster.endpoint) as client:
        answer = await client.submit(cluster.parties[0].sign(tx_id, [state_ref(os.urandom(32), 0)]))
    assert isinstance(answer, Notarised)
    code, printed, errors = await notary(cluster, "log", "tail", "--tx", tx_id.hex(), "--json")
    assert code == 0, errors
    assert [json.loads(line)["offset"] for line in printed.splitlines()] == [answer.log_offset]
    code, printed, _ = await notary(cluster, "log", "tail", "-n", "3")
    assert (code, tx_id.hex() in printed) == (0, True)
