"""`notary history`: who was active when, and why it ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ha.ending import Cause, Ending, read_ending
from replica.cli.common import ConfigChoice, JsonOption, add_texts, find_config, load, make_table, out, print_json, run

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.store.bulletin import PastActivation, Pause

_DATABASE, _BROKERS, _LOG_NODES = (
    f"runbooks/{name}.md" for name in ("database-failover", "broker-loss", "log-node-loss")
)
RUNBOOK_OF = {  # what to read after an unintended end; the alerts name the same pages
    Cause.ACTIVATION_FAILED: "runbooks/failover.md",
    Cause.NO_ANSWER: _DATABASE,
    Cause.LOCK_LOST: _DATABASE,
    Cause.STORE_REFUSED: _DATABASE,
    Cause.CLOCK: "runbooks/failover.md",
    Cause.SUPERSEDED: "runbooks/failover.md",
    Cause.LOG_STALLED: _BROKERS,
    Cause.SIGNER: "runbooks/key-rotation.md",
    Cause.FRAGMENTED: _BROKERS,
    Cause.SITE: "runbooks/site-term.md",
    Cause.FAILED: "runbooks/replica-replacement.md",
}
_OF_LOGS = {"postgres": "runbooks/postgres-log.md", "raft": _LOG_NODES}
NO_TIME = "before the first request"  # of a ledger made of the log: only requests bring the time into it

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many epochs, from the newest.")]


def show(config: ConfigChoice = None, limit: LimitOption = 20, as_json: JsonOption = False) -> None:
    """Show who was active when, and why each activation ended: its holder's own word, or what its successor saw."""
    import msgspec

    settings = load(find_config(config))
    activations, pause = run(_read(settings, limit))
    if as_json:
        documents = [
            msgspec.to_builtins(activation) | {"why": why_it_ended(activation)} | _cause_of(activation, settings)
            for activation in activations
        ]
        print_json({"epochs": documents, "pause": msgspec.to_builtins(pause)})
        return
    table = make_table(">epoch", "replica", "active from", ">for", "why it ended")
    for activation in activations:
        add_texts(
            table,
            str(activation.epoch),
            activation.replica,
            _moment(activation.granted_at) if activation.granted_at.timestamp() else NO_TIME,
            _lasted(activation),
            why_it_ended(activation),
        )
    out.print(table)
    for cause in dict.fromkeys(
        ending.cause for activation in activations if (ending := _ending(activation)) is not None
    ):
        if (runbook := runbook_of(cause, settings)) is not None:
            out.print(f"{cause}: {runbook}")
    if pause is not None:
        what = "service" if pause.of_service else "fail-over"
        out.print(f"\n[yellow]{what} is paused since {_moment(pause.paused_at)}[/]: {escape(pause.reason)}")


async def _read(config: Config, limit: int) -> tuple[list[PastActivation], Pause | None]:
    async with config.ledgers().board("notary-history") as board:
        return await board.history(limit), await board.paused()


def _ending(activation: PastActivation) -> Ending | None:
    return None if activation.end_reason is None else read_ending(activation.end_reason)


def runbook_of(cause: Cause, config: Config) -> str | None:
    """What to read after an end, if anything. Without a database the lock is a lease in the log, on log nodes."""
    page = RUNBOOK_OF.get(cause)
    if page == _DATABASE and config.database.is_embedded:
        return _LOG_NODES
    return _OF_LOGS.get(config.log.kind, page) if page == _BROKERS else page


def _cause_of(activation: PastActivation, config: Config) -> dict[str, str | None]:
    """The cause as a value, the code of the error that led to it, and what to read; None where nothing is known."""
    ending = _ending(activation)
    if ending is None:
        return {"cause": None, "code": None, "runbook": None}
    return {"cause": ending.cause.value, "code": ending.code or None, "runbook": runbook_of(ending.cause, config)}


def why_it_ended(activation: PastActivation) -> str:
    """One sentence; empty while nobody knows of an end."""
    if activation.end_reason is not None:
        return activation.end_reason
    if activation.found_over_by == activation.replica:
        return f"not recorded; {activation.replica} took another epoch itself"
    if activation.found_over_by is not None:
        return f"not recorded: killed, crashed or cut off; {activation.found_over_by} found the lock free"
    return ""


def _lasted(activation: PastActivation) -> str:
    """How long it lasted; at most how long, where only its successor says that it is over; empty while nobody does."""
    until = activation.ended_at or activation.found_over_at
    if until is None or not activation.granted_at.timestamp():
        return ""
    lasted = _span((until - activation.granted_at).total_seconds())
    return lasted if activation.ended_at else f"max {lasted}"


def _moment(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _span(duration_s: float) -> str:
    minutes, seconds = divmod(duration_s, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:06.3f}" if hours else f"{minutes}:{seconds:06.3f}"
