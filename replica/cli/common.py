"""Shared by the command groups: options, tables, the printing of errors, and the end of a command that runs on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ha.errors import HaError
from replica.failure import error_document, in_a_line, one_line
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, InvariantBroken, NotaryError
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED
from replica.telemetry.standard_output import STANDARD_ERROR, LogLines

if TYPE_CHECKING:  # slow to import, and not needed for the help of most commands
    from replica.config.model import Config

PIPE_WIDTH = 160  # of tables that neither a terminal nor the variable COLUMNS limits


def fixed_width(terminal: bool, columns: str) -> int | None:
    """How wide tables are, in characters; None: as the terminal says, or COLUMNS, whose text `columns` is."""
    return None if terminal or columns.isdigit() else PIPE_WIDTH


out = Console(soft_wrap=True, highlight=False, width=fixed_width(sys.stdout.isatty(), os.environ.get("COLUMNS", "")))
err = Console(stderr=True, soft_wrap=True, highlight=False)

DATA_FOLDER = Path("data")
CONFIG_NAME = "notary.toml"
TRACEBACK_VARIABLE = "NOTARY_TRACEBACK"
RUN_FILE_NAME = "run.json"  # exists while the local cluster runs

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The participant's configuration file.")]
ConfigChoice = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration; else ./notary.toml, else that of the newest local cluster."),
]
NameOption = Annotated[str, typer.Option("--name", help="Which of the configured replicas.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]

ResultT = TypeVar("ResultT")


def load(path: Path) -> Config:
    """The configuration in a file. Raises ConfigError."""
    from replica.config.load import load_config

    return load_config(path)


def find_config(path: Path | None) -> Path:
    """The named file, else ./notary.toml, else the file of the newest local cluster; a running cluster goes first.

    Raises ConfigError when there is none of them.
    """
    if path is not None:
        return path
    own = Path(CONFIG_NAME)
    if own.exists():
        return own
    clusters = list(DATA_FOLDER.glob(f"*/{CONFIG_NAME}"))
    if not clusters:
        raise ConfigError(
            f"there is no {own} and no local cluster under {DATA_FOLDER}/: name a file with --config, or make one with "
            "`notary init`; `notary up` starts a local cluster"
        )
    return max(clusters, key=lambda found: (found.with_name(RUN_FILE_NAME).exists(), found.stat().st_mtime))


def show_defect(error: Exception) -> int:
    """Print an error that no command expects: without a traceback, unless it is asked for. Returns the exit code."""
    err.print(in_a_line(error), markup=False)
    err.print(
        f"This is a defect of the command: report it with what {TRACEBACK_VARIABLE}=1 in the environment adds.",
        markup=False,
    )
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return EXIT_FAILED


def show_error(error: NotaryError | HaError | InvariantBroken) -> int:
    """Print on standard error what went wrong and what to do. Returns the exit code.

    Only a wrong setting, argument or command line gives EXIT_CONFIGURATION: scripts rely on that.
    """
    document = error_document(error)
    err.print(f"[bold red]{document['code']}[/]:", end=" ")
    shows_log = document["code"] == Code.LOCAL_SERVER_FAILED.name
    err.print(document["detail"] if shows_log else one_line(document["detail"]), markup=False)
    err.print(document["remedy"], markup=False)
    return EXIT_CONFIGURATION if isinstance(error, ConfigError) else EXIT_FAILED


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True, default=str))


def make_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style; a column whose name begins with '>' has numbers, aligned to the right.

    Nothing is cut in a narrow terminal: numbers keep their line, other texts go on in the next one.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for column in columns:
        if column.startswith(">"):
            table.add_column(column.removeprefix(">"), justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    return table


def add_texts(table: Table, *texts: str, style: str | None = None) -> None:
    """A row of what others wrote: brackets in it are no markup, so nobody hides or colours a part of it."""
    table.add_row(*map(escape, texts), style=style)


def never_wait_for_readers() -> None:
    """Drop what the terminal, or the pipe behind it, does not take: for commands that keep others running."""
    out.file = cast(IO[str], LogLines())
    err.file = cast(IO[str], LogLines(STANDARD_ERROR))


def say(part: str, text: str) -> None:
    """A line of progress: which part of the system, and what happened."""
    out.print(f"[cyan]{part:>12}[/]", end="  ")
    out.print(text, markup=False)


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine to its end; SIGINT (Ctrl-C), SIGTERM and SIGHUP cancel it, so that it can clean up.

    Raises KeyboardInterrupt once it has cleaned up after one of them.
    """
    quiet_libraries()

    async def supervised() -> ResultT:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def quiet_libraries() -> None:
    """Log errors only: our parts log for the operators of a replica, but a command prints its own messages.

    Errors go to standard error: standard output may be JSON for a program.
    """
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
