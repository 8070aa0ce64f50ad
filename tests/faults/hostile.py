"""Hostile callers: one round of each kind, and the answers that they must get. No round may harm another caller."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import psycopg

from ha.lock.ids import Counter as LockCounter
from ha.lock.ids import lock_id
from haproxy.render import ReplicaAddress
from ledger_api.client.signing import Party, encode_submission
from ledger_api.server.submission_routes import STREAM, SUBMISSIONS
from ledger_api.wire.stream_frames import PROTOCOL, Answers, Closing, FromServer, Submissions, encoder
from replica.local.cluster import LocalCluster
from replica.local.participant import DATABASE
from replica.local.process import descendants
from replica.local.replica import ReplicaProcess
from tests.integration.test_api_malformed import HANDSHAKES, MISTAKES
from tests.promises import promised

ANSWER_MAX_S = 30.0
PAUSE_S = 0.05  # between two rounds of one caller: the machine is shared with those who are honest
READERS, PAGES_MAX = 3, 5  # of either kind at a replica, and pages that each of them reads in a round
ROW_MAX_BYTES = 2 * 2**20  # a page has its first row at any size: here the largest conflict's
DEEP = b"[" * 100_000
HUGE = (b"1e303", b"1e999", b"1e13", b"9223372036854775807", b"9223372036854775808", b"9" * 5_000, b"-1", b"NaN")
SUBMIT_LARGE = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n" % SUBMISSIONS.encode() + b" " * 500_000
)
# Not the caller's mistake: another replica is active, or other callers have the room.
NOT_ACTIVE = (503, "NOT_ACTIVE")
AWAY = {NOT_ACTIVE, (503, "OVERLOADED"), (503, "USER_OVERLOADED"), (429, "RATE_EXCEEDED")}
NOTES = ("[" * 7_990, '{"by":{},"to":[]}', '{"by":"nobody","to":"r2"}', "x" * 7_990, "\u202e", '{"by":"' + "9" * 7_000)
_from_server = msgspec.msgpack.Decoder(FromServer)


@dataclass(frozen=True, slots=True)
class Target:
    """A replica and what to ask it: the largest completions lie after ledger offset `after`, all of which
    wanted `state`."""

    address: ReplicaAddress
    party: Party
    after: int
    state: str
    page_max_bytes: int

    @property
    def url(self) -> str:
        """Of its API, past HAProxy."""
        return f"http://{self.address.host}:{self.address.api_port}"


Attack = Callable[[Target], Awaitable[None]]
Rounds = Counter[tuple[str, str]]  # by the name of the attack, and of the replica


@asynccontextmanager
async def besieged(attacks: Sequence[Attack], targets: Sequence[Target]) -> AsyncIterator[Rounds]:
    """Every caller goes on against every replica while the block runs; rounds of each kind at each replica so far.

    Raises PromiseBroken, in a group, when a caller got an answer that it must not get.
    """
    rounds: Rounds = Counter()

    async def go_on(attack: Attack, target: Target) -> None:
        while True:
            await attack(target)
            rounds[attack.__name__, target.address.name] += 1
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(go_on(attack, target)) for attack in attacks for target in targets]
        yield rounds
        for task in tasks:
            task.cancel()


async def malformed_handshakes(target: Target) -> None:
    """WebSockets that are none."""
    for name, headers in HANDSHAKES.items():
        raw = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (STREAM.encode(), headers)
        status, body = await _ask(target, raw)
        told = (status, _code(body))
        promised(told in MISTAKES or told == NOT_ACTIVE, (name, status, body[:500]))


async def hostile_bodies(target: Target) -> None:
    """Keys given twice, nesting without an end, numbers beyond every range: in a submission that is signed well."""
    good = encode_submission(target.party.sign(os.urandom(32), [os.urandom(32) + bytes(4)]))[:-1]
    bodies = [DEEP, good + b',"user_id":"a","user_id":"b"}', good + b',"deduplication":' + DEEP + b"}"]
    bodies += [good + b',"deduplication":{"duration_s":%b}}' % number for number in HUGE]
    for body in bodies:
        status, answered = await _ask(target, _post(body))
        refused = 400 <= status < 500 or (status, _code(answered)) in AWAY
        promised(refused and _code(answered) != "", (body[-60:], status, answered[:500]))


async def hostile_frames(target: Target) -> None:
    """Periods without an end, and nesting, through the stream of submissions; a passive does not open one."""
    batch = [(7, target.party.sign(os.urandom(32), [os.urandom(32) + bytes(4)]))]
    frames = [encoder.encode(Submissions(batch, False, period_s)) for period_s in (math.inf, 1e303, 1e13)]
    for frame in (*frames, b"\x91" * 100_000):
        try:
            told = await _ask_stream(target, frame)
        except aiohttp.WSServerHandshakeError as error:
            promised(error.status == NOT_ACTIVE[0], error)
            return
        codes = [told.code] if isinstance(told, Closing) else _codes_of(told)
        promised(codes != [] and not {"NOTARISED", "INTERNAL"} & {*codes}, (frame[-40:], told))


async def half_closed(target: Target) -> None:
    """A caller that ends its side gets its answer; half a request gets none, or the answer that it is invalid."""
    status, _ = await _ask(target, b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n", half_close=True)
    promised(status == 200, status)
    for raw in (b"", _post(b" " * 1_000)[:40], _post(b" " * 1_000)[:-9]):
        status, body = await _ask(target, raw, half_close=True)
        promised(status in (0, 400, NOT_ACTIVE[0]), (raw[:60], status, body[:500]))


async def vanishing(target: Target) -> None:
    """Resets in the middle of a head, and of a body that claims to be large."""
    for raw in (b"POST ", _post(b" " * 1_000)[:-9], SUBMIT_LARGE):
        async with _connected(target) as (_, writer):
            writer.write(raw)
            await asyncio.sleep(PAUSE_S)


async def pages(target: Target) -> None:
    """The largest completions, and all attempts to spend a state, as many as a page takes, by several at once."""
    wanted = [("/v1/completions?limit=1000&after={after}", target.after)]
    wanted += [(f"/v1/states/{target.state}/attempts?after={{after}}", 0)]
    await asyncio.gather(*(_read_on(target, path, after) for path, after in wanted * READERS))


async def unread_streams(target: Target) -> None:
    """Follows the largest completions and takes nothing."""
    async with _connected(target) as (reader, writer):
        writer.write(b"GET /v1/completions?follow=true&after=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % target.after)
        async with asyncio.timeout(ANSWER_MAX_S):
            await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(1.0)


EVERY_ATTACK: tuple[Attack, ...] = (
    malformed_handshakes,
    hostile_bodies,
    hostile_frames,
    half_closed,
    vanishing,
    pages,
    unread_streams,
)


@asynccontextmanager
async def hostile_notes(cluster: LocalCluster) -> AsyncIterator[list[str]]:
    """Any login sends on the lock's channel while the block runs; all notes so far. Without a database: none."""
    sent: list[str] = []
    if cluster.embedded:
        yield sent
        return
    channel = f"ha_lock_{lock_id(DATABASE, LockCounter.PARTICIPANT_WRITE)}"

    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(DATABASE), autocommit=True) as connection:
            while True:
                for note in NOTES:
                    await connection.execute("SELECT pg_notify(%s, %s)", (channel, note))
                    sent.append(note)
                    await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(send())
        yield sent
        task.cancel()


