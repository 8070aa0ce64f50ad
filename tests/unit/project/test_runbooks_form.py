"""The form of the runbooks: what somebody who is woken up may rely on, on every page."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.runbooks import pages
from tests.runbooks.pages import RUNBOOKS, SECTIONS, names, read_page

TOLD_ON_THE_PAGE = {"NEW_HOST", "NEW_API_PORT", "NEW_PROXY_PORT", "NEW_HEALTH_PORT"}


@pytest.mark.parametrize("name", names())
def test_a_page_has_the_four_sections_and_no_strange_word(name: str) -> None:
    """Goal: nobody searches. Method: sections in order; shell that parses; each variable explained in the README."""
    page = read_page(name)
    assert page.sections == SECTIONS
    told = set(re.findall(r"`([A-Z_]+)`", (RUNBOOKS / "README.md").read_text())) | TOLD_ON_THE_PAGE
    assert page.variables <= told
    for block in page.blocks:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)


@pytest.mark.parametrize("name", names())
def test_a_loop_goes_on_while_its_command_fails(name: str) -> None:
    """Goal: no verification passes because a command failed. `jq -e` of jq 1.6 succeeds when it gets no input."""
    for block in read_page(name).blocks:
        for line in block.text.splitlines():
            assert "pipefail" in line or not re.search(r"until .*\| *jq", line), line


def test_the_list_of_pages_is_complete() -> None:
    """Goal: every page is found from the list, and every link leads somewhere. Method: compare links with files."""
    for path in RUNBOOKS.glob("*.md"):
        linked = set(re.findall(r"\]\(([a-z-]+)\.md\)", path.read_text()))
        assert linked <= set(names()), path.name
    assert set(re.findall(r"\]\(([a-z-]+)\.md\)", (RUNBOOKS / "README.md").read_text())) == set(names())


@pytest.mark.parametrize("script", sorted(Path(pages.__file__).parent.glob("test_*.py")), ids=lambda path: path.stem)
def test_the_parts_that_are_played_stand_on_their_pages(script: Path) -> None:
    """Goal: a heading renamed is found in seconds. Method: every literal `play(page, section, part)` is on its page."""
    for page, section, *part in _played(ast.parse(script.read_text())):
        found = {(block.section, block.part) for block in read_page(page).blocks}
        assert (section, part[0]) in found if part else section in {one for one, _ in found}, (page, section, part)


def _played(tree: ast.Module) -> list[list[str]]:
    """The literal arguments of each `play`, where all that are given by position can be read without running it."""
    named = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [
        [named.get(ast.unparse(one), one.value if isinstance(one, ast.Constant) else None) for one in node.args]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "play"
    ]
    return [[str(one) for one in call] for call in calls if None not in call]
