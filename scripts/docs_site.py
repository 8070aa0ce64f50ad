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
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import typer
from typer._completion_shared import get_completion_script
from typer.core import TyperCommand, TyperGroup

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


Command = TyperCommand | TyperGroup


def commands() -> Iterator[tuple[str, Command]]:
    """Each command with its whole name, groups before what they have."""

    def within(name: str, command: Command) -> Iterator[tuple[str, Command]]:
        yield name, command
        for word, inner in getattr(command, "commands", {}).items():
            yield from within(f"{name} {word}", inner)

    yield from within("notary", typer.main.get_command(app))


def _rows(command: Command) -> Iterator[tuple[str, str]]:
    """Each argument and option as the usage line has it, and its help."""
    context = typer.Context(command, info_name="notary")
    for parameter in command.get_params(context):
        text = getattr(parameter, "help", None) or ""
        if parameter.param_type_name == "argument":
            yield " ".join(parameter.get_usage_pieces(context)), text
        else:
            yield ", ".join([*parameter.opts, *parameter.secondary_opts]), text


def _usage(command: Command) -> str:
    """What follows the command's name, as `--help` has it."""
    return " ".join(command.collect_usage_pieces(typer.Context(command, info_name="notary")))


def _paragraphs(command: Command) -> list[str]:
    return [" ".join(part.split()) for part in (command.help or "").split("\n\n") if part.strip()]


def commands_page() -> str:
    """All commands as one page."""
    lines = ["# Commands", "", "From the programs themselves: `notary COMMAND --help` prints the same.", ""]
    for name, command in commands():
        lines += [f"## {name}", "", *[line for text in _paragraphs(command) for line in (text, "")]]
        rows = [
            f"| `{names}` | {' '.join(text.split()).replace('|', chr(92) + '|')} |" for names, text in _rows(command)
        ]
        lines += ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines) + "\n"


def man_page(name: str, command: Command) -> str:
    """One page for man(1), section 1."""
    summary, *more = [*_paragraphs(command), name][:1] + _paragraphs(command)[1:]
    inner = [f"{name} {word}" for word in getattr(command, "commands", {})]
    lines = [
        f'.TH "{name.upper().replace(" ", "-")}" 1 "" "replicated-notary {version("replicated-notary")}"',
        ".SH NAME",
        f"{name.replace(' ', '-')} \\- {_roff(summary)}",
        ".SH SYNOPSIS",
        f".B {name}",
        _roff(_usage(command)),
        ".SH DESCRIPTION",
        *[line for text in (summary, *more) for line in (_roff(text), ".PP")],
        ".SH OPTIONS",
        *[
            line
            for names, text in _rows(command)
            for line in (".TP", f".B {_roff(names)}", _roff(" ".join(text.split())))
        ],
    ]
    if inner:
        lines += [".SH COMMANDS", *[line for one in inner for line in (".TP", f".BR {one.replace(' ', '-')} (1)")]]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def write_man_pages(folder: Path) -> None:
    """notary.1, notary-status.1 and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in commands():
        (folder / f"{name.replace(' ', '-')}.1").write_text(man_page(name, command), encoding="utf-8")


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
            write_man_pages(Path(folder))
        case ["--completion", folder]:
            write_completion(Path(folder))
        case [folder]:
            write_pages(Path(folder))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
