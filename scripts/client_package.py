"""Lays the source of the package `replicated-notary-client` into a folder, ready to be built.

Client, wire and leaf are modules of the notary's own rooms. The package has those that the client needs, and no others,
under one name of its own: so it neither pulls in the replica nor clashes with it where both are installed.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "clients" / "python"
NAME = "replicated_notary_client"
ROOMS = {
    "ledger_api.client": f"{NAME}._client",
    "ledger_api.wire": f"{NAME}._wire",
    "replica.notary": f"{NAME}._notary",
    "ha.invariant": f"{NAME}._invariant",
}
_IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(map(re.escape, ROOMS))})\b", re.MULTILINE)


def renamed(text: str) -> str:
    """A module's text with its imports as they are in the package."""
    return _IMPORT.sub(lambda found: found[1] + ROOMS[found[2]], text)


def imported(text: str) -> Iterator[str]:
    """The modules of our rooms that a module may import, whenever it does."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if room_of(name) is not None and _file_of(name).exists())


def room_of(module: str) -> str | None:
    """The room that a module is in; None for one that the package does not take from."""
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), None)


def needed() -> dict[str, str]:
    """Every module of the rooms that the package needs, with its text."""
    found: dict[str, str] = {}
    waiting = [*ROOMS, *imported((SOURCE / NAME / "__init__.py").read_text(encoding="utf-8"))]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = _file_of(module).read_text(encoding="utf-8")
            waiting += imported(found[module])
    return found


def lay_out(folder: Path) -> None:
    """Make a fresh folder with all that a build of the package needs."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", folder)
    facade = folder / NAME / "__init__.py"
    facade.write_text(renamed(facade.read_text(encoding="utf-8")), encoding="utf-8")
    for module, text in needed().items():
        room = room_of(module)
        assert room is not None
        parts = (ROOMS[room] + module.removeprefix(room)).split(".")
        path = folder.joinpath(*parts)
        path = path / "__init__.py" if _file_of(module).name == "__init__.py" else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(renamed(text), encoding="utf-8")


def _file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
