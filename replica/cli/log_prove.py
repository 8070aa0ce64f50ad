"""`notary log prove`: a proof of a record's place in a log on log nodes of our own, for `notary verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, run

if TYPE_CHECKING:
    from replica.log.raft.log_settings import RaftLogSettings
    from replica.log.raft.proof import LogProof

OffsetArgument = Annotated[int, typer.Argument(min=0, help="The record's offset in the log.")]


def prove(offset: OffsetArgument, config: ConfigChoice = None) -> None:
    """Print the proof of a record's place in the log, as JSON; `notary verify --log-id` verifies it anywhere.

    It has the record itself in it. The log is read from its start.
    """
    import msgspec

    from replica.log.raft.log_settings import RaftLogSettings
    from replica.notary.errors import ConfigError

    settings = load(find_config(config)).log.settings
    if not isinstance(settings, RaftLogSettings):
        raise ConfigError(f"log.kind is {settings.kind}: only a log of kind raft is signed")
    typer.echo(msgspec.json.encode(run(_prove(settings, offset))))


async def _prove(settings: RaftLogSettings, offset: int) -> LogProof:
    from replica.log.raft.log import RaftLog

    log = RaftLog(settings)
    try:
        return await log.prove(offset)
    finally:
        await log.close()
