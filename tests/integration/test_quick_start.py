"""The first minute of a developer: README and docs/api.md, played as printed against `notary up`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from replica.cli.up import ENDPOINT_PORT
from tests.closing import ended
from tests.shadows import RAN, write_shadows

ROOT = Path(__file__).parents[2]
PRINTED_ENDPOINT = f"http://127.0.0.1:{ENDPOINT_PORT}"
UP_MAX_S, COMMAND_MAX_S = 120.0, 60.0
TRY_MAX_S = 480.0  # with a fetch of all packages

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


def block(page: str, name: str) -> str:
    """The commands after a comment of this name on a page."""
    (found,) = re.findall(rf"<!-- {name} -->\n```(?:sh|python)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return str(found)


class Terminal:
    """A folder in which a clone stands, as far as the pages use it, and the endpoint that `notary up` printed."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint

    async def run(self, commands: str) -> tuple[int | None, str, str]:
        """Exit code, output and errors of commands as printed; but for another port, where 8080 was taken."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", commands.replace(PRINTED_ENDPOINT, self.endpoint)),
            cwd=self.folder,
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(COMMAND_MAX_S):
            printed, errors = await process.communicate()
        return process.returncode, printed.decode(), errors.decode()


async def _endpoint(process: Process) -> str:
    """What `notary up` prints once everything serves."""
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(UP_MAX_S):
        async for line in process.stdout:
            lines.append(line.decode())
            if found := re.search(r"(http://\S+)\s+is the endpoint", lines[-1]):
                return found[1]
    raise AssertionError("".join(lines))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def terminal(servers_folder: Path) -> AsyncIterator[Terminal]:
    """`notary up`, in a folder of its own, which has modules that must not run in its processes."""
    folder = servers_folder / "quick-start"
    (folder / ".venv").mkdir(parents=True)
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    shadows = write_shadows(folder)
    process = await asyncio.create_subprocess_exec(".venv/bin/notary", "up", cwd=folder, stdout=PIPE)
    try:
        endpoint = await _endpoint(process)
        assert not (folder / RAN).exists(), (folder / RAN).read_text()
        for path in shadows:  # the commands of the pages run Python here, too
            path.unlink()
        drained = asyncio.create_task(process.communicate())
        yield Terminal(folder, endpoint)
        process.send_signal(signal.SIGINT)
        await drained
        assert process.returncode == 0  # Ctrl-C is how it ends
    finally:
        await ended(process)


async def test_the_readme_leads_to_a_first_success_in_two_commands(terminal: Terminal) -> None:
    """Goal: two commands, and nothing to look up. Method: the README's second one, beside the first."""
    assert "It runs `.venv/bin/notary up` and `.venv/bin/notary try`." in (ROOT / "README.md").read_text()
    code, printed, errors = await terminal.run(".venv/bin/notary try")
    assert (code, errors) == (0, "")
    for part in ("request, signed", "answer: notarised at log offset", "receipt:", "verification\nvalid by"):
        assert part in printed
    assert printed.rstrip().splitlines()[-1].startswith("STATE_CONFLICT: ")


async def test_what_it_shows_can_be_checked_by_hand(terminal: Terminal) -> None:
    """Goal: what `notary try` shows is real. Method: its JSON, by `notary verify`; then another key."""
    code, printed, _ = await terminal.run(f"{block('docs/api.md', 'first success').strip()} --json")
    found = json.loads(printed)
    assert (code, found["verified"], found["second"]["code"]) == (0, True, "STATE_CONFLICT")
    (terminal.folder / "answer.json").write_text(printed)
    (terminal.folder / "request.json").write_text(json.dumps(found["request"]))
    verify = ".venv/bin/notary verify answer.json --request request.json --notary-key"
    assert (await terminal.run(f"{verify} {found['notary_key']}"))[0] == 0
    other = "ab" * 32
    assert (await terminal.run(f"{verify} {other}"))[0] == 1
    code, printed, _ = await terminal.run(f".venv/bin/notary try --notary-key {other}")
    assert (code, "NOT VALID" in printed) == (1, True)


async def test_the_first_curl_example_works_by_copying(terminal: Terminal) -> None:
    """Goal: the page's first curl is a success, then a conflict. Method: run it twice, as printed."""
    commands = block("docs/api.md", "first success by hand")
    assert PRINTED_ENDPOINT in commands  # the port that `notary up` takes for a new cluster
    code, printed, errors = await terminal.run(commands)
    assert (code, errors) == (0, "")
    first = json.loads(printed)
    assert first["code"] == "NOTARISED"
    code, printed, _ = await terminal.run(commands)
    again = json.loads(printed)
    assert (again["code"], len(again["conflicts"])) == ("STATE_CONFLICT", 1)


async def test_a_key_of_its_own_needs_no_configuration(terminal: Terminal, tmp_path: Path) -> None:
    """Goal: a developer of another firm tries it, too. Method: key and endpoint by name; then a key that nobody has."""
    key = tmp_path / "bank-2.key"
    shutil.copy(terminal.folder / "data/local/parties/bank-2.key", key)
    notary = Path(sys.executable).with_name("notary")
    elsewhere = Terminal(tmp_path, terminal.endpoint)
    words = f"--key {key} --party 'O=Bank 2,L=London,C=GB' --endpoint {PRINTED_ENDPOINT}"
    code, printed, errors = await elsewhere.run(f"{notary} try {words}")
    assert (code, errors) == (0, "")
    assert "ask the operator for it" in printed
    await elsewhere.run(f"{notary} keys create stranger.key")
    code, _, errors = await elsewhere.run(
        f"{notary} try --key stranger.key --party 'O=Stranger,C=GB' --endpoint {PRINTED_ENDPOINT}"
    )
    assert (code, errors.split(":")[0]) == (1, "PARTY_UNKNOWN")


@pytest.mark.thorough
async def test_signing_reports_what_is_wrong(terminal: Terminal, tmp_path: Path) -> None:
    """Goal: a mistake is one line with what to do. Method: each argument wrong in turn."""
    name = str(tmp_path / "new.key")
    await terminal.run(f".venv/bin/notary keys create {name}")
    for words, said in (
        ("--input nonsense", "a state is"),
        ("--tx-id 12", "64 hexadecimal digits"),
        ("--from tomorrow", "Invalid RFC3339"),
        ("--key missing.key", "missing.key cannot be read"),
        (f"--key {name}", "name it with --party"),
    ):
        code, printed, errors = await terminal.run(f".venv/bin/notary sign {words}")
        assert (code, printed, errors.split(":")[0]) == (2, "", "CONFIG_INVALID")
        assert said in errors
        assert "Traceback" not in errors


@pytest.mark.thorough
async def test_the_first_command_of_the_readme_succeeds_on_a_fresh_clone(tmp_path: Path) -> None:
    """Goal: a newcomer's first command ends with a receipt, and the second attempt refused, with nothing set up before.

    Method: README's `make try` in a copy of what git has, which has no environment; it ends by itself here.
    """
    assert "\n    make try " in (ROOT / "README.md").read_text()
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if not name.startswith("tests/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    process = await asyncio.create_subprocess_exec(
        *("make", "try", "ARGS=--exit"), cwd=tmp_path, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        async with asyncio.timeout(TRY_MAX_S):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGINT)
            await process.wait()
    said = printed.decode()
    assert process.returncode == 0, said
    assert ["notarised at log offset" in said, "valid by the notary's key" in said, "STATE_CONFLICT" in said] == [
        True
    ] * 3
    assert "openjdk" not in said and "Kafka" not in said
