"""Links: who is let in, what is refused and named, and certificates that change while a node runs."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ha.raft.messages import AppendEntries, Entry, Message, NodeId, VoteResponse
from replica.log.raft import wire
from replica.log.raft.client import LogClient
from replica.log.raft.links import Lines, Links
from replica.log.raft.settings import LogNodeSettings, LogNodeTls
from replica.log.raft.wire import (
    Answer,
    AskWords,
    Call,
    Entries,
    FrameRefused,
    Frames,
    Hello,
    Refusal,
    Say,
    Told,
    encode_frame,
)
from replica.notary.errors import FormatUnknown, LogUnavailable
from replica.notary.words import VALUE_MAX_BYTES, NewWord, decode_word, encode_word
from tests.certificates import Authority
from tests.closing import listening
from tests.lognode.real_nodes import free_ports


class Hearer:
    def __init__(self) -> None:
        self.heard: list[tuple[NodeId, Message]] = []
        self.cores = 0
        self.gone: set[str] = set()
        self.lives_ended: list[bytes] = []

    def receive(self, src: NodeId, message: Message) -> None:
        self.heard.append((src, message))

    def call(self, call: Call, reply: Callable[[Answer], None]) -> None:
        reply(Told(call.call, {}))

    def heard_core(self) -> None:
        self.cores += 1

    def ended(self, name: str) -> None:
        self.gone.add(name)

    def life_ended(self, activation_id: bytes) -> None:
        self.lives_ended.append(activation_id)


def settings(folder: Path, name: str, ports: dict[str, int], **more: object) -> LogNodeSettings:
    peers = {peer: f"127.0.0.1:{port}" for peer, port in ports.items() if peer != name}
    values: dict[str, Any] = {
        "group": "g",
        "name": name,
        "listen": f"127.0.0.1:{ports[name]}",
        "peers": peers,
        "data_dir": folder,
    }
    return LogNodeSettings(**(values | more))


def tls_of(authority: Authority, name: str) -> LogNodeTls:
    certificate, key = authority.issue(name)
    return LogNodeTls(ca_file=authority.ca_file, certificate_file=certificate, key_file=key)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Links]:
    """A node whose only peer, r2, is not there."""
    ports = dict(zip(["r1", "r2"], free_ports(2), strict=True))
    links = Links(settings(tmp_path, "r1", ports, frame_max_bytes=2**21), "r1.00000001", Hearer())
    await links.start()
    yield links
    await links.stop()


async def say(links: Links, *frames: bytes) -> list[Hello | Refusal]:
    """Send to a node, and return its frames until it closes, or has greeted."""
    host, _, port = links.settings.listen.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(frames))
    cutter, said = Frames(2**20), list[Hello | Refusal]()
    async with asyncio.timeout(30):
        while data := await reader.read(4_096):
            said += [wire.decode(wire.greeting, frame) for frame in cutter.feed(data)]
            if len(frames) == 1 and isinstance(said[-1], Hello):
                break
    writer.close()
    return said


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello(2, "g", "node", "r2.00000001"), "protocol version 2, this node speaks 1"),
        (Hello(1, "other", "node", "r2.00000001"), "group 'other', this node belongs to 'g'"),
        (Hello(1, "g", "node", "r9.00000001"), "node 'r9.00000001' is not among this node's peers"),
        (Hello(1, "g", "node", ""), "node '' is not among"),
        (Refusal("no"), "no hello"),
        (Told(1, {}), "a frame cannot be read"),
    ],
)
async def test_a_stranger_is_refused_and_named(one: Links, hello: Hello, why: str) -> None:
    """Goal: a wrong group, version or name is reported to both sides. Method: each, against a listening node."""
    with capture_logs() as lines:
        (refusal,) = await say(one, encode_frame(hello))
    assert isinstance(refusal, Refusal)
    assert why in refusal.why
    assert [line["why"] for line in lines if line["event"] == "log_link_refused"] == [refusal.why]


async def test_a_node_of_another_log_is_refused_and_named(one: Links) -> None:
    """Goal: a stranger with an empty disk does not end a group. Method: the peer's own name, and another log's id."""
    one.has_log("ours")
    (refusal,) = await say(one, encode_frame(Hello(1, "g", "node", "r2.00000001", log_id="another")))
    assert isinstance(refusal, Refusal)
    assert "node 'r2.00000001' has the log another, this node has ours" in refusal.why
    assert isinstance((await say(one, encode_frame(Hello(1, "g", "node", "r2.00000001", log_id="ours"))))[0], Hello)


async def test_a_peer_at_the_address_of_another_one_is_refused(tmp_path: Path) -> None:
    """Goal: addresses that were mixed up are reported, and no node is taken for another. Method: what a node says to
    who answers it, with both as its peers."""
    ports = dict(zip(["r1", "r2", "r3"], free_ports(3), strict=True))
    links = Links(settings(tmp_path, "r1", ports), "r1.00000001", Hearer())
    hello = Hello(1, "g", "node", "r3.00000001")
    assert links.objection(hello, None, "r2") == "node 'r3.00000001' answers at the address of 'r2'"
    assert links.objection(hello, None, "r3") is None


async def test_a_frame_that_is_too_large_is_refused_before_it_is_read(one: Links) -> None:
    """Goal: no memory for a stranger, nor for a node beyond the bound. Method: sizes alone, before and after hello."""
    (first,) = await say(one, (2_000).to_bytes(4, "big"))
    assert isinstance(first, Refusal)
    assert first.why == "a frame of 2000 bytes, the limit is 1024"
    hello, second = await say(one, encode_frame(Hello(1, "g", "node", "r2.00000001")), (2**22).to_bytes(4, "big"))
    assert isinstance(hello, Hello)
    assert isinstance(second, Refusal)
    assert second.why == f"a frame of {2**22} bytes, the limit is {2**21}"


def of_a_newer_kind(frame: AppendEntries | Entries) -> bytes:
    """The frame with entries of a kind that no release knows yet."""
    raw = msgspec.msgpack.decode(encode_frame(frame)[4:])
    for field in raw:
        if isinstance(field, list):
            for entry in field:
                entry[2] = 9
    body = msgspec.msgpack.encode(raw)
    return len(body).to_bytes(4, "big") + body


async def test_entries_of_a_newer_release_are_refused_with_a_code(one: Links) -> None:
    """Goal: whoever upgraded halfway learns it, at the node and at the replica. Method: a leader that sends an entry
    of a kind that is not known; a node that shows one to a reader."""
    append = AppendEntries(2, 0, 0, 1, 2, 0, (Entry(2, 1),))
    _, refusal = await say(one, encode_frame(Hello(1, "g", "node", "r2.00000001")), of_a_newer_kind(append))
    assert isinstance(refusal, Refusal)
    assert refusal.why.startswith("FORMAT_UNKNOWN: ")
    assert "install its release" in refusal.why

    async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame(Hello(1, "g", "node", "r1.00000001")))
        await reader.read(4_096)
        await reader.read(4_096)
        writer.write(of_a_newer_kind(Entries(1, (Entry(2, 1),), 1)))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(show, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client = await LogClient.connect(f"{host}:{port}", "g")
        with pytest.raises(FormatUnknown, match="install its release"):
            await client.read(1)
        await client.close()


async def test_whoever_says_nothing_is_ended(tmp_path: Path) -> None:
    """Goal: silent connections do not pile up. Method: a short wait, nothing sent."""
    ports = dict(zip(["r1"], free_ports(1), strict=True))
    links = Links(settings(tmp_path, "r1", ports, hello_max_s=0.2), "r1.00000001", Hearer())
    await links.start()
    assert await say(links) == [Refusal("no hello in time")]
    await links.stop()


async def test_a_client_lets_go_of_a_node_that_never_answers() -> None:
    """Goal: a frozen node costs its clients no sockets. Method: a server that is silent sees the end."""
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(1_024):
                pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LogUnavailable, match="no answer in time"):
        await LogClient.connect(f"127.0.0.1:{port}", "g", answer_max_s=0.2)
    async with asyncio.timeout(30):
        await ended.wait()
    server.close()


def test_a_call_on_a_connection_that_has_just_been_reset_has_no_outcome() -> None:
    """Goal: the moment in which a connection ends is no bug of ours, which would end the process: uvloop raises
    RuntimeError for a write then. Method: a real connection is reset, and called before its reader notices."""

    async def story() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not writer.is_closing():
            writer.write(b"to nobody")  # what comes back is a reset
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        server.close()
        client = LogClient(asyncio.StreamReader(), writer, Frames(wire.HELLO_MAX_BYTES))
        with pytest.raises(LogUnavailable):
            await asyncio.wait_for(client.status(), 1.0)
        await client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


async def test_a_connection_to_a_machine_that_vanished_ends(one: Links) -> None:
    """Goal: a cut cable does not hold a connection for TCP's quarter of an hour. Method: the options of the sockets."""
    client = await LogClient.connect(one.settings.listen, "g")
    ends = [connection.transport for connection in one._incoming] + [client._writer.transport]
    assert len(ends) == 2
    for end in ends:
        assert end is not None
        sock = end.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 4
    await client.close()


