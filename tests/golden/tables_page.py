"""Writes the tables' columns into docs/tables.md: `python -m tests.golden.tables_page`."""

from __future__ import annotations

import json
from pathlib import Path

from deltalake import Schema

from pipeline.tables.catalogue.rules import type_text
from pipeline.tables.rows import SCHEMAS
from tests.golden.error_table import write

PAGE, NAME = Path(__file__).parents[2] / "docs" / "tables.md", "columns"


def columns() -> str:
    """A table for each table, in the order of its columns."""
    return "\n".join(map(_table, sorted(SCHEMAS)))


def _table(name: str) -> str:
    fields = json.loads(Schema.from_arrow(SCHEMAS[name]).to_json())["fields"]
    rows = (
        f"| `{field['name']}` | {type_text(field['type'])} | {'null' if field['nullable'] else ''} |"
        f" {field['metadata']['comment']} |\n"
        for field in fields
    )
    return f"### `{name}`\n\n| column | type | null | meaning |\n|---|---|---|---|\n{''.join(rows)}"


if __name__ == "__main__":
    write(PAGE, NAME, columns())
