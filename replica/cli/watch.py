"""`notary watch`: keeps the replicas of this machine running."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import CONFIG_NAME, ConfigOption, load, never_wait_for_readers, run, say
from replica.notary.own_process import module_argv

if TYPE_CHECKING:
    from ha.watch.driver import Watch
    from replica.config.model import Config

NamesOption = Annotated[
    list[str] | None, typer.Option("--name", help="A replica of this machine; may be repeated. Default: all of them.")
]


def watch_replicas(names: NamesOption = None, config: ConfigOption = Path(CONFIG_NAME)) -> None:
    """Start the replicas of this machine, check them, restart what ends or hangs; until Ctrl-C.

    For installations without systemd or Kubernetes. [watch] in the configuration has its settings, and hooks to start,
    stop and restart by commands of your own. Who leads is none of its business.
    """
    settings = load(config)
    watch = make_watch(settings, config.resolve(), names or [replica.name for replica in settings.replicas])
    never_wait_for_readers()
    try:
        run(watch.run())
    except KeyboardInterrupt:
        say("watch", "stopped")


def make_watch(config: Config, path: Path, names: list[str]) -> Watch:
    """The watch over these replicas. Raises ConfigError when one is not configured."""
    from ha.watch.driver import Watch
    from replica.local.watched import watched_replica
    from replica.notary.exit_codes import EXIT_CONFIGURATION

    watched = []
    for name in names:
        argv = module_argv("replica.cli", "replica", "--config", str(path), "--name", name)
        log_path = config.replica_dir(name) / "replica.log"
        watched.append(watched_replica(config.replica(name), argv, log_path, config.watch))
    return Watch(watched, config.watch, say, person_code=EXIT_CONFIGURATION)