async def test_a_node_speaks_on_one_connection(one: Links) -> None:
    """Goal: nothing of an old connection comes after the new one's. Method: two hellos of one id."""
    host, _, port = one.settings.listen.rpartition(":")
    hello = encode_frame(Hello(1, "g", "node", "r2.00000001"))
    readers = []
    for _ in range(2):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello)
        await reader.read(100)
        readers.append((reader, writer))
    async with asyncio.timeout(30):
        with pytest.raises((ConnectionResetError, AssertionError)):
            assert await readers[0][0].read(100) != b""
    readers[1][1].write(encode_frame(VoteResponse(7, True)))
    handler = one.handler
    assert isinstance(handler, Hearer)
    await until(lambda: handler.heard == [("r2.00000001", VoteResponse(7, True))])
    for _, writer in readers:
        writer.close()


async def test_certificates_say_who_a_node_is_and_may_be_changed(tmp_path: Path) -> None:
    """Goal: mutual TLS; rotation to another authority without a restart. Method: two nodes, a reload, a wrong name."""
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    ports = dict(zip(["r1", "r2"], free_ports(2), strict=True))
    nodes = {
        name: Links(settings(tmp_path, name, ports, tls=tls_of(old, name)), f"{name}.00000001", Hearer())
        for name in ports
    }
    for links in nodes.values():
        await links.start()
    await until(lambda: all(links.connected for links in nodes.values()))
    for name, links in nodes.items():  # the files that the settings name have other content now
        tls = links.settings.tls
        fresh = tls_of(new, name)
        assert tls is not None
        tls.certificate_file.write_bytes(fresh.certificate_file.read_bytes())
        tls.key_file.write_bytes(fresh.key_file.read_bytes())
    old.ca_file.write_bytes(new.ca_file.read_bytes())
    for links in nodes.values():
        await links.reload()
    handler = nodes["r2"].handler
    assert isinstance(handler, Hearer)

    def heard() -> bool:
        nodes["r1"].send("r2.00000001", encode_frame(VoteResponse(3, False)))  # dropped, until the link is replaced
        return ("r1.00000001", VoteResponse(3, False)) in handler.heard

    await until(heard)
    await until(lambda: all(links.connected for links in nodes.values()))
    stranger = Authority(tmp_path / "third", "third")
    for authority, goes in ((new, True), (stranger, False)):
        tls = tls_of(authority, "client")
        context = LogNodeTls(ca_file=new.ca_file, certificate_file=tls.certificate_file, key_file=tls.key_file)
        connecting = LogClient.connect(nodes["r1"].settings.listen, "g", context.contexts()[1])
        if goes:
            await (await connecting).close()
        else:
            with pytest.raises((LogUnavailable, ssl.SSLError)):
                await connecting
    await nodes["r2"].stop()
    wrong = Links(settings(tmp_path, "r2", ports, tls=tls_of(new, "r3")), "r2.00000002", Hearer())
    with capture_logs() as lines:
        await wrong.start()
        await until(lambda: any("has a certificate for" in str(line.get("why")) for line in lines))
    assert not wrong.connected
    await until(lambda: not nodes["r1"].connected)
    await wrong.stop()
    await nodes["r1"].stop()


