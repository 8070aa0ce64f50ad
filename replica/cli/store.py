"""`notary store`: the participant's shared database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, JsonOption, err, find_config, load, out, print_json, run
from replica.cli.trailed import ConfirmOption, ProposeOption, ReasonOption, acting
from replica.cli.trailed import propose as propose_act
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.operators.admin import PruneCall
    from replica.store.interface import Pruned

app = typer.Typer(help="Look after the shared database.", no_args_is_help=True)


OwnerOption = Annotated[
    str | None,
    typer.Option("--owner", help="Connection string of the tables' owner; else the configuration's is used."),
]


@app.command()
def migrate(config: ConfigChoice = None, owner: OwnerOption = None) -> None:
    """Bring the database to this release's schema, as the owner of its tables; guarded by a lock of its own.

    All that is missing is applied, or nothing. Then give replicas their rights: notary store roles. A password is best
    left to libpq (PGPASSFILE), not put on a command line.
    """
    from replica.database import participant_database

    settings = load(find_config(config))
    database = participant_database(owner, settings.database.scope) if owner else settings.shared_database()
    applied = run(database.migrate())
    out.print("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


UpToOption = Annotated[
    int | None, typer.Option("--up-to", min=0, help="Newest ledger offset to let go; else all that is not needed.")
]
KeepOption = Annotated[float, typer.Option("--keep-days", min=0, help="Keep what is younger, whatever is needed.")]
PrunerOption = Annotated[
    str | None,
    typer.Option(
        "--as", help="Who deletes: connection string of a member of notary_pruner, on Oracle of the tables' owner."
    ),
]


@app.command()
def prune(
    config: ConfigChoice = None,
    *,
    up_to: UpToOption = None,
    keep_days: KeepOption = 0.0,
    pruner: PrunerOption = None,
    reason: ReasonOption = None,
    propose: ProposeOption = False,
    confirm: ConfirmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let old completions go: the active moves the bound, on the lock session, and this command deletes what is below.

    Run it on the active's machine: its admin listener is a socket there. What deduplication may still ask for
    is never let go. May be stopped and repeated. Audit what is to go before: it cannot be audited again. Without a
    database the bound is said in the log, and each replica deletes in its own ledger.
    """
    from replica.operators.admin import PruneCall
    from replica.store.four_eyes import prune_details

    settings = load(find_config(config))
    if settings.database.is_embedded and pruner:
        raise ConfigError("--as: without a database each replica deletes in its own ledger")
    keep_s = keep_days * 86_400
    asked = prune_details(up_to, keep_s)
    if propose:
        propose_act(settings, "prune", asked, reason)
        return
    with acting(settings, "prune", asked, reason, confirm=confirm, by_replica=True) as act:
        call = PruneCall("", up_to, keep_s, act.entry)
        pruned, deleted = run(_prune(settings, call, pruner))
        act.outcome = f"completions up to ledger offset {pruned.pruned_to} are pruned"
    if as_json:
        print_json({"pruned_to": pruned.pruned_to, "safe_to": pruned.safe_to, "deleted": deleted})
    else:
        done = "each replica deletes its own" if deleted is None else f"{deleted} were deleted just now"
        out.print(f"completions up to ledger offset {pruned.pruned_to} are pruned; {done}")


async def _prune(config: Config, asked: PruneCall, pruner: str | None) -> tuple[Pruned, int | None]:
    """What the active answered, and how many were deleted here; None: each replica deletes in its own ledger."""
    import aiohttp
    import msgspec

    from replica.acting.admin_calls import ask_admin
    from replica.acting.healths import find_active
    from replica.database import EmbeddedLedgers, participant_database
    from replica.operators.admin import PRUNE_PATH
    from replica.store.interface import Pruned

    ledgers = participant_database(pruner, config.database.scope) if pruner else config.ledgers()
    async with aiohttp.ClientSession() as session:
        active = await find_active(session, config.replicas)
        if active is None:
            raise ConfigError("no replica is active: only the active one moves the bound", Code.NOT_POSSIBLE_NOW)
        call = msgspec.structs.replace(asked, replica=active)
        pruned = await ask_admin(config, active, call, Pruned, path=PRUNE_PATH)
    if isinstance(ledgers, EmbeddedLedgers):
        await ledgers.prune_all(pruned.pruned_to)
        return pruned, None
    return pruned, await ledgers.delete_pruned(lambda count: err.print(f"{count} deleted"))


@app.command()
def roles(config: ConfigChoice = None) -> None:
    """Print the SQL that gives replicas and readers their rights and no more, for the kind of database configured.

    On Postgres the tables' owner runs it after a migration, on Oracle an administrator before the first one.
    """
    typer.echo(load(find_config(config)).shared_database().roles(), nl=False)
