"""`notary`: the command line. Each group is a file of its own. Each command imports its slow modules itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ha.errors import HaError
from replica.cli import (
    archive,
    audit,
    check,
    config,
    doctor,
    failover,
    formats,
    haproxy,
    history,
    importing,
    index,
    init,
    keys,
    ledger,
    log,
    log_node,
    log_node_members,
    log_prove,
    man,
    party,
    recovery,
    replica,
    report,
    restore,
    runbook,
    sign,
    site,
    status,
    status_page,
    steer,
    store,
    tables,
    topic,
    trail,
    try_it,
    up,
    verify,
    watch,
)
from replica.cli.common import err, show_defect, show_error
from replica.cli.demo import command as demo
from replica.cli.demo import pipeline as demo_pipeline
from replica.notary.errors import InvariantBroken, NotaryError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK
from replica.notary.own_process import keep_standard_streams, speak_utf8
from replica.notary.places import no_url

_HELP = """A replicated notary: it says, once and for ever, which transaction consumed a state.

One participant runs as several replicas. They share one database and one request log; one is active, the
others follow and take over.
"""
_EPILOG = (
    "Exit codes: 0 done; 1 it failed, or a check found something wrong; 2 the command line or the configuration must "
    "be changed first. Every error has a code and says what to do; with --json, results are for programs."
)
_LOCAL, _SET_UP, _RUN, _CHECK = "On this machine", "Set up a participant", "Run and look after", "Check"
_USE = "Use the ledger API"
_PIPELINE = "Archive and analyse"


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"replicated-notary {version('replicated-notary')}")
        raise typer.Exit(EXIT_OK)


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the release, and end.")
]

app = typer.Typer(
    help=_HELP, epilog=_EPILOG, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


@app.callback()
def root(_: VersionOption = False) -> None:
    """Nothing of its own: what it prints as help is that of the application."""


app.command("demo", rich_help_panel=_LOCAL)(demo.run_demo)
app.command("demo-pipeline", rich_help_panel=_LOCAL)(demo_pipeline.run_pipeline_demo)
app.command("up", rich_help_panel=_LOCAL)(up.run_cluster)
app.command("init", rich_help_panel=_SET_UP)(init.write_config)
app.add_typer(config.app, name="config", rich_help_panel=_SET_UP)
app.add_typer(keys.app, name="keys", rich_help_panel=_SET_UP)
app.add_typer(topic.app, name="topic", rich_help_panel=_SET_UP)
app.add_typer(store.app, name="store", rich_help_panel=_SET_UP)
app.add_typer(formats.app, name="format", rich_help_panel=_SET_UP)
app.add_typer(haproxy.app, name="haproxy", rich_help_panel=_SET_UP)
app.command("import", rich_help_panel=_SET_UP)(importing.import_states)
app.command("replica", rich_help_panel=_RUN)(replica.run)
app.command("log-node", rich_help_panel=_RUN)(log_node.run)
app.command("try", rich_help_panel=_USE)(try_it.try_it)
app.command("sign", rich_help_panel=_USE)(sign.sign)
app.command("submit", rich_help_panel=_USE)(ledger.submit)
app.command("completions", rich_help_panel=_USE)(ledger.completions)
app.command("watch", rich_help_panel=_RUN)(watch.watch_replicas)
app.command("status", rich_help_panel=_RUN)(status.show)
app.command("status-page", rich_help_panel=_RUN)(status_page.status_page)
app.command("history", rich_help_panel=_RUN)(history.show)
app.add_typer(trail.app, name="trail", rich_help_panel=_RUN)
app.add_typer(party.app, name="party", rich_help_panel=_RUN)
app.command("runbook", rich_help_panel=_RUN)(runbook.show)
app.command("man", rich_help_panel=_RUN)(man.show)
app.command("switchover", rich_help_panel=_RUN)(steer.switchover)
app.command("failover", rich_help_panel=_RUN)(failover.failover)
app.command("pause", rich_help_panel=_RUN)(steer.pause)
app.command("resume", rich_help_panel=_RUN)(steer.resume)
app.add_typer(log.app, name="log", rich_help_panel=_RUN)
log.app.command("prove")(log_prove.prove)
log.app.command("members")(log_node_members.members)
log.app.command("add")(log_node_members.add)
log.app.command("retire")(log_node_members.retire)
log.app.command("removable")(log_node_members.removable)
app.add_typer(site.app, name="site", rich_help_panel=_RUN)
app.add_typer(index.app, name="index", rich_help_panel=_RUN)
app.command("verify", rich_help_panel=_CHECK)(verify.verify)
app.command("doctor", rich_help_panel=_CHECK)(doctor.examine)
app.command("check", rich_help_panel=_CHECK)(check.check_history)
app.command("audit", rich_help_panel=_CHECK)(audit.audit)
app.command("report", rich_help_panel=_CHECK)(report.report)
app.add_typer(audit.trace_app, name="trace", rich_help_panel=_CHECK)
app.add_typer(archive.app, name="archive", rich_help_panel=_PIPELINE)
app.add_typer(tables.app, name="tables", rich_help_panel=_PIPELINE)
app.add_typer(restore.app, name="restore", rich_help_panel=_PIPELINE)
app.add_typer(recovery.app, name="recovery", rich_help_panel=_PIPELINE)


def command() -> Any:
    """The whole command line. No parameter that names a file takes a URL for a local folder's name (PLACE_UNKNOWN)."""
    found = typer.main.get_command(app)
    waiting = [found]
    for one in waiting:
        waiting += getattr(one, "commands", {}).values()
        if one.callback is not None:
            one.callback = _refusing_urls(one.callback)
    return found


def _refusing_urls(run: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(**values: Any) -> Any:
        return run(**{name: _checked(value) for name, value in values.items()})

    return wraps(run)(refusing)


def _checked(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_checked, value))
    return no_url(value) if isinstance(value, Path) else value


def _shown(error: Exception) -> int:
    """Print each error that ended the command, in the words of its own code. Returns the exit code.

    Tasks that run together end together, with a group of errors. What is a defect goes first, as it is the cause.
    """
    found = list(_leaves(error))
    known = [one for one in found if isinstance(one, NotaryError | HaError | InvariantBroken)]
    if unknown := [one for one in found if one not in known]:
        return show_defect(unknown[0])
    return max(show_error(one) for one in known)


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def main() -> None:
    """Run the command of this process's arguments, and leave with its exit code."""
    keep_standard_streams()
    speak_utf8()
    try:
        command()()
    except Exception as error:
        sys.exit(_shown(error))
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(EXIT_FAILED)
