"""The health listener. It has a port of its own, so that a flood of requests on the API cannot fail a check.

    /health/live     200 while the event loop ticks
    /health/ready    200 while this replica could take over, or leads: for rolling updates
    /health/active   200 only while it leads: what the load balancer asks
    /health          the details, as JSON
    /metrics         if the caller gives some

GET and HEAD, HTTP/1.0 and 1.1. Handlers call the given probes and do no I/O, so each answer is computed at its request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from ha.clock import Clock

PULSE_S = 0.1
KEEPALIVE_S = 15.0  # longer than any load balancer's pause between checks
SHUTDOWN_MAX_S = 0.5
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LoopPulse:
    """A timer that notes when it last ran: shows whether the event loop still runs due work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beat_at_s = clock.boottime_s()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to beat, on the running loop."""
        self._beat_at_s = self._clock.boottime_s()
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def stop(self) -> None:
        """Stop beating. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def age_s(self) -> float:
        """Seconds since the last beat; more than PULSE_S plus a little says that the loop was held up."""
        return self._clock.boottime_s() - self._beat_at_s

    async def _beat(self) -> None:
        while True:
            self._beat_at_s = self._clock.boottime_s()
            await self._clock.sleep_s(PULSE_S)


@dataclass(frozen=True, slots=True)
class Probes:
    """What the listener calls for each request. All are cheap, and none may raise."""

    is_live: Callable[[], bool]
    is_ready: Callable[[], bool]
    is_active: Callable[[], bool]
    detail: Callable[[], Mapping[str, object]]  # JSON-serialisable


def _any_host(_: str | None) -> bool:
    return True


def _asked_by_name(takes_host: Callable[[str | None], bool]) -> Middleware:
    """Refuse what names another host: a page in a browser whose name was let resolve to this address."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not takes_host(request.headers.get("Host")):
            return web.Response(text="WRONG_HOST: host_names in the configuration takes further names\n", status=403)
        return await handler(request)

    return check


class HealthListener:
    """Serves the probes over HTTP, from `start` to `stop`."""

    def __init__(
        self,
        probes: Probes,
        *,
        host: str,
        port: int,
        metrics: Callable[[], bytes] | None = None,
        takes_host: Callable[[str | None], bool] = _any_host,
    ) -> None:
        """`port` 0: any free one. `metrics`: the Prometheus exposition. `takes_host`: by the Host header, or None."""
        self._host = host
        self._port = port
        app = web.Application(client_max_size=1024, middlewares=[_asked_by_name(takes_host)])
        app.router.add_get("/health/live", _check(probes.is_live, "live", "stalled"))
        app.router.add_get("/health/ready", _check(probes.is_ready, "ready", "not ready"))
        app.router.add_get("/health/active", _check(probes.is_active, "active", "passive"))
        app.router.add_get("/health", _detail(probes.detail))
        if metrics is not None:
            app.router.add_get("/metrics", _metrics(metrics))
        app.on_response_prepare.append(never_cached)
        self._runner = runner_of(app)

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError when the port is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host.removeprefix("[").removesuffix("]"), self._port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and close what is open. May be repeated."""
        await self._runner.cleanup()


def _without_traceback_of_strangers(record: logging.LogRecord) -> bool:
    """A sender's invalid HTTP is not an error of ours: log one line without a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.levelno, record.levelname, record.exc_info = logging.INFO, "INFO", None
        record.msg, record.args = f"{record.getMessage()}: no HTTP", None
    return True


_log = logging.getLogger(__name__)
_log.addFilter(_without_traceback_of_strangers)


def runner_of(app: web.Application) -> web.AppRunner:
    """A runner for an app beside the API: no access log, no signal handlers, and a short shutdown."""
    return web.AppRunner(
        app,
        access_log=None,
        logger=_log,
        handle_signals=False,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=SHUTDOWN_MAX_S,
    )


def _check(holds: Callable[[], bool], yes: str, no: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=f"{yes}\n") if holds() else web.Response(text=f"{no}\n", status=503)

    return answer


def _detail(detail: Callable[[], Mapping[str, object]]) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(text=json.dumps(detail()) + "\n")

    return answer


def _metrics(metrics: Callable[[], bytes]) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": METRICS_TYPE})

    return answer


async def never_cached(_: web.Request, response: web.StreamResponse) -> None:
    """Forbid caching of every answer of an application: add this to `on_response_prepare`."""
    response.headers["Cache-Control"] = "no-store"
