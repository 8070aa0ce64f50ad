"""`notary store`: the participant's shared database."""

from __future__ import annotations

from typing import Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, out, run

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
    from replica.core.database import participant_database

    settings = load(find_config(config))
    database = participant_database(owner, settings.database.scope) if owner else settings.shared_database()
    applied = run(database.migrate())
    out.print("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")


@app.command()
def roles(config: ConfigChoice = None) -> None:
    """Print the SQL that gives replicas and readers their rights and no more, for the kind of database configured.

    On Postgres the tables' owner runs it after a migration, on Oracle an administrator before the first one.
    """
    typer.echo(load(find_config(config)).shared_database().roles(), nl=False)
