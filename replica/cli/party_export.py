"""`notary party export` and `notary party verify`: acts and registrations of the log as chained JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, err, find_config, load, out, run
from replica.cli.trail import read_export
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, LogUnavailable
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.log.interface import RequestLog
    from replica.notary.note_lines import Exported

READ_MAX_RECORDS = 10_000
READ_WAIT_S = 10.0

CursorFileOption = Annotated[
    Path | None,
    typer.Option("--cursor-file", help="Begin after the cursor in this file, if there is one; then write the new one."),
]
FileArgument = Annotated[
    Path, typer.Argument(help="An export, JSON lines; '-' reads standard input.", show_default=False)
]
HeadOption = Annotated[
    str | None, typer.Option("--head", metavar="DIGEST", help="A digest that was kept: its line must still be there.")
]


def export(config: ConfigChoice = None, cursor_file: CursorFileOption = None) -> None:
    """Print the log's acts and registrations as JSON lines on standard output, for a SIEM, and the newest digest.

    Reads the log itself, and asks no replica. The first export reads all of it; with --cursor-file the next one goes
    on where it ended. A line says who signed what, not whether it had an effect: notary party list.
    """
    settings = load(find_config(config))
    before = None if cursor_file is None or not cursor_file.exists() else _read_cursor(cursor_file)
    done = run(_export(settings, before, cursor_file))
    err.print(f"{done.lines} lines so far; digest {done.digest}", markup=False)


def verify(file: FileArgument, head: HeadOption = None) -> None:
    """Verify that no line of an export was changed, moved or left out, and that each is signed by the key it names.

    Needs neither a network nor a configuration. Exit code 0: whole. 1: it is not. Lines that are missing at the end
    are found by a digest that was kept before (--head).
    """
    from replica.notary.note_lines import BEFORE_THE_FIRST, line_digest, previous_of, why_broken

    lines = read_export(file)
    before = previous_of(lines[0]) if lines else BEFORE_THE_FIRST
    broken = why_broken(lines, before)
    digests = [before, *map(line_digest, lines)]
    if broken is None and head is not None and head.strip().lower() not in digests:
        broken = (len(lines), "is missing: no line has the digest that was kept")
    if broken is not None:
        number, why = broken
        err.print(f"TRAIL_BROKEN: line {number + 1} {why}; those before it are whole", markup=False)
        err.print(Code.TRAIL_BROKEN.remedy, markup=False)
        raise typer.Exit(EXIT_FAILED)
    begun = "" if before == BEFORE_THE_FIRST else f", after the line with digest {before}"
    out.print(f"{len(lines)} lines are whole{begun}; digest {digests[-1]}", markup=False)
    raise typer.Exit(EXIT_OK)


async def _export(config: Config, before: Exported | None, cursor_file: Path | None) -> Exported:
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        return await _print_notes(log, before, cursor_file)
    finally:
        await log.close()


async def _print_notes(log: RequestLog, before: Exported | None, cursor_file: Path | None) -> Exported:
    """Print what came after `before`, up to the log's present end. The cursor follows on what is printed: a line may
    come twice after a crash, never not at all. Raises LogRefused, LogUnavailable, FormatUnknown."""
    from replica.following.log_reading import open_after
    from replica.notary.note_lines import Exported, read_on
    from replica.notary.position import begin

    topic_id = await log.check()
    done = before or Exported(begin(topic_id))
    end = await log.end_offset()
    reader = await open_after(log, topic_id, done.position)
    try:
        while done.position.offset < end - 1:
            records = await reader.read(min(READ_MAX_RECORDS, end - 1 - done.position.offset), READ_WAIT_S)
            if not records:
                raise LogUnavailable(f"no record after offset {done.position.offset} within {READ_WAIT_S:g} s")
            lines, done = read_on(done, records)
            for line in lines:
                typer.echo(line)
            if cursor_file is not None:
                _write_cursor(cursor_file, done)
    finally:
        await reader.close()
    return done


def _read_cursor(file: Path) -> Exported:
    from replica.notary.note_lines import decode_cursor

    try:
        return decode_cursor(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the cursor {file} cannot be read: {error}; without it all is exported anew") from None


def _write_cursor(file: Path, done: Exported) -> None:
    from replica.notary.note_lines import encode_cursor

    draft = file.with_name(f".{file.name}.new")
    draft.write_bytes(encode_cursor(done))
    draft.replace(file)
