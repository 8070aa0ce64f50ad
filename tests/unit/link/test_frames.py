"""Frames of the link, and its in-memory form."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.link.frames import (
    FrameProtocol,
    FromFrontEnd,
    Hello,
    LinkBroken,
    LookUp,
    Submit,
    encode_batch,
    encode_frame,
)
from replica.link.memory import MemoryLink
from replica.notary.answers import Notarised, NotNow, Refused
from tests.worlds.api_world import ACTIVE, PASSIVE, StubHandler, make_submission

FRAME_MAX_BYTES = 10_000
FRAMES: list[FromFrontEnd] = [
    Hello(1, "generation", "r1/api-1"),
    Submit([(1, make_submission()), (2, make_submission(inputs_count=0))]),
    LookUp([(2**40, bytes(32))]),
    LookUp([]),
]


class Collector(FrameProtocol[FromFrontEnd]):
    """Keeps what it receives."""

    def __init__(self) -> None:
        super().__init__(msgspec.msgpack.Decoder(FromFrontEnd), FRAME_MAX_BYTES)
        self.frames: list[FromFrontEnd] = []

    def received(self, frame: FromFrontEnd) -> None:
        self.frames.append(frame)


@given(st.lists(st.sampled_from(FRAMES), max_size=5), st.data())
def test_frames_are_the_same_however_the_stream_is_cut(frames: list[FromFrontEnd], data: st.DataObject) -> None:
    """Goal: a socket may cut anywhere. Method: frames in a row, cut at random places, fed piece by piece."""
    stream = b"".join(encode_frame(frame, FRAME_MAX_BYTES) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    collector = Collector()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        collector.data_received(stream[start:end])
    assert collector.frames == frames


@given(st.integers(1, 40), st.integers(700, 5_000))
def test_a_batch_is_cut_into_frames_that_fit(count: int, frame_max_bytes: int) -> None:
    """Goal: order and content survive, no frame is too large. Method: batches of any size, small frames."""
    batch = [(number, make_submission()) for number in range(count)]
    collector = Collector()
    for frame in encode_batch(Submit, batch, frame_max_bytes):
        assert len(frame) <= frame_max_bytes + 4
        collector.data_received(frame)
    assert [item for frame in collector.frames if isinstance(frame, Submit) for item in frame.batch] == batch


def test_an_item_that_fits_no_frame_is_an_error() -> None:
    """Goal: no endless halving. Method: one item above the limit."""
    with pytest.raises(LinkBroken):
        list(encode_batch(Submit, [(1, make_submission())], 100))


async def test_the_memory_link_answers_by_ticket() -> None:
    """Goal: tests without sockets meet the same contract. Method: answers last first, a look-up, an empty list."""
    handler = StubHandler()
    link = MemoryLink(handler)
    submissions = [make_submission() for _ in range(3)]
    waiting = asyncio.create_task(link.submit(submissions))
    await asyncio.sleep(0)
    for at in (2, 0, 0):
        handler.answer(at)
    answers = await waiting
    assert [a.tx_id for a in answers if isinstance(a, Notarised)] == [s.request[32:64] for s in submissions]
    assert await link.look_up(bytes(32)) == Refused("TX_NOT_FOUND", bytes(32))
    assert await link.submit([]) == []
    assert link.standing == ACTIVE


async def test_a_cut_memory_link_knows_nothing() -> None:
    """Goal: losing the core is the same without a socket. Method: cut it while one waits; then a passive handler."""
    handler = StubHandler()
    link = MemoryLink(handler)
    waiting = asyncio.create_task(link.submit([make_submission()]))
    await asyncio.sleep(0)
    link.cut()
    handler.answer()
    assert [answer.code for answer in await waiting if isinstance(answer, NotNow)] == ["OUTCOME_UNKNOWN"]
    assert not link.standing.active
    passive = StubHandler()
    passive.word = PASSIVE
    for answer in (*await link.submit([make_submission()]), await MemoryLink(passive).look_up(bytes(32))):
        assert isinstance(answer, NotNow) and answer.code == "NOT_ACTIVE"
    assert passive.looked_up == []


async def test_the_memory_link_does_not_wait_for_ever() -> None:
    """Goal: the deadline holds without a socket, too. Method: a handler that never answers, a short deadline."""
    (answer,) = await MemoryLink(StubHandler(), answer_max_s=0.02).submit([make_submission()])
    assert isinstance(answer, NotNow) and answer.code == "OUTCOME_UNKNOWN"
