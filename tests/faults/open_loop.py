"""Submissions at a steady rate over a stream: no waiting for answers, no retries."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from math import ceil

import aiohttp
import msgspec

from ledger_api.client import Party
from ledger_api.wire.stream_frames import Answers, FromServer, StreamAnswer, Submissions, Waits, encoder
from replica.notary.answers import Notarised, NotNow
from replica.notary.requests import Submission
from tests.promises import promised

INPUTS = 4
TICK_S = 0.02
_decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


class Asked(msgspec.Struct):
    """One submission and its outcome. Seconds on the loop's clock; `told_s` is the server's newest estimate."""

    at_s: float
    told_s: float = 0.0
    answered_s: float = 0.0
    answer: StreamAnswer | None = None


class OpenLoop:
    """One user's load over a stream of its own."""

    def __init__(self, endpoint: str, party: Party, user_id: str, per_s: float) -> None:
        self.asked: list[Asked] = []
        self._url = f"{endpoint}/v1/submissions/stream"
        self._party = party
        self._user_id = user_id
        self._per_s = per_s
        self._open_count = 0
        self._loop = asyncio.get_running_loop()

    async def run(self, duration_s: float) -> None:
        """Submit for so long, and wait for every answer."""
        async with aiohttp.ClientSession() as session, session.ws_connect(self._url, max_msg_size=0) as socket:
            await socket.receive_bytes()  # the welcome
            sending = asyncio.create_task(self._send(socket, duration_s))
            while not sending.done() or self._open_count:
                self._note(_decoder.decode(await socket.receive_bytes()))
            await sending

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, duration_s: float) -> None:
        began_s = self._loop.time()
        for tick in itertools.count(1):
            due_s = min(tick * TICK_S, duration_s)
            first, count = len(self.asked), int(due_s * self._per_s)
            now_s = self._loop.time()
            batch = [(number, self._fresh()) for number in range(first, count)]
            self.asked += [Asked(now_s) for _ in batch]
            self._open_count += len(batch)
            if batch:
                await socket.send_bytes(encoder.encode(Submissions(batch)))
            if due_s >= duration_s:
                return
            await asyncio.sleep(began_s + due_s + TICK_S - self._loop.time())

    def _note(self, frame: FromServer) -> None:
        now_s = self._loop.time()
        match frame:
            case Waits():
                for number in frame.numbers:
                    self.asked[number].told_s = now_s + frame.wait_s - self.asked[number].at_s
            case Answers():
                for number, answer in frame.batch:
                    promised(self.asked[number].answer is None, "two answers to one submission")
                    self.asked[number].answer, self.asked[number].answered_s = answer, now_s
                self._open_count -= len(frame.batch)
            case _:
                raise AssertionError(f"the stream ended: {frame}")

    def _fresh(self) -> Submission:
        inputs = [os.urandom(32) + bytes(4) for _ in range(INPUTS)]
        return self._party.sign(os.urandom(32), inputs, user_id=self._user_id)


def admitted(loads: Sequence[OpenLoop]) -> list[Asked]:
    """Those that were notarised."""
    return [asked for load in loads for asked in load.asked if isinstance(asked.answer, Notarised)]


def refused(loads: Sequence[OpenLoop]) -> list[NotNow]:
    """The answers to those that were not taken."""
    return [asked.answer for load in loads for asked in load.asked if isinstance(asked.answer, NotNow)]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]
