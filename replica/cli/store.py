"""`notary store`: the participant's shared database."""

from __future__ import annotations

import typer

from replica.cli.common import ConfigChoice, find_config, load, out, run

app = typer.Typer(help="Look after the shared database.", no_args_is_help=True)


@app.command()
def migrate(config: ConfigChoice = None) -> None:
    """Bring the database to this release's schema, as the owner of its tables; guarded by a lock of its own."""
    from ha.lock.ids import Counter, lock_id
    from replica.store.migrate import migrate as apply_missing

    settings = load(find_config(config))
    applied = run(apply_missing(settings.conninfo(), lock_id(settings.database.scope, Counter.NODE_MIGRATIONS)))
    out.print("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")
