"""`notary party`: which keys may sign for which parties, as the request log has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli import party_export
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
from replica.cli.trailed import ReasonOption, acting, key_in, officer_here, officer_keys
from replica.notary.errors import BadRequest, Code, ConfigError

if TYPE_CHECKING:
    import aiohttp

    from replica.active.noting import Noted
    from replica.config.model import Config
    from replica.notary.parties import Pair, PartyNote, PeriodUs
    from replica.operators.admin import PartyAct
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
    page = run(_everything(settings, None))
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
        path = settings.api.registry_path
        out.print(f"no party's key is registered in the log: until rules 3, the keys in {path} count", markup=False)


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
    from replica.notary.note_signatures import signed_note
    from replica.notary.parties import OFFICERS, encode_officers
    from replica.notary.records import ActRecord

    settings = load(find_config(config))
    named = officer_keys(settings, keys)
    who = officer_here(settings)
    page = run(_everything(settings, "active"))
    note = ActRecord(
        *_NOWHERE,
        0,
        OFFICERS,
        page.acts,
        encode_officers(named),
        who.operator,
        reason or "no reason given",
        who.signer.public_key,
        bytes(64),
    )

    def outcome(noted: Sequence[Noted]) -> str:
        who_are = "1 officer is" if len(named) == 1 else f"{len(named)} officers are"
        return f"{who_are} in force from log offset {noted[0].offset} on"

    noted = _log_act(settings, "party-officers", [signed_note(note, who.signer.sign)], reason, outcome)
    _tell(outcome(noted), noted, as_json)


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

    Run it on the active's machine, as an officer: operators.key_file signs. It has its effect under rules 3.
    """
    settings = load(find_config(config))
    period = _period_us(from_, until)
    page = run(_everything(settings, "active"))
    _register(settings, page, "party-add", [(party, key, *period)], reason=reason, as_json=as_json)


