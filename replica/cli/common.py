"""What the command groups share: options, tables, and how an error leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from replica.config import Config, load_config
from replica.notary.errors import ConfigError, NotaryError

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The participant's configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]


def load(path: Path) -> Config:
    """The configuration, or the end of the command with what is wrong and what to do."""
    try:
        return load_config(path)
    except ConfigError as error:
        fail(error, EXIT_USAGE)


def fail(error: NotaryError, exit_code: int = EXIT_FAILED) -> NoReturn:
    """Say what went wrong and what to do, and leave with the exit code."""
    err.print(f"[bold red]{error.code.name}[/]: {error.detail}", highlight=False)
    err.print(error.code.remedy, highlight=False)
    raise typer.Exit(exit_code)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


def make_table(*columns: str) -> Table:
    """An empty table in the house style."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table
