"""The stream of submissions against a real server: many at a time, flow control, ends, and what a client does then."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from ledger_api.client import NotaryClient, Party, RetryPolicy, SubmissionStream, certifies
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.stream_frames import Answers, Closing, FromServer, Rejected, Submissions, Waits, Welcome, encoder
from replica.notary.answers import Accepted, Answer, Notarised, NotNow, Refused
from replica.notary.canonical import summarise
from replica.notary.codes import Code
from replica.notary.receipts import Place, make_receipts, verify_receipt
from replica.notary.requests import Submission
from tests.worlds.api_world import NOTARY_KEY, OFFSET, PASSIVE, ApiWorld, StubParticipant, make_submission, notarise
from tests.worlds.beginning import LEDGER

QUICK = RetryPolicy(timeout_s=0.01, deadline_s=10.0)
decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


class Raw:
    """A stream without the library."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, frame: Submissions) -> None:
        await self.socket.send_bytes(encoder.encode(frame))

    async def receive(self) -> FromServer:
        async with asyncio.timeout(10):
            return decoder.decode(await self.socket.receive_bytes())


@contextlib.asynccontextmanager
async def raw_stream(world: ApiWorld) -> AsyncIterator[tuple[Raw, Welcome]]:
    async with aiohttp.ClientSession() as session, session.ws_connect(world.endpoint + "/v1/submissions/stream") as ws:
        raw = Raw(ws)
        welcome = await raw.receive()
        assert isinstance(welcome, Welcome)
        yield raw, welcome


