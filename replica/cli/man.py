"""`notary man`: the man pages of this release, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperCommand, TyperGroup

from replica.cli.common import out
from replica.notary.errors import ConfigError

PROGRAM = "notary"
Command = TyperCommand | TyperGroup

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(help="The command, such as `archive status`; without one, the whole program's page."),
]
WriteOption = Annotated[
    Path | None,
    typer.Option(
        "--write", help="Write the pages of all commands into this folder, such as /usr/local/share/man/man1."
    ),
]


def show(context: typer.Context, command: CommandArgument = None, *, write: WriteOption = None) -> None:
    """Print a command's man page, to be read with `notary man switchover | man -l -`; or write the pages of all.

    The pages are those of this release: write them again after an upgrade.
    """
    app = cast(Command, context.find_root().command)
    if write is not None:
        if command:
            raise ConfigError("--write writes the pages of all commands: name none")
        out.print(f"{write_man_pages(app, write)} pages are in {write}", markup=False)
        return
    pages = dict(commands(app))
    name = " ".join([PROGRAM, *[word for word in command or () if word != PROGRAM]])
    if name not in pages:
        near = get_close_matches(name, pages, n=1)
        hint = f"; did you mean {near[0].removeprefix(PROGRAM).strip()}?" if near else ""
        raise ConfigError(f"there is no command {name!r}, `notary --help` lists all{hint}")
    typer.echo(man_page(name, pages[name]), nl=False)


def commands(app: Command) -> Iterator[tuple[str, Command]]:
    """Each command with its whole name, groups before what they have."""

    def within(name: str, command: Command) -> Iterator[tuple[str, Command]]:
        yield name, command
        for word, inner in getattr(command, "commands", {}).items():
            yield from within(f"{name} {word}", inner)

    yield from within(PROGRAM, app)


def rows(command: Command) -> Iterator[tuple[str, str]]:
    """Each argument and option as the usage line has it, and its help."""
    context = typer.Context(command, info_name=PROGRAM)
    for parameter in command.get_params(context):
        text = " ".join((getattr(parameter, "help", None) or "").split())
        if parameter.param_type_name == "argument":
            yield " ".join(parameter.get_usage_pieces(context)), text
        else:
            yield ", ".join([*parameter.opts, *parameter.secondary_opts]), text


def paragraphs(command: Command) -> list[str]:
    """A command's help, each paragraph as one line."""
    return [" ".join(part.split()) for part in (command.help or "").split("\n\n") if part.strip()]


def man_page(name: str, command: Command) -> str:
    """One page for man(1), section 1."""
    summary, *more = paragraphs(command) or [name]
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
        *[line for names, text in rows(command) for line in (".TP", f".B {_roff(names)}", _roff(text))],
    ]
    if inner:
        lines += [".SH COMMANDS", *[line for one in inner for line in (".TP", f".BR {one.replace(' ', '-')} (1)")]]
    return "\n".join(lines) + "\n"


def write_man_pages(app: Command, folder: Path) -> int:
    """Write notary.1, notary-status.1 and so on; returns how many. Raises ConfigError where no file can be written."""
    pages = {name.replace(" ", "-"): man_page(name, command) for name, command in commands(app)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            (folder / f"{name}.1").write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the pages cannot be written to {folder}: {error.strerror}") from None
    return len(pages)


def _usage(command: Command) -> str:
    """What follows the command's name, as `--help` has it."""
    return " ".join(command.collect_usage_pieces(typer.Context(command, info_name=PROGRAM)))


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
