"""The wheel, as an operator gets it: built, installed into a clean environment, and run from there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from replica.local.process import descendants
from tests.certificates import Authority
from tests.closing import ended
from tests.tokens import Issuer

pytestmark = [pytest.mark.thorough, pytest.mark.cluster]  # all of it, because the environment is made once

ROOT = Path(__file__).resolve().parents[2]
ALICE = "ea967d52cf19cfc80f08ddeb400d06888cc8d1ed931b8da777b88df65ed8e70a"  # some Ed25519 public key
BUILD_MAX_S, INSTALL_MAX_S, RUN_MAX_S = 120, 300, 60
UP_MAX_S = 120
LOOK_EVERY_S, MAPS_EVERY_S = 0.1, 2.0  # the latter holds the processes up
EXTRAS = ("pyspark", "pandas", "pyarrow", "deltalake", "oracledb", "opentelemetry_sdk")
CLIENTS = re.compile(r"/(psycopg|psycopg_binary|confluent_kafka)[\w.]*/|librdkafka|libpq")  # of servers not there
ABSENT = ("java", "postgres", "initdb", "pg_ctl", "psql", "haproxy")


def run(*argv: str | Path, timeout_s: float = RUN_MAX_S, cwd: Path | None = None) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    run(*build, timeout_s=BUILD_MAX_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands in an environment with the wheel and its default dependencies, as pip finds them, and
    nothing of this clone. `make setup` installs every pinned package by its hash."""
    home = tmp_path_factory.mktemp("alone")
    pins, lock = home / "pins.txt", (ROOT / "requirements.lock").read_text()
    pins.write_text("\n".join(re.findall(r"^[a-z0-9._-]+==\S+", lock, re.MULTILINE)))
    run(sys.executable, "-m", "venv", home)
    run(home / "bin" / "pip", "install", "--quiet", "--constraint", pins, wheel, timeout_s=INSTALL_MAX_S)
    found = {path.name.partition("-")[0] for path in home.glob("lib/python*/site-packages/*.dist-info")}
    assert not found & set(EXTRAS)
    return home / "bin"


