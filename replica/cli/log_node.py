"""`notary log-node`: run one node of the replicated log in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replica.cli.common import EXIT_FAILED, EXIT_USAGE

SettingsOption = Annotated[Path, typer.Option("--settings", "-s", help="The log node's settings, a TOML file.")]
NewGroupOption = Annotated[
    bool, typer.Option("--new-group", help="Start a new log, with this node as its only member. On an empty disk only.")
]


def run(settings: SettingsOption, new_group: NewGroupOption = False) -> None:
    """Run one node of the replicated log until SIGTERM; a leader hands over first. SIGHUP reads certificates again.

    Not used by replicas yet. A node on an empty disk gets an id of its own, and waits to be made a member.
    Exit code 1: start it again. Exit code 2: a person is needed first.
    """
    import structlog
    import uvloop

    from ha.errors import HaError
    from replica.log.raft.process import run_node
    from replica.log.raft.settings import load_settings
    from replica.notary.errors import ConfigError, NotaryError
    from replica.telemetry.log_lines import set_up_logging

    found = load_settings(settings)
    set_up_logging(log_node=found.name)
    log = structlog.get_logger()
    try:
        uvloop.run(run_node(found, new_group=new_group))
    except HaError as error:
        log.critical("log_node_failed", code=error.code, detail=error.detail, remedy=error.remedy)
        raise typer.Exit(EXIT_FAILED if error.retry else EXIT_USAGE) from None
    except (NotaryError, OSError) as error:
        code, told = (
            (error.code, error.detail) if isinstance(error, NotaryError) else (ConfigError.default_code, str(error))
        )
        log.critical("log_node_failed", code=code.name, detail=told, remedy=code.remedy)
        raise typer.Exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED) from None