class Watched:
    """The processes of a replica: they must be the same ones afterwards, and not much larger."""

    def __init__(self, replica: ReplicaProcess) -> None:
        self._replica = replica
        self._core = replica.pid
        self._front_ends = sorted(descendants(replica.pid))
        self._before = {pid: _resident_bytes(pid, "VmRSS") for pid in (self._core, *self._front_ends)}

    def check(self, core_max_bytes: int, front_end_max_bytes: int) -> str:
        """By how much core and front ends have ever been larger than at the start, in words. Raises PromiseBroken."""
        found = (self._replica.pid, sorted(descendants(self._replica.pid)))
        promised(found == (self._core, self._front_ends), f"{self._replica.name} has other processes: {found}")
        grown = {pid: _resident_bytes(pid, "VmHWM") - before for pid, before in self._before.items()}
        front_ends = max(grown[pid] for pid in self._front_ends)
        text = f"{self._replica.name} +{grown[self._core] >> 20} MiB, front ends +{front_ends >> 20} MiB"
        promised(grown[self._core] <= core_max_bytes and front_ends <= front_end_max_bytes, text)
        return text


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, reset after the block."""
    reader, writer = await asyncio.open_connection(target.address.host, target.address.api_port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _ask(target: Target, raw: bytes, *, half_close: bool = False) -> tuple[int, bytes]:
    """Status and body of the first answer on a connection; 0 when it is closed without one."""
    async with _connected(target) as (reader, writer):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(ANSWER_MAX_S):
                writer.write(raw)
                if half_close:
                    writer.write_eof()
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                return int(head.split()[1]), await reader.readexactly(length)
    return 0, b""


async def _ask_stream(target: Target, frame: bytes) -> FromServer:
    """The answer to the first frame of a stream."""
    async with (
        asyncio.timeout(ANSWER_MAX_S),
        aiohttp.ClientSession() as session,
        session.ws_connect(target.url + STREAM, protocols=(PROTOCOL,)) as socket,
    ):
        await socket.receive_bytes()  # its welcome
        await socket.send_bytes(frame)
        told: FromServer = _from_server.decode(await socket.receive_bytes())
        return told


def _post(body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % SUBMISSIONS.encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _code(body: bytes) -> str:
    return str(json.loads(body).get("code", "")) if body else ""


def _codes_of(told: object) -> list[str]:
    answered = told.batch if isinstance(told, Answers) else []
    return [getattr(answer, "code", "NOTARISED") for _, answer in answered]


async def _read_on(target: Target, path: str, after: int) -> None:
    """Page by page, as far as the largest go; one that there is no room for is asked for in the next round."""
    async with aiohttp.ClientSession(target.url) as session:
        for _ in range(PAGES_MAX):
            async with session.get(path.format(after=after)) as response:
                body = await response.read()
            if response.status != 200:
                promised((response.status, _code(body)) in AWAY, (response.status, body[:500]))
                return
            promised(len(body) <= target.page_max_bytes + ROW_MAX_BYTES, f"a page of {len(body):,} bytes")
            reached = int(json.loads(body)["next_after"])
            if reached <= after:
                return
            after = reached


def _resident_bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1_024
