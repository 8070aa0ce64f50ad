"""One front-end process: reads its document, connects to its core, listens, and ends with its core.

Exit codes: 0 after SIGTERM, 1 when the link to the core ended (start it again), 2 when it cannot run as it is
configured (a person is needed; the last log line says why).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable

import msgspec
import pydantic
import structlog
import uvloop

from ledger_api.server.api import Api
from ledger_api.server.authentication import NoAuthentication, TokenAuthentication, make_authentication
from ledger_api.server.byte_budget import ByteBudget
from ledger_api.server.connections import Handle, HttpServer
from ledger_api.server.feed import Feed
from ledger_api.server.proxied import ProxyListener
from ledger_api.server.rate import rows_limit
from ledger_api.server.reloading import Part, Reloading
from ledger_api.server.settings import OTHER_FILES, ApiSettings, FrontEndDocument
from ledger_api.server.tls import expires_s, load_certificates, make_tls
from ledger_api.server.traces import FrontEndTraces
from ledger_api.server.validation import Validator
from ledger_api.wire.answers import NotaryDocument
from replica.link.frames import LinkBroken
from replica.link.interface import CoreLink
from replica.link.unix_client import LinkClient
from replica.native.signatures import checks_together
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_OK
from replica.notary.keys import NotaryKey
from replica.notary.loopback import socket_host
from replica.notary.own_process import raise_open_files
from replica.notary.signatures import SCHEMES, algorithm_of
from replica.store.open import open_reader
from replica.telemetry.counts import ApiCounts
from replica.telemetry.log_lines import lines_dropped, set_up_logging
from replica.telemetry.traces import open_traces

DOCUMENT_MAX_BYTES = 1_000_000
ROLE_LOOK_S = 60.0  # a change wakes it at once
_BACKLOG = 1_024
_PR_SET_PDEATHSIG = 1
_GC_THRESHOLD = (50_000, 20, 100)
_log = structlog.get_logger(__name__)


def main() -> int:
    """Run the front end that standard input describes; returns the exit code."""
    try:
        document = FrontEndDocument.model_validate_json(sys.stdin.buffer.read(DOCUMENT_MAX_BYTES))
    except pydantic.ValidationError as error:
        set_up_logging("info", process="front_end")
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
        _log.error("front_end_misconfigured", code=ConfigError.default_code.name, detail=problems)
        return EXIT_CONFIGURATION
    set_up_logging(document.api.log_level, front_end=document.name)
    if not die_with_parent(document.core_pid):
        return EXIT_FAILED
    try:
        gc.freeze()  # what is loaded stays
        gc.set_threshold(*_GC_THRESHOLD)
        return uvloop.run(FrontEnd(document).run())
    except ConfigError as error:
        _log.error("front_end_misconfigured", code=error.code.name, detail=error.detail)
        return EXIT_CONFIGURATION


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel kill this process when its parent ends; False if that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent_pid


class FrontEnd:
    """The parts of one front end, and the order in which they start and stop."""

    def __init__(self, document: FrontEndDocument) -> None:
        self._document = document
        self._counts = ApiCounts()

    async def run(self) -> int:
        """Serve until SIGTERM or the end of the link; returns the exit code. Raises ConfigError."""
        document = self._document
        authentication = make_authentication(document.api.tokens)
        tls = None if document.api.tls is None else make_tls(document.api.tls)
        link = LinkClient(document.link_path, document.generation, document.name, document.link)
        budget = ByteBudget(document.api.answers_max_bytes)
        now_s = asyncio.get_running_loop().time
        feed = Feed(
            link,
            open_reader(document.database),
            document.api.checkpoint_s,
            now_s,
            budget=budget,
            rows=rows_limit(document.api),
        )
        traces = self._open_traces()
        core = link if traces is None else traces.core(link)
        handle: Handle = self._api(core, feed, authentication).handle
        if traces is not None:
            handle = traces.around(handle)
        server = HttpServer(handle, document.api, connections_max(document.api))
        listener = await self._listen(server, tls)
        proxied = None if document.proxy is None else ProxyListener(server, document.proxy, document.api.host, tls)
        # both before the link: a front end that the core sees is one that serves
        try:
            await link.connect()
        except LinkBroken as error:
            _close(listener, proxied)
            _log.error("link_refused", detail=str(error))
            return EXIT_FAILED
        reloading = self._reloading(authentication, tls)
        stop = _on_signals(reloading.all)
        work = [
            asyncio.create_task(self._report_for_ever(link, server), name="report"),
            asyncio.create_task(authentication.keep_fresh(), name="token keys"),
            asyncio.create_task(close_when_passive(link, server.pre_shutdown), name="role"),
            asyncio.create_task(reloading.watch(), name="files"),
        ]
        ended = asyncio.create_task(link.wait_ended(), name="link end")
        try:
            await asyncio.wait((ended, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        finally:
            _close(listener, proxied)
            await feed.close()
            await self._drain(server)
            for task in work:
                task.cancel()
            self._report(link, server)
            link.close()
            if traces is not None:
                await traces.close()
        if stop.is_set():
            return EXIT_OK
        _log.warning("link_ended", detail=ended.result())
        return EXIT_FAILED

    async def _drain(self, server: HttpServer) -> None:
        """Wait for the answers under way. Idle connections end first: their clients find the next active sooner."""
        server.pre_shutdown()
        await server.shutdown(self._document.api.drain_max_s)

    def _api(self, core: CoreLink, feed: Feed, authentication: NoAuthentication | TokenAuthentication) -> Api:
        document = self._document
        about = NotaryDocument(
            notary_key=document.notary_key,
            signature_scheme=SCHEMES[algorithm_of(bytes.fromhex(document.notary_key))],
            keys=msgspec.convert(document.notary_keys, list[NotaryKey]) or [NotaryKey(document.notary_key)],
            version=document.version,
            replica=document.replica,
            batch_max=document.api.batch_max,
            body_max_bytes=document.api.body_max_bytes,
        )
        api = document.api
        validator = Validator(self._counts, api.batch_max, lambda: core.standing.ledger_id)
        return Api(
            core,
            feed,
            validator,
            self._counts,
            api,
            about=about,
            authentication=authentication,
            log_nodes=document.log_nodes,
            listing=document.listing,
            hosts=document.hosts,
        )

    def _open_traces(self) -> FrontEndTraces | None:
        document = self._document
        traces = open_traces(
            document.tracing, name="ledger_api.server", instance=document.name, version=document.version
        )
        return None if traces is None else FrontEndTraces(traces, lambda: time.time_ns() // 1000)

    async def _listen(self, server: HttpServer, tls: ssl.SSLContext | None) -> asyncio.Server:
        api = self._document.api
        try:
            listener = await asyncio.get_running_loop().create_server(
                server,
                socket_host(api.host),
                api.port,
                reuse_port=True,
                backlog=_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if api.tls is None else api.tls.handshake_max_s,
            )
        except OSError as error:
            raise ConfigError(f"the API cannot listen on {api.host}:{api.port}: {error}") from None
        port = listener.sockets[0].getsockname()[1]
        parts = {"tls": tls is not None, "tokens": api.tokens is not None, "signatures_together": checks_together()}
        _log.info("api_started", host=api.host, port=port, **parts)
        return listener

    async def _report_for_ever(self, link: LinkClient, server: HttpServer) -> None:
        while True:
            await asyncio.sleep(self._document.api.report_interval_s)
            self._report(link, server)

    def _report(self, link: LinkClient, server: HttpServer) -> None:
        self._counts.connections = len(server.connections)
        self._counts.lines_dropped = lines_dropped()
        link.report(self._counts)

    def _reloading(
        self, authentication: NoAuthentication | TokenAuthentication, tls: ssl.SSLContext | None
    ) -> Reloading:
        api = self._document.api
        tokens = [] if api.tokens is None else [api.tokens.keys_file, api.tokens.revoked_file]
        parts = [
            Part("token_keys", [path for path in tokens if path is not None], authentication.reload),
        ]
        settings = api.tls
        if tls is not None and settings is not None:

            def load() -> None:
                load_certificates(tls, settings)
                self._counts.certificate_expires_s = expires_s(settings)

            self._counts.certificate_expires_s = expires_s(settings)
            files = [settings.certificate_file, settings.key_file, settings.client_ca_file]
            parts.append(Part("certificates", [path for path in files if path is not None], load))
        return Reloading(parts)


def _close(listener: asyncio.Server, proxied: ProxyListener | None) -> None:
    listener.close()
    if proxied is not None:
        proxied.close()


def connections_max(settings: ApiSettings) -> int:
    """How many connections this process may have: the setting, or what the limit on open files leaves for them."""
    most = max(1, raise_open_files() - OTHER_FILES)
    if most < settings.connections_max:
        _log.warning("connections_bounded", connections_max=most, setting=settings.connections_max)
    return min(most, settings.connections_max)


async def close_when_passive(core: CoreLink, close: Callable[[], None]) -> None:
    """Close the clients' connections whenever the core says that it serves no more, so that they find who does.

    `close` ends idle ones at once, and the others after their answers. A core that is silent has said nothing: it may
    only be slow.
    """
    served = False
    while True:
        if core.standing.active:
            served = True
        elif served and not core.is_silent:
            served = False
            close()
        await core.standing_changes.wait(ROLE_LOOK_S)


def _on_signals(reload: Callable[[], None]) -> asyncio.Event:
    """SIGTERM sets the event that is returned; SIGHUP reads token keys and certificates again."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, _ignore)  # Ctrl-C reaches the whole group: the core decides when we stop
    loop.add_signal_handler(signal.SIGHUP, reload)
    return stop


def _ignore() -> None:
    pass
