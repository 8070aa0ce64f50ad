"""Unit files, Containerfile and compose file, checked as far as that goes without installing them."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from replica.config.load import load_config
from replica.config.model import Config
from tests.image import instructions

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "deploy/systemd"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/container/compose.yml").read_text())
CONTAINERFILE = (ROOT / "deploy/container/Containerfile").read_text()
LINTER = ROOT / ".tools/containers-lint"
needs_linter = pytest.mark.skipif(not LINTER.exists(), reason="no linter of container files here: make containers")
EXPOSURE_MAX = 2.0  # of systemd-analyze security: 10 is everything allowed
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNITS / name)
    return parsed


@needs_systemd
@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.iterdir()))
def test_systemd_accepts_every_unit(name: str, tmp_path: Path) -> None:
    """Goal: no typing error in a unit. Method: systemd-analyze verify, with a program that is there in our place."""
    for path in UNITS.iterdir():
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name.replace("@.", "@r1.")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name.replace("@.", "@r1."))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "notary" in line]
    assert complaints == []


@needs_systemd
@pytest.mark.parametrize(
    "name",
    [
        "notary@.service",
        "notary-log@.service",
        "notary-doctor.service",
        "notary-archive.service",
        "notary-log-copy.service",
        "notary-tables.service",
    ],
)
def test_units_are_hardened(name: str) -> None:
    """Goal: a taken-over replica reaches little. Method: systemd's own measure of exposure, offline."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(UNITS / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Unknown" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip("this systemd-analyze is too old to look at files")
    found = re.search(r"Overall exposure level.*: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= EXPOSURE_MAX + (1.5 if "doctor" in name else 0)


def test_the_unit_of_a_replica_keeps_what_the_replica_relies_on() -> None:
    """Goal: exit codes, watchdog and step-down mean the same to both. Method: the settings that carry it."""
    service = unit("notary@.service")["Service"]
    assert (service["Type"], service["NotifyAccess"], service["Restart"]) == ("notify", "main", "always")
    assert service["RestartPreventExitStatus"] == "2"
    assert service["KillMode"] == "mixed", "front ends must outlive the first signal, to be drained"
    assert int(service["WatchdogSec"]) > 3
    assert service["ExecStart"].split()[1:] == ["replica", "--config", "/etc/notary/notary.toml", "--name", "%i"]


def test_the_unit_of_a_log_node_keeps_what_the_node_relies_on() -> None:
    """Goal: a node that a person must look at is not started for ever. Method: the settings that carry it."""
    service = unit("notary-log@.service")["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert service["ExecStart"].split()[1:] == ["log-node", "--config", "/etc/notary/notary.toml", "--name", "%i"]


def test_containers_run_as_nobody_and_cannot_write() -> None:
    """Goal: hardening is not forgotten for a new service. Method: each service of the compose file."""
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert not service["image"].endswith(":latest"), name
        assert ":" in service["image"], name
        assert "environment" not in service, f"{name}: secrets are files"
    user = re.search(r"^USER (\d+):(\d+)$", CONTAINERFILE, re.MULTILINE)
    assert user
    assert user.groups() != ("0", "0")
    assert {secret["uid"] for secret in COMPOSE["x-replica"]["secrets"]} == {user[1]}


def test_the_compose_file_names_what_exists() -> None:
    """Goal: it starts. Method: every secret, configuration, volume and network that a service names is declared."""
    for service in COMPOSE["services"].values():
        assert {entry["source"] for entry in service.get("configs", [])} <= set(COMPOSE["configs"])
        assert {entry["source"] for entry in service.get("secrets", [])} <= set(COMPOSE["secrets"])
        assert {entry.partition(":")[0] for entry in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])
    for entry in COMPOSE["configs"].values():
        path = (ROOT / "deploy/container" / entry["file"]).resolve()
        assert path.parent == ROOT / "deploy/container" or path.is_file()


def test_the_image_is_built_from_pinned_packages_only() -> None:
    """Goal: what runs is what was locked. Method: the options of pip in the Containerfile."""
    installs = re.findall(r"pip install ([^&\n]*)", CONTAINERFILE)
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--no-index" in installs[1]
    assert "COPY deploy/container/requirements.lock " in CONTAINERFILE
    assert 'ENTRYPOINT ["tini", "--", "notary"]' in CONTAINERFILE


def test_the_image_has_what_a_replica_runs_with_and_no_more() -> None:
    """Goal: no test tool in production, nothing that may not be passed on. Method: its lock against the whole one."""
    whole, image = (pinned(ROOT / folder / "requirements.lock") for folder in (".", "deploy/container"))
    assert set(image.items()) <= set(whole.items()), "run make lock"
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {canonicalize_name(Requirement(text).name) for text in needed} <= set(image)
    assert not {"pytest", "mypy", "pyspark", "intel-cmplr-lib-rt", "ipp-crypto"} & set(image)


def pinned(lock: Path) -> dict[str, str]:
    """Version and hashes of each package in a lock."""
    return dict(re.findall(r"^(\S+)==((?:.*\\\n)*.*)$", lock.read_text(), re.MULTILINE))


def test_every_instruction_of_the_image_is_one_that_its_test_carries_out() -> None:
    """Goal: tests/integration/test_image.py runs the whole file. Method: each instruction, arguments filled in."""
    found = instructions(CONTAINERFILE)
    assert {one.name for one in found} <= {
        *("FROM", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD")
    }
    assert [one.value for one in found if one.name == "FROM"] == [
        "docker.io/library/python:3.11-slim-bookworm AS build",
        "docker.io/library/python:3.11-slim-bookworm",
    ]
    (packages,) = [one.value for one in found if "apt-get install" in one.value]
    assert "haproxy tini" in packages
    assert "\\\n" not in packages


CONTAINERS = ROOT / "deploy/container"


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    """The configuration of the compose file, where its files are."""
    shutil.copy(CONTAINERS / "notary.toml", tmp_path)
    return load_config(tmp_path / "notary.toml")


def test_the_compose_files_services_are_the_replicas_of_its_configuration(settings: Config) -> None:
    """Goal: three replicas start, and find one another. Method: names, hosts, ports and files on both sides."""
    services = COMPOSE["services"]
    replicas = {name: service for name, service in services.items() if service["image"].startswith("notary:")}
    assert len(replicas) == 3
    assert set(replicas) == {replica.name for replica in settings.replicas}
    for replica in settings.replicas:
        service = replicas[replica.name]
        assert (replica.host, service["hostname"], service["command"][-1]) == (replica.name,) * 3
        assert service["volumes"] == [f"{replica.name}:{settings.data_dir}"]
    (published,) = services["haproxy"]["ports"]
    assert published == f"{settings.endpoint.port}:{settings.endpoint.port}"
    placed = {Path(entry["target"]).name for part in ("configs", "secrets") for entry in COMPOSE["x-replica"][part]}
    assert settings.api.tls is not None
    assert settings.api.tokens is not None
    named = {
        settings.notary_key_file,
        settings.database.password_file,
        settings.api.tls.certificate_file,
        settings.api.tls.key_file,
        settings.api.tokens.keys_file,
    }
    assert {path.name for path in named if path is not None} | {"kafka-ca.pem", "database-ca.pem"} <= placed


def test_prometheus_in_the_compose_file_asks_what_is_there(settings: Config) -> None:
    """Goal: no target is down from the first minute. Method: its targets against replicas and exporter."""
    jobs = {
        job["job_name"]: job["static_configs"]
        for job in yaml.safe_load((CONTAINERS / "prometheus.yml").read_text())["scrape_configs"]
    }
    (replicas,), (balancers,) = jobs["notary"], jobs["notary-haproxy"]
    assert replicas["targets"] == [f"{replica.host}:{replica.health_port}" for replica in settings.replicas]
    exporter = settings.haproxy_settings().exporter
    assert exporter is not None
    assert balancers["targets"] == [f"haproxy:{exporter.port}"]
    assert exporter.host == "*", "Prometheus is another container"
    assert "haproxy" in COMPOSE["services"]
    assert replicas["labels"] == balancers["labels"] == {"cluster": "notary"}
    assert COMPOSE["configs"]["prometheus"]["file"] == "./prometheus.yml"


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health/live" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_images_health_check_asks_where_a_replica_listens(settings: Config) -> None:
    """Goal: a replica that is well is not called unhealthy. Method: the image's own check, with a server at the
    container's name and nothing on 127.0.0.1; then without the server."""
    (check,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    _, _, code = json.loads(check)
    (port,) = {replica.health_port for replica in settings.replicas}
    assert f":{port}/" in code
    here = "127.0.0.2"  # in the place of the container's address, which its host name leads to
    with ThreadingHTTPServer((here, 0), _Health) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        named = f"import socket; socket.gethostname = lambda: {here!r}; "
        asked = [sys.executable, "-c", named + code.replace(f":{port}/", f":{server.server_port}/")]
        assert subprocess.run(asked, check=False, timeout=30).returncode == 0
        server.shutdown()
        thread.join()
    assert subprocess.run(asked, check=False, timeout=30, stderr=subprocess.DEVNULL).returncode == 1


@needs_linter
def test_engines_take_the_container_files() -> None:
    """Goal: BuildKit and Compose take each file as it is. Method: their own parsers and rules; a mistake in each."""
    folder = ROOT / "deploy/container"
    files = [*sorted(folder.glob("Containerfile*")), *sorted(folder.glob("compose*.yml"))]
    assert len(files) == 4
    done = subprocess.run([LINTER, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_linter
@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("Containerfile", "FROM a as b\n", "FromAsCasing"),
        ("Containerfile", "FROM a\nRUNN x\n", "unknown instruction: RUNN"),
        ("compose.yml", "services: {r1: {image: a, restarts: always}}\n", "restarts"),
        ("compose.yml", "services: {r1: {image: a, secrets: [nobody]}}\n", "undefined secret"),
    ],
)
def test_the_linter_finds_mistakes(name: str, text: str, finding: str, tmp_path: Path) -> None:
    """Goal: the test above can fail. Method: one mistake each."""
    (tmp_path / name).write_text(text)
    done = subprocess.run([LINTER, tmp_path / name], capture_output=True, text=True, check=False)
    assert (done.returncode, finding in done.stdout) == (1, True), done.stdout
