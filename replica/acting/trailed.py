"""An act of an operator, with what it leaves in the trail: its beginning and its end; and a second pair of eyes."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ha.errors import HaError
from replica.failure import in_a_line
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError, InvariantBroken, NotaryError

if TYPE_CHECKING:
    from replica.active.signer import Signer
    from replica.config.model import Config
    from replica.store.bulletin import Board
    from replica.store.trail import Entry, Head, Phase

TRAIL_MAX_S = 10.0  # for one entry, connection and commit included
TRIES_MAX = 20  # of a confirmation, while others add their entries


@dataclass(frozen=True, slots=True)
class Who:
    """Who acts, as far as this machine shows: the key that signs, whose it is, and the OS user."""

    signer: Signer
    operator: str
    kind: str  # operator, notary
    os_user: str
    host: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants to do, with which arguments, and why."""

    act: str
    details: Mapping[str, str]
    reason: str


class Act:
    """Used as `async with Act(…) as act`. What is set in it is what the trail says about its end."""

    def __init__(
        self,
        config: Config,
        act: str,
        details: Mapping[str, object],
        reason: str | None,
        warn: Callable[[str], None],
        *,
        confirm: int | None = None,
        by_replica: bool = False,
    ) -> None:
        """`details`: its arguments; None are left out. `warn` is told what the trail lacks. `confirm`: the proposal of
        another operator. `by_replica`: a replica carries it out, and wants the entry. Raises ConfigError
        (REASON_MISSING), and FourEyesRefused where a second operator's consent is configured and not named."""
        self.outcome = ""
        self.failed = False
        self.entry: int | None = None  # the number of its beginning
        self._config = config
        self._asked = _asked(config, act, details, reason)
        self._warn = warn
        needs_consent = act in config.operators.four_eyes
        if needs_consent and confirm is None:
            raise _four_eyes(f"{act} needs a second operator's consent: --propose, then --confirm")
        self._proposal = confirm if needs_consent else None
        self._is_needed = needs_consent or by_replica or config.operators.trail_required
        self._begun: Head | str = ""

    async def begin(self) -> None:
        """Say that it begins. Raises TrailUnavailable where it needs its entry, and FourEyesRefused; then nothing is
        done."""
        self._begun = await _write(
            self._config, self._is_needed, lambda board: _begin(board, self._config, self._asked, self._proposal)
        )
        self.entry = None if isinstance(self._begun, str) else self._begun.number

    async def end(self, failed_by: str | None = None) -> None:
        """Say how it ended; `failed_by`: what it was ended by before its own end. Raises nothing of ours."""
        if not isinstance(self._begun, str):
            failed, outcome = self.failed or failed_by is not None, self.outcome or failed_by or ""
            missing = await _end(self._config, self._asked, self._begun, failed=failed, outcome=outcome)
            if missing is not None:
                self._tell(f"how it ended: {missing}")
        elif failed_by is None:  # where nothing was written, its own error says enough
            self._tell(f"that it was asked for: {self._begun}")

    def _tell(self, what: str) -> None:
        self._warn(f"TRAIL_UNAVAILABLE: the operators' trail does not have {what}")

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end(None if error is None else ended_by(error))


async def propose(config: Config, act: str, details: Mapping[str, object], reason: str | None) -> Head:
    """Write a proposal of this act, for another operator to confirm. Raises what `Act` raises."""
    asked, who = _asked(config, act, details, reason), who_acts(config)
    if who.kind != "operator":
        raise ConfigError(
            "to propose takes a key of one's own: operators.key_file, and its public key in operators.keys_file"
        )
    return await _add(config, who, asked, "proposed")


async def record(config: Config, act: str, details: Mapping[str, object], reason: str) -> Head:
    """Write one entry about something that was done without a command of ours. Raises what `Act` raises."""
    return await _add(config, who_acts(config), _asked(config, act, details, reason), "recorded")