async def test_a_peer_that_says_nothing_is_left_with_the_rest(tmp_path: Path) -> None:
    """Goal: a node that stops cuts everything. Method: a peer that takes the connection and is silent; stop,
    collect."""
    reached = asyncio.Event()

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read(-1)

    ports = dict(zip(["r1", "r2"], free_ports(2), strict=True))
    async with listening(be_silent, "127.0.0.1", ports["r2"]):
        links = Links(settings(tmp_path, "r1", ports), "r1.00000001", Hearer())
        await links.start()
        await reached.wait()
        await links.stop()
    gc.collect()  # warns of an open socket, and warnings are errors


async def test_a_client_that_is_refused_leaves_nothing_open(one: Links) -> None:
    """Goal: a repeated caller does not run out of sockets. Method: another group; collect what is left."""
    with pytest.raises(LogUnavailable, match="belongs to 'g'"):
        await LogClient.connect(one.settings.listen, "other")
    gc.collect()  # warns of an open socket, and warnings are errors


async def test_wrong_certificates_change_nothing(tmp_path: Path) -> None:
    """Goal: a reload that fails leaves all as it was. Method: damage the key file."""
    from replica.notary.errors import ConfigError

    authority = Authority(tmp_path)
    ports = dict(zip(["r1"], free_ports(1), strict=True))
    links = Links(settings(tmp_path, "r1", ports, tls=tls_of(authority, "r1")), "r1.00000001", Hearer())
    await links.start()
    tls = tls_of(authority, "client")
    assert links.settings.tls is not None
    links.settings.tls.key_file.write_text("no key")
    with pytest.raises(ConfigError):
        await links.reload()
    await (await LogClient.connect(links.settings.listen, "g", tls.contexts()[1])).close()
    await links.stop()


