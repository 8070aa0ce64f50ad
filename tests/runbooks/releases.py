"""Releases side by side: wheels made from the repository, and an environment for each replica, as on its machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from replica.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
BUILD_MAX_S = 120


def build_wheel(folder: Path, revision: str | None = None, suffix: str = "") -> Path:
    """The wheel of a revision of this repository, or of the files as they are.

    `suffix`: added to the version of a revision, which may be that of the files.
    """
    source = ROOT
    folder.mkdir(parents=True)
    if revision is not None:
        source = folder / "source"
        source.mkdir()
        packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
        project = source / "pyproject.toml"
        project.write_text(re.sub(r'^version = "(.*)"$', rf'version = "\1{suffix}"', project.read_text(), flags=re.M))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=BUILD_MAX_S)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path) -> Path:
    """An environment with the packages that this one has, but for the project itself; returns its folder."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Our packages by path alone: a path in a .pth file is not searched for further .pth files, such as that of an
    # editable installation.
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def install(environment: Path, wheel: Path) -> None:
    """Install a release into an environment, as the runbook does."""
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)


def version_of(wheel: Path) -> str:
    """The version in a wheel's name."""
    return wheel.name.split("-")[1]


def write_old_config(cluster: LocalCluster, path: Path) -> None:
    """The cluster's configuration in the words of 0.1.0: both releases read it. Raises nothing; a wrong one is
    reported."""
    config = cluster.config
    lines = [
        f"data_dir = {json.dumps(str(config.data_dir))}",
        f"notary_key_file = {json.dumps(str(config.notary_key_file))}",
        f"api_workers = {config.api_workers}",
        f"[endpoint]\nport = {config.endpoint.port}",
        f"[database]\nconninfo = {json.dumps(config.database.conninfo)}",
        f"password_file = {json.dumps(str(config.database.password_file))}",
        f"scope = {json.dumps(config.database.scope)}",
        f"[kafka]\nbootstrap_servers = {json.dumps(config.log.settings.address)}\nsingle_broker = true",
        f"[api]\nregistry_path = {json.dumps(str(config.api.registry_path))}",
        f"[haproxy]\nstats_socket = {json.dumps(config.haproxy_settings().stats_socket)}",
    ]
    for replica in config.replicas:
        lines.append(f'[[replicas]]\nname = "{replica.name}"\nhost = "{replica.host}"')
        lines.append(f"api_port = {replica.api_port}\nhealth_port = {replica.health_port}")
    path.write_text("\n".join(lines) + "\n")
