"""`notary haproxy`: the load balancer's configuration, from the participant's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, out, run

app = typer.Typer(help="Render HAProxy's configuration.", no_args_is_help=True)

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]


@app.command("render")
def render_config(config: ConfigChoice = None, output: OutputOption = None) -> None:
    """Print HAProxy's configuration; the same participant's configuration always gives the same text."""
    from haproxy.render import render

    text = render(load(find_config(config)).haproxy_settings())
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text)
        out.print(f"[bold]{output}[/] was written")


@app.command()
def check(config: ConfigChoice = None) -> None:
    """Render the configuration and let HAProxy itself check it (haproxy -c)."""
    from haproxy.render import render
    from replica.local.haproxy import check_config

    text = render(load(find_config(config)).haproxy_settings())
    with tempfile.TemporaryDirectory(prefix="notary-haproxy-") as folder:
        path = Path(folder) / "haproxy.cfg"
        path.write_text(text)
        run(check_config(path, Path(folder) / "check.log"))
    out.print("[bold green]HAProxy accepts it[/]")