def ended_by(error: BaseException) -> str:
    """What ended an act before its own end."""
    return "interrupted" if isinstance(error, KeyboardInterrupt | asyncio.CancelledError) else in_a_line(error)


def officer_here(config: Config) -> Who:
    """Whoever runs this command, as an officer. Raises ConfigError unless a key of one's own is configured."""
    who = who_acts(config)
    if who.kind != "operator":
        raise ConfigError("an officer signs with a key of one's own: set operators.key_file and operators.keys_file")
    return who


def officer_keys(config: Config, officers: Collection[str]) -> set[bytes]:
    """The public keys of officers to be, from hexadecimal or names in operators.keys_file; of none, of whoever runs
    this command. Raises ConfigError."""
    from replica.notary.genesis import OFFICERS_MAX

    if not officers:
        try:
            return {officer_here(config).signer.public_key}
        except ConfigError as error:
            raise ConfigError(f"name the first officers with --officer, or: {error.detail}") from None
    known = {one.name: one.public_key for one in config.operator_keys() if one.until is None}
    named = {key_in(known.get(officer, officer)) for officer in officers}
    if len(named) > OFFICERS_MAX:
        raise ConfigError(f"{len(named)} officers, the limit is {OFFICERS_MAX}")
    return named


def key_in(text: str) -> bytes:
    """A public key in hexadecimal. Raises ConfigError."""
    from replica.notary.requests import PUBLIC_KEY_BYTES
    from replica.notary.texts import bytes_from_hex

    try:
        return bytes_from_hex("a public key", text.lower(), PUBLIC_KEY_BYTES)
    except BadRequest as error:
        raise ConfigError(f"{text}: {error.detail}") from None


def who_acts(config: Config) -> Who:
    """Who runs this command, and what signs for it. Raises ConfigError, and SignerUnavailable."""
    from replica.active.signer import load_signer

    os_user, host = _os_user(), socket.gethostname()[:64] or "unknown"
    if config.operators.key_file is None:
        return Who(config.notary_signer(), os_user, "notary", os_user, host)
    signer = load_signer(config.operators.key_file)
    key, now = signer.public_key.hex(), datetime.now(UTC)
    person = next((one for one in config.operator_keys() if one.public_key == key), None)
    if person is None:
        raise ConfigError(f"the key {key} is nobody's in operators.keys_file")
    if person.until is not None and person.until <= now:
        raise ConfigError(f"the key {key} of {person.name} ended at {person.until:%Y-%m-%dT%H:%M:%SZ}")
    return Who(signer, person.name, "operator", os_user, host)


def _asked(config: Config, act: str, details: Mapping[str, object], reason: str | None) -> Asked:
    from replica.store.trail import check_reason

    why = check_reason(reason or "")
    if config.operators.reason_required and not why:
        raise ConfigError(f"{act} needs --reason", Code.REASON_MISSING)
    return Asked(act, _texts(details), why)


async def _add(config: Config, who: Who, asked: Asked, phase: Phase) -> Head:
    """Write one entry. Raises TrailUnavailable."""
    from replica.store.trail_writing import add_line

    head = await _write(config, True, lambda board: add_line(board, _maker(config, who, asked, phase)))
    if isinstance(head, str):
        raise InvariantBroken(f"an entry that is needed was neither written nor refused: {head}")
    return head


async def _begin(board: Board, config: Config, asked: Asked, proposal: int | None) -> Head:
    from replica.store.trail_writing import add_line, entries_since

    who = who_acts(config)
    make = _maker(config, who, asked, "begun", of=proposal)
    if proposal is None:
        return await add_line(board, make)
    if who.kind != "operator":
        raise _four_eyes(
            "to confirm takes a key of one's own: operators.key_file, and its public key in operators.keys_file"
        )
    known = config.signatories()
    for _ in range(TRIES_MAX):
        entries, head = await entries_since(board, proposal, known)
        _check(config, entries, proposal, asked, who.operator)
        line = make(head)
        if await board.extend_trail(head.number + 1, line):
            return _head(line)
    raise _unavailable("others added entries meanwhile")


