"""`notary log-node`: run one node of the replicated log in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replica.notary.exit_codes import EXIT_FAILED

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
    from replica.failure import exit_code, told_of
    from replica.log.raft.process import run_node
    from replica.log.raft.settings import load_settings
    from replica.notary.errors import ConfigError, NotaryError
    from replica.telemetry.log_lines import set_up_logging

    found = load_settings(settings)
    set_up_logging(log_node=found.name)
    log = structlog.get_logger()
    try:
        uvloop.run(run_node(found, new_group=new_group))
    except (HaError, NotaryError, OSError) as met:
        error = ConfigError(str(met)) if isinstance(met, OSError) else met
        log.critical("log_node_failed", **told_of(error))
        raise typer.Exit(EXIT_FAILED if isinstance(met, OSError) else exit_code(error)) from None