@app.command()
def revoke(
    party: PartyArgument,
    key: KeyArgument,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a key of a party, at once on every replica. What it signed before stays notarised."""
    settings = load(find_config(config))
    page = run(_everything(settings, "active"))
    if (party, key.lower()) not in {(one.party, one.key) for one in page.keys}:
        raise ConfigError(f"the log has no registration of key {key} for {party!r}: notary party list")
    now_us = time.time_ns() // 1_000
    _register(settings, page, "party-revoke", [(party, key, now_us, now_us)], reason=reason, as_json=as_json)


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
    settings = load(find_config(config))
    if old.lower() == new.lower():
        raise ConfigError("the present key and the next one are the same")
    page = run(_everything(settings, "active"))
    present = next((one for one in page.keys if (one.party, one.key) == (party, old.lower())), None)
    now_us = time.time_ns() // 1_000
    if present is None or not present.from_us <= now_us < present.until_us:
        raise ConfigError(f"key {old} of {party!r} is not in force: notary party list")
    end_us = min(present.until_us, now_us + round(overlap_days * 86_400e6))
    periods = [(party, new, *_period_us(None, None)), (party, old, present.from_us, end_us)]
    _register(settings, page, "party-rotate", periods, reason=reason, as_json=as_json)


@app.command(name="import")
def import_registry(
    file: Annotated[Path | None, typer.Argument(help="A party registry file; else the configured one.")] = None,
    config: ConfigChoice = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register all keys of a party registry file that the log has no registration of. May be repeated.

    A key that the log has with another period, or revoked, is named and left as it is.
    """
    from ledger_api.server.registry import periods_in
    from replica.notary.parties import differences

    settings = load(find_config(config))
    pairs = periods_in(file or settings.api.registry_path)
    page = run(_everything(settings, "active"))
    missing, other = differences(pairs, _in_log(page.keys), time.time_ns() // 1_000)
    for party, public_key in other:
        err.print(f"left as it is: the log has another period for key {public_key.hex()} of {party!r}", markup=False)
    if not missing:
        _tell(f"nothing to register: the log has all {len(pairs)} keys of the file", [], as_json)
        return
    periods = [(p, k.hex(), *pairs[p, k]) for p, k in missing]
    _register(settings, page, "party-import", periods, reason=reason, as_json=as_json)


async def unregistered(config: Config) -> str | None:
    """Why rules 3 would lock a party of the registry file out; None if they would not."""
    from ledger_api.server.registry import periods_in
    from replica.notary.parties import differences

    page = await _everything(config, None)
    missing = differences(periods_in(config.api.registry_path), _in_log(page.keys), time.time_ns() // 1_000).missing
    if missing:
        party, key = missing[0]
        return f"the log lacks {len(missing)} keys of the registry, as {key.hex()} of {party!r}: notary party import"
    return None


def _in_log(registered: Sequence[PartyKey]) -> dict[Pair, PeriodUs]:
    return {(one.party, bytes.fromhex(one.key)): (one.from_us, one.until_us) for one in registered}


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


_NOWHERE = (2, bytes(16), 0)  # format, activation and sequence number: the replica gives a note its place in the log


def _register(
    config: Config,
    page: PartyPage,
    act_name: PartyAct,
    periods: Sequence[tuple[str, str, int, int]],
    *,
    reason: str | None,
    as_json: bool,
) -> None:
    """Sign and log registrations (party, key, from_us, until_us) that follow on those of the page. Raises
    ConfigError."""
    from ledger_api.server.registry import check_party
    from replica.notary.note_signatures import signed_note
    from replica.notary.records import RegistrationRecord

    who = officer_here(config)
    numbers = {(one.party, one.key): one.number for one in page.keys}
    notes = [
        RegistrationRecord(
            *_NOWHERE,
            0,
            check_party(party),
            key_in(key),
            numbers.get((party, key.lower()), 0),
            from_us,
            until_us,
            who.operator,
            who.signer.public_key,
            bytes(64),
        )
        for party, key, from_us, until_us in periods
    ]

    def outcome(noted: Sequence[Noted]) -> str:
        first, last = noted[0].offset, noted[-1].offset
        at = f"log offset {first}" if len(noted) == 1 else f"log offsets {first} to {last}"
        return f"{len(noted)} registered, at {at}"

    noted: list[Noted] = []
    for some in _together([signed_note(note, who.signer.sign) for note in notes]):
        noted += _log_act(config, act_name, some, reason, outcome)
        if len(notes) > len(some):
            err.print(f"{len(noted)} of {len(notes)} registered")
    _tell(outcome(noted), noted, as_json)


def _tell(outcome: str, noted: Sequence[Noted], as_json: bool) -> None:
    if as_json:
        print_json({"outcome": outcome, "log_offsets": [one.offset for one in noted]})
    else:
        out.print(outcome, markup=False)


def _log_act(
    config: Config,
    act_name: PartyAct,
    notes: Sequence[PartyNote],
    reason: str | None,
    outcome: Callable[[Sequence[Noted]], str],
) -> list[Noted]:
    """Log notes, as one act of the trail. Raises ConfigError, also where one had no effect."""
    from replica.store.four_eyes import notes_details

    with acting(config, act_name, notes_details(notes), reason, by_replica=True) as act:
        noted = run(_note(config, act_name, notes, act.entry))
        act.outcome = outcome(noted)
    return noted


async def _note(config: Config, act_name: PartyAct, notes: Sequence[PartyNote], entry: int | None) -> list[Noted]:
    """Where the notes are in the log. Raises ConfigError, also where one had no effect."""
    import aiohttp

    from replica.cli.admin_calls import ask_admin
    from replica.notary.records import encode_record
    from replica.operators.admin import PARTIES_PATH, NotesAnswer, NotesCall

    async with aiohttp.ClientSession() as session:
        active = await _active(session, config)
    call = NotesCall(active, tuple(encode_record(note).hex() for note in notes), act_name, entry)
    noted = (await ask_admin(config, active, call, NotesAnswer, path=PARTIES_PATH)).noted
    if lost := [one.offset for one in noted if not one.effective]:
        raise ConfigError(
            f"logged without effect at offset {lost[0]}: something else came before it; look: notary party list",
            Code.NOT_POSSIBLE_NOW,
        )
    return noted


def _together(notes: Sequence[PartyNote]) -> Iterator[Sequence[PartyNote]]:
    from replica.operators.admin import NOTES_MAX

    for start in range(0, len(notes), NOTES_MAX):
        yield notes[start : start + NOTES_MAX]


async def _everything(config: Config, whom: str | None) -> PartyPage:
    """All pages as one, from the active, or from the first replica that answers on this machine (None)."""
    import aiohttp

    if whom is not None:
        async with aiohttp.ClientSession() as session:
            active = await _active(session, config)
        return await _pages(config, active)
    refusal = ConfigError("no replica is configured")
    for name in [one.name for one in config.replicas]:
        try:
            return await _pages(config, name)
        except ConfigError as error:
            refusal = error
    raise refusal


async def _pages(config: Config, name: str) -> PartyPage:
    from replica.cli.admin_calls import ask_admin
    from replica.operators.admin import PARTY_LIST_PATH, PartyListCall
    from replica.operators.party_book import PartyPage

    keys: list[PartyKey] = []
    after = -1
    while True:
        call = PartyListCall(name, after)
        page = await ask_admin(config, name, call, PartyPage, path=PARTY_LIST_PATH)
        keys += page.keys
        if not page.more:
            return PartyPage(page.officers, page.acts, page.known_to, sorted(keys, key=_by_name), False)
        after = page.keys[-1].offset


def _by_name(key: PartyKey) -> tuple[str, int]:
    return key.party, key.offset


async def _active(session: aiohttp.ClientSession, config: Config) -> str:
    from replica.cli.steer import healths_of

    healths = await healths_of(session, config)
    active = next((name for name, health in healths.items() if health is not None and health.leads), None)
    if active is None:
        raise ConfigError("no replica is active, and only the active logs registrations", Code.NOT_POSSIBLE_NOW)
    return active


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