def test_the_wheel_carries_what_is_not_python(wheel: Path) -> None:
    """Goal: SQL, templates, page, excerpt and runbooks are shipped. Method: list the archive."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {"haproxy/template.cfg.j2", "haproxy/take_out.lua.j2", "haproxy/keepalived.conf.j2"} <= set(names)
    assert {"replica/status_page/page.html", "replica/status_page/page.js", "replica/status_page/page.css"} <= set(
        names
    )
    assert "replica/store/sql/postgres/publish.sql" in names
    assert "ledger_api/server/page.html.j2" in names
    assert any(name.startswith("replica/store/migrations/postgres/0001") for name in names)
    assert any(name.startswith("runbooks/") and name.endswith(".md") for name in names)
    assert not any(name.startswith("tests/") for name in names)


@pytest.mark.timeout(600)  # the environment is made as well
def test_the_installed_command_runs(alone: Path, tmp_path: Path) -> None:
    """Goal: an operator's first steps need nothing of the clone, and no extra. Method: init, key, check and render,
    elsewhere."""
    notary = alone / "notary"
    assert "status" in run(notary, "--help", cwd=tmp_path)
    page = (ROOT / "runbooks/failover.md").read_text(encoding="utf-8")
    assert run(notary, "runbook", "failover", cwd=tmp_path) == page
    assert run(notary, "man", "switchover", cwd=tmp_path).startswith('.TH "NOTARY-SWITCHOVER" 1 ')
    run(notary, "init", cwd=tmp_path)
    assert (tmp_path / "notary.toml").exists()
    run(notary, "keys", "create", "notary.key", cwd=tmp_path)
    assert (tmp_path / "notary.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "parties.toml").write_text(f'[parties]\n"CN=Alice,O=Test,C=GB" = ["{ALICE}"]\n')
    (tmp_path / "database.password").touch(mode=0o600)
    certificate_file, key_file = Authority(tmp_path, "kafka-ca").issue("api")
    Issuer().write(tmp_path / "issuer.pem")
    assert (certificate_file.name, key_file.name) == ("api.crt", "api.key")
    assert "notary.toml is valid" in run(notary, "config", "check", cwd=tmp_path)
    assert "/health/active" in run(notary, "haproxy", "render", cwd=tmp_path)


# ---- all of it from the wheel, with nothing else on the machine ----


@pytest.fixture
def machine(alone: Path, tmp_path: Path) -> dict[str, str]:
    """The environment variables of a machine without Java, Postgres and HAProxy: one that is called leaves a mark."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ABSENT:
        (programs / name).write_text(f"#!/bin/sh\n: > {tmp_path}/{name}-was-called\nexit 1\n")
        (programs / name).chmod(0o755)
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    (programs / "setpriv").symlink_to(setpriv)
    (programs / "sh").symlink_to("/bin/sh")
    kept = {name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_", "TMPDIR"))}
    return kept | {"PATH": f"{alone}:{programs}", "HOME": str(tmp_path), "NOTARY_KAFKA_LIBS": str(tmp_path / "none")}


class Watched:
    """Looks at all processes below one, again and again: which programs they run, and what they have loaded."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look_for_ever)
        self.programs: set[str] = set()
        self.clients: set[str] = set()
        self.most = 0

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _look_for_ever(self) -> None:
        maps_at_s = monotonic()
        while not self._ending.wait(LOOK_EVERY_S):
            pids = [self._pid, *descendants(self._pid)]
            self.most = max(self.most, len(pids))
            for pid in pids:
                with suppress(OSError):
                    self.programs.add(Path(f"/proc/{pid}/exe").readlink().name)
            if monotonic() > maps_at_s:
                self._look_at_maps(pids)
                maps_at_s = monotonic() + MAPS_EVERY_S

    def _look_at_maps(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(OSError):
                mapped = Path(f"/proc/{pid}/maps").read_text()
                self.clients |= {line.split()[-1] for line in mapped.splitlines() if CLIENTS.search(line)}

    def assert_nothing_but_python(self) -> None:
        """And no client of a server that is not there."""
        assert {program for program in self.programs if not program.startswith("python")} <= {"setpriv"}
        assert self.clients == set()


@asynccontextmanager
async def up(alone: Path, machine: dict[str, str], folder: Path) -> AsyncIterator[tuple[str, Watched]]:
    """`notary up`, and what it printed until it served; ended by Ctrl-C, which is an orderly end."""
    process = await asyncio.create_subprocess_exec(
        alone / "notary", "up", "--api-workers", "1", cwd=folder, env=machine, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        with Watched(process.pid) as watched:
            printed = ""
            async with asyncio.timeout(UP_MAX_S):
                while "Ctrl-C stops everything" not in printed:
                    line = await process.stdout.readline()
                    assert line, printed
                    printed += line.decode()
            yield printed, watched
            process.send_signal(signal.SIGINT)
            await process.communicate()
            assert process.returncode == 0
    finally:
        await ended(process)


@pytest.mark.timeout(600)  # the environment is made as well
async def test_notary_up_needs_nothing_but_the_wheel(alone: Path, machine: dict[str, str], tmp_path: Path) -> None:
    """Goal: `pip install`, `notary up`, and there is a replicated notary. Method: on a machine without Java, Postgres
    and HAProxy, notarise, verify, look, hand over, and see which programs run; start it again, without an option."""

    async def notary(*words: str, code: int = 0) -> str:
        argv = (alone / "notary", *words)
        process = await asyncio.create_subprocess_exec(*argv, cwd=tmp_path, env=machine, stdin=DEVNULL, stdout=PIPE)
        async with asyncio.timeout(RUN_MAX_S):
            printed, _ = await process.communicate()
        assert process.returncode == code, (words, printed.decode())
        return printed.decode()

    async with up(alone, machine, tmp_path) as (printed, watched):
        assert re.search(r"^ +embedded +is the profile", printed, re.MULTILINE)
        tried = json.loads(await notary("try", "--json"))
        assert (tried["verified"], tried["second"]["code"]) == (True, "STATE_CONFLICT")
        for name, document in (("tried", tried), ("request", tried["request"])):
            (tmp_path / f"{name}.json").write_text(json.dumps(document))
        key = tried["notary_key"]
        await notary("verify", "tried.json", "--request", "request.json", "--notary-key", key)
        before = json.loads(await notary("status", "--json"))["lock_owner"]
        await notary("switchover")
        assert json.loads(await notary("status", "--json"))["lock_owner"] not in (before, None)
        assert json.loads(await notary("history", "--json"))["epochs"]
        assert len(json.loads(await notary("log", "members", "--json"))["configurations"][0]["live"]) == 3
        assert watched.most >= 1 + 3 + 2 * 3  # three log nodes, three cores and their front ends
    watched.assert_nothing_but_python()
    async with up(alone, machine, tmp_path) as (printed, again):
        assert re.search(r"^ +embedded +is the profile", printed, re.MULTILINE)
        assert json.loads(await notary("try", "--json"))["answer"]["log_offset"] > tried["answer"]["log_offset"]
    again.assert_nothing_but_python()
    assert [path.name for path in tmp_path.glob("*-was-called")] == []
    assert not {"postgres", "kafka", "haproxy"} & {path.name for path in (tmp_path / "data/local").iterdir()}
