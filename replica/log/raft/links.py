"""TCP between nodes, and from clients. Each node dials the others and sends; only hellos come back.

One node's messages to another arrive in order and at most once: they use one connection at a time, and a new one ends
the old. What cannot be sent is dropped; the core sends again what matters. The certificate identifies a node: its name,
the first part of its id, is the certificate's common name or one of its DNS names.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import msgspec
import structlog

from ha.raft.messages import Message, NodeId
from replica.log.raft import wire
from replica.log.raft.identity import is_other_log
from replica.log.raft.lives import has_closed, is_same_machine
from replica.log.raft.settings import LogNodeSettings, split_address
from replica.log.raft.wire import (
    Failed,
    FrameRefused,
    Frames,
    Hello,
    Lifeline,
    Refusal,
    Tied,
    encode_frame,
    name_of,
)
from replica.notary.tasks import cancelled

_REDIAL_S = 0.05, 1.0  # the first wait, and the longest
_LISTEN_MAX_S = 2.0
_LINE_EVERY_S = 1.0
_PROBES = 3  # of an idle connection, before it is given up
_log = structlog.get_logger(__name__)


def give_up_on_silence(transport: asyncio.BaseTransport, silence_max_s: float) -> None:
    """End a connection whose other side acknowledges no byte for this long, or answers no probe while idle.

    Otherwise the connection to a vanished machine lasts a quarter of an hour, and until then no new one is dialled.
    """
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_max_s * 1_000))
    probe_s = max(1, int(silence_max_s / _PROBES))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


class Lines:
    """Lets one line a second through, and counts the others."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = float("-inf")
        self._withheld = 0

    def take(self) -> int | None:
        """None: do not log; else the number of lines withheld before this one."""
        now_s = self._now_s()
        if now_s < self._next_s:
            self._withheld += 1
            return None
        self._next_s = now_s + _LINE_EVERY_S
        withheld, self._withheld = self._withheld, 0
        return withheld


class Handler(Protocol):
    """What the links pass on."""

    def receive(self, src: NodeId, message: Message) -> None:
        """A message of the core came."""

    def call(self, call: wire.Call, reply: Callable[[wire.Answer], None]) -> None:
        """A client calls."""

    def heard_core(self) -> None:
        """The core of the replica beside this node calls."""

    def ended(self, name: str) -> None:
        """A peer's process has ended: its connection is closed, and nobody listens at its address."""

    def life_ended(self, activation_id: bytes) -> None:
        """The process that led with this activation has ended, or leads no more."""


def certificate_names(certificate: Mapping[str, Any]) -> set[str]:
    """The names in a peer's certificate, as `ssl` gives it."""
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return subject | {value for key, value in certificate.get("subjectAltName", ()) if key == "DNS"}


