"""`notary tables`: the request log as tables in the format of Delta Lake, appended to as the log grows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json
from replica.cli.pipeline import progress, require_pipeline

if TYPE_CHECKING:
    from replica.config.model import Config

app = typer.Typer(help="Keep the request log as tables in the lake.", no_args_is_help=True)

INDEX = "tables.index"  # in data_dir: what the tables' job has seen spent
FollowOption = Annotated[bool, typer.Option("--follow", help="Go on for ever, appending every tables.interval_s.")]


@app.command()
def run(*, follow: FollowOption = False, config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Append to the tables what the log has and they have not: each record once, whatever is killed when.

    Tables of another log, and a second writer, are refused.
    """
    require_pipeline("deltalake")
    settings = load(find_config(config))
    before, now = asyncio.run(_write(settings, follow))
    if as_json:
        print_json({"offset": now, "appended_records": now - before})
    elif now > before:
        out.print(
            f"[bold green]appended[/] offsets {before + 1:,} to {now:,} to the tables in {settings.tables.folder}"
        )
    else:
        out.print(f"nothing new: the tables have the log up to offset {now:,}")


async def _write(config: Config, follow: bool) -> tuple[int, int]:
    """The offset that the tables reached before, and now."""
    from pipeline.sources.topic import refuse_other_log
    from pipeline.tables.write import open_writer, write_tables
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        topic_id, end = await log.check(), await log.end_offset()
        with open_writer(config.tables.folder, config.data_dir / INDEX, topic_id) as writer:
            before = writer.reached
            await asyncio.to_thread(refuse_other_log, config.log.settings, writer.position)
            with progress("in the tables", end, before + 1) as show:
                await write_tables(
                    log,
                    writer,
                    interval_s=config.tables.interval_s if follow else None,
                    progress=lambda offset: show(offset + 1),
                )
            return before, writer.reached
    finally:
        await log.close()


@app.command()
def status(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """How far each table is, and how many files it has."""
    require_pipeline("deltalake")
    from pipeline.tables.delta import look

    settings = load(find_config(config))
    found: dict[str, Any] = {name: look(folder) for name, folder in _folders(settings.tables.folder)}
    if as_json:
        print_json(found)
        return
    for name, facts in found.items():
        out.print(f"{name:>10}  {facts}", markup=False)


def _folders(folder: Path) -> list[tuple[str, Path]]:
    from pipeline.tables.rows import SCHEMAS

    return [(name, folder / name) for name in sorted(SCHEMAS)]
