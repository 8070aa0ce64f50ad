"""Releases side by side: wheels made from the repository, and an environment for each replica, as on its machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_MAX_S = 120
NEXT = "+next"  # what the version of a release that knows the made-up next format ends in


def build_wheel(folder: Path, suffix: str = "") -> Path:
    """The wheel of the files as they are, or of the newest commit with `suffix` added to its version; with `NEXT` it
    knows the made-up next version."""
    source = ROOT
    folder.mkdir(parents=True)
    if suffix:
        source = folder / "source"
        source.mkdir()
        packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
        project = source / "pyproject.toml"
        project.write_text(re.sub(r'^version = "(.*)"$', rf'version = "\1{suffix}"', project.read_text(), flags=re.M))
    if suffix == NEXT:
        domain = source / "replica" / "notary"
        shutil.copy(ROOT / "tests" / "next_version" / "release.py", domain / "next_version.py")
        with (domain / "__init__.py").open("a") as stream:
            stream.write("\nfrom replica.notary.next_version import register\n\nregister()\n")
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
