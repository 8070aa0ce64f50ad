"""`notary tables`: the request log as tables in the format of Delta Lake, appended to as the log grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import (
    ending_for_good,
    follower_metrics,
    missing_packages,
    progress,
    require_archive,
    tell_failure,
)
from replica.cli.salvage import SalvagesOption, salvages_here
from replica.notary.errors import Code, ConfigError, NotaryError

if TYPE_CHECKING:
    from pipeline.tables.catalogue.hive import Hive
    from replica.config.model import CatalogueSettings, Config
    from replica.notary.salvage import Salvages

app = typer.Typer(help="Keep the request log as tables in the lake.", no_args_is_help=True)

INDEX = "tables.index"  # in data_dir: what the tables' job has seen spent
FollowOption = Annotated[
    bool,
    typer.Option("--follow", help="Go on for ever, appending every tables.interval_s; failures are tried again."),
]


@app.command()
def run(
    *,
    follow: FollowOption = False,
    salvage: SalvagesOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Append to the tables what the log has and they have not: each record once, whatever is killed when.

    Tables of another log, and a second writer, are refused. Lost records become rows of the table `lost`. With
    tables.catalogue the tables are registered there.
    """
    require_archive("deltalake")
    settings = load(find_config(config))
    if (given := settings.tables.catalogue) is not None:
        _catalogue(given)  # what is not installed is said before anything is appended
    held = salvages_here(settings, salvage or ())
    if follow:
        _follow(settings, held)
    written = asyncio.run(_write_once(settings, held))
    if not as_json:
        _tell(written, settings)
    registered = _register(settings, written.schemas)
    if as_json:
        found: dict[str, Any] = {"offset": written.now, "appended_records": written.now - written.before}
        print_json(found if registered is None else found | {"registered": registered})
    elif registered:
        out.print(f"registered in the catalogue: {', '.join(registered)}", markup=False)


class _Written(NamedTuple):
    """The offset that the tables reached before, and now; the columns of each, in Delta's JSON."""

    before: int
    now: int
    schemas: dict[str, str]


def _tell(written: _Written, config: Config) -> None:
    before, now, _ = written
    if now > before:
        out.print(f"[bold green]appended[/] offsets {before + 1:,} to {now:,} to the tables in {config.tables.folder}")
    else:
        out.print(f"nothing new: the tables have the log up to offset {now:,}")


def _catalogue(given: CatalogueSettings) -> Hive:
    """The catalogue that the tables are registered in. Raises ConfigError (PIPELINE_MISSING) without its client."""
    if missing_packages("thriftpy2"):
        hint = "not installed: thriftpy2, for a catalogue: pip install 'replicated-notary[hive]'"
        raise ConfigError(hint, Code.PIPELINE_MISSING)
    from pipeline.tables.catalogue.hive import Hive

    return Hive(given.host, given.port, given.schema_name, given.ca_file)


def _register(config: Config, schemas: dict[str, str]) -> list[str] | None:
    """The names under which tables were registered now; None without a catalogue."""
    from pipeline.tables.catalogue.rules import registrations

    if (given := config.tables.catalogue) is None:
        return None
    return _catalogue(given).register(registrations(config.tables.folder, schemas))


async def _write_once(config: Config, salvages: Salvages) -> _Written:
    from pipeline.sources.topic import look_at

    end = (await asyncio.to_thread(look_at, config.log.settings)).end
    with progress("in the tables", end) as show:
        return await _write(config, salvages, None, lambda offset: show(offset + 1), lambda schemas: None)


def _follow(config: Config, salvages: Salvages) -> NoReturn:
    """Append for ever. Raises an error that needs a person first, and ConfigError when the metrics' port is taken."""
    from pipeline.follow import Succeeded, keep_following
    from pipeline.tables.catalogue.keeping import Changes, keep_registered

    metrics = follower_metrics("tables", config.tables.metrics, config.log.settings, hosts=config.known_hosts)
    changes = Changes(config.tables.folder)

    def attempt(succeeded: Succeeded) -> None:
        asyncio.run(_write(config, salvages, config.tables.interval_s, succeeded, changes.tell))

    def failed(error: NotaryError, delay_s: float) -> None:
        tell_failure(error, delay_s)
        metrics.failed(error.code)

    if (given := config.tables.catalogue) is not None:
        keeping = (_catalogue(given).register, changes, given.look_s, failed)
        Thread(target=keep_registered, args=keeping, daemon=True).start()
    with ending_for_good():
        keep_following(attempt, metrics.succeeded, failed, time.sleep)


async def _write(
    config: Config,
    salvages: Salvages,
    interval_s: float | None,
    succeeded: Callable[[int], None],
    on_schemas: Callable[[dict[str, str]], None],
) -> _Written:
    """Append what the log has; with an interval, without end. `on_schemas` gets the tables' columns after each run."""
    from pipeline.sources.topic import refuse_other_log
    from pipeline.tables.write import open_writer, write_tables
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        topic_id = await log.check()
        with open_writer(config.tables.folder, config.data_dir / INDEX, topic_id, salvages=salvages) as writer:

            def reached(offset: int) -> None:
                succeeded(offset)
                on_schemas(writer.schemas)

            before = writer.reached
            await asyncio.to_thread(refuse_other_log, config.log.settings, writer.position)
            on_schemas(writer.schemas)
            await write_tables(log, writer, interval_s=interval_s, progress=reached)
            return _Written(before, writer.reached, writer.schemas)
    finally:
        await log.close()


@app.command()
def status(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """How far the tables are, how far the log is ahead if it answers, how many files each table has, and with
    tables.catalogue whether it is registered there."""
    require_archive("deltalake")
    from pipeline.sources.topic import look_at
    from pipeline.tables.delta import look
    from pipeline.tables.rows import REQUESTS, SCHEMAS
    from replica.notary.errors import LogRefused, LogUnavailable
    from replica.notary.places import inside

    settings = load(find_config(config))
    tables = {name: look(inside(settings.tables.folder, name)) for name in sorted(SCHEMAS)}
    offset = int(tables[REQUESTS]["offset"])
    found: dict[str, Any] = {"offset": offset}
    try:
        view = look_at(settings.log.settings)
        found |= {"log_end": view.end, "behind_records": view.end - 1 - offset, "log_topic_id": view.topic_id}
    except (LogUnavailable, LogRefused) as error:
        found |= {"log": error.detail}
    try:
        for name, standing in _standings(settings).items():
            tables[name]["catalogue"] = standing
    except NotaryError as error:
        found |= {"catalogue": str(error)}
    if as_json:
        print_json(found | {"tables": tables})
        return
    for name, value in (found | tables).items():
        out.print(f"{name.replace('_', ' '):>15}  {value}", markup=False)


def _standings(config: Config) -> dict[str, str]:
    """How each table stands in the catalogue, in words; nothing without one."""
    from pipeline.tables.catalogue.rules import registrations
    from pipeline.tables.delta import schema_of
    from pipeline.tables.rows import SCHEMAS
    from replica.notary.places import inside

    folder = config.tables.folder
    if (given := config.tables.catalogue) is None:
        return {}
    wanted = registrations(folder, {name: schema_of(inside(folder, name)) for name in SCHEMAS})
    return {name: standing.value for name, standing in _catalogue(given).standings(wanted).items()}
