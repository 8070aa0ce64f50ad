"""The admin listener, where operators watch and steer one replica: a Unix socket.

    GET  /                      the status page, see replica/status_page
    POST /admin/v1/switchover   {"replica": "r1", "to": "r2"}   hand over; `to` may be left out
    POST /admin/v1/prune        {"replica": "r1", "up_to": 1000, "keep_s": 0}   let completions go
    POST /admin/v1/parties      {"replica": "r1", "notes": ["…"]}   log what officers signed, in hexadecimal
    POST /admin/v1/parties/list {"replica": "r1", "after": -1}      the parties' keys as the log has them
    GET  /admin/v1/status       the details of /health
    GET  /node/consensus        the log node beside this replica, under CCF's names; 404 for a log without such nodes
    GET  /node/network/removable_nodes   log nodes that may be switched off
    GET  /v1/log/VIEW.SEQNO     what became of an entry of that log: Unknown, Pending, Committed, Invalid

A call that acts names its replica, and the entry of the operators' trail that begins the act: nothing is done without.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
import structlog
from aiohttp import web

from ha.election.driver import SwitchoverReport
from ha.election.states import Handover
from ha.errors import HaError
from ha.health import never_cached, runner_of
from replica.active.noting import Noted
from replica.log.interface import ConsensusLog
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError, NotActive, NotaryError, StoreMismatch
from replica.notary.one_value import check_keys
from replica.notary.parties import PartyNote, decode_party_note
from replica.notary.records import ActRecord, Undecodable
from replica.notary.socket_paths import check_socket_path
from replica.notary.untrusted import UNREADABLE
from replica.operators.callers import caller_of, group_id_of, may_operate
from replica.operators.party_book import PartyPage
from replica.store.four_eyes import notes_details, prune_details, switchover_details
from replica.store.interface import Pruned

log = structlog.get_logger()

SWITCHOVER_PATH = "/admin/v1/switchover"
PRUNE_PATH = "/admin/v1/prune"
PARTIES_PATH = "/admin/v1/parties"
PARTY_LIST_PATH = "/admin/v1/parties/list"
STATUS_PATH = "/admin/v1/status"
CONSENSUS_PATH = "/node/consensus"
REMOVABLE_PATH = "/node/network/removable_nodes"
LOG_PATH = "/v1/log/{transaction}"
_TRANSACTION = re.compile(r"([1-9]\d{0,15})\.([1-9]\d{0,15})")
NOTES_MAX = 100  # in one call
PROBLEM_MAX = 500  # characters of what is wrong with a call
NOTE_HEX_MAX = 16_384  # the longest list of officers has 3,600 bytes
_BODY_MAX_BYTES = 262_144
ReplicaName = Annotated[str, msgspec.Meta(max_length=128)]  # a refusal repeats what was asked for
EntryNumber = Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None  # None: refused, with what to do
PartyAct = Literal["party-officers", "party-add", "party-revoke", "party-rotate", "party-import"]
CallT = TypeVar("CallT")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SwitchoverCall(msgspec.Struct, forbid_unknown_fields=True):
    """Asks `replica` to hand over, to a certain other one or to whichever comes first.

    `entry`: where the operators' trail says that this act begins, as in all calls that act.
    """

    replica: ReplicaName
    to: ReplicaName | None = None
    entry: EntryNumber = None


class SwitchoverAnswer(msgspec.Struct, frozen=True):
    """How it ended: see Handover. `took_s` counts until the lock was seen in other hands, or taken back."""

    outcome: str
    took_over_by: str | None
    took_s: float


class PruneCall(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Asks `replica` to let completions up to an offset go, None: all that are not needed; `keep_s` keeps more."""

    replica: ReplicaName
    up_to: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    keep_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    entry: EntryNumber = None


class NotesCall(msgspec.Struct, forbid_unknown_fields=True):
    """Asks `replica` to log acts about the officers and registrations: records in hexadecimal (docs/formats.md), of
    which only what is signed counts. The replica gives them their places in the log."""

    replica: ReplicaName
    notes: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=NOTE_HEX_MAX)], ...],
        msgspec.Meta(min_length=1, max_length=NOTES_MAX),
    ]
    act: PartyAct
    entry: EntryNumber = None


