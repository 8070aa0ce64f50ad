"""`notary tables`: the request log as tables in the format of Delta Lake, appended to as the log grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import (
    AUTO,
    DEFAULT_MASTER,
    IN_PROCESS,
    SPARK,
    ConnectorOption,
    MasterOption,
    PackagesOption,
    PythonArchiveOption,
    ending_for_good,
    follower_metrics,
    missing_packages,
    progress,
    require_archive,
    spark_choice,
    tell_failure,
)
from replica.cli.salvage import SalvagesOption, salvages_here
from replica.cli.stopping import stop_on_signal
from replica.cli.tables_on_spark import INDEX, OnSpark, Written, can_run_spark
from replica.cli.tables_upkeep import check, maintain
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, NotaryError

if TYPE_CHECKING:
    from pipeline.tables.catalogue.hive import Hive
    from replica.config.model import CatalogueSettings, Config
    from replica.notary.salvage import Salvages

app = typer.Typer(help="Keep the request log as tables in the lake.", no_args_is_help=True)

app.command()(maintain)
app.command()(check)

FollowOption = Annotated[
    bool,
    typer.Option("--follow", help="Go on for ever, appending every tables.interval_s; failures are tried again."),
]

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="What decodes and writes: `spark`, a streaming query; `process`, which needs no Java; or `auto`: Spark if"
        " PySpark, Java and the jars of Delta Lake are there, and the tables are kept in a folder.",
    ),
]
TriggerOption = Annotated[
    float | None,
    typer.Option(
        "--trigger", min=1, metavar="SECONDS", help="With --follow: how often rows are appended, not tables.interval_s."
    ),
]


@app.command()
def run(
    *,
    follow: FollowOption = False,
    engine: EngineOption = AUTO,
    trigger: TriggerOption = None,
    master: MasterOption = DEFAULT_MASTER,
    packages: PackagesOption = None,
    python_archive: PythonArchiveOption = None,
    connector: ConnectorOption = "auto",
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
    on_spark = None
    if _is_spark(engine, settings):
        on_spark = OnSpark(settings, held, spark_choice(master, packages, python_archive), connector, Event())
    if follow:
        _follow(settings, held, on_spark, trigger or settings.tables.interval_s)
    written = _write_once(settings, held, on_spark)
    if not as_json:
        _tell(written, settings)
    registered = _register(settings, written.schemas)
    if as_json:
        found: dict[str, Any] = {"offset": written.now, "appended_records": written.now - written.before}
        print_json(found if registered is None else found | {"registered": registered})
    elif registered:
        out.print(f"registered in the catalogue: {', '.join(registered)}", markup=False)


def _is_spark(engine: str, config: Config) -> bool:
    """Whether Spark writes, of the option. Raises ConfigError."""
    if engine not in (AUTO, SPARK, IN_PROCESS):
        raise ConfigError(f"--engine is {AUTO}, {IN_PROCESS} or {SPARK}, not {engine!r}")
    return engine == SPARK or (engine == AUTO and can_run_spark(config))


def _tell(written: Written, config: Config) -> None:
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


def _write_once(config: Config, salvages: Salvages, on_spark: OnSpark | None) -> Written:
    from pipeline.sources.topic import look_at

    end = look_at(config.log.settings).end
    with progress("in the tables", end) as show:

        def reached(offset: int) -> None:
            show(offset + 1)

        if on_spark is not None:
            return on_spark.write(None, reached, lambda schemas: None)
        return asyncio.run(_write(config, salvages, None, reached, lambda schemas: None))


def _follow(config: Config, salvages: Salvages, on_spark: OnSpark | None, interval_s: float) -> NoReturn:
    """Append for ever. Raises an error that needs a person first, and ConfigError when the metrics' port is taken."""
    from pipeline.follow import Succeeded, keep_following
    from pipeline.tables.catalogue.keeping import Changes, keep_registered

    metrics = follower_metrics(
        "tables",
        config.tables.metrics,
        config.log.settings,
        hosts=config.known_hosts,
        further=() if on_spark is None else (on_spark.metrics,),
    )
    changes = Changes(config.tables.folder)
    stopping = Event() if on_spark is None else on_spark.stopping

    def attempt(succeeded: Succeeded) -> None:
        if on_spark is None:
            asyncio.run(_write(config, salvages, interval_s, succeeded, changes.tell))
        elif not stopping.is_set():
            on_spark.write(interval_s, succeeded, changes.tell)
        raise typer.Exit  # it was told to stop

    def failed(error: NotaryError, delay_s: float) -> None:
        tell_failure(error, delay_s)
        metrics.failed(error.code)

    def wait_s(delay_s: float) -> None:
        stopping.wait(delay_s)

    if (given := config.tables.catalogue) is not None:
        keeping = (_catalogue(given).register, changes, given.look_s, failed)
        Thread(target=keep_registered, args=keeping, daemon=True).start()
    if on_spark is not None:
        stop_on_signal(stopping)
    with ending_for_good():
        keep_following(attempt, metrics.succeeded, failed, wait_s)


async def _write(
    config: Config,
    salvages: Salvages,
    interval_s: float | None,
    succeeded: Callable[[int], None],
    on_schemas: Callable[[dict[str, str]], None],
) -> Written:
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
            return Written(before, writer.reached, writer.schemas)
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
