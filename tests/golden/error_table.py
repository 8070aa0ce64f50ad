"""Writes the table of error codes into docs/formats.md: `python -m tests.golden.error_table`."""

from __future__ import annotations

from pathlib import Path

from replica.notary.errors import Code

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats.md"
_START, _END = "<!-- error codes -->\n", "<!-- end of error codes -->\n"


def table() -> str:
    """The catalogue as a Markdown table."""
    rows = [f"| `{c.name}` | {c.status} | {c.retry.value} | {c.title}. {c.remedy} |\n" for c in Code]
    return "| code | HTTP status | retry | meaning, and what to do |\n|---|---|---|---|\n" + "".join(rows)


def table_in(document: str) -> str:
    """The table that a document has between its markers."""
    return document.partition(_START)[2].partition(_END)[0]


def with_table(document: str) -> str:
    """The document with the catalogue's table between its markers."""
    head, _, rest = document.partition(_START)
    return head + _START + table() + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