class NotesAnswer(msgspec.Struct, frozen=True):
    """Where each is in the log, and whether it had an effect."""

    noted: list[Noted]


class PartyListCall(msgspec.Struct, forbid_unknown_fields=True):
    """Asks `replica` for the parties' keys whose newest registration comes after a log offset."""

    replica: ReplicaName
    after: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = -1


class Refusal(msgspec.Struct, frozen=True):
    """Nothing was done, and why."""

    code: str
    detail: str


class SteeringRefused(Exception):
    """Nothing was done. `code` is stable; the text says what to do."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


class Elector(Protocol):
    """The election as far as operators steer it."""

    async def switchover(self, to: str | None = None) -> SwitchoverReport:
        """Hand over, and say who took the lock."""


class Pruner(Protocol):
    """The participant as far as operators prune it."""

    async def prune(self, up_to: int | None, keep_s: float) -> Pruned:
        """Move the bound up to which completions may be deleted. Raises NotActive, and HaError."""


class Registrar(Protocol):
    """The participant as far as officers register parties."""

    async def note(self, notes: Sequence[PartyNote]) -> list[Noted]:
        """Log them. Raises NotaryError, and HaError."""


class Book(Protocol):
    """The parties' keys as the log has them."""

    async def page(self, after: int = -1) -> PartyPage:
        """See PartyBook. Raises NotaryError."""


class Consent(Protocol):
    """Whether the operators' trail permits an act."""

    async def check(self, act: str, details: Mapping[str, str], entry: int | None) -> None:
        """Raises NotaryError unless it begins at that entry of the trail, with all that is asked of it. Once."""


