"""`notary trail`: who did what to the participant, when and why; exported, and verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.acting.trailed import record as record_entry
from replica.cli.common import (
    ConfigChoice,
    JsonOption,
    add_texts,
    err,
    find_config,
    load,
    make_table,
    out,
    print_json,
    run,
)
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.store.trail import Entry, Followed, Head, Signatories

EXPORT_MAX_BYTES = 512 * 2**20
FILE_HELP = "An export, JSON lines; '-' reads standard input. Else the trail itself is read."

app = typer.Typer(help="The operators' trail: who did what, when and why.", no_args_is_help=True)

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many, from the newest.")]
AfterOption = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="Only what came after this cursor, NUMBER:DIGEST.")
]
CursorFileOption = Annotated[
    Path | None,
    typer.Option("--cursor-file", help="Begin after the cursor in this file, if there is one; then write the new one."),
]
FileArgument = Annotated[Path | None, typer.Argument(help=FILE_HELP, show_default=False)]
ExportArgument = Annotated[typer.FileBinaryRead, typer.Argument(help="An export, JSON lines, which has the lost ones.")]
HeadOption = Annotated[
    str | None, typer.Option("--head", metavar="CURSOR", help="A cursor that was kept: its entry must still be there.")
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="NAME=KEY", help="A public key, and whose it is; notary=KEY for one of the notary's."
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="What was done, and why.")]
ActArgument = Annotated[str, typer.Argument(help="What it was, such as party-change; small letters and hyphens.")]
DigestOption = Annotated[
    list[Path] | None,
    typer.Option("--file", help="A file that was changed: its name and SHA-256 go along.", exists=True, dir_okay=False),
]


@app.command(name="list")
def show(config: ConfigChoice = None, limit: LimitOption = 50, as_json: JsonOption = False) -> None:
    """Show the newest entries, the newest last. They are not verified: notary trail verify."""
    from replica.store.trail import follow, head_before

    settings = load(find_config(config))
    lines = run(_newest(settings, limit))
    entries = follow(lines, head_before(lines)).entries
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(entries))
        return
    table = make_table(">", "when (UTC)", "who", "act", "", "why, and how it ended")
    for entry in entries:
        add_texts(table, str(entry.number), f"{entry.at:%Y-%m-%d %H:%M:%S}", _who(entry), *_told(entry))
    if entries:
        out.print(table)
    else:
        out.print("nobody has acted on this participant yet")
    if len(entries) < len(lines):
        err.print("a later entry does not follow on these: notary trail verify", markup=False)


@app.command()
def export(config: ConfigChoice = None, after: AfterOption = None, cursor_file: CursorFileOption = None) -> None:
    """Print entries as JSON lines on standard output, for a SIEM, and the cursor to go on from on standard error.

    Refused (TRAIL_BROKEN, exit code 1) when the trail no longer has the entry that the cursor names.
    """
    from replica.store.trail import Head, parse_head

    if after is not None and cursor_file is not None:
        raise ConfigError("--after and --cursor-file exclude one another")
    begun = Head() if after is None else parse_head(after)
    head = begun if cursor_file is None else _read_cursor(cursor_file)
    head = run(_export(load(find_config(config)), head))
    err.print(f"cursor {head}", markup=False)
    if cursor_file is not None:
        _write_cursor(cursor_file, head)


@app.command()
def verify(
    file: FileArgument = None,
    *,
    head: HeadOption = None,
    key: KeyOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Verify that no entry was changed, moved or left out, and that known people signed all of them.

    An export is verified without a network, and with --key without a configuration. Exit code 0: whole. 1: it is not.
    Entries that were deleted at the end are found by a cursor that was kept before (--head).
    """
    from replica.store.trail import Broken, Head, follow, head_before, parse_head

    wanted = None if head is None else parse_head(head)
    known = _known(key) if key else load(find_config(config)).signatories()
    lines = run(_all(load(find_config(config)))) if file is None else read_export(file)
    before = Head() if file is None else head_before(lines)  # an export may be a part
    found = follow(lines, before, known)
    broken = found.broken
    if broken is None and wanted is not None and wanted.number:
        at = wanted.number - before.number - 1
        if wanted != before and not (0 <= at < len(lines) and _is(lines[at], wanted)):
            broken = Broken(wanted.number, "is not the one that the cursor names")
    if as_json:
        document = {"whole": broken is None, "entries": len(found.entries), "head": str(found.head)}
        print_json(document | ({} if broken is None else {"broken": broken.number, "why": broken.why}))
    elif broken is not None:
        err.print(f"TRAIL_BROKEN: {broken}; {len(found.entries)} entries before it are whole", markup=False)
        err.print(Code.TRAIL_BROKEN.remedy, markup=False)
    else:
        out.print(f"{len(found.entries)} entries are whole, and known people signed them; cursor {found.head}")
    raise typer.Exit(EXIT_OK if broken is None else EXIT_FAILED)