async def test_many_submissions_are_answered_with_receipts(tmp_path: Path) -> None:
    """Goal: the library's stream notarises. Method: a thousand at once; every receipt; few calls at the participant."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, SubmissionStream(world.endpoint, QUICK) as stream:
        asked = [make_submission() for _ in range(1_000)]
        answers = await asyncio.gather(*map(stream.submit, asked))
        for submission, answer in zip(asked, answers, strict=True):
            assert isinstance(answer, Notarised)
            assert certifies(answer, submission, bytes(NOTARY_KEY.verify_key))
        assert participant.submitted == asked
        assert world.counts.answers == {"NOTARISED": 1_000}
        assert world.counts.signatures_good == 1_000


async def test_a_receipt_s_place_passes_through_both_wire_forms(tmp_path: Path) -> None:
    """Goal: where and when reach the client, and are of the answer's offset. Method: the same by frame and by JSON,
    then with another offset."""
    key = bytes(NOTARY_KEY.verify_key)

    def placed(submission: Submission, offset: int = OFFSET) -> Notarised:
        tx_id, digest, _ = summarise(submission.request)
        place = Place("raft:log", offset, 7, 1_700_000_000_000_000)
        (receipt,) = make_receipts([(tx_id, digest)], key, lambda m: NOTARY_KEY.sign(m).signature, [place])
        return Notarised(tx_id, digest, OFFSET, OFFSET, False, receipt)

    participant = StubParticipant(placed)
    one = make_submission()
    async with (
        ApiWorld(participant).serve() as world,
        SubmissionStream(world.endpoint, QUICK) as stream,
        NotaryClient(world.endpoint, QUICK) as client,
    ):
        for answer in (await stream.submit(one), await client.submit(one)):
            assert isinstance(answer, Notarised)
            assert answer == placed(one)
            assert certifies(answer, one, key)
    assert not certifies(placed(one, OFFSET + 1), one, key)
    assert verify_receipt(placed(one, OFFSET + 1).receipt, key)


async def test_bad_ones_are_rejected_and_do_not_hold_the_others_up(tmp_path: Path) -> None:
    """Goal: each is judged by itself. Method: a bad signature, a stranger, bytes that are not canonical, among good."""
    good, other = make_submission(), make_submission()
    forged = msgspec.structs.replace(good, signature=other.signature)
    stranger = make_submission(Party("O=Nobody", LEDGER))
    garbage = msgspec.structs.replace(good, request=b"no request")
    async with (
        ApiWorld(StubParticipant()).serve() as world,
        SubmissionStream(world.endpoint, QUICK) as stream,
    ):
        answers = await asyncio.gather(*map(stream.submit, (good, forged, stranger, garbage, other)))
    codes = [answer.code for answer in answers if isinstance(answer, ProblemDocument)]
    assert codes == [Code.SIGNATURE_INVALID.name, Code.MALFORMED_REQUEST.name]
    assert isinstance(answers[2], Refused) and answers[2].code == Code.PARTY_UNKNOWN.name
    assert isinstance(answers[0], Notarised)
    assert isinstance(answers[4], Notarised)


async def test_a_client_that_breaks_the_window_is_told_and_parted_from(tmp_path: Path) -> None:
    """Goal: flow control. Method: one more than the window while nothing is answered; what was taken is not lost."""
    participant = StubParticipant()
    participant.gate = asyncio.Event()
    async with ApiWorld(participant, stream_window=3).serve() as world:
        async with raw_stream(world) as (raw, welcome):
            assert welcome.window == 3
            await raw.send(Submissions([(n, make_submission()) for n in range(3)]))
            await raw.send(Submissions([(3, make_submission())]))
            closing = await raw.receive()
            assert isinstance(closing, Closing)
            assert closing.code == Code.WINDOW_EXCEEDED.name
            assert (await raw.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert len(participant.submitted) == 3


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x92\x01\x01", b"\x92\x02\x90", "text"])
async def test_what_is_no_frame_ends_the_stream_with_a_reason(tmp_path: Path, message: bytes | str) -> None:
    """Goal: no crash and no silence. Method: bytes that are no frame, another kind of frame, a text message."""
    async with ApiWorld(StubParticipant()).serve() as world, raw_stream(world) as (raw, _):
        await (raw.socket.send_str(message) if isinstance(message, str) else raw.socket.send_bytes(message))
        closing = await raw.receive()
        assert isinstance(closing, Closing)
        assert closing.code == Code.MALFORMED_REQUEST.name


async def test_an_answer_that_follows_an_interim_estimate_reaches_the_caller(tmp_path: Path) -> None:
    """Goal: the estimate takes nothing away. Method: an estimate first, on the wire and through the library."""

    class Slow(StubParticipant):
        async def submit(self, submissions, options=None, on_wait=None):  # type: ignore[no-untyped-def]
            on_wait(12.5)
            await asyncio.sleep(0.6)
            return [notarise(submission) for submission in submissions]

    async with ApiWorld(Slow()).serve() as world:
        async with raw_stream(world) as (raw, _):
            await raw.send(Submissions([(7, make_submission()), (8, make_submission())]))
            assert await raw.receive() == Waits([7, 8], 12.5)
            answers = await raw.receive()
            assert isinstance(answers, Answers)
            assert [number for number, _ in answers.batch] == [7, 8]
        impatient = RetryPolicy(timeout_s=0.01, deadline_s=0.2)
        async with SubmissionStream(world.endpoint, impatient) as stream:
            assert isinstance(await stream.submit(make_submission()), Notarised)


async def test_asynchronous_submissions_are_accepted_on_the_stream(tmp_path: Path) -> None:
    """Goal: 202 without HTTP. Method: the library's asynchronous stream."""
    async with (
        ApiWorld(StubParticipant()).serve() as world,
        SubmissionStream(world.endpoint, QUICK, asynchronous=True) as stream,
    ):
        submission = make_submission()
        assert await stream.submit(submission) == Accepted(submission.submission_id, 0.25, OFFSET)


async def test_what_was_not_answered_is_sent_again_on_the_next_connection(tmp_path: Path) -> None:
    """Goal: a lost connection loses nothing. Method: cut it while 50 wait; the same ids come again; each one answer."""
    participant = StubParticipant()
    participant.gate = asyncio.Event()
    async with ApiWorld(participant).serve() as world, SubmissionStream(world.endpoint, QUICK) as stream:
        asked = [make_submission() for _ in range(50)]
        waiting = asyncio.gather(*map(stream.submit, asked))
        async with asyncio.timeout(10):
            while len(participant.submitted) < 50:
                await asyncio.sleep(0.01)
        for connection in list(world.server.connections):
            assert connection.transport is not None
            connection.transport.abort()
        participant.gate.set()
        assert all(isinstance(answer, Notarised) for answer in await waiting)
        assert participant.submitted == asked * 2
        assert stream.connections_count == 2


