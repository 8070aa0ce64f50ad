"""What the commands that act have in common: their options, and an act that begins, happens and ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from replica.acting.trailed import Act, ended_by
from replica.acting.trailed import propose as write_proposal
from replica.cli.common import err, out, run

if TYPE_CHECKING:
    from replica.config.model import Config

ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why, for the operators' trail.")]
ProposeOption = Annotated[
    bool, typer.Option("--propose", help="Only propose it, for another operator to confirm (operators.four_eyes).")
]
ConfirmOption = Annotated[
    int | None, typer.Option("--confirm", min=1, help="The number of the proposal, by another operator, to confirm.")
]

warn = partial(err.print, markup=False)


@contextmanager
def acting(
    config: Config,
    act: str,
    details: Mapping[str, object],
    reason: str | None,
    *,
    confirm: int | None = None,
    by_replica: bool = False,
) -> Iterator[Act]:
    """An `Act` around what a command does in several event loops, or in none. Raises what that raises."""
    now = Act(config, act, details, reason, warn, confirm=confirm, by_replica=by_replica)
    run(now.begin())
    try:
        yield now
    except BaseException as error:
        run(now.end(_ended_by(error)))
        raise
    run(now.end())


def propose(config: Config, act: str, details: Mapping[str, object], reason: str | None) -> None:
    """Write a proposal of this act, and say how another operator confirms it. Raises what `Act` raises."""
    head = run(write_proposal(config, act, details, reason))
    hours = config.operators.confirm_within_s / 3600
    out.print(
        f"proposal {head.number}; within {hours:g} h another operator repeats the command with --confirm {head.number}"
    )


def _ended_by(error: BaseException) -> str:
    if isinstance(error, typer.Exit):
        return f"exit code {error.exit_code}"
    return "interrupted" if isinstance(error, typer.Abort) else ended_by(error)
