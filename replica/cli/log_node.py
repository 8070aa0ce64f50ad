"""`notary log-node`: run one node of the replicated log in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load
from replica.notary.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from replica.log.raft.settings import LogNodeSettings

SettingsOption = Annotated[
    Path | None, typer.Option("--settings", "-s", help="A log node's own settings, a TOML file, instead of --config.")
]
NodeNameOption = Annotated[str | None, typer.Option("--name", help="Which of the nodes in log.raft.nodes.")]
NewGroupOption = Annotated[
    bool,
    typer.Option(
        "--new-group",
        help="Start a new log, with this node as its only member: on an empty disk, while no peer has the log.",
    ),
]


def node_settings(settings: Path | None, config: Path | None, name: str | None = None) -> LogNodeSettings:
    """One node's settings: its own file's, else the participant's; without a name, the first node's.

    Raises ConfigError.
    """
    from replica.log.raft.log_settings import RaftLogSettings
    from replica.log.raft.settings import load_settings
    from replica.notary.errors import ConfigError

    if settings is not None:
        return load_settings(settings)
    found = load(find_config(config)).log.settings
    if not isinstance(found, RaftLogSettings):
        raise ConfigError(f"log.kind is {found.kind}: only a log of kind raft has log nodes")
    return found.node_settings(name or min(found.addresses))


def run(
    settings: SettingsOption = None,
    config: ConfigChoice = None,
    name: NodeNameOption = None,
    new_group: NewGroupOption = False,
) -> None:
    """Run one node of the replicated log until SIGTERM; a leader hands over first. SIGHUP reads certificates again.

    With --config and --name, or with --settings. A node on an empty disk gets an id of its own, and waits to be made a
    member. Exit code 1: start it again. Exit code 2: a person is needed first.
    """
    import structlog
    import uvloop

    from ha.errors import HaError
    from replica.failure import error_document, exit_code
    from replica.log.raft.process import run_node
    from replica.notary.errors import ConfigError, NotaryError
    from replica.notary.own_process import raise_open_files
    from replica.telemetry.log_lines import set_up_logging

    if settings is None and name is None:
        raise ConfigError("a log node needs --name, or --settings")
    found = node_settings(settings, config, name)
    set_up_logging(log_node=found.name)
    raise_open_files()
    log = structlog.get_logger()
    try:
        uvloop.run(run_node(found, new_group=new_group))
    except (HaError, NotaryError, OSError) as met:
        error = ConfigError(str(met)) if isinstance(met, OSError) else met
        log.critical("log_node_failed", **error_document(error))
        raise typer.Exit(EXIT_FAILED if isinstance(met, OSError) else exit_code(error)) from None
