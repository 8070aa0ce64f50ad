"""The page that says which profile is for whom."""

from __future__ import annotations

import re
from pathlib import Path

from replica.cli.profiles import Profile

PAGE = Path(__file__).parents[3] / "docs" / "profiles.md"


def test_the_page_has_a_row_and_advice_for_each_profile() -> None:
    """Goal: nobody is offered a profile that the page does not have, or the reverse. Method: read its table."""
    text = PAGE.read_text()
    assert re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE) == [one.value for one in Profile]
    assert sorted(re.findall(r"^- \*\*`([a-z]+)`\*\*", text, re.MULTILINE)) == sorted(one.value for one in Profile)
