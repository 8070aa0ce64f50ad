"""`notary status-page`: show a replica's status page to a browser on this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, out, run
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from replica.config.model import Config

NameArgument = Annotated[str | None, typer.Argument(help="The replica; else the first one that runs here.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port on loopback; 0: any free one.")]


def status_page(name: NameArgument = None, config: ConfigChoice = None, *, port: PortOption = 0) -> None:
    """Show a replica's status page to a browser on this machine, until Ctrl-C.

    The URL that it prints opens the page once. From elsewhere: ssh -L 8083:127.0.0.1:8083 r1 notary status-page
    --port 8083
    """
    settings = load(find_config(config))
    found = _running(settings) if name is None else settings.replica(name).name
    try:
        run(_show(settings, found, port))
    except KeyboardInterrupt:
        return


def _running(config: Config) -> str:
    here = [one.name for one in config.replicas if config.admin_socket(one.name).is_socket()]
    if not here:
        raise ConfigError("no replica runs on this machine, or another account's", Code.NOT_POSSIBLE_NOW)
    return here[0]


async def _show(config: Config, name: str, port: int) -> None:
    from replica.status_page.door import StatusDoor

    door = StatusDoor(config.admin_socket(name), port)
    try:
        url = await door.start()
    except OSError as error:
        raise ConfigError(f"127.0.0.1:{port} cannot be listened on: {error.strerror}") from None
    try:
        out.print(f"the status page of {name}, once: {url}", markup=False, soft_wrap=True)
        await asyncio.Event().wait()
    finally:
        await door.stop()