@app.command()
def record(act: ActArgument, reason: ReasonOption, file: DigestOption = None, config: ConfigChoice = None) -> None:
    """Write down what was done by hand: parties registered, files installed, a server replaced."""
    if not 1 <= len(act) <= 64 or not all(part.isalnum() and part.isascii() for part in act.lower().split("-")):
        raise ConfigError("an act is named by letters, digits and hyphens, such as party-change")
    from hashlib import sha256

    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in file or ()}
    head = run(record_entry(load(find_config(config)), act, files, reason))
    out.print(f"entry {head.number}")


@app.command(name="bring-back")
def bring_back(export_file: ExportArgument, config: ConfigChoice = None) -> None:
    """Add the entries of an export that the trail has lost, after a restore of the database or of the log.

    Refused (TRAIL_BROKEN) where the two have parted: then both are evidence.
    """
    from replica.store.trail_writing import bring_back as add

    settings, lines = load(find_config(config)), _split(export_file.read(EXPORT_MAX_BYTES + 1))

    async def carry_out() -> int:
        async with settings.ledgers().board("notary-trail") as board:
            return await add(board, lines)

    out.print(f"{run(carry_out())} entries were added")


def verified(config: Config) -> Followed:
    """What the whole trail says, as far as each entry follows and known people signed. Raises NotaryError, HaError."""
    from replica.store.trail import follow

    return follow(run(_all(config)), known=config.signatories())


async def _newest(config: Config, limit: int) -> list[bytes]:
    from replica.store.trail import head_of

    async with config.ledgers().board("notary-trail") as board:
        newest = head_of(await board.newest_of_trail()).number
        return await board.trail(max(0, newest - limit), limit) if newest else []


async def _all(config: Config) -> list[bytes]:
    from replica.store.trail import Head
    from replica.store.trail_writing import lines_after

    async with config.ledgers().board("notary-trail") as board:
        return [line async for line in lines_after(board, Head())]


async def _export(config: Config, cursor: Head) -> Head:
    from replica.store.trail import TrailBroken, follow
    from replica.store.trail_writing import lines_after

    head = cursor
    async with config.ledgers().board("notary-trail") as board:
        try:
            async for line in lines_after(board, cursor):
                found = follow([line], head)
                if found.broken is not None:
                    raise TrailBroken(str(found.broken))
                typer.echo(line)
                head = found.head
        except TrailBroken as error:
            if head != cursor or not cursor.number:
                raise
            raise TrailBroken(f"{error.detail}, unless the cursor is of another notary's trail") from None
    return head


def _read_cursor(file: Path) -> Head:
    """The cursor in a file; the beginning where there is no file. Raises ConfigError."""
    from replica.store.trail import Head, parse_head

    try:
        return parse_head(file.read_text(encoding="ascii", errors="replace"))
    except FileNotFoundError:
        return Head()
    except OSError as error:
        raise ConfigError(f"the cursor {file} cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"the cursor {file}: {error.detail}; without the file all is exported anew") from None


def _write_cursor(file: Path, head: Head) -> None:
    """Raises ConfigError: the lines are printed, and come again next time."""
    draft = file.with_name(f".{file.name}.new")
    try:
        draft.write_text(f"{head}\n", encoding="ascii")
        draft.replace(file)
    except OSError as error:
        told = f"the cursor {file} cannot be written: {error.strerror}"
        raise ConfigError(f"{told}; the lines above come again next time, unless --after {head} is given") from None


def _is(line: bytes, head: Head) -> bool:
    from replica.store.trail import digest_of

    return digest_of(line) == head.digest


def read_export(file: Path) -> list[bytes]:
    """The lines of an export; of standard input for `-`. Raises ConfigError."""
    from replica.notary.untrusted import read_bounded

    try:
        raw = typer.get_binary_stream("stdin").read(EXPORT_MAX_BYTES + 1) if str(file) == "-" else read_bounded(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except BadRequest as error:
        raise ConfigError(error.detail) from None
    return _split(raw)


def _split(raw: bytes) -> list[bytes]:
    if len(raw) > EXPORT_MAX_BYTES:
        raise ConfigError(f"an export has at most {EXPORT_MAX_BYTES:,} bytes")
    return raw.removesuffix(b"\n").split(b"\n") if raw else []


def _known(keys: list[str]) -> Signatories:
    """Whose keys these are. Raises ConfigError."""
    from replica.notary.signatures import notary_key_from_hex
    from replica.store.trail import Signatory

    found = {}
    for one in keys:
        name, _, key = one.rpartition("=")
        try:
            raw = notary_key_from_hex("the key", key)
        except BadRequest as error:
            raise ConfigError(f"--key {one[:100]}: {error.detail}") from None
        if not name:
            raise ConfigError(f"--key {one[:100]}: whose key is it? NAME=KEY, or notary=KEY")
        found[raw.hex()] = Signatory(None if name == "notary" else name)
    return found


def _who(entry: Entry) -> str:
    return entry.operator if entry.signer == "operator" else f"{entry.os_user}@{entry.host}"


def _told(entry: Entry) -> tuple[str, str, str]:
    """Act, phase, and what is to be said about it."""
    phase = entry.phase if entry.of is None else f"{entry.phase} ({entry.of})"
    details = " ".join(f"{name}={text}" for name, text in entry.details.items())
    return entry.act, phase, "; ".join(part for part in (entry.reason, details, entry.outcome) if part)
