"""Pages for MkDocs, man pages and shell completion, from one source each: the repository's pages and the command line.

python scripts/docs_site.py PAGES_FOLDER        # README.md as index.md, docs/, runbooks/, clients, and commands.md
python scripts/docs_site.py --man FOLDER        # notary.1 and a page for each command, for man
python scripts/docs_site.py --completion FOLDER # for bash, zsh and fish
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import typer
from typer._completion_shared import get_completion_script

from replica.cli import man
from replica.cli.main import app

ROOT = Path(__file__).parents[1]
SHELLS = {"bash": "notary.bash", "zsh": "_notary", "fish": "notary.fish"}
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?\)")


def pages() -> list[Path]:
    """Every page of the repository that is part of the site."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "docs/screenshots"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def write_pages(folder: Path) -> None:
    """Copy the pages. A link to a file that is no page leads to the first page."""
    shutil.rmtree(folder, ignore_errors=True)
    found = pages()
    for path in found:
        target = folder / _name(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(_adapted(path, set(found)), encoding="utf-8")
        else:
            shutil.copy(path, target)
    (folder / "commands.md").write_text(commands_page(), encoding="utf-8")


def _name(path: Path) -> str:
    return "index.md" if path == ROOT / "README.md" else str(path.relative_to(ROOT))


def _adapted(path: Path, found: set[Path]) -> str:
    def link(match: re.Match[str]) -> str:
        target = (path.parent / match[2]).resolve()
        if target in found:
            here = (ROOT / _name(path)).parent
            relative = Path(*[".."] * len(here.relative_to(ROOT).parts)) / _name(target)
            return f"{match[1]}{relative}{match[3] or ''})"
        if target.exists():  # a folder or a program of the repository
            return f"{match[1]}{'../' * len(path.relative_to(ROOT).parts[:-1])}index.md)"
        return match[0]  # broken: MkDocs says so

    return _LINK.sub(link, path.read_text(encoding="utf-8"))


# ---- the command line ----


def commands_page() -> str:
    """All commands as one page."""
    lines = ["# Commands", "", "From the programs themselves: `notary COMMAND --help` prints the same.", ""]
    for name, command in man.commands(typer.main.get_command(app)):
        lines += [f"## {name}", "", *[line for text in man.paragraphs(command) for line in (text, "")]]
        rows = [f"| `{names}` | {text.replace('|', chr(92) + '|')} |" for names, text in man.rows(command)]
        lines += ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines) + "\n"


def write_completion(folder: Path) -> None:
    """A script for each shell, which asks the command itself what fits."""
    folder.mkdir(parents=True, exist_ok=True)
    for shell, name in SHELLS.items():
        script = get_completion_script(prog_name="notary", complete_var="_NOTARY_COMPLETE", shell=shell)
        (folder / name).write_text(script + "\n", encoding="utf-8")


def main(words: list[str]) -> None:
    """See above."""
    match words:
        case ["--man", folder]:
            man.write_man_pages(typer.main.get_command(app), Path(folder))
        case ["--completion", folder]:
            write_completion(Path(folder))
        case [folder]:
            write_pages(Path(folder))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