async def close_server(server: asyncio.Server) -> None:
    """Stop listening. A server that is closed just after it accepted a connection would leave that one open. So first
    no more are accepted, and the last ones are handed over. asyncio accepts, makes the transport, tells its
    protocol and begins the handler in four turns of the loop."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(4):
        await asyncio.sleep(0)
    server.close()


class Links:
    """All connections of one node."""

    def __init__(self, settings: LogNodeSettings, node_id: NodeId, handler: Handler, key: bytes = b"") -> None:
        self.settings = settings
        self.node_id = node_id
        self.key = key  # public
        self.log_id = ""  # of the log that this node has; "": none yet
        self.handler = handler
        self._tls = self._contexts()
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()  # all that are open, greeted or not
        self._incoming: set[_Incoming] = set()
        self._speaking: dict[NodeId, _Incoming] = {}
        self._outgoing: dict[NodeId, _Outgoing] = {}
        self._dialling: list[asyncio.Task[None]] = []
        self._refusals, self._drops = Lines(), Lines()

    async def start(self) -> None:
        """Listen, and dial all peers for ever. Raises OSError if the address cannot be used."""
        await self._listen()
        self._dialling = [
            asyncio.create_task(self._dial(name), name=f"dial {name}") for name in sorted(self.settings.peers)
        ]

    async def stop(self) -> None:
        """Cut everything. May be repeated."""
        await cancelled(*self._dialling)
        for server in self._servers:
            await close_server(server)
        for connection in tuple(self._connections):
            connection.end()

    async def reload(self) -> None:
        """Read the certificates again, and replace all connections. Raises ConfigError; then nothing has changed.

        The sockets go on listening: a peer that is refused takes this process for one that has ended.
        """
        self._tls = self._contexts()
        old, self._servers = self._servers, []
        for listening in [listening for server in old for listening in server.sockets]:
            await self._serve(sock=socket.socket(fileno=os.dup(listening.fileno())))
        for server in old:
            await close_server(server)
        for connection in tuple(self._connections):
            connection.end()

    def send(self, to: NodeId, frame: bytes) -> bool:
        """Send to a node; False: it is not connected, or too slow, and the frame is dropped."""
        link = self._outgoing.get(to)
        if link is None or link.transport is None:
            return False
        if link.transport.get_write_buffer_size() + len(frame) > self.settings.link_max_bytes:
            if (withheld := self._drops.take()) is not None:
                _log.warning("log_link_slow", peer=to, withheld=withheld)
            return False
        link.transport.write(frame)
        return True

    def can_send(self, to: NodeId) -> bool:
        """Whether the node is connected."""
        return to in self._outgoing

    def key_of(self, node_id: NodeId) -> bytes | None:
        """The public key of a connected node."""
        link = self._outgoing.get(node_id)
        return None if link is None else link.key

    @property
    def connected(self) -> tuple[NodeId, ...]:
        """Nodes that can be sent to."""
        return tuple(sorted(self._outgoing))

    # ------------------------------------------------------------------------------------------------ what they need

    def hello(self) -> Hello:
        """Who we are."""
        return Hello(wire.PROTOCOL, self.settings.group, "node", self.node_id, self.key, self.log_id)

    def has_log(self, log_id: str) -> None:
        """This node has the first entry of this log. Nodes that were greeted before are greeted anew with it."""
        if log_id != self.log_id:
            self.log_id = log_id
            for connection in tuple(self._connections):
                if connection.node_id:
                    connection.end()

    def refused(self, where: object, why: str) -> None:
        """Report that a connection was ended, and why."""
        if (withheld := self._refusals.take()) is not None:
            _log.warning("log_link_refused", address=str(where), why=why, withheld=withheld)

    def objection(self, hello: Hello, certificate: Mapping[str, Any] | None, expected: str | None = None) -> str | None:
        """Why the sender of this hello is refused; None: it is accepted."""
        if hello.protocol != wire.PROTOCOL:
            return f"protocol version {hello.protocol}, this node speaks {wire.PROTOCOL}"
        if hello.group != self.settings.group:
            return f"group {hello.group!r}, this node belongs to {self.settings.group!r}"
        return None if hello.role == "client" else self._objection_to_node(hello, certificate, expected)

    def _objection_to_node(
        self, hello: Hello, certificate: Mapping[str, Any] | None, expected: str | None
    ) -> str | None:
        node_id, name = hello.node_id, name_of(hello.node_id)
        if name not in self.settings.peers:
            return f"node {node_id!r} is not among this node's peers"
        if expected is not None and name != expected:
            return f"node {node_id!r} answers at the address of {expected!r}"
        if self._tls is not None and name not in certificate_names(certificate or {}):
            return f"node {node_id!r} has a certificate for {sorted(certificate_names(certificate or {}))}"
        if is_other_log(self.log_id, hello.log_id):
            return f"node {node_id!r} has the log {hello.log_id}, this node has {self.log_id}"
        return None

    def made(self, connection: _Connection) -> None:
        """A connection of either kind is open."""
        self._connections.add(connection)

    def lost(self, connection: _Connection) -> None:
        """It is closed."""
        self._connections.discard(connection)

    def opened(self, connection: _Incoming) -> bool:
        """Whether there is room for one more."""
        self._incoming.add(connection)
        return len(self._incoming) <= self.settings.connections_max

    def speaks(self, connection: _Incoming, node_id: NodeId) -> None:
        """A node's new connection ends its old one, even if that has unread messages."""
        old = self._speaking.get(node_id)
        self._speaking[node_id] = connection
        if old is not None:
            old.end()

    def closed(self, connection: _Incoming) -> None:
        """A connection is gone."""
        self._incoming.discard(connection)
        if self._speaking.get(connection.node_id) is connection:
            del self._speaking[connection.node_id]

    def joined(self, link: _Outgoing) -> None:
        """A peer may be sent to."""
        self._outgoing[link.node_id] = link
        _log.info("log_link_up", peer=link.node_id)

    def parted(self, link: _Outgoing) -> None:
        """It may not be sent to any more."""
        if self._outgoing.get(link.node_id) is link:
            del self._outgoing[link.node_id]
            _log.info("log_link_down", peer=link.node_id)

    # --------------------------------------------------------------------------------------------------------- inside

    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
        return None if self.settings.tls is None else self.settings.tls.contexts()

    async def _listen(self) -> None:
        host, port = split_address(self.settings.listen)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _LISTEN_MAX_S
        while True:
            try:
                await self._serve(host=host, port=port)
                return
            except OSError:  # the previous socket may not be closed yet
                if loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_REDIAL_S[0])

    async def _serve(self, **where: Any) -> None:
        tls = self._tls and self._tls[0]
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: _Incoming(self), ssl=tls, **where))

    async def _dial(self, name: str) -> None:
        host, port = split_address(self.settings.peers[name])
        wait_s = _REDIAL_S[0]
        while True:
            link = _Outgoing(self, name)
            try:
                async with asyncio.timeout(self.settings.hello_max_s):
                    await asyncio.get_running_loop().create_connection(
                        lambda link=link: link, host, port, ssl=self._tls and self._tls[1]
                    )
                await link.gone.wait()
            except ConnectionRefusedError:
                if not any(name_of(node_id) == name for node_id in self._speaking):
                    self.handler.ended(name)
            except (OSError, TimeoutError, ssl.SSLError):
                pass
            if link.node_id:
                wait_s = _REDIAL_S[0]
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _REDIAL_S[1])


