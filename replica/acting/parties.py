"""Lists of officers and registrations of parties' keys: signed here by an officer, logged by the active."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import msgspec

from replica.acting import admin_calls, healths
from replica.acting.party_file import check_party
from replica.acting.trailed import Act, key_in, officer_here
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.note_signatures import SignedNote, signed_note
from replica.notary.parties import OFFICERS, Pair, PeriodUs, differences, encode_officers
from replica.notary.records import ActRecord, RegistrationRecord, encode_record
from replica.operators.admin import (
    NOTES_MAX,
    PARTIES_PATH,
    PARTY_LIST_PATH,
    NotesAnswer,
    NotesCall,
    PartyAct,
    PartyListCall,
)
from replica.operators.party_book import PartyKey, PartyPage
from replica.store.four_eyes import notes_details

if TYPE_CHECKING:
    from replica.config.model import Config

_NOWHERE = (2, bytes(16), 0, 0)  # format, activation, sequence number and time: the replica gives a note its place

Term = tuple[str, str, int, int]  # party, key in hexadecimal, and the period [from_us, until_us)


class Logged(NamedTuple):
    """What was done, in words, and where the log has it."""

    outcome: str
    offsets: list[int]


async def keys_in_log(config: Config, *, of_active: bool) -> PartyPage:
    """The officers and the newest registration of every key, from the active or from the first replica that answers on
    this machine. Raises ConfigError."""
    if of_active:
        return await _pages(config, await _active(config))
    refusal = ConfigError("no replica is configured")
    for name in [one.name for one in config.replicas]:
        try:
            return await _pages(config, name)
        except ConfigError as error:
            refusal = error
    raise refusal


class PartyActs:
    """Acts of an officer, whose key is here, for one reason. Each raises ConfigError, and what `Act` raises."""

    def __init__(self, config: Config, reason: str | None, tell: Callable[[str], None]) -> None:
        """`tell` tells a person how it goes on. Raises ConfigError where no key of one's own is configured."""
        self._config = config
        self._reason = reason
        self._tell = tell
        self._who = officer_here(config)

    async def put_officers(self, officers: Sequence[bytes]) -> Logged:
        """Log a list of officers in place of the one before."""
        page, who = await keys_in_log(self._config, of_active=True), self._who
        text, key = self._reason or "no reason given", who.signer.public_key
        note = ActRecord(*_NOWHERE, OFFICERS, page.acts, encode_officers(officers), who.operator, text, key, bytes(64))
        who_are = "1 officer is" if len(officers) == 1 else f"{len(officers)} officers are"
        return await self._log(
            "party-officers", page, [note], lambda at: f"{who_are} in force from log offset {at[0]} on"
        )

    async def register(self, act: PartyAct, terms: Sequence[Term], page: PartyPage) -> Logged:
        """Log registrations of keys that follow on those of the page."""
        before = {(one.party, one.key): one.number for one in page.keys}
        notes = [
            RegistrationRecord(
                *_NOWHERE,
                check_party(party),
                key_in(key),
                before.get((party, key.lower()), 0),
                from_us,
                until_us,
                self._who.operator,
                self._who.signer.public_key,
                bytes(64),
            )
            for party, key, from_us, until_us in terms
        ]
        offsets: list[int] = []
        for start in range(0, len(notes), NOTES_MAX):
            offsets += (await self._log(act, page, notes[start : start + NOTES_MAX], _registered)).offsets
            if len(notes) > NOTES_MAX:
                self._tell(f"{len(offsets)} of {len(notes)} registered")
        return Logged(_registered(offsets), offsets)

    async def register_missing(self, pairs: Mapping[Pair, PeriodUs]) -> Logged:
        """Register what the log has no registration of. What it has with another period is told, and stays."""
        page = await keys_in_log(self._config, of_active=True)
        in_log = {(one.party, bytes.fromhex(one.key)): (one.from_us, one.until_us) for one in page.keys}
        missing, other = differences(pairs, in_log, time.time_ns() // 1_000)
        for party, key in other:
            self._tell(f"left as it is: the log has another period for key {key.hex()} of {party!r}")
        if not missing:
            return Logged(f"nothing to register: the log has all {len(pairs)} keys of the file", [])
        return await self.register("party-import", [(one[0], one[1].hex(), *pairs[one]) for one in missing], page)

    async def _log(
        self, act_name: PartyAct, page: PartyPage, notes: Sequence[SignedNote], outcome: Callable[[Sequence[int]], str]
    ) -> Logged:
        """Sign notes for the page's ledger and log them, as one act of the trail. One without effect raises
        ConfigError."""
        signed = [signed_note(note, bytes.fromhex(page.ledger_id), self._who.signer.sign) for note in notes]
        async with Act(self._config, act_name, notes_details(signed), self._reason, self._tell, by_replica=True) as act:
            active = await _active(self._config)
            call = NotesCall(active, tuple(encode_record(note).hex() for note in signed), act_name, act.entry)
            noted = (await admin_calls.ask_admin(self._config, active, call, NotesAnswer, path=PARTIES_PATH)).noted
            if lost := [one.offset for one in noted if not one.effective]:
                raise ConfigError(
                    f"logged without effect at offset {lost[0]}: something else came before it: notary party list",
                    Code.NOT_POSSIBLE_NOW,
                )
            offsets = [one.offset for one in noted]
            act.outcome = outcome(offsets)
        return Logged(act.outcome, offsets)


def _registered(offsets: Sequence[int]) -> str:
    at = f"log offset {offsets[0]}" if len(offsets) == 1 else f"log offsets {offsets[0]} to {offsets[-1]}"
    return f"{len(offsets)} registered, at {at}"


async def _pages(config: Config, name: str) -> PartyPage:
    keys: list[PartyKey] = []
    after = -1
    while True:
        call = PartyListCall(name, after)
        page = await admin_calls.ask_admin(config, name, call, PartyPage, path=PARTY_LIST_PATH)
        keys += page.keys
        if not page.more:
            return msgspec.structs.replace(page, keys=sorted(keys, key=_by_name))
        after = page.keys[-1].offset


def _by_name(key: PartyKey) -> tuple[str, int]:
    return key.party, key.offset


async def _active(config: Config) -> str:
    async with aiohttp.ClientSession() as session:
        found = await healths.healths_of(session, config.replicas)
    active = next((name for name, health in found.items() if health is not None and health.leads), None)
    if active is None:
        raise ConfigError("no replica is active, and only the active logs registrations", Code.NOT_POSSIBLE_NOW)
    return active
