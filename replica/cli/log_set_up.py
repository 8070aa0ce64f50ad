"""`notary log create`, `check` and `roles`: the request log itself, of whatever kind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated

import typer

from replica.acting.trailed import officer_keys
from replica.cli.common import ConfigChoice, find_config, load, out, run
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.log.interface import RequestLog
    from replica.log.postgres.settings import PostgresLogSettings
    from replica.log.settings import LogSettings

OwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner", help="Connection string of the log's owner, on Postgres; else the configuration's is used."
    ),
]
OfficerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--officer",
        help="A first officer, by key or name in operators.keys_file; may be given again. Else whoever runs this.",
    ),
]
EmptyOption = Annotated[
    bool,
    typer.Option("--to-restore", help="Leave it empty: notary restore writes all records, with the genesis."),
]
WriterOption = Annotated[
    str | None, typer.Option("--replicas", help="What replicas log in as; else the user in log.postgres.conninfo.")
]
ReaderOption = Annotated[
    list[str] | None, typer.Option("--reader", help="What archives and audits log in as; may be given again.")
]


def create(
    config: ConfigChoice = None,
    owner: OwnerOption = None,
    officer: OfficerOption = None,
    to_restore: EmptyOption = False,
) -> None:
    """Create the request log and its first record, the genesis; one that exists is checked and left as it is.

    The genesis makes the log a ledger, and names its first officers, who say which keys may sign for which parties. On
    Postgres run it as the log's owner, whom nobody else logs in as; then give replicas their rights: notary log roles.
    A password is best left to libpq (PGPASSFILE), not put on a command line.
    """
    configured = load(find_config(config))
    settings = configured.log.settings
    if owner is not None:
        settings = _on_postgres(settings).model_copy(update={"conninfo": owner, "password_file": None})
    log_id, ledger_id = run(create_log(configured, settings, officer or (), to_restore=to_restore))
    out.print(f"the log {settings.label} keeps the contract; its id is {log_id}")
    tell_ledger(ledger_id)


def tell_ledger(ledger_id: bytes | None) -> None:
    """Print which ledger the log is."""
    out.print("it is empty, to be restored" if ledger_id is None else f"it is the ledger {ledger_id.hex()}")


def check(config: ConfigChoice = None) -> None:
    """Check the log's contract, its genesis, and that it is the one that the database belongs to. Changes nothing."""
    settings = load(find_config(config))
    log_id, ledger_id, records = run(check_log(settings))
    out.print(f"the log {settings.log.settings.label} keeps the contract; its id is {log_id}; {records} records")
    tell_ledger(ledger_id)


def roles(config: ConfigChoice = None, *, replicas: WriterOption = None, reader: ReaderOption = None) -> None:
    """Print the SQL that gives replicas and readers their rights on a log on Postgres, and no more.

    The log's owner runs it. Replicas may append and read, readers read; nobody changes or deletes a record.
    """
    from replica.log.postgres.install import rights
    from replica.notary.libpq import parse_conninfo

    settings = _on_postgres(load(find_config(config)).log.settings)
    writer = replicas or parse_conninfo(settings.conninfo).get("user")
    if writer is None:
        raise ConfigError("log.postgres.conninfo names no user: give --replicas")
    for statement in rights(readers=tuple(reader or ()), writers=(writer,)):
        typer.echo(f"{statement.as_string(None)};")


async def check_log(config: Config) -> tuple[str, bytes, int]:
    """The log's identity, its ledger's id, and how many records it has. Raises LogRefused unless it has a genesis and
    the database belongs to it."""
    from replica.log.beginning import genesis_of
    from replica.log.open import open_log
    from replica.notary.errors import LogRefused

    log = open_log(config.log.settings)
    try:
        log_id = await log.check()
        embedded = config.database.is_embedded  # this machine may have no ledger
        bound_to = await _bound_to(config) if embedded else (await config.shared_database().status()).topic_id
        if bound_to not in (None, log_id):
            raise LogRefused(f"the database belongs to topic id {bound_to}, the topic's is {log_id}")
        return log_id, (await genesis_of(log)).ledger_id, await log.end_offset()
    finally:
        await log.close()


async def create_log(
    config: Config, settings: LogSettings, officers: Collection[str], *, to_restore: bool = False
) -> tuple[str, bytes | None]:
    """Create the log and its genesis unless they are there; returns its identity and its ledger's. `settings`: as its
    creator. `officers`: the first ones, by keys or names; `to_restore`: an empty log stays empty.

    Raises LogRefused for a log with another first record, and LogGone where the database belongs to a log that is not
    there: an empty one would forget what was spent.
    """
    from replica.log.interface import LogMissing
    from replica.log.open import open_log, open_log_admin
    from replica.notary.errors import LogGone

    admin = open_log_admin(settings)
    try:
        try:
            await admin.topic_id()
        except LogMissing:
            if (lost := await _bound_to(config)) is not None:
                raise LogGone(
                    f"the database belongs to the log {lost}, which is not there: an empty one would forget what was "
                    "spent; nothing was created"
                ) from None
        log_id = await admin.create()
    finally:
        await admin.close()
    log = open_log(settings)
    try:
        await log.check()
        if not to_restore:
            return log_id, await _begin(log, lambda: officer_keys(config, officers))
        return log_id, None
    finally:
        await log.close()


async def _begin(log: RequestLog, first_officers: Callable[[], Collection[bytes]]) -> bytes:
    from replica.log.beginning import begin_log

    is_empty = not await log.agreed_end_offset()
    return (await begin_log(log, first_officers() if is_empty else ())).ledger_id


async def _bound_to(config: Config) -> str | None:
    """The identity of the log that the database has published from; None before the first activation."""
    from replica.notary.errors import StoreMismatch

    try:
        return (await config.ledgers().status()).topic_id
    except StoreMismatch:  # no tables yet, or no ledger here: nothing was published
        return None


def _on_postgres(settings: LogSettings) -> PostgresLogSettings:
    """Raises ConfigError for a log of another kind."""
    from replica.log.postgres.settings import PostgresLogSettings

    if not isinstance(settings, PostgresLogSettings):
        raise ConfigError(f"log.kind is {settings.kind}: only a log on Postgres has an owner and roles")
    return settings
