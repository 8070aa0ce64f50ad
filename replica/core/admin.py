"""The admin listener: where operators steer one replica. On loopback, and only there.

    POST /admin/v1/switchover   {"replica": "r1", "to": "r2"}   hand over; `to` may be left out
    GET  /admin/v1/status       the details of /health

A call names the replica that it is meant for: on three machines the same loopback port is three replicas. A browser
that was led here by a foreign page is refused: it cannot send JSON elsewhere unasked, and it tells the name it came by.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web

from ha.election.driver import SwitchoverReport
from ha.election.states import Handover
from ha.health import SHUTDOWN_MAX_S
from replica.core.settings import LOOPBACK_HOSTS, AdminSettings

log = structlog.get_logger()

SWITCHOVER_PATH = "/admin/v1/switchover"
STATUS_PATH = "/admin/v1/status"
_BODY_MAX_BYTES = 4_096
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SwitchoverCall(msgspec.Struct, forbid_unknown_fields=True):
    """Asks `replica` to hand over, to a certain other one or to whichever comes first."""

    replica: str
    to: str | None = None


class SwitchoverAnswer(msgspec.Struct, frozen=True):
    """How it ended: see Handover. `took_s` counts until the lock was seen in other hands, or taken back."""

    outcome: str
    took_over_by: str | None
    took_s: float


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


class Steering:
    """What operators may ask of this replica, whichever way the call comes in."""

    def __init__(self, name: str, peers: Collection[str], elector: Elector, is_paused: Callable[[], bool]) -> None:
        self._name = name
        self._peers = peers
        self._elector = elector
        self._is_paused = is_paused

    async def switchover(self, call: SwitchoverCall) -> SwitchoverAnswer:
        """Hand over. Raises SteeringRefused when that cannot even be tried; the report says how a try ended."""
        if call.replica != self._name:
            raise SteeringRefused("WRONG_REPLICA", f"this is {self._name}, not {call.replica}: call it on its machine")
        if self._is_paused():
            raise SteeringRefused("FAILOVER_PAUSED", "nobody may take over while fail-over is paused: notary resume")
        if call.to == self._name or (call.to is not None and call.to not in self._peers):
            raise SteeringRefused(
                "NO_SUCH_PEER", f"{call.to} is no other replica; configured are {', '.join(self._peers)}"
            )
        log.info("switchover_asked", to=call.to)
        report = await self._elector.switchover(call.to)
        if report.outcome is Handover.NOT_ACTIVE:
            raise SteeringRefused("NOT_ACTIVE", f"{self._name} is not active: ask the one that is, see notary status")
        log.info("switchover_ended", outcome=report.outcome.value, took_over_by=report.took_over_by)
        return SwitchoverAnswer(report.outcome.value, report.took_over_by, round(report.took_s, 3))


class AdminListener:
    """Serves the admin calls of one replica, from `start` to `stop`."""

    def __init__(
        self, steering: Steering, status: Callable[[], Mapping[str, object]], settings: AdminSettings, port: int
    ) -> None:
        """`port` 0: any free one. `status`: the details of /health."""
        self._steering = steering
        self._status = status
        self._settings = settings
        self._port = port
        app = web.Application(client_max_size=_BODY_MAX_BYTES, middlewares=[_from_here_only])
        app.router.add_post(SWITCHOVER_PATH, self._switchover)
        app.router.add_get(STATUS_PATH, self._tell_status)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_MAX_S)

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError when the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._settings.host, self._port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and close what is open. May be repeated."""
        await self._runner.cleanup()

    async def _switchover(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return _json(Refusal("MALFORMED_REQUEST", "send application/json"), status=415)
        try:
            call = msgspec.json.decode(await request.read(), type=SwitchoverCall)
        except msgspec.DecodeError as error:
            return _json(Refusal("MALFORMED_REQUEST", str(error)), status=400)
        try:
            # whoever asked may hang up; what was begun is ended all the same
            return _json(await asyncio.shield(self._steering.switchover(call)))
        except SteeringRefused as refused:
            return _json(Refusal(refused.code, str(refused)), status=409)

    async def _tell_status(self, _: web.Request) -> web.Response:
        return web.json_response(text=json.dumps(self._status()) + "\n")


@web.middleware
async def _from_here_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.url.host not in LOOPBACK_HOSTS:
        return _json(Refusal("WRONG_HOST", "call the admin listener by its loopback address"), status=403)
    return await handler(request)


def _json(document: Any, status: int = 200) -> web.Response:
    body = msgspec.json.encode(document) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")