def test_lines_are_limited_and_say_how_many_were_left_out() -> None:
    """Goal: nobody fills the log. Method: a clock that is moved."""
    now = [0.0]
    lines = Lines(lambda: now[0])
    assert [lines.take() for _ in range(4)] == [0, None, None, None]
    now[0] = 1.0
    assert lines.take() == 3


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_frames_or_refused(raw: bytes, step: int) -> None:
    """Goal: no traceback for a stranger's bytes. Method: any bytes, in pieces, to each decoder."""
    for decoder in (wire.greeting, wire.messages, wire.calls, wire.answers):
        cutter = Frames(64)
        try:
            for at in range(0, len(raw), step):
                for frame in cutter.feed(raw[at : at + step]):
                    wire.decode(decoder, frame)
        except FrameRefused:
            pass


@given(st.binary(min_size=1, max_size=4), st.integers(0, 60), st.sampled_from(("say", "ask")))
def test_a_changed_word_is_a_frame_or_refused(put: bytes, at: int, kind: str) -> None:
    """Goal: no word beyond its bounds gets in, and no traceback. Method: bytes put into valid frames."""
    word = NewWord("pause", 7, b"{}")
    frame = bytearray(encode_frame(Say(1, word) if kind == "say" else AskWords(1, "pause"))[4:])
    frame[at % len(frame) : at % len(frame) + len(put)] = put
    with suppress(FrameRefused):
        wire.decode(wire.calls, bytes(frame))


@pytest.mark.parametrize(
    "word",
    [
        NewWord("a" * 65, 0, b""),
        NewWord("", 0, b""),
        NewWord("Pause", 0, b""),
        NewWord("pause\n", 0, b""),
        NewWord("pause", -1, b""),
        NewWord("pause", 0, bytes(VALUE_MAX_BYTES + 1)),
    ],
)
def test_a_word_beyond_its_bounds_is_refused(word: NewWord) -> None:
    """Goal: the memory of words is bounded. Method: each bound, one above."""
    with pytest.raises(FrameRefused):
        wire.decode(wire.calls, encode_frame(Say(1, word))[4:])
    assert decode_word(encode_word(word)) is None


async def test_only_the_core_of_its_own_replica_is_heard(tmp_path: Path) -> None:
    """Goal: calls of tools and of other replicas do not keep a leader beside a silent core. Method: three clients."""
    (port,) = free_ports(1)
    hearer = Hearer()
    links = Links(settings(tmp_path, "r1", {"r1": port}), "r1.a", hearer)
    await links.start()
    for core_of, heard in (("", 0), ("r2", 0), ("r1", 1)):
        client = await LogClient.connect(f"127.0.0.1:{port}", "g", core_of=core_of)
        await client.status()
        assert hearer.cores == heard
        await client.close()
    await links.stop()


async def test_a_peer_has_ended_when_nobody_listens_and_its_connection_is_closed(tmp_path: Path) -> None:
    """Goal: only a process that ended is replaced at once. Method: a peer that reads its certificates again, one that
    stops listening but speaks on, and one that stops."""
    ports = dict(zip(["r1", "r2"], free_ports(2), strict=True))
    nodes = {name: Links(settings(tmp_path, name, ports), f"{name}.00000001", Hearer()) for name in ports}
    handler = nodes["r1"].handler
    assert isinstance(handler, Hearer)
    for links in nodes.values():
        await links.start()
    await until(lambda: all(links.connected for links in nodes.values()))
    handler.gone.clear()  # the first to start found nobody there yet
    for _ in range(3):
        before = set(nodes["r1"]._connections)
        await nodes["r2"].reload()
        await until(lambda before=before: len(nodes["r1"]._connections - before) == 2 == len(nodes["r1"]._connections))  # type: ignore[misc]
        await until(lambda: all(links.connected and links._speaking for links in nodes.values()))
    assert handler.gone == set()
    for server in nodes["r2"]._servers:
        server.close()
    (link,) = nodes["r1"]._outgoing.values()
    link.end()  # the way to it is refused from now on; it still speaks
    await asyncio.sleep(0.5)
    assert handler.gone == set()
    await nodes["r2"].stop()
    await until(lambda: handler.gone == {"r2"})
    await nodes["r1"].stop()
