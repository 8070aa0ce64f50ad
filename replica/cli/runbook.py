"""`notary runbook`: the runbooks of this release, from wherever it is installed."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import make_table, out
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CONTENTS = "README"

NameArgument = Annotated[
    str | None, typer.Argument(help="Page, such as `failover`, or as an alert names it; without one, the list.")
]


def show(name: NameArgument = None) -> None:
    """Print a runbook: as a page in a terminal, else as the Markdown that it is. Needs no network."""
    pages = _pages()
    if name is None:
        table = make_table("runbook", "what for")
        for known, page in sorted(pages.items()):
            table.add_row(known, _title(page))
        out.print(table)
        return
    wanted = name.removeprefix("runbooks/").removesuffix(".md")
    if wanted not in pages:
        near = get_close_matches(wanted, pages, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no runbook {name!r}, `notary runbook` lists all{hint}")
    text = pages[wanted].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        from rich.markdown import Markdown

        out.print(Markdown(text))
    else:
        typer.echo(text, nl=False)


def _pages() -> dict[str, Traversable]:
    """Every page but the list of them. Raises ConfigError where they were not installed."""
    try:
        found = [page for page in files("runbooks").iterdir() if page.name.endswith(".md")]
    except ModuleNotFoundError:
        found = []
    if not found:
        raise ConfigError("this installation has no runbooks; they are in the folder runbooks/ of the source")
    return {page.name.removesuffix(".md"): page for page in found if page.name != f"{CONTENTS}.md"}


def _title(page: Traversable) -> str:
    return page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
