"""The form of the runbooks: what somebody who is woken up may rely on, on every page."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.runbooks.pages import RUNBOOKS, SECTIONS, names, read_page

TOLD_ON_THE_PAGE = {"NEW_HOST", "NEW_API_PORT", "NEW_HEALTH_PORT", "NEW_ADMIN_PORT"}


@pytest.mark.parametrize("name", names())
def test_a_page_has_the_four_sections_and_no_strange_word(name: str) -> None:
    """Goal: nobody searches. Method: sections in order; shell that parses; each variable explained in the README."""
    page = read_page(name)
    assert page.sections == SECTIONS
    told = set(re.findall(r"`([A-Z_]+)`", (RUNBOOKS / "README.md").read_text())) | TOLD_ON_THE_PAGE
    assert page.variables <= told
    for block in page.blocks:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)


def test_the_list_of_pages_is_complete() -> None:
    """Goal: every page is found from the list, and every link leads somewhere. Method: compare links with files."""
    for path in RUNBOOKS.glob("*.md"):
        linked = set(re.findall(r"\]\(([a-z-]+)\.md\)", path.read_text()))
        assert linked <= set(names()), path.name
    assert set(re.findall(r"\]\(([a-z-]+)\.md\)", (RUNBOOKS / "README.md").read_text())) == set(names())
