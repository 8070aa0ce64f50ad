"""`notary import`: consumed states of another notary become records of this one's request log."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from replica.cli.common import ConfigChoice, JsonOption, err, out, print_json, run
from replica.cli.ledger import make_client
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger_api.client import NotaryClient, Party
    from replica.importing.sources import Columns, Consumed
    from replica.importing.staging import Progress, Staging

SHOWN = 20
GIVE_UP_S = 300.0  # a notary without an active for so long ends the run; it can be run again

FileArgument = Annotated[
    Path | None, typer.Argument(help="CSV file: `state,consumed_by`, or the three columns of a notary's table.")
]
PartyOption = Annotated[str, typer.Option("--party", help="X.500 name of the importing party, as it is registered.")]
KeyOption = Annotated[Path, typer.Option("--key", help="The importing party's key, PKCS#8 PEM, mode 0600.")]
WorkOption = Annotated[Path, typer.Option("--work", help="Work file: what is to be imported, and the progress.")]
DatabaseOption = Annotated[
    Path | None,
    typer.Option("--database", help="File with the libpq connection string of the other notary's database, mode 0600."),
]
TableOption = Annotated[str, typer.Option("--table", help="The other notary's table of consumed states.")]
ColumnsOption = Annotated[
    str | None,
    typer.Option("--columns", help="Its columns: state's transaction, state's index, consuming transaction."),
]


def import_states(
    file: FileArgument = None,
    *,
    party: PartyOption,
    key: KeyOption,
    config: ConfigChoice = None,
    work: WorkOption = Path("import.work"),
    database: DatabaseOption = None,
    table: TableOption = "notary_committed_states",
    columns: ColumnsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import what another notary has decided, through the request log; run it again to go on where it stopped.

    The source is checked as a whole before anything is written. Exit code 1: the notary knew some of it otherwise.
    """
    from ledger_api.client import Party
    from replica.importing.sources import CORDA, parse_columns
    from replica.importing.staging import Staging
    from replica.notary.genesis import NO_LEDGER

    if (file is None) == (database is None):
        raise ConfigError("name one source: a CSV file, or --database")
    client = make_client(None, config, GIVE_UP_S)
    importer = Party.from_file(party, NO_LEDGER, key)
    staging = Staging(work)
    try:
        _fill(staging, file, database, table, CORDA if columns is None else parse_columns(columns))
        began_s = monotonic()
        progress = run(_submit(staging, client, importer))
        _show(staging, progress, monotonic() - began_s, as_json)
    finally:
        staging.close()
    raise typer.Exit(EXIT_FAILED if progress.refused else EXIT_OK)


def _fill(staging: Staging, file: Path | None, database: Path | None, table: str, columns: Columns) -> None:
    from replica.importing.sources import file_identity, read_csv, read_table
    from replica.notary.secret_files import check_secret

    rows: Iterator[Consumed]
    if file is not None:
        identity, rows = file_identity(file), read_csv(file, columns)
    else:
        assert database is not None
        check_secret(database)
        identity, rows = f"table:{table}", read_table(database.read_text().strip(), table, columns)
    if staging.is_filled(identity):
        err.print("going on with what the work file has")
    else:
        staging.fill(rows, identity)
    progress = staging.progress()
    err.print(f"{progress.transactions:,} transactions, {progress.states:,} consumed states, {progress.done:,} done")


async def _submit(staging: Staging, client: NotaryClient, party: Party) -> Progress:
    from replica.importing.submit import submit_staged

    with err.status("importing") as status:

        def show_progress(progress: Progress) -> None:
            status.update(f"importing: {progress.done:,} of {progress.transactions:,} transactions")

        async with client:
            importer = party.for_ledger((await client.describe()).ledger_id)
            return await submit_staged(staging, client, importer, show_progress)


def _show(staging: Staging, progress: Progress, took_s: float, as_json: bool) -> None:
    if as_json:
        refusals = [{"tx_id": tx_id.hex(), "code": code, "detail": why} for tx_id, code, why in staging.refusals()]
        print_json({**progress._asdict(), "took_s": round(took_s, 3), "refusals": refusals})
        return
    for at, (tx_id, code, why) in enumerate(staging.refusals()):
        if at < SHOWN:
            out.print(f"[red]{code}[/] {tx_id.hex()}: {escape(why)}")
    if progress.refused:
        out.print(f"[red]{progress.refused:,} transactions were refused: this notary knew otherwise[/]")
    out.print(f"{progress.done - progress.refused:,} of {progress.transactions:,} transactions are in the log")
