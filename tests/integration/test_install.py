"""docs/install.md and docs/install-embedded.md, followed literally: on real servers, and on nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from replica.cli.install_steps import STEPS
from replica.local.haproxy import find_haproxy, find_keepalived
from replica.local.kafka import KafkaCluster
from replica.local.ports import LOOPBACK, PortReservation
from replica.local.postgres import PostgresServer, find_binaries
from replica.notary.formats import Formats

ROOT = Path(__file__).parents[2]
PAGE, EMBEDDED = ROOT / "docs/install.md", ROOT / "docs/install-embedded.md"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HOSTS = ("127.78.0.1", "127.78.0.2", "127.78.0.3")  # a machine each, as far as listeners can tell
FOLDERS = (
    "/etc/notary",
    "/var/lib/notary",
    "/etc/haproxy",
    "/etc/keepalived",
    "/etc/prometheus",
    "/etc/systemd/system",
)
BLOCK_MAX_S = 180.0
CHECK = "COLUMNS=2000 notary init --check || test $? = 1"
SEEN_EARLY = {"Prometheus"}  # HAProxy's exporter answers as soon as HAProxy runs

SYSTEMCTL = """#!/bin/bash
# The first ExecStart of the unit, run as it stands there; enough for `enable --now` and `restart`.
set -euo pipefail
cd "$STAGE_ETC"
unit=${!#} name=${unit%.timer}
echo "$@" >> "$STAGE/systemctl.log"
case $unit in
    daemon-reload | prometheus | keepalived | notary-archive | *.timer) exit 0 ;;
    haproxy) exec_start="haproxy -W -f $STAGE/etc/haproxy/haproxy.cfg" ;;
    *@*) exec_start=$(sed -n 's/^ExecStart=//p' "$STAGE/etc/systemd/system/${unit%@*}@.service")
         exec_start=${exec_start//%i/${unit#*@}} ;;
esac
exec_start=${exec_start//\\/opt\\/notary\\/.venv\\/bin\\//} exec_start=${exec_start//\\/etc\\/notary/$STAGE/etc/notary}
# Each machine has its own certificate as log.crt; here all share one folder.
if grep -qs '^kind = "raft"' notary.toml && [[ $unit == *@* ]]; then
    export NOTARY_LOG__RAFT__TLS__CERTIFICATE_FILE=${unit#*@}.crt NOTARY_LOG__RAFT__TLS__KEY_FILE=${unit#*@}.key
fi
setsid $exec_start > "$STAGE/$name.log" 2>&1 < /dev/null &
echo $! | tee -a "$STAGE/pids" > "$STAGE/$name.pid"
"""


def blocks(page: Path = PAGE) -> Iterator[tuple[str, str]]:
    """Heading and text of each block of commands, in their order."""
    heading = ""
    for found in re.finditer(r"^## ([^\n]+)$|^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if found[1] is not None:
            heading = found[1]
        else:
            yield heading, found[2]


def network_interface() -> str:
    """One that keepalived takes; empty where there is none, and its configuration is not checked."""
    found = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo")
    return found[0] if found and find_keepalived() else ""


def test_the_command_lists_the_steps_of_the_page() -> None:
    """Goal: page, `notary init` and its check cannot differ. Method: headings with commands, in their order."""
    assert [step.name for step in STEPS] == list(dict.fromkeys(heading for heading, _ in blocks()))


def check_progress(shown: str, *, before: str) -> None:
    """Before a heading: no step before it is missing, and its own is not said to be done."""
    names = [step.name for step in STEPS]
    lines = re.findall(r"^(done|missing|not seen) +([A-Za-z ]+?)(?:  .*)?$", shown, re.MULTILINE)
    assert [name for _, name in lines] == names, shown
    marks = {name: mark for mark, name in lines}
    assert [name for name in names[: names.index(before)] if marks[name] == "missing"] == [], (before, shown)
    assert marks[before] in ("missing", "not seen") or before in SEEN_EARLY, (before, shown)


class Stage:
    """A folder in the place of the machines' file systems, and the words that lead there."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        for path in FOLDERS:
            self._here(path).mkdir(parents=True)
        (folder / "bin").mkdir()
        self._script("notary", f'exec {sys.executable} -m replica.cli "$@"')
        self._script("useradd", "exit 0")
        self._script("chown", "exit 0")
        self._script("runuser", 'shift 3; exec "$@"')  # -u NAME --
        self._script("haproxy", f'exec {find_haproxy()} "$@"')
        self._script("keepalived", f'exec {find_keepalived() if network_interface() else "true"} "$@"')
        (folder / "bin/systemctl").write_text(SYSTEMCTL)
        (folder / "bin/systemctl").chmod(0o755)
        self._environment = {
            **{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ},
            "PATH": f"{folder / 'bin'}:{find_binaries()}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": str(ROOT),
            "STAGE": str(folder),
            "STAGE_ETC": str(self._here("/etc/notary")),
            "NOTARY_HAPROXY__KEEPALIVED__CONFIG_FILE": str(self._here("/etc/keepalived/keepalived.conf")),
            **variables,
        }

    def run(self, text: str, where: str) -> str:
        """Run commands of the page; those that name a folder of the machine find it here. Returns what they printed."""
        for path in FOLDERS:
            text = re.sub(rf"(?<![\w.]){path}\b", str(self._here(path)), text)
        text = re.sub(r"(?<![\w/])(deploy|monitoring)/", rf"{ROOT}/\1/", text)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._here("/etc/notary"),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_MAX_S,
            check=False,
        )
        logs = "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))
        assert done.returncode == 0, f"{where}: code {done.returncode}\n{text}\n---\n{done.stdout}\n{logs}"
        return done.stdout

    def kill(self, *units: str) -> None:
        """SIGKILL for what the stand-in for systemd started last under these names: the loss of a machine."""
        for unit in units:
            os.killpg(int(self._here(f"{unit}.pid").read_text()), signal.SIGKILL)

    def file(self, path: str) -> str:
        return self._here(path).read_text()

    def stop(self) -> None:
        """End what the stand-in for systemd started."""
        pids = self.folder / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            try:
                os.killpg(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _here(self, path: str) -> Path:
        return self.folder / path.removeprefix("/")

    def _script(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


@asynccontextmanager
async def servers(folder: Path, ports: PortReservation) -> AsyncIterator[tuple[PostgresServer, KafkaCluster]]:
    """What the page says you need: a primary with a synchronous standby, and three brokers."""
    primary, standby = PostgresServer(folder / "db-1", ports.take()), PostgresServer(folder / "db-2", ports.take())
    kafka = KafkaCluster(folder / "kafka", [ports.take() for _ in range(6)])
    try:
        await asyncio.gather(primary.start(), kafka.start())
        await standby.start_standby_of(primary, "db2")
        await primary.require_standby("db2")
        yield primary, kafka
    finally:
        await asyncio.gather(kafka.remove(), standby.remove(), primary.remove())


@pytest.mark.slow
async def test_the_install_page_leads_to_a_notary_that_works(servers_folder: Path, ports: PortReservation) -> None:
    """Goal: whoever follows the page has a notary in the end, and nothing to look up. Method: every command of the
    page, in its order, on real servers; before each heading `notary init --check` names what is still to do, and in the
    end nothing."""
    folder = servers_folder / "install"
    folder.mkdir()
    folder.chmod(0o755)
    async with servers(folder, ports) as (primary, kafka):
        database = {name: str(value) for name, value in conninfo_to_dict(primary.dsn()).items()}
        endpoint, api, proxy, health, exporter = (str(ports.take()) for _ in range(5))
        stage = Stage(
            folder / "stage",
            {
                **{f"R{number}_HOST": host for number, host in enumerate(HOSTS, 1)},
                "DB_HOST": LOOPBACK,
                "DB_PORT": database["port"],
                "DB_TLS": "sslmode=prefer",
                "PGHOST": LOOPBACK,
                "PGPORT": database["port"],
                "PGUSER": database["user"],
                "PGPASSWORD": database["password"],
                "KAFKA": kafka.bootstrap_servers,
                "KAFKA_SECURITY": '{protocol = "PLAINTEXT"}',
                "ENDPOINT_HOST": LOOPBACK,
                "ENDPOINT_PORT": endpoint,
                "EXPORTER_PORT": exporter,
                "ARCHIVE_HOST": LOOPBACK,
                "ALERTMANAGER_ADDRESS": "10.0.0.20:9093",
                "API_PORT": api,
                "PROXY_PORT": proxy,
                "HEALTH_PORT": health,
                "VIRTUAL_ADDRESS": "10.0.0.10/24",
                "INTERFACE": network_interface() or "eth0",
                "HAPROXY_1": LOOPBACK,
                "HAPROXY_2": "127.0.0.2",  # the same HAProxy
                "NOTARY_HAPROXY": f'{{"stats_socket": "{folder}/admin.sock", "state_file": "{folder}/server.state"}}',
            },
        )
        (folder / "server.state").write_text("1\n")
        try:
            printed = {}
            for number, (heading, text) in enumerate(blocks()):
                if heading not in printed:
                    shown = await asyncio.to_thread(stage.run, CHECK, f"before {heading}")
                    check_progress(shown, before=heading)
                printed[heading] = await asyncio.to_thread(stage.run, text, f"install.md, block {number}, {heading}")
            assert "STATE_CONFLICT" in printed["See that it works"]
            assert "missing" not in printed["See that it works"]
            in_force = json.loads(await asyncio.to_thread(stage.run, "notary format show --json", "afterwards"))
            assert in_force["rules_in_force"] == dict.fromkeys(("r1", "r2", "r3"), Formats().rules)
            targets = {
                job["job_name"]: [target for group in job["static_configs"] for target in group["targets"]]
                for job in yaml.safe_load(stage.file("/etc/prometheus/prometheus.yml"))["scrape_configs"]
            }
            assert targets == {  # no other: the alert of a job that nobody runs calls people for nothing
                "notary": [f"{host}:{health}" for host in HOSTS],
                "notary-archive": [f"{LOOPBACK}:9103"],
                "notary-haproxy": [f"{LOOPBACK}:{exporter}", f"127.0.0.2:{exporter}"],
            }
            for target in [*targets["notary"], f"{LOOPBACK}:{exporter}"]:
                with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
                    assert answer.status == 200
        finally:
            stage.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
async def test_the_embedded_install_page_leads_to_a_notary_that_works(
    servers_folder: Path, ports: PortReservation
) -> None:
    """Goal: three machines and this page are enough. Method: every command of the page, in its order; no server but
    HAProxy. TLS between the log nodes, each with a certificate of its own; then the loss of the active's machine."""
    folder = servers_folder / "install-embedded"
    folder.mkdir()
    folder.chmod(0o755)
    endpoint, api, proxy, health, log = (str(ports.take()) for _ in range(5))
    stage = Stage(
        folder / "stage",
        {
            **{f"R{number}_HOST": host for number, host in enumerate(HOSTS, 1)},
            "ENDPOINT_HOST": LOOPBACK,
            "ENDPOINT_PORT": endpoint,
            "API_PORT": api,
            "PROXY_PORT": proxy,
            "HEALTH_PORT": health,
            "LOG_PORT": log,
            "VIRTUAL_ADDRESS": "10.0.0.10/24",
            "INTERFACE": network_interface() or "eth0",
            "HAPROXY_1": HOSTS[0],
            "HAPROXY_2": HOSTS[1],
            "NOTARY_HAPROXY": f'{{"stats_socket": "{folder}/admin.sock", "state_file": "{folder}/server.state"}}',
        },
    )
    (folder / "server.state").write_text("1\n")
    try:
        printed = {}
        for number, (heading, text) in enumerate(blocks(EMBEDDED)):
            where = f"install-embedded.md, block {number}, {heading}"
            printed[heading] = await asyncio.to_thread(stage.run, text, where)
        assert "STATE_CONFLICT" in printed["See that it works"]
        before = json.loads(await asyncio.to_thread(stage.run, "notary status --json", "afterwards"))["lock_owner"]
        stage.kill(f"notary@{before}", f"notary-log@{before}")
        another = f"notary status --json | jq -e '.lock_owner != \"{before}\" and .lock_owner != null' >/dev/null"
        await asyncio.to_thread(stage.run, f"until {another}; do sleep 0.2; done", "the loss of a machine")
        await asyncio.to_thread(stage.run, list(blocks(EMBEDDED))[-1][1], "after the loss of a machine")
    finally:
        stage.stop()
    shutil.rmtree(folder, ignore_errors=True)
