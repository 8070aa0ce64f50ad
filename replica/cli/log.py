"""`notary log`: what is in the request log, record by record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli import log_set_up
from replica.cli.common import ConfigChoice, JsonOption, add_texts, find_config, load, make_table, out, run
from replica.cli.log_copy import copy_log, fill_log
from replica.cli.salvage import make_salvage

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.log.interface import RequestLog
    from replica.notary.records import NoteRecord

app = typer.Typer(help="Create, check and read the request log.", no_args_is_help=True)
app.command("create")(log_set_up.create)
app.command("check")(log_set_up.check)
app.command("roles")(log_set_up.roles)
app.command("salvage")(make_salvage)
app.command("copy")(copy_log)
app.command("fill")(fill_log)

READ_WAIT_S = 1.0
READ_MAX_RECORDS = 500
TX_SCAN_MAX = 1_000_000  # records searched for one transaction, from the end

CountOption = Annotated[int, typer.Option("--records", "-n", min=1, max=100_000, help="How many, from the end.")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes in, until Ctrl-C.")]
FromOption = Annotated[int | None, typer.Option("--from", min=0, help="Begin at this offset instead.")]
TxOption = Annotated[
    str | None, typer.Option("--tx", help="Only what names this transaction id, in the last million records.")
]


@dataclass(frozen=True, slots=True)
class Line:
    """One record, for people and programs. `activation`: the first eight digits of its activation id."""

    offset: int
    kind: str  # barrier, request, life, act, registration, salvage, or undecodable
    activation: str
    sequence: int | None
    at_us: int | None
    text: str
    tx_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records are shown: the last `count`, or those from offset `start`; only those of `tx`."""

    count: int
    start: int | None
    tx: str | None
    follow: bool


@app.command()
def tail(  # noqa: PLR0917 - each is an option of the command line
    count: CountOption = 20,
    follow: FollowOption = False,
    start: FromOption = None,
    tx: TxOption = None,
    config: ConfigChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Show the newest records. Whether a record counts is decided by the barrier in force: see notary check.

    With --json each record is one line.
    """
    settings = load(find_config(config))
    run(_tail(settings, Wanted(count, start, None if tx is None else tx.lower(), follow), as_json))


async def _tail(config: Config, wanted: Wanted, as_json: bool) -> None:
    from replica.log.open import open_log

    log = open_log(config.log.settings)
    try:
        await log.check()
        end = await log.end_offset()
        back = wanted.count if wanted.tx is None else TX_SCAN_MAX
        first = max(0, end - back) if wanted.start is None else wanted.start
        async for line in _lines(log, first, None if wanted.follow else end):
            if wanted.tx is None or wanted.tx in line.tx_ids:
                _show(line, as_json)
    finally:
        await log.close()


async def _lines(log: RequestLog, first: int, end: int | None) -> AsyncIterator[Line]:
    """Records from `first` up to `end`, or for ever."""
    from replica.log.reading_on import open_reading_on

    reader = await open_reading_on(log, first)
    offset = first - 1
    while end is None or offset < end - 1:
        for offset, value in await reader.read(READ_MAX_RECORDS, READ_WAIT_S):
            if end is None or offset < end:
                yield describe(offset, value)


def describe(offset: int, value: bytes) -> Line:
    """The fields of a record for display. Pure. A record that cannot be decoded is shown as undecodable."""
    from replica.notary.errors import BadRequest
    from replica.notary.genesis import decode_genesis
    from replica.notary.records import (
        BarrierRecord,
        RequestRecord,
        SignOfLifeRecord,
        Undecodable,
        decode_record,
        format_named,
    )
    from replica.notary.terms import signed_in

    if offset == 0 and (genesis := decode_genesis(value)) is not None:
        text = f"ledger {genesis.ledger_id.hex()}, first officers {', '.join(key.hex() for key in genesis.officers)}"
        return Line(offset, "genesis", "", None, None, text)
    try:
        record = decode_record(value, format_named(value))
        if isinstance(record, BarrierRecord):
            text = f"epoch {record.epoch} of {record.replica}, {record.granter}, format {record.record_format}"
            return Line(offset, "barrier", record.activation_id.hex()[:8], None, None, text)
        activation = record.activation_id.hex()[:8]
        if isinstance(record, RequestRecord):
            request, _, terms, _ = signed_in(record)
            states = f"{len(request.inputs)} inputs, {len(request.references)} references"
            text = f"tx {request.tx_id.hex()}, {states}, by {request.party}, command {terms.command_id!r}"
            tx_ids = (request.tx_id.hex(),)
            return Line(offset, "request", activation, record.sequence, record.stamp_us, text, tx_ids)
        if isinstance(record, SignOfLifeRecord):
            return Line(offset, "life", activation, record.sequence, record.stamp_us, "the holder of the lease lives")
        kind, text = _note(record)
        return Line(offset, kind, activation, record.sequence, None, text)
    except (Undecodable, BadRequest, ValueError) as error:
        return Line(offset, "undecodable", "", None, None, f"{len(value)} bytes, void: {error}")


def _note(record: NoteRecord) -> tuple[str, str]:
    """The kind and the text of a record without a verdict."""
    from replica.notary.records import ActRecord, SalvageRecord

    if isinstance(record, ActRecord):
        return "act", f"{record.name} by {record.operator}: {record.reason}"
    if isinstance(record, SalvageRecord):
        lost = f"{record.first_offset} to {record.last_offset}"
        return "salvage", f"offsets {lost} are lost; salvage {record.digest.hex()}"
    return "registration", f"key {record.party_key.hex()} of {record.party}, by {record.operator}"


def _show(line: Line, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(line), sort_keys=True))
        return
    from datetime import UTC, datetime

    table = make_table("", "", "", "", "")
    table.show_header = False
    at = "" if line.at_us is None else datetime.fromtimestamp(line.at_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
    style = {"barrier": "bold", "undecodable": "red", "life": "dim"}.get(line.kind, "")
    where = f"{line.activation}/{'' if line.sequence is None else line.sequence}"
    add_texts(table, f"{line.offset:>10}", f"{line.kind:<10}", f"{where:<16}", f"{at:<12}", line.text, style=style)
    out.print(table)