class Steering:
    """The operations that operators may request of this replica, independent of the transport."""

    def __init__(
        self,
        name: str,
        peers: Collection[str],
        elector: Elector,
        is_paused: Callable[[], bool],
        pruner: Pruner,
        *,
        registrar: Registrar,
        book: Book,
        consent: Consent,
        barred: Collection[str] = (),
    ) -> None:
        """`barred`: the peers that may not hold the lock."""
        self._barred = barred
        self._registrar = registrar
        self._book = book
        self._consent = consent
        self._name = name
        self._pruner = pruner
        self._peers = peers
        self._elector = elector
        self._is_paused = is_paused

    async def switchover(self, call: SwitchoverCall) -> SwitchoverAnswer:
        """Hand over. Raises SteeringRefused when that cannot even be tried; the report says how a try ended."""
        self._require_name(call.replica)
        if self._is_paused():
            raise SteeringRefused("FAILOVER_PAUSED", "nobody may take over while fail-over is paused: notary resume")
        if call.to == self._name or (call.to is not None and call.to not in self._peers):
            raise SteeringRefused(
                "NO_SUCH_PEER", f"{call.to} is no other replica; configured are {', '.join(self._peers)}"
            )
        if call.to in self._barred:
            raise SteeringRefused(
                "MAY_NOT_LEAD",
                f"{call.to} may not hold the lock (replicas.may_lead = false): name another one, or none",
            )
        await self._require_entry("switchover", switchover_details(call.to), call.entry)
        log.info("switchover_asked", to=call.to)
        report = await self._elector.switchover(call.to)
        if report.outcome is Handover.NOT_ACTIVE:
            raise SteeringRefused("NOT_ACTIVE", f"{self._name} is not active: ask the one that is, see notary status")
        log.info("switchover_ended", outcome=report.outcome.value, took_over_by=report.took_over_by)
        return SwitchoverAnswer(report.outcome.value, report.took_over_by, round(report.took_s, 3))

    async def prune(self, call: PruneCall) -> Pruned:
        """Let completions go. Raises SteeringRefused when that is not safe, or cannot be done here and now."""
        self._require_name(call.replica)
        await self._require_entry("prune", prune_details(call.up_to, call.keep_s), call.entry)
        try:
            pruned = await self._pruner.prune(call.up_to, call.keep_s)
        except (NotActive, HaError) as error:
            raise SteeringRefused("NOT_ACTIVE", f"{error}: ask the active one, see notary status") from error
        except StoreMismatch as error:
            raise SteeringRefused(error.code.name, error.detail) from error
        if call.up_to is not None and call.up_to > pruned.pruned_to:
            raise SteeringRefused(
                "UNSAFE_TO_PRUNE",
                f"completions after offset {pruned.safe_to} are still needed: prune up to there, or without --up-to",
            )
        log.info("pruned", pruned_to=pruned.pruned_to, safe_to=pruned.safe_to)
        return pruned

    async def note(self, call: NotesCall) -> NotesAnswer:
        """Log what officers signed. Raises SteeringRefused; the code says whether it may be in the log."""
        self._require_name(call.replica)
        try:
            notes = [decode_party_note(bytes.fromhex(note)) for note in call.notes]
        except (ValueError, Undecodable) as error:
            raise SteeringRefused(Code.MALFORMED_REQUEST.name, f"a note cannot be read: {error}") from None
        of_officers = call.act == "party-officers"  # one note: nothing goes in beside it
        if any(isinstance(note, ActRecord) != of_officers for note in notes) or (of_officers and len(notes) > 1):
            raise SteeringRefused(Code.MALFORMED_REQUEST.name, f"these notes are not what {call.act} logs")
        await self._require_entry(call.act, notes_details(notes), call.entry)
        try:
            noted = await self._registrar.note(notes)
        except NotActive as error:
            raise SteeringRefused("NOT_ACTIVE", f"{error.detail}: ask the active one, see notary status") from error
        except NotaryError as error:
            raise SteeringRefused(error.code.name, error.detail) from error
        log.info("parties_noted", offsets=[one.offset for one in noted], effective=[one.effective for one in noted])
        return NotesAnswer(noted)

    async def list_parties(self, call: PartyListCall) -> PartyPage:
        """A page of the parties' keys. Raises SteeringRefused."""
        self._require_name(call.replica)
        try:
            return await self._book.page(call.after)
        except NotaryError as error:
            raise SteeringRefused(error.code.name, error.detail) from error

    async def _require_entry(self, act: str, details: Mapping[str, str], entry: int | None) -> None:
        try:
            await self._consent.check(act, details, entry)
        except NotaryError as error:
            raise SteeringRefused(error.code.name, error.detail) from error

    def _require_name(self, replica: str) -> None:
        if replica != self._name:
            raise SteeringRefused("WRONG_REPLICA", f"this is {self._name}, not {replica}: call it on its machine")


