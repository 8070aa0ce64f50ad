"""`notary format`: the record format of the request log, and when a newer release may write a newer format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, make_table, out, print_json, run
from replica.cli.store import OwnerOption
from replica.cli.trailed import ReasonOption, acting
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.health import ReplicaHealth
    from replica.notary.formats import Formats

app = typer.Typer(help="See and raise what is written to the request log.", no_args_is_help=True)

RecordsOption = Annotated[int | None, typer.Option("--records", help="Record format; else the newest.")]
RulesOption = Annotated[int | None, typer.Option("--rules", help="Version of the rules; else the newest.")]


@app.command()
def show(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """What the next activation writes, and what each replica can read."""
    present, replicas = run(_look(load(find_config(config))))
    if as_json:
        knows = {name: None if health is None else health.formats_known for name, health in replicas.items()}
        in_force = {name: None if health is None else health.rules_in_force for name, health in replicas.items()}
        print_json(
            {
                "writes": msgspec.to_builtins(present),
                "replicas": msgspec.to_builtins(knows),
                "rules_in_force": in_force,
            }
        )
        return
    out.print(f"the next activation writes {present}")
    table = make_table("replica", "record formats", "rules", "in force")
    for name, health in replicas.items():
        table.add_row(name, *(("no answer", "", "") if health is None else _described(health)))
    out.print(table)


@app.command(name="raise")
def raise_formats(
    *,
    config: ConfigChoice = None,
    records: RecordsOption = None,
    rules: RulesOption = None,
    owner: OwnerOption = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a newer record format, or judge by newer rules, from the next activation on. It cannot be undone.

    Refused (exit code 2) while a configured replica does not answer, or does not know it: afterwards no older release
    can read the log. The tables' owner may do it; without a database, whoever may say a word in the log. Bring it into
    force with notary switchover.
    """
    from replica.database import participant_database
    from replica.notary.formats import Formats, known, why_not_raise

    settings = load(find_config(config))
    present, replicas = run(_look(settings))
    default = known().newest
    wanted = Formats(default.records if records is None else records, default.rules if rules is None else rules)
    if wanted == present:
        _tell(f"nothing to raise: the next activation writes {present}", present, as_json)
        return
    refusal = why_not_raise(
        wanted,
        present,
        {name: None if health is None else health.formats_known for name, health in replicas.items()},
    )
    if refusal is not None:
        raise ConfigError(f"not raised: {refusal}", Code.NOT_POSSIBLE_NOW)
    if owner and settings.database.is_embedded:
        raise ConfigError("there is no owner where the replicas share no database: leave --owner out")
    ledgers = participant_database(owner, settings.database.scope) if owner else settings.ledgers()

    async def carry_out() -> Formats:
        async with ledgers.board("notary-format") as board:
            return await board.raise_formats(wanted)

    with acting(settings, "format-raise", {"records": wanted.records, "rules": wanted.rules}, reason) as act:
        raised = run(carry_out())
        act.outcome = f"the next activation writes {raised}"
    _tell(f"{act.outcome}; now: notary switchover", raised, as_json)


def _tell(outcome: str, writes: Formats, as_json: bool) -> None:
    if as_json:
        print_json({"outcome": outcome, "writes": msgspec.to_builtins(writes)})
    else:
        out.print(outcome)


async def _look(config: Config) -> tuple[Formats, dict[str, ReplicaHealth | None]]:
    import aiohttp

    from replica.acting.healths import fetch_health

    async with config.ledgers().board("notary-format") as board, aiohttp.ClientSession() as session:
        present = await board.formats()
        return present, {address.name: await fetch_health(session, address) for address in config.replicas}


def _described(health: ReplicaHealth) -> tuple[str, str, str]:
    """Record formats, versions of the rules, and the rules in force."""
    known, in_force = health.formats_known, health.rules_in_force or "?"
    return _listed(known.records), _listed(known.rules), str(in_force)


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions))
