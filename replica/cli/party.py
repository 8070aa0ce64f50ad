"""`notary party`: which keys may sign for which parties, as the request log has it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.acting.trailed import officer_keys
from replica.cli import party_export
from replica.cli.common import (
    ConfigChoice,
    JsonOption,
    add_texts,
    find_config,
    load,
    make_table,
    out,
    print_json,
    run,
)
from replica.cli.trailed import ReasonOption, warn
from replica.notary.errors import BadRequest, ConfigError

if TYPE_CHECKING:
    from replica.acting.parties import Logged
    from replica.config.model import Config
    from replica.operators.party_book import PartyKey, PartyPage

app = typer.Typer(help="Say which keys may sign for which parties, in the request log.", no_args_is_help=True)
app.command()(party_export.export)
app.command()(party_export.verify)

AT_ONCE = timedelta(hours=1)  # a period that began before now begins at once, whatever the replicas' clocks say

PartyArgument = Annotated[str, typer.Argument(help="The party's X.500 name, as O=Bank A,L=London,C=GB.")]
KeyArgument = Annotated[str, typer.Argument(help="The party's public key, 64 hexadecimal digits.")]
FromOption = Annotated[str | None, typer.Option("--from", help="Not before this time, such as 2027-01-01T00:00:00Z.")]
UntilOption = Annotated[str | None, typer.Option("--until", help="Only before this time; else for ever.")]


@app.command(name="list")
def show(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """The officers, and the newest registration of each party's key, as the log has them.

    Asks the admin listener of a replica on this machine, which may be passive.
    """
    settings = load(find_config(config))
    page = _page(settings, of_active=False)
    now_us = time.time_ns() // 1_000
    if as_json:
        print_json(
            {
                "officers": page.officers,
                "acts": page.acts,
                "known_to": page.known_to,
                "keys": [_as_json(key, now_us) for key in page.keys],
            }
        )
        return
    names = {one.public_key: one.name for one in settings.operator_keys()}
    for key in page.officers:
        out.print(f"officer {key} {names.get(key, '')}".rstrip(), markup=False)
    table = make_table("party", "key", "in force", "registered by", "log offset")
    for one in page.keys:
        add_texts(table, one.party, one.key, _period(one, now_us), one.operator, str(one.offset))
    if page.keys:
        out.print(table)
    else:
        out.print("no party's key is registered, so every request is refused: notary party add, or import")


@app.command()
def officers(
    keys: Annotated[
        list[str], typer.Argument(help="Public keys, or names of people in operators.keys_file: all who shall be.")
    ],
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a list of officers in force in place of the one before: only their registrations have an effect.

    An officer in force signs: operators.key_file. The genesis named the first ones. Run it on the active's machine.
    """
    from replica.acting.parties import PartyActs

    settings = load(find_config(config))
    named = officer_keys(settings, keys)
    _tell(run(PartyActs(settings, reason, warn).put_officers(sorted(named))), as_json)


@app.command()
def add(
    party: PartyArgument,
    key: KeyArgument,
    *,
    from_: FromOption = None,
    until: UntilOption = None,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a key of a party, at once on every replica. A registration of the same key is replaced.

    Run it on the active's machine, as an officer: operators.key_file signs.
    """
    from replica.acting.parties import PartyActs

    settings = load(find_config(config))
    period = _period_us(from_, until)
    page = _page(settings, of_active=True)
    _tell(run(PartyActs(settings, reason, warn).register("party-add", [(party, key, *period)], page)), as_json)


@app.command()
def revoke(
    party: PartyArgument,
    key: KeyArgument,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a key of a party, at once on every replica. What it signed before stays notarised."""
    from replica.acting.parties import PartyActs

    settings = load(find_config(config))
    page = _page(settings, of_active=True)
    if (party, key.lower()) not in {(one.party, one.key) for one in page.keys}:
        raise ConfigError(f"the log has no registration of key {key} for {party!r}: notary party list")
    now_us = time.time_ns() // 1_000
    _tell(
        run(PartyActs(settings, reason, warn).register("party-revoke", [(party, key, now_us, now_us)], page)), as_json
    )


@app.command()
def rotate(
    party: PartyArgument,
    old: Annotated[str, typer.Argument(help="The present public key.")],
    new: Annotated[str, typer.Argument(help="The public key that follows it.")],
    *,
    overlap_days: Annotated[
        float, typer.Option("--overlap-days", min=0, max=3_650, help="How long the present key goes on beside it.")
    ] = 30.0,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a party's next key, at once, and let the present one end later."""
    from replica.acting.parties import PartyActs

    settings = load(find_config(config))
    if old.lower() == new.lower():
        raise ConfigError("the present key and the next one are the same")
    page = _page(settings, of_active=True)
    present = next((one for one in page.keys if (one.party, one.key) == (party, old.lower())), None)
    now_us = time.time_ns() // 1_000
    if present is None or not present.from_us <= now_us < present.until_us:
        raise ConfigError(f"key {old} of {party!r} is not in force: notary party list")
    end_us = min(present.until_us, now_us + round(overlap_days * 86_400e6))
    terms = [(party, new, *_period_us(None, None)), (party, old, present.from_us, end_us)]
    _tell(run(PartyActs(settings, reason, warn).register("party-rotate", terms, page)), as_json)


@app.command(name="import")
def import_registry(
    file: Annotated[Path, typer.Argument(help="A file of parties and their keys (docs/security.md).")],
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register all keys of a party file that the log has no registration of. May be repeated.

    A key that the log has with another period, or revoked, is named and left as it is.
    """
    from replica.acting.parties import PartyActs
    from replica.acting.party_file import read_party_file

    settings = load(find_config(config))
    pairs = read_party_file(file)
    _tell(run(PartyActs(settings, reason, warn).register_missing(pairs)), as_json)


def _page(config: Config, *, of_active: bool) -> PartyPage:
    from replica.acting.parties import keys_in_log

    return run(keys_in_log(config, of_active=of_active))


def _period_us(from_: str | None, until: str | None) -> tuple[int, int]:
    """The period of a registration that is signed now. Raises ConfigError."""
    from replica.notary.requests import TIME_MAX_US
    from replica.notary.texts import microseconds_of, parse_time

    try:
        from_us = microseconds_of(datetime.now(UTC) - AT_ONCE) if from_ is None else parse_time(from_)
        until_us = TIME_MAX_US if until is None else parse_time(until)
    except BadRequest as error:
        raise ConfigError(error.detail) from None
    if until_us <= from_us:
        raise ConfigError("the period ends before it begins; to end a key: notary party revoke")
    return from_us, until_us


def _tell(done: Logged, as_json: bool) -> None:
    if as_json:
        print_json({"outcome": done.outcome, "log_offsets": done.offsets})
    else:
        out.print(done.outcome, markup=False)


def _period(one: PartyKey, now_us: int) -> str:
    from replica.notary.requests import TIME_MAX_US
    from replica.notary.texts import format_time

    if one.until_us <= one.from_us:
        return "revoked"
    until = "" if one.until_us == TIME_MAX_US else f"until {format_time(one.until_us)}"
    if now_us < one.from_us:
        return f"from {format_time(one.from_us)} {until}".rstrip()
    return f"ended {format_time(one.until_us)}" if one.until_us <= now_us else until or "yes"


def _as_json(one: PartyKey, now_us: int) -> dict[str, object]:
    import msgspec

    return {**msgspec.structs.asdict(one), "in_force": one.from_us <= now_us < one.until_us}
