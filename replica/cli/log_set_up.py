"""`notary log create`, `check` and `roles`: the request log itself, of whatever kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, out, run
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.log.postgres.settings import PostgresLogSettings
    from replica.log.settings import LogSettings

OwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner", help="Connection string of the log's owner, on Postgres; else the configuration's is used."
    ),
]
WriterOption = Annotated[
    str | None, typer.Option("--replicas", help="What replicas log in as; else the user in log.postgres.conninfo.")
]
ReaderOption = Annotated[
    list[str] | None, typer.Option("--reader", help="What archives and audits log in as; may be given again.")
]


def create(config: ConfigChoice = None, owner: OwnerOption = None) -> None:
    """Create the request log; one that exists is checked and left as it is.

    On Postgres as its owner, whom nobody else logs in as; then give replicas their rights: notary log roles. A password
    is best left to libpq (PGPASSFILE), not put on a command line.
    """
    configured = load(find_config(config))
    settings = configured.log.settings
    if owner is not None:
        settings = _on_postgres(settings).model_copy(update={"conninfo": owner, "password_file": None})
    log_id = run(create_log(configured, settings))
    out.print(f"the log {settings.label} keeps the contract; its id is {log_id}")


def check(config: ConfigChoice = None) -> None:
    """Check the log's contract, and that it is the one that the database belongs to. Changes nothing."""
    settings = load(find_config(config))
    log_id, records = run(check_log(settings))
    out.print(f"the log {settings.log.settings.label} keeps the contract; its id is {log_id}; {records} records")


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


async def check_log(config: Config) -> tuple[str, int]:
    """The log's identity and how many records it has. Raises LogRefused unless the database belongs to it."""
    from replica.log.open import open_log
    from replica.notary.errors import LogRefused

    log = open_log(config.log.settings)
    try:
        log_id = await log.check()
        embedded = config.database.is_embedded  # this machine may have no ledger
        bound_to = await _bound_to(config) if embedded else (await config.shared_database().status()).topic_id
        if bound_to not in (None, log_id):
            raise LogRefused(f"the database belongs to topic id {bound_to}, the topic's is {log_id}")
        return log_id, await log.end_offset()
    finally:
        await log.close()


async def create_log(config: Config, settings: LogSettings) -> str:
    """Create the log unless it is there; returns its identity. `settings`: as its creator.

    Raises LogGone where the database belongs to a log that is not there: an empty one would forget what was spent.
    """
    from replica.log.interface import LogMissing
    from replica.log.open import open_log_admin
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
        return await admin.create()
    finally:
        await admin.close()


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
