"""Modules that must not be imported: what a user, or a stranger, may have left in the current folder."""

from __future__ import annotations

import sys
from pathlib import Path

OURS = ("ha", "haproxy", "ledger_api", "pipeline", "replica")
_LIBRARIES = ("aiohttp", "click", "msgspec", "pydantic", "structlog", "typer", "uvloop", "yaml")
RAN = "ran"


def write_shadows(folder: Path) -> list[Path]:
    """A module of the name of each that Python or we might import. Each that runs leaves its name in the file RAN."""
    mark = f"open({str(folder / RAN)!r}, 'a').write(__name__ + ' ')\nraise SystemExit(99)\n"
    paths = [folder / f"{name}.py" for name in (*sys.stdlib_module_names, *_LIBRARIES, *OURS)]
    for path in paths:
        path.write_text(mark)
    return paths
