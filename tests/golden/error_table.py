"""Writes the tables of error codes into docs/formats.md and docs/api.md: `python -m tests.golden.error_table`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from replica.notary.catalogue import category
from replica.notary.errors import Code

_DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = _DOCS / "formats.md"
API_DOCUMENT = _DOCS / "api.md"
_START, _END = "<!-- error codes -->\n", "<!-- end of error codes -->\n"


def table() -> str:
    """The catalogue as a Markdown table: every code, also those that operators meet."""
    rows = [
        f"| `{c.name}` | {category(c).value} | {c.status} | {c.retry.value} | {c.title}. {c.remedy} |\n" for c in Code
    ]
    head = "| code | category | HTTP status | retry | meaning, and what to do |\n|---|---|---|---|---|\n"
    return head + "".join(rows)


def api_table() -> str:
    """The codes that applications can meet."""
    rows = [f"| `{c.name}` | {c.status} | {c.retry.value} | {c.title} |\n" for c in Code if c.status]
    return "| code | status | retry | what it means |\n|---|---|---|---|\n" + "".join(rows)


def table_in(document: str) -> str:
    """The table that a document has between its markers."""
    return document.partition(_START)[2].partition(_END)[0]


def write(path: Path, make: Callable[[], str]) -> None:
    """Put a table between the markers of a document."""
    head, _, rest = path.read_text().partition(_START)
    path.write_text(head + _START + make() + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    write(DOCUMENT, table)
    write(API_DOCUMENT, api_table)
