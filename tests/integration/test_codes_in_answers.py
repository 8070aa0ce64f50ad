"""Codes of the ledger API as an application meets them: a replica's whole core behind a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from ledger_api.client import Deduplication, NotaryClient, RetryPolicy
from ledger_api.client.signing import encode_submission
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.stream_frames import Submissions, encoder
from replica.notary.codes import Code, Retry
from replica.notary.requests import TIME_MAX_US, Submission
from replica.settings import CoreSettings
from tests.worlds import core_world
from tests.worlds.api_world import BANK, ApiWorld, StubParticipant, make_submission
from tests.worlds.beginning import Registered

JSON = {"Content-Type": "application/json"}


def told(problem: ProblemDocument, code: str) -> bool:
    """Whether the document has the catalogue's words for the code, and a detail that is of this case."""
    meant = Code[code]
    words = (problem.status, problem.code, problem.title, problem.remedy, problem.retry)
    return words == (meant.status, code, meant.title, meant.remedy, meant.retry) and bool(problem.detail)


async def answer_to(world: ApiWorld, submission: Submission) -> tuple[int, ProblemDocument]:
    """The problem that comes back over HTTP, and the status of the line."""
    return await answer_with(world, encode_submission(submission))


async def answer_with(world: ApiWorld, body: bytes) -> tuple[int, ProblemDocument]:
    """The same for a body."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.endpoint}/v1/submissions", data=body, headers=JSON) as answer,
    ):
        return answer.status, msgspec.json.decode(await answer.read(), type=ProblemDocument)


@asynccontextmanager
async def whole(*keys: Registered, **core: float) -> AsyncIterator[ApiWorld]:
    """An active replica, in memory, and its API; its log knows these keys, else the bank's."""
    log = core_world.begun_topic(*keys or [(BANK.name, BANK.public_key)])
    async with core_world.World(topic=log, core=CoreSettings(**core)) as replicas:
        replica = await replicas.replica()
        await replica.until_active()
        async with ApiWorld(replica.link).serve() as world:  # type: ignore[arg-type]
            yield world


async def test_a_period_that_nobody_remembers(tmp_path: Path) -> None:
    """Goal: DEDUPLICATION_PERIOD_TOO_LONG has the bound. Method: beyond the maximum."""
    async with whole(deduplication_max_s=20.0) as world:
        status, problem = await answer_to(world, make_submission(deduplication=Deduplication(21.0)))
    assert (status, told(problem, "DEDUPLICATION_PERIOD_TOO_LONG")) == (400, True)
    assert problem.deduplication_max_s == 20.0


async def test_a_key_before_and_after_its_time(tmp_path: Path) -> None:
    """Goal: KEY_NOT_VALID is no PARTY_UNKNOWN. Method: a period that ended, one that has not begun, one that holds."""
    for period_us, code in (
        ((0, 1), "KEY_NOT_VALID"),
        ((TIME_MAX_US - 1, TIME_MAX_US), "KEY_NOT_VALID"),
        ((0, TIME_MAX_US - 1), "NOTARISED"),
    ):
        async with (
            whole((BANK.name, BANK.public_key, *period_us)) as world,
            NotaryClient(world.endpoint, RetryPolicy(deadline_s=5.0)) as client,
        ):
            answer = await client.submit(make_submission())
        assert answer.code == code
        if isinstance(answer, ProblemDocument):
            assert told(answer, code)


async def test_a_stream_beyond_its_window(tmp_path: Path) -> None:
    """Goal: WINDOW_EXCEEDED reaches the client as words, and then the stream ends. Method: a raw WebSocket."""
    participant = StubParticipant()
    participant.gate = asyncio.Event()
    async with (
        ApiWorld(participant, stream_window=1).serve() as world,
        aiohttp.ClientSession() as session,
        session.ws_connect(world.endpoint + "/v1/submissions/stream") as socket,
    ):
        await socket.receive_bytes()  # the welcome
        for number in range(2):
            await socket.send_bytes(encoder.encode(Submissions([(number, make_submission())])))
        closing = await socket.receive_bytes()
        assert b"WINDOW_EXCEEDED" in closing
        assert b"the window is 1" in closing
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_database_that_lags_behind_its_ledger(tmp_path: Path) -> None:
    """Goal: FEED_UNAVAILABLE says to ask again with the same offset. Method: the core knows more completions than the
    database shows."""
    participant = StubParticipant()
    participant.standing = msgspec.structs.replace(participant.standing, ledger_end=8)
    async with (
        ApiWorld(participant).serve() as world,
        aiohttp.ClientSession() as session,
        session.get(f"{world.endpoint}/v1/completions?after=5") as answer,
    ):
        problem = msgspec.json.decode(await answer.read(), type=ProblemDocument)
        assert (answer.status, told(problem, "FEED_UNAVAILABLE"), problem.retry) == (503, True, Retry.SAME)
        assert (int(answer.headers["Retry-After"]) > 0, (problem.retry_after_s or 0) > 0) == (True, True)


async def test_a_user_who_has_enough_queued(tmp_path: Path) -> None:
    """Goal: USER_OVERLOADED names the user, and when to come again. Method: many at once of one user, room for one."""
    async with whole(user_queue_max=1) as world:
        seen = await asyncio.gather(*[answer_to(world, make_submission()) for _ in range(24)], return_exceptions=True)
    refused = [one for one in seen if not isinstance(one, BaseException)]  # successes are no problem documents
    assert refused
    for status, problem in refused:
        assert (status, told(problem, "USER_OVERLOADED"), problem.retry) == (429, True, Retry.SAME)
        assert "has as much queued as one may" in problem.detail
        assert (problem.retry_after_s or 0) > 0


async def test_a_stream_that_is_asked_for_without_a_websocket(tmp_path: Path) -> None:
    """Goal: UPGRADE_REQUIRED says what to open instead. Method: a plain GET."""
    async with (
        ApiWorld(StubParticipant()).serve() as world,
        aiohttp.ClientSession() as session,
        session.get(f"{world.endpoint}/v1/submissions/stream") as answer,
    ):
        problem = msgspec.json.decode(await answer.read(), type=ProblemDocument)
    assert (answer.status, told(problem, "UPGRADE_REQUIRED"), problem.retry) == (426, True, Retry.NO)
