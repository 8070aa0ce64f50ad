"""Streams over real HTTP with real tokens: they end, and say why, when the token that opened them expires."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest

from ledger_api.wire.stream_frames import Closing, FromServer, Submissions, Welcome, encoder
from tests.tokens import AUDIENCE, Issuer
from tests.waiting import eventually
from tests.worlds.api_world import BANK, ApiWorld, StubParticipant, make_submission

LIFE_S = 2  # a token's times are whole seconds
decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


class Guarded:
    """A world that takes this issuer's tokens without any leeway, and headers with one of a short life."""

    def __init__(self, folder: Path, participant: StubParticipant) -> None:
        issuer = Issuer()
        keys_file = issuer.write(folder / "keys.json")
        self.world = ApiWorld(participant, tokens={"keys_file": keys_file, "audience": AUDIENCE, "leeway_s": 0.0})
        self.expires_at_s = int(time.time()) + LIFE_S
        token = issuer.token(expires_at_s=self.expires_at_s, notary={"act_as": [BANK.name]})
        self.headers = {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
async def test_a_stream_of_completions_ends_with_its_token(tmp_path: Path, accept: str) -> None:
    """Goal: an idle reader is not served past its rights. Method: a token of seconds; read until the server ends it."""
    guarded = Guarded(tmp_path, StubParticipant())
    timeout = aiohttp.ClientTimeout(total=30)
    async with guarded.world.serve() as world, aiohttp.ClientSession(timeout=timeout) as session:
        url = world.endpoint + "/v1/completions?follow=true"
        async with session.get(url, headers=guarded.headers | {"Accept": accept}) as response:
            assert response.status == 200
            text = await response.text()
        assert time.time() >= guarded.expires_at_s
        (last,) = [line.removeprefix("data: ") for line in text.splitlines() if "{" in line]
        assert json.loads(last)["problem"]["code"] == "TOKEN_INVALID"
        async with session.get(url, headers=guarded.headers) as refused:
            assert refused.status == 401


async def test_streams_of_a_revoked_token_end(tmp_path: Path) -> None:
    """Goal: a stolen token that is revoked reads and submits nothing more. Method: open both, revoke, reload."""
    revoked_file, issuer = tmp_path / "revoked", Issuer()
    revoked_file.touch()
    tokens = {"keys_file": issuer.write(tmp_path / "keys.json"), "audience": AUDIENCE, "revoked_file": revoked_file}
    participant = StubParticipant()
    world = ApiWorld(participant, tokens=tokens, checkpoint_s=0.2)
    token = issuer.token(expires_at_s=time.time() + 600, notary={"act_as": [BANK.name]}, jti="a-1")
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=30)
    async with world.serve(), aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        async with (
            session.get(world.endpoint + "/v1/completions?follow=true") as reading,
            session.ws_connect(world.endpoint + "/v1/submissions/stream") as socket,
        ):
            assert isinstance(decoder.decode(await socket.receive_bytes()), Welcome)
            assert b"checkpoint" in await reading.content.readline()
            revoked_file.write_text("a-1\n")
            world.authentication.reload()
            last = [line async for line in reading.content][-1]
            assert json.loads(last)["problem"]["code"] == "TOKEN_INVALID"
            await socket.send_bytes(encoder.encode(Submissions([(1, make_submission(user_id="treasury"))])))
            frames = [decoder.decode(message.data) async for message in socket]
        assert isinstance(frames[-1], Closing)
        assert (frames[-1].code, participant.submitted) == ("TOKEN_INVALID", [])
        async with session.get(world.endpoint + "/v1/ledger-end") as refused:
            assert refused.status == 401


async def test_a_stream_of_submissions_ends_with_its_token(tmp_path: Path) -> None:
    """Goal: an idle submitter is disconnected, with the reason. Method: one submission in time; then silence until the
    end."""
    participant = StubParticipant()
    guarded = Guarded(tmp_path, participant)
    async with guarded.world.serve() as world, aiohttp.ClientSession() as session:
        url = world.endpoint + "/v1/submissions/stream"
        async with asyncio.timeout(30), session.ws_connect(url, headers=guarded.headers) as socket:
            assert isinstance(decoder.decode(await socket.receive_bytes()), Welcome)
            await socket.send_bytes(encoder.encode(Submissions([(1, make_submission(user_id="treasury"))])))
            frames = [decoder.decode(message.data) async for message in socket]
        assert time.time() >= guarded.expires_at_s
        closing = frames[-1]
        assert isinstance(closing, Closing)
        assert (closing.code, len(frames), len(participant.submitted)) == ("TOKEN_INVALID", 2, 1)

        async def is_over() -> bool:
            return world.counts.streams == 0

        await eventually(is_over)
