"""`notary haproxy`: the load balancer in front: its configuration from the participant's, and its runtime interface."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from haproxy.nodes import Node
from replica.cli.common import ConfigChoice, JsonOption, find_config, load, make_table, out, print_json, run
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from haproxy.render import HaproxySettings
    from haproxy.runtime import HaproxyRuntime

app = typer.Typer(help="Render HAProxy's configuration; see and steer a HAProxy that runs here.", no_args_is_help=True)

ResultT = TypeVar("ResultT")
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]
KeepalivedOption = Annotated[
    Node | None, typer.Option("--keepalived", help="Render keepalived's configuration of this node instead.")
]
LuaOption = Annotated[
    bool, typer.Option("--lua", help="Print the file that the configuration loads where all serve; -o writes it, too.")
]
ReplicaArgument = Annotated[str, typer.Argument(help="Name of a replica.")]


@app.command("render")
def render_config(
    config: ConfigChoice = None,
    output: OutputOption = None,
    keepalived: KeepalivedOption = None,
    lua: LuaOption = False,
) -> None:
    """Print HAProxy's configuration; the same participant's configuration always gives the same text.

    With `serving = "all"` it loads a second file from its own folder: --output writes both.
    """
    from haproxy.render import render, write

    settings = _settings(config)
    text = _lua(settings) if lua else render(settings) if keepalived is None else _keepalived(settings, keepalived)
    if output is None:
        typer.echo(text, nl=False)
        return
    if lua or keepalived is not None:
        output.write_text(text)
    else:
        write(settings, output)
    out.print(f"[bold]{output}[/] was written")


@app.command()
def check(config: ConfigChoice = None) -> None:
    """Render everything, and let HAProxy itself check its part (haproxy -c), and keepalived its own where installed."""
    from haproxy.render import write
    from replica.local.haproxy import check_config, check_keepalived_config, find_keepalived

    settings = _settings(config)
    with tempfile.TemporaryDirectory(prefix="notary-haproxy-") as name:
        folder = Path(name)
        path = folder / "haproxy.cfg"
        write(settings, path)
        run(check_config(path, folder / "check.log"))
        out.print("[bold green]HAProxy accepts it[/]")
        if settings.keepalived is None:
            return
        for node in Node:
            path = folder / f"keepalived-{node.value}.conf"
            path.write_text(_keepalived(settings, node))
            if find_keepalived() is None:
                out.print(f"[yellow]keepalived is not installed here: {node.value}'s configuration is not checked[/]")
                continue
            run(check_keepalived_config(path))
            out.print(f"[bold green]keepalived accepts the configuration of the {node.value}[/]")


@app.command()
def servers(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Show the replicas as the HAProxy on this machine sees them."""
    from dataclasses import asdict

    found = _ask(config, lambda runtime: runtime.servers())
    if as_json:
        print_json({name: asdict(server) for name, server in found.items()})
        return
    table = make_table("replica", "state", "last check", ">sessions", ">downs")
    for server in found.values():
        state = "draining" if server.draining else "[bold green]up[/]" if server.up else "down"
        table.add_row(server.name, state, server.check, str(server.sessions), str(server.downs))
    out.print(table)


@app.command()
def drain(name: ReplicaArgument, config: ConfigChoice = None) -> None:
    """Let the HAProxy on this machine give a replica no new connection, until `notary haproxy ready`."""
    _ask(config, lambda runtime: runtime.drain(name))
    out.print(f"{name} gets no new connection")


@app.command()
def ready(name: ReplicaArgument, config: ConfigChoice = None) -> None:
    """End a drain: the replica's health decides again whether it gets connections."""
    _ask(config, lambda runtime: runtime.ready(name))
    out.print(f"{name}'s health decides again")


@app.command("save-state")
def save_state(config: ConfigChoice = None) -> None:
    """Write down what HAProxy knows of each replica; just before `systemctl reload haproxy`, which reads it.

    Without it the new worker takes every replica for up until its first check, and refuses nobody only by luck.
    """
    state = _ask(config, lambda runtime: runtime.state())
    path = Path(_settings(config).state_file)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(state)
    partial.replace(path)
    out.print(f"[bold]{path}[/] was written; now reload HAProxy")


def _ask(config: Path | None, ask: Callable[[HaproxyRuntime], Awaitable[ResultT]]) -> ResultT:
    """One exchange with the HAProxy of this machine. Raises ConfigError when it does not answer, or refuses."""
    from haproxy.runtime import HaproxyRuntime, RuntimeRefused

    runtime = HaproxyRuntime(_settings(config).stats_socket)

    async def exchange() -> ResultT:
        try:
            return await ask(runtime)
        except (OSError, TimeoutError) as error:
            raise ConfigError(f"no HAProxy answers on {runtime.socket_path}: {error!r}") from None
        except RuntimeRefused as error:
            raise ConfigError(str(error)) from None

    return run(exchange())


def _settings(config: Path | None) -> HaproxySettings:
    return load(find_config(config)).haproxy_settings()


def _lua(settings: HaproxySettings) -> str:
    from haproxy.render import render_lua

    text = render_lua(settings)
    if text is None:
        raise ConfigError('with serving = "one" HAProxy loads no second file')
    return text


def _keepalived(settings: HaproxySettings, node: Node) -> str:
    from haproxy.render import render_keepalived

    try:
        return render_keepalived(settings, node)
    except ValueError as error:
        raise ConfigError(str(error)) from None
