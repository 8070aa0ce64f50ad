"""`notary tables`: the request log as tables in the format of Delta Lake, appended to as the log grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import ending_for_good, follower_metrics, progress, require_pipeline, tell_failure

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.notary.errors import NotaryError

app = typer.Typer(help="Keep the request log as tables in the lake.", no_args_is_help=True)

INDEX = "tables.index"  # in data_dir: what the tables' job has seen spent
FollowOption = Annotated[
    bool,
    typer.Option("--follow", help="Go on for ever, appending every tables.interval_s; failures are tried again."),
]


@app.command()
def run(*, follow: FollowOption = False, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Append to the tables what the log has and they have not: each record once, whatever is killed when.

    Tables of another log, and a second writer, are refused.
    """
    require_pipeline("deltalake")
    settings = load(find_config(config))
    if follow:
        _follow(settings)
    before, now = asyncio.run(_write_once(settings))
    if as_json:
        print_json({"offset": now, "appended_records": now - before})
    elif now > before:
        out.print(
            f"[bold green]appended[/] offsets {before + 1:,} to {now:,} to the tables in {settings.tables.folder}"
        )
    else:
        out.print(f"nothing new: the tables have the log up to offset {now:,}")


async def _write_once(config: Config) -> tuple[int, int]:
    """The offset that the tables reached before, and now."""
    from pipeline.sources.topic import look_at

    end = (await asyncio.to_thread(look_at, config.log.settings)).end
    with progress("in the tables", end) as show:
        return await _write(config, None, lambda offset: show(offset + 1))


def _follow(config: Config) -> NoReturn:
    """Append for ever. Raises an error that needs a person first, and ConfigError when the metrics' port is taken."""
    from pipeline.follow import Succeeded, keep_following

    metrics = follower_metrics("tables", config.tables.metrics, config.log.settings)

    def attempt(succeeded: Succeeded) -> None:
        asyncio.run(_write(config, config.tables.interval_s, succeeded))

    def failed(error: NotaryError, delay_s: float) -> None:
        tell_failure(error, delay_s)
        metrics.failed(error.code)

    with ending_for_good():
        keep_following(attempt, metrics.succeeded, failed, time.sleep)


async def _write(config: Config, interval_s: float | None, succeeded: Callable[[int], None]) -> tuple[int, int]:
    """The offset that the tables reached before, and now; with an interval, without end."""
    from pipeline.sources.topic import refuse_other_log
    from pipeline.tables.write import open_writer, write_tables
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        topic_id = await log.check()
        with open_writer(config.tables.folder, config.data_dir / INDEX, topic_id) as writer:
            before = writer.reached
            await asyncio.to_thread(refuse_other_log, config.log.settings, writer.position)
            await write_tables(log, writer, interval_s=interval_s, progress=succeeded)
            return before, writer.reached
    finally:
        await log.close()


@app.command()
def status(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """How far the tables are, how far the log is ahead if it answers, and how many files each table has."""
    require_pipeline("deltalake")
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
    if as_json:
        print_json(found | {"tables": tables})
        return
    for name, value in (found | tables).items():
        out.print(f"{name.replace('_', ' '):>15}  {value}", markup=False)
