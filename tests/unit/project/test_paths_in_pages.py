"""Every path and test that a page names in backticks exists, and every link between pages leads to a file."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for pattern in ("*.md", "changes/*.md", "docs/**/*.md", "runbooks/*.md", "monitoring/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+/?)`")  # no `<NAME>`, `*`, spaces or leading slash
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`(?:[\w./-]+::)?(test_\w+)`")
DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
ROOMS = {"clients", "deploy", "docs", "ha", "haproxy", "ledger_api", "monitoring", "pipeline", "replica", "runbooks"}
ROOMS |= {"scripts", "tests"}
GENERATED = re.compile(r"(\.|build|data|report|verdicts)(/|$)")  # made by commands, in the folder where they run


@cache
def kept() -> frozenset[str]:
    """Every file that git keeps or would keep, and every folder of one, relative to the root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    folders = {str(folder) for name in files for folder in Path(name).parents}
    return frozenset(name for name in {*files, *folders} if (ROOT / name).exists())


@cache
def kept_tests() -> frozenset[str]:
    """The names of all tests, and of the files that have them."""
    files = [ROOT / name for name in kept() if name.startswith("tests/") and name.endswith(".py")]
    return frozenset(test for path in files for test in (path.stem, *DEFINED.findall(path.read_text())))


def named_paths(text: str) -> set[str]:
    """Paths in backticks that begin with a room of the repository, or end as a file of it does."""
    found = {path.rstrip("/") for path in PATH.findall(text)}
    return {path for path in found if path.split("/")[0] in ROOMS or path.endswith((".py", ".md", ".sql", ".toml"))}


def is_there(path: str) -> bool:
    """A path from the root, from a room of the replica (`store_postgres/test_rights.py`), or without its ending."""
    if GENERATED.match(path):
        return True
    return path in kept() or any(
        name.endswith(f"/{path}") or (name.startswith(path) and name[len(path) :][:1] in {".", "-"}) for name in kept()
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_paths_that_a_page_names_exist(page: Path) -> None:
    """Goal: a reader finds each file that is named. Method: every path in backticks against the repository's files."""
    assert {path for path in named_paths(page.read_text()) if not is_there(path)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    """Goal: no evidence that is gone. Method: every test's name in backticks against those that the tests define."""
    assert set(TEST.findall(page.read_text())) - kept_tests() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    """Goal: no dead link. Method: every relative link of the page, from the folder of the page."""
    assert {link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()} == set()


def test_a_path_that_is_gone_is_found() -> None:
    """Goal: the tests above can fail. Method: a room that was moved away, a file that never was, and good ones."""
    text = "`replica/core/gone.py`, `docs/nowhere.md`, `replica/notary/rules.py`, `docs/decisions/0005`, `a/b`"
    assert {path for path in named_paths(text) if not is_there(path)} == {"replica/core/gone.py", "docs/nowhere.md"}
    named = set(
        TEST.findall("`test_that_never_was`, `test_paths_in_pages`, `a/b.py::test_a_path_that_is_gone_is_found`")
    )
    assert named - kept_tests() == {"test_that_never_was"}


def test_a_decision_is_a_page_of_700_words_at_most() -> None:
    """Goal: a decision is read, its figures stay in results. Method: count the words of each."""
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs/decisions").glob("0*.md")}
    assert words and {name: count for name, count in words.items() if count > 700} == {}