class AdminListener:
    """Serves the admin calls and the status page of one replica, from `start` to `stop`."""

    def __init__(
        self,
        steering: Steering,
        status: Callable[[], Mapping[str, object]],
        page: Iterable[web.RouteDef],
        path: Path,
        group: str | None = None,
        *,
        consensus: ConsensusLog | None = None,
    ) -> None:
        """`status`: the details of /health. `page`: the status page to serve. `group`: whose members may call, beside
        this account and root. `consensus`: a log on nodes of the participant's own.
        """
        self._consensus = consensus
        self._status = status
        self._path = path
        self._group = group
        self._group_id: int | None = None
        app = web.Application(client_max_size=_BODY_MAX_BYTES, middlewares=[self._operators_only])
        app.router.add_post(SWITCHOVER_PATH, partial(_steered, SwitchoverCall, steering.switchover))
        app.router.add_post(PRUNE_PATH, partial(_steered, PruneCall, steering.prune))
        app.router.add_post(PARTIES_PATH, partial(_steered, NotesCall, steering.note))
        app.router.add_post(PARTY_LIST_PATH, partial(_steered, PartyListCall, steering.list_parties))
        app.router.add_get(STATUS_PATH, self._tell_status)
        app.router.add_get(CONSENSUS_PATH, partial(self._about_log, _consensus))
        app.router.add_get(REMOVABLE_PATH, partial(self._about_log, _removable))
        app.router.add_get(LOG_PATH, partial(self._about_log, _transaction))
        app.router.add_routes(page)
        app.on_response_prepare.append(never_cached)
        self._runner = runner_of(app)

    async def start(self) -> None:
        """Listen. Replaces what an earlier core left at the path. Raises ConfigError."""
        check_socket_path(self._path)
        self._group_id = None if self._group is None else group_id_of(self._group)
        await self._runner.setup()
        await web.SockSite(self._runner, self._bound()).start()

    async def stop(self) -> None:
        """Stop listening and close what is open. May be repeated."""
        await self._runner.cleanup()
        self._path.unlink(missing_ok=True)

    def _bound(self) -> socket.socket:
        listener, mask = socket.socket(socket.AF_UNIX), os.umask(0o177)
        try:
            self._path.unlink(missing_ok=True)
            listener.bind(str(self._path))
            if self._group_id is not None:
                os.chown(self._path, -1, self._group_id)
                self._path.chmod(0o660)
        except OSError as error:
            listener.close()
            raise ConfigError(f"the admin listener cannot have {self._path}: {error.strerror}") from None
        finally:
            os.umask(mask)
        return listener

    @web.middleware
    async def _operators_only(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the caller is gone")
        caller = caller_of(transport.get_extra_info("socket"))
        if not may_operate(caller, os.geteuid(), self._group_id):
            log.warning("admin_call_refused", uid=caller.uid, pid=caller.pid)
            return _json(Refusal(Code.NOT_AN_OPERATOR.name, f"account {caller.uid} may not steer"), status=403)
        return await handler(request)

    async def _tell_status(self, _: web.Request) -> web.Response:
        return web.json_response(text=json.dumps(self._status()) + "\n")

    async def _about_log(
        self, ask: Callable[[ConsensusLog, web.Request], Awaitable[object]], request: web.Request
    ) -> web.Response:
        if self._consensus is None:
            return _json(
                Refusal("NO_LOG_NODES", "log.kind is not raft: the log is not on nodes of our own"), status=404
            )
        try:
            return _json(await ask(self._consensus, request))
        except BadRequest as error:
            return _json(Refusal(error.code.name, error.detail), status=400)
        except NotaryError as error:
            return _json(Refusal(error.code.name, error.detail), status=503)


async def _consensus(log: ConsensusLog, _: web.Request) -> object:
    return {"details": await log.consensus()}


async def _removable(log: ConsensusLog, _: web.Request) -> object:
    return (await log.consensus())["removable_nodes"]


async def _transaction(log: ConsensusLog, request: web.Request) -> object:
    found = _TRANSACTION.fullmatch(request.match_info["transaction"])
    if found is None:
        raise BadRequest("a place in the log is VIEW.SEQNO, two numbers from 1 on")
    return msgspec.structs.asdict(await log.transaction(int(found[1]), int(found[2])))


async def _steered(
    kind: type[CallT], steer: Callable[[CallT], Awaitable[object]], request: web.Request
) -> web.StreamResponse:
    if request.content_type != "application/json":
        return _json(Refusal("MALFORMED_REQUEST", "send application/json"), status=415)
    try:
        call = read_call(kind, await request.read())
    except BadRequest as error:
        return _json(Refusal(error.code.name, error.detail), status=400)
    try:
        # the caller may hang up; an operation that has begun is completed
        return _json(await asyncio.shield(_as_task(steer(call))))
    except SteeringRefused as refused:
        return _json(Refusal(refused.code, str(refused)), status=409)


def read_call(kind: type[CallT], body: bytes) -> CallT:
    """The call in a body. Raises BadRequest."""
    check_keys(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise BadRequest(str(error)[:PROBLEM_MAX]) from None  # it repeats what was sent


async def _as_task(answer: Awaitable[object]) -> object:
    return await answer


def _json(document: Any, status: int = 200) -> web.Response:
    body = msgspec.json.encode(document) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")