def _check(config: Config, entries: tuple[Entry, ...], proposal: int, asked: Asked, operator: str) -> None:
    from replica.store.four_eyes import check_confirmed

    check_confirmed(
        entries,
        proposal,
        act=asked.act,
        details=asked.details,
        operator=operator,
        now=datetime.now(UTC),
        within_s=config.operators.confirm_within_s,
    )


async def _end(config: Config, asked: Asked, begun: Head, *, failed: bool, outcome: str) -> str | None:
    """Say how an act ended that began; why that was not written, None if it was."""
    from replica.store.trail_writing import add_line

    phase: Phase = "failed" if failed else "done"

    async def write(board: Board) -> Head:
        make = _maker(config, who_acts(config), Asked(asked.act, {}, ""), phase, of=begun.number, outcome=outcome)
        return await add_line(board, make)

    found = await _write(config, False, write)
    return found if isinstance(found, str) else None


def _maker(
    config: Config,
    who: Who,
    asked: Asked,
    phase: Phase,
    *,
    of: int | None = None,
    outcome: str = "",
) -> Callable[[Head], bytes]:
    """What makes the signed line of an entry, for whatever head it comes to follow."""
    from replica.store.trail import Entry, signed_line

    at = datetime.now(UTC)

    def make(head: Head) -> bytes:
        entry = Entry(
            number=head.number + 1,
            previous=head.digest,
            at=at,
            cluster=config.cluster,
            act=asked.act,
            phase=phase,
            operator=who.operator,
            os_user=who.os_user,
            host=who.host,
            signer="operator" if who.kind == "operator" else "notary",
            key=who.signer.public_key.hex(),
            of=of,
            reason=asked.reason,
            details=dict(asked.details),
            outcome=_one_line(outcome),
        )
        return signed_line(entry, who.signer.sign)

    return make


async def _write(config: Config, needed: bool, write: Callable[[Board], Coroutine[Any, Any, Head]]) -> Head | str:
    """What `write` returns. Where that fails: raise if the act needs it, else return why."""
    from replica.store.four_eyes import FourEyesRefused
    from replica.store.trail import TrailBroken

    async def within() -> Head:
        async with asyncio.timeout(TRAIL_MAX_S), config.ledgers().board("notary-trail") as board:
            return await write(board)

    try:
        return await within()
    except (NotaryError, HaError, InvariantBroken, TimeoutError) as error:
        if needed and isinstance(error, FourEyesRefused | TrailBroken):
            raise
        why = f"no answer within {TRAIL_MAX_S:g} s" if isinstance(error, TimeoutError) else in_a_line(error)
        if needed:
            raise _unavailable(f"{why}; the act was not done") from None
        return why


def _unavailable(detail: str) -> NotaryError:
    from replica.store.trail_writing import TrailUnavailable

    return TrailUnavailable(detail)


def _four_eyes(detail: str) -> NotaryError:
    from replica.store.four_eyes import FourEyesRefused

    return FourEyesRefused(detail)


def _head(line: bytes) -> Head:
    from replica.store.trail import head_of

    return head_of(line)


def _texts(details: Mapping[str, object]) -> dict[str, str]:
    from replica.store.trail import DETAIL_MAX

    found = {name: _one_line(str(value)) for name, value in details.items() if value is not None}
    for name, text in found.items():
        if len(text) > DETAIL_MAX:
            raise ConfigError(f"{name}: the operators' trail holds {DETAIL_MAX} characters of it")
    return found


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _os_user() -> str:
    """The account that runs this, and who it was before sudo, by sudo's word."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    before = os.environ.get("SUDO_USER", "")
    found = f"{before} as {name}" if before and before != name else name
    return _one_line(found)[:64]
