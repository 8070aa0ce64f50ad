"""The wheel, as an operator gets it: built, installed into a clean environment, and run from there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
ALICE = "ea967d52cf19cfc80f08ddeb400d06888cc8d1ed931b8da777b88df65ed8e70a"  # some Ed25519 public key
BUILD_MAX_S, INSTALL_MAX_S, RUN_MAX_S = 120, 300, 60


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
def notary(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The console command in an environment that has the pinned packages and the wheel, and nothing of this clone."""
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", home)
    pip = home / "bin" / "pip"
    run(pip, "install", "--quiet", "--require-hashes", "-r", ROOT / "requirements.lock", timeout_s=INSTALL_MAX_S)
    run(pip, "install", "--quiet", "--no-deps", wheel, timeout_s=INSTALL_MAX_S)
    yield home / "bin" / "notary"


def test_the_wheel_carries_what_is_not_python(wheel: Path) -> None:
    """Goal: SQL, templates, page, excerpt and runbooks are shipped. Method: list the archive."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {"haproxy/template.cfg.j2", "haproxy/keepalived.conf.j2"} <= set(names)
    assert {"replica/status_page/page.html", "replica/status_page/page.js", "replica/status_page/page.css"} <= set(
        names
    )
    assert "replica/store/sql/postgres/publish.sql" in names
    assert "ledger_api/server/page.html.j2" in names
    assert any(name.startswith("replica/store/migrations/postgres/0001") for name in names)
    assert any(name.startswith("runbooks/") and name.endswith(".md") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_the_installed_command_runs(notary: Path, tmp_path: Path) -> None:
    """Goal: an operator's first steps need nothing of the clone. Method: init, key, check and render, elsewhere."""
    assert "status" in run(notary, "--help", cwd=tmp_path)
    page = (ROOT / "runbooks/failover.md").read_text(encoding="utf-8")
    assert run(notary, "runbook", "failover", cwd=tmp_path) == page
    run(notary, "init", cwd=tmp_path)
    assert (tmp_path / "notary.toml").exists()
    run(notary, "keys", "create", "notary.key", cwd=tmp_path)
    assert (tmp_path / "notary.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "parties.toml").write_text(f'[parties]\n"CN=Alice,O=Test,C=GB" = ["{ALICE}"]\n')
    (tmp_path / "database.password").touch(mode=0o600)
    certificate_file, key_file = Authority(tmp_path, "kafka-ca").issue("api")
    assert (certificate_file.name, key_file.name) == ("api.crt", "api.key")
    assert "notary.toml is valid" in run(notary, "config", "check", cwd=tmp_path)
    assert "/health/active" in run(notary, "haproxy", "render", cwd=tmp_path)
