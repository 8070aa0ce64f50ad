"""`python -m tests.where replica/active/intake.py`: the tests of a file, nearest first.

A test module is of a file when it has the file's name in the folder of its room, or imports it, or imports what imports
it; in that order. Only the source is read: nothing is imported, so the answer is there at once.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("replica", "ha", "ledger_api", "haproxy", "pipeline")


def module_of(path: Path) -> str:
    """The dotted name of a file that is given from the repository's top."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(source: str) -> set[str]:
    """Every dotted name that a source imports, and what it imports from there."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


Importers = Mapping[str, set[Path]]
"""Who imports a dotted name; the repository's files by path from its top."""


def importers_of(sources: Mapping[Path, str]) -> Importers:
    """What the sources import, turned round."""
    importers: defaultdict[str, set[Path]] = defaultdict(set)
    for path, source in sources.items():
        for name in imported(source):
            importers[name].add(path)
    return importers


def find_tests(path: Path, importers: Importers) -> list[Path]:
    """The test modules of a file, nearest first."""

    def reached(files: Iterable[Path]) -> list[Path]:
        return sorted({user for file in files for user in importers.get(module_of(file), ())})

    everybody = set().union(*importers.values())
    named = [other for other in everybody if other.name == f"test_{path.name}" and other.parent.name in path.parts]
    near = reached([path])
    rings = [sorted(named), near]
    for _ in range(3):  # by way of what imports it
        rings.append(reached([file for file in rings[-1] if not _is_test(file)]))
    return list(dict.fromkeys(file for ring in rings for file in ring if _is_test(file)))


def read_sources(root: Path = ROOT) -> dict[Path, str]:
    """The Python files of product and tests, by path from the top."""
    return {
        path.relative_to(root): path.read_text()
        for top in (*PRODUCT, "tests")
        for path in sorted((root / top).rglob("*.py"))
    }


def _is_test(path: Path) -> bool:
    return path.parts[0] == "tests" and path.name.startswith("test_")


def main() -> None:
    """Print the tests of the files that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.where", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file, from the repository's top")
    sources = read_sources()
    importers = importers_of(sources)
    for file in parser.parse_args().files:
        if file not in sources:
            parser.error(f"there is no file {file}")
        for test in find_tests(file, importers):
            print(test)


if __name__ == "__main__":
    main()
