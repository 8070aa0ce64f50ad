"""Codes of the ledger API as an application meets them: a replica's whole core behind a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import msgspec

from ledger_api.client import Deduplication, NotaryClient, RetryPolicy
from ledger_api.client.signing import encode_submission
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.stream_frames import Submissions, encoder
from replica.notary.errors import Code
from replica.notary.requests import Submission
from replica.settings import CoreSettings
from tests.worlds import core_world
from tests.worlds.api_world import BANK, ApiWorld, StubParticipant, make_submission

JSON = {"Content-Type": "application/json"}


def told(problem: ProblemDocument, code: str) -> bool:
    """Whether the document has the catalogue's words for the code, and a detail that is of this case."""
    meant = Code[code]
    words = (problem.status, problem.code, problem.title, problem.remedy, problem.retry)
    return words == (meant.status, code, meant.title, meant.remedy, meant.retry) and bool(problem.detail)


async def answer_to(
    world: ApiWorld, submission: Submission, period: Deduplication | None = None
) -> tuple[int, ProblemDocument]:
    """The problem that comes back over HTTP, and the status of the line."""
    body = encode_submission(submission, period)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.endpoint}/v1/submissions", data=body, headers=JSON) as answer,
    ):
        return answer.status, msgspec.json.decode(await answer.read(), type=ProblemDocument)


@asynccontextmanager
async def whole(folder: Path, rules: int, **core: float) -> AsyncIterator[ApiWorld]:
    """An active replica under these rules, in memory, and its API."""
    async with core_world.World(rules=rules, core=CoreSettings(**core)) as replicas:
        replica = await replicas.replica()
        await replica.until_active()
        async with ApiWorld(folder, replica.link).serve() as world:  # type: ignore[arg-type]
            yield world


async def test_a_notary_that_wants_signed_commands(tmp_path: Path) -> None:
    """Goal: COMMAND_NOT_SIGNED says what to sign. Method: the setting, and canonical bytes of version 1."""
    async with ApiWorld(tmp_path, StubParticipant(), signed_commands_only=True).serve() as world:
        status, problem = await answer_to(world, make_submission())
    assert (status, told(problem, "COMMAND_NOT_SIGNED")) == (403, True)


async def test_a_log_that_cannot_hold_signed_commands_yet(tmp_path: Path) -> None:
    """Goal: FORMAT_NOT_RAISED; the same request is refused until an operator acts. Method: rules 1, version 2."""
    async with whole(tmp_path, 1) as world:
        status, problem = await answer_to(world, BANK.sign(bytes(32), command_id="c", sign_command=True))
    assert (status, told(problem, "FORMAT_NOT_RAISED"), problem.tx_id) == (409, True, "00" * 32)


async def test_a_period_that_nobody_remembers(tmp_path: Path) -> None:
    """Goal: DEDUPLICATION_PERIOD_TOO_LONG has the bound. Method: under both rules, beyond the maximum."""
    for rules in (1, 2):
        async with whole(tmp_path, rules, deduplication_max_s=20.0) as world:
            status, problem = await answer_to(world, make_submission(), Deduplication(21.0))
        assert (status, told(problem, "DEDUPLICATION_PERIOD_TOO_LONG")) == (400, True), rules
        assert problem.deduplication_max_s == 20.0


async def test_a_key_before_and_after_its_time(tmp_path: Path) -> None:
    """Goal: KEY_NOT_VALID is no PARTY_UNKNOWN. Method: a period that ended, one that has not begun, one that holds."""
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for period, code in (
        (f"until = {now - hour:%Y-%m-%dT%H:%M:%SZ}", "KEY_NOT_VALID"),
        (f"from = {now + hour:%Y-%m-%dT%H:%M:%SZ}", "KEY_NOT_VALID"),
        (f"from = {now - hour:%Y-%m-%dT%H:%M:%SZ}", "NOTARISED"),
    ):
        key = f'{{key = "{BANK.public_key.hex()}", {period}}}'
        world = ApiWorld(tmp_path, StubParticipant(), registry=f'[parties]\n"{BANK.name}" = [{key}]\n')
        async with world.serve(), NotaryClient(world.endpoint, RetryPolicy(deadline_s=5.0)) as client:
            answer = await client.submit(make_submission())
        assert answer.code == code
        if isinstance(answer, ProblemDocument):
            assert told(answer, code)
            assert BANK.public_key.hex() in answer.detail


async def test_a_stream_beyond_its_window(tmp_path: Path) -> None:
    """Goal: WINDOW_EXCEEDED reaches the client as words, and then the stream ends. Method: a raw WebSocket."""
    participant = StubParticipant()
    participant.gate = asyncio.Event()
    async with (
        ApiWorld(tmp_path, participant, stream_window=1).serve() as world,
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