async def test_not_now_is_tried_again_until_the_deadline(tmp_path: Path) -> None:
    """Goal: overload and fail-over do not surface. Method: refused twice, then for ever."""
    tries: dict[bytes, int] = {}

    def refuse_twice(submission: Submission) -> Answer:
        tries[submission.signature] = tries.get(submission.signature, 0) + 1
        if tries[submission.signature] <= 2:
            return NotNow(Code.OVERLOADED.name, "x", 0.01)
        return notarise(submission)

    participant = StubParticipant(refuse_twice)
    async with ApiWorld(participant).serve() as world:
        async with SubmissionStream(world.endpoint, QUICK) as stream:
            answers = await asyncio.gather(*[stream.submit(make_submission()) for _ in range(20)])
            assert all(isinstance(answer, Notarised) for answer in answers)
        participant.answer = lambda _: NotNow(Code.OVERLOADED.name, "x", 0.01)
        async with SubmissionStream(world.endpoint, RetryPolicy(timeout_s=0.01, deadline_s=0.3)) as stream:
            last = await stream.submit(make_submission())
            assert isinstance(last, NotNow)
            assert last.code == Code.OVERLOADED.name


async def test_a_passive_opens_no_stream_and_plain_http_is_told(tmp_path: Path) -> None:
    """Goal: every refusal has its code. Method: a passive, and a GET without an upgrade."""
    participant = StubParticipant()
    participant.standing = PASSIVE
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        url = world.endpoint + "/v1/submissions/stream"
        async with session.get(url) as response:
            assert response.status == 426
            assert (await response.json(content_type=None))["code"] == Code.UPGRADE_REQUIRED.name
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url)
        assert refused.value.status == 503


async def test_frames_right_behind_the_handshake_are_read_as_frames(tmp_path: Path) -> None:
    """Goal: aiohttp keeps what follows an upgrade for whoever takes it during the call, and reads it as HTTP when
    nobody has by its end. Method: handshake and first submissions in one write; the stream answers them."""
    async with ApiWorld(StubParticipant()).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        frame = encoder.encode(Submissions([(7, make_submission())]))
        masked = struct.pack(">BBHI", 0x82, 0x80 | 126, len(frame), 0) + frame  # a mask of zeros changes nothing
        writer.write(HANDSHAKE + masked)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            welcome, answers = [decoder.decode(await read_frame(reader)) for _ in range(2)]
        assert isinstance(welcome, Welcome)
        assert isinstance(answers, Answers)
        assert [number for number, _ in answers.batch] == [7]
        writer.close()


async def test_a_refused_upgrade_leaves_the_connection_usable(tmp_path: Path) -> None:
    """Goal: what follows a refused upgrade is HTTP again. Method: a passive refuses; two calls on that connection, one
    of them sent along."""
    participant = StubParticipant()
    participant.standing = PASSIVE
    async with ApiWorld(participant).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        call = b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with asyncio.timeout(10):
            writer.write(HANDSHAKE + call)
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 503 ")
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 200 ")
            writer.write(call)
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()


HANDSHAKE = b"\r\n".join(
    [
        b"GET /v1/submissions/stream HTTP/1.1",
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)),
        b"Sec-WebSocket-Protocol: notary.v1",
        b"\r\n",
    ]
)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The payload of a WebSocket frame from the server, which is not masked."""
    size = (await reader.readexactly(2))[1]
    if size == 126:
        (size,) = struct.unpack(">H", await reader.readexactly(2))
    return await reader.readexactly(size)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """The head of an HTTP answer; its body is skipped."""
    head = await reader.readuntil(b"\r\n\r\n")
    (size,) = re.findall(rb"Content-Length: (\d+)", head)
    await reader.readexactly(int(size))
    return head


def test_a_rejection_is_told_apart_from_an_answer() -> None:
    """Goal: the frames' union is read back as it was written. Method: one of each kind of answer."""
    frame = Answers([(1, Rejected("X", "y")), (2, NotNow("A", "b", 1.0)), (3, Accepted("s", 2.0))])
    assert decoder.decode(encoder.encode(frame)) == frame
