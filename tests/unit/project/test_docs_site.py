"""The pages as a site, the man pages and the completion: made from the same sources, and links lead somewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from replica.cli.main import app

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts/docs_site.py"


def build(tmp_path: Path, broken: str = "") -> subprocess.CompletedProcess[str]:
    """`mkdocs build` over the pages, in a folder of the test's."""
    pages = tmp_path / "pages"
    subprocess.run([sys.executable, str(SCRIPT), str(pages)], cwd=ROOT, check=True)
    if broken:
        (pages / "docs/operations.md").write_text(f"# Operations\n\n[there]({broken})\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = settings.replace("build/site-pages", str(pages)).replace("build/site\n", f"{tmp_path}/site\n")
    (tmp_path / "mkdocs.yml").write_text(settings)
    argv = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "-f", str(tmp_path / "mkdocs.yml")]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Goal: the pages can be read in a browser, also where there is no network. Method: build; look for addresses."""
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert "notary switchover" in (site / "commands.html").read_text()
    for page in (
        "index.html",
        "docs/install.html",
        "runbooks/failover.html",
        "docs/decisions/0001-record-serialisation.html",
    ):
        text = (site / page).read_text()
        loaded = [
            part.split('"')[0] for tag in ('src="', '<link rel="stylesheet" href="') for part in text.split(tag)[1:]
        ]
        assert loaded
        assert not [url for url in loaded if url.startswith(("http", "//"))], page


@pytest.mark.parametrize("broken", ["nowhere.md", "security.md#no-such-heading"])
def test_a_broken_link_fails_the_build(broken: str, tmp_path: Path) -> None:
    """Goal: nobody clicks into nothing. Method: a page that is not there, and a heading that is not there."""
    assert build(tmp_path, broken).returncode != 0


def test_every_page_of_the_navigation_is_there() -> None:
    """Goal: a page that is renamed is noticed. Method: the navigation's files."""
    text = "\n".join(line for line in (ROOT / "mkdocs.yml").read_text().splitlines())
    named = [
        page
        for part in yaml.safe_load(text)["nav"]
        for value in part.values()
        for page in ([value] if isinstance(value, str) else [one for item in value for one in item.values()])
    ]
    made = {"index.md", "commands.md"}
    assert [page for page in named if page not in made and not (ROOT / page).is_file()] == []


def test_each_command_has_a_man_page_and_completion_asks_the_command(tmp_path: Path) -> None:
    """Goal: `man notary-switchover`, and Tab. Method: make both; let man read one, complete a word."""
    subprocess.run([sys.executable, str(SCRIPT), "--man", str(tmp_path)], cwd=ROOT, check=True)
    page = (tmp_path / "notary-switchover.1").read_text()
    for text in ("Hand over to another replica", "\\-\\-if\\-active", "\\-\\-at", "replicated-notary"):
        assert text in page
    assert (tmp_path / "notary-log-members.1").is_file()
    verify = (tmp_path / "notary-verify.1").read_text()
    assert ".SH SYNOPSIS\n.B notary verify\n[OPTIONS] {receipt}\n" in verify  # as `notary verify --help` has it
    assert "\n.B {receipt}\n" in verify
    if shutil.which("man"):
        read = subprocess.run(["man", "-l", str(tmp_path / "notary.1")], capture_output=True, text=True, check=True)
        assert "notary-switchover" in read.stdout
    subprocess.run([sys.executable, str(SCRIPT), "--completion", str(tmp_path)], cwd=ROOT, check=True)
    assert {path.name for path in tmp_path.iterdir()} >= {"notary.bash", "_notary", "notary.fish"}
    asked = {"COMP_WORDS": "notary swi", "COMP_CWORD": "1", "_NOTARY_COMPLETE": "complete_bash"}
    argv = [sys.executable, "-c", "import sys; sys.argv[0] = 'notary'; from replica.cli.main import main; main()"]
    found = subprocess.run(argv, cwd=ROOT, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert "switchover" in found.stdout


def test_an_installed_notary_prints_and_writes_the_same_pages(tmp_path: Path) -> None:
    """Goal: man pages come with the wheel. Method: print one and write all by the command, beside `make docs`'s."""
    subprocess.run([sys.executable, str(SCRIPT), "--man", str(tmp_path / "made")], cwd=ROOT, check=True)
    runner = CliRunner()
    written = runner.invoke(app, ["man", "--write", str(tmp_path / "written")])
    made = {path.name: path.read_text() for path in (tmp_path / "made").iterdir()}
    assert (written.exit_code, f"{len(made)} pages are in" in written.output) == (0, True)
    assert {path.name: path.read_text() for path in (tmp_path / "written").iterdir()} == made
    assert runner.invoke(app, ["man", "archive", "status"]).output == made["notary-archive-status.1"]
    assert runner.invoke(app, ["man"]).output == made["notary.1"]
    assert "did you mean switchover?" in str(runner.invoke(app, ["man", "switchovr"]).exception)
    assert "cannot be written" in str(runner.invoke(app, ["man", "--write", "/dev/null/man"]).exception)