class _Connection(asyncio.Protocol):
    """One end: frames in, and a reason when it ends."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.node_id = ""  # once known
        self.transport: asyncio.Transport | None = None
        self.frames = Frames(wire.HELLO_MAX_BYTES)
        self.ended_here = False  # by this node, not by the other side
        self._hello_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.links.made(self)
        give_up_on_silence(transport, self.links.settings.silence_max_s)
        hello_max_s = self.links.settings.hello_max_s
        self._hello_due = asyncio.get_running_loop().call_later(hello_max_s, self.refuse, "no hello in time")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is not None:
            self.transport.close()  # with TLS only the socket is closed by then, not its transport
        self.transport = None
        self.links.lost(self)
        self.greeted()

    def greeted(self) -> None:
        if self._hello_due is not None:
            self._hello_due.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self.frames.feed(data):
                if self.transport is None or self.transport.is_closing():
                    return
                self.received(frame)
        except FrameRefused as error:
            self.refuse(str(error))

    def received(self, frame: bytes) -> None:
        raise NotImplementedError

    def certificate(self) -> Mapping[str, Any] | None:
        return None if self.transport is None else self.transport.get_extra_info("peercert")

    def refuse(self, why: str) -> None:
        """End it with a reason, for our log and for the other side."""
        if self.transport is None or self.transport.is_closing():
            return
        self.ended_here = True
        self.links.refused(self.node_id or self.transport.get_extra_info("peername"), why)
        self.transport.write(encode_frame(Refusal(why[:200])))
        self.transport.close()

    def end(self) -> None:
        """End it at once."""
        self.ended_here = True
        if self.transport is not None:
            self.transport.abort()


class _Incoming(_Connection):
    """An incoming connection: of a node, which sends messages, or of a client, which calls."""

    _role = ""
    _is_core = False  # of the replica beside this node
    _life: bytes | None = None  # the activation that ends with it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.links.opened(self):
            self.refuse(f"{self.links.settings.connections_max} connections are open, which is the limit")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.links.closed(self)
        if self._life is not None and has_closed(exc, ended_here=self.ended_here):
            self.links.handler.life_ended(self._life)

    def received(self, frame: bytes) -> None:
        if self._role == "node":
            self.links.handler.receive(self.node_id, wire.decode(wire.messages, frame))
        elif self._role == "client":
            if self._is_core:
                self.links.handler.heard_core()
            call = wire.decode(wire.calls, frame)
            if isinstance(call, Lifeline):
                self._reply(self._tie(call))
            else:
                self.links.handler.call(call, self._reply)
        else:
            self._greet(wire.decode(wire.greeting, frame))

    def _greet(self, hello: Hello | Refusal) -> None:
        why = "no hello" if isinstance(hello, Refusal) else self.links.objection(hello, self.certificate())
        if why is not None or isinstance(hello, Refusal) or self.transport is None:
            self.refuse(why or "no hello")
            return
        self.greeted()
        self._role, self.frames.max_bytes = hello.role, self.links.settings.frame_max_bytes
        self._is_core = hello.role == "client" and hello.node_id == self.links.settings.name
        if hello.role == "node":
            self.node_id = hello.node_id
            self.links.speaks(self, hello.node_id)
        self.transport.write(encode_frame(self.links.hello()))

    def _tie(self, call: Lifeline) -> wire.Answer:
        """Tie this connection to an activation, once and for all; only on this machine its end is a proof."""
        assert self.transport is not None
        if not is_same_machine(*map(self.transport.get_extra_info, ("sockname", "peername"))):
            return failed(call, "REFUSED", "the process runs on another machine than this node")
        if self._life not in (None, call.activation_id):
            return failed(call, "REFUSED", "this connection is another activation's")
        self._life = call.activation_id
        return Tied(call.call)

    def _reply(self, answer: wire.Answer) -> None:
        if self.transport is None:
            return
        if self.transport.get_write_buffer_size() > self.links.settings.link_max_bytes:
            self.refuse("answers are not read")
            return
        self.transport.write(encode_frame(answer))


class _Outgoing(_Connection):
    """An outgoing connection, to send to a peer."""

    def __init__(self, links: Links, name: str) -> None:
        super().__init__(links)
        self._name = name
        self.key = b""  # the peer's
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.write(encode_frame(self.links.hello()))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.links.parted(self)
        self.gone.set()

    def received(self, frame: bytes) -> None:
        hello = wire.decode(wire.greeting, frame)
        if isinstance(hello, Refusal):
            self.links.refused(self._name, f"refused by the peer: {hello.why[:200]}")
            self.end()
            return
        why = self.links.objection(hello, self.certificate(), self._name)
        if why is not None or self.node_id:
            self.refuse(why or "a second hello")
            return
        self.greeted()
        self.node_id, self.key = hello.node_id, hello.key
        self.links.joined(self)


def failed(call: msgspec.Struct, code: str, detail: str, leader_id: NodeId | None = None) -> Failed:
    """The answer to a call without effect."""
    return Failed(call.call, code, detail, leader_id)  # type: ignore[attr-defined,arg-type]
