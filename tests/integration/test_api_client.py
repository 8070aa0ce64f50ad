"""The client against a real HTTP server: it keeps on with the same ids until an answer is final."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from ledger_api.client import NotaryClient, Party, RetryPolicy, certifies
from replica.local.ports import PortReservation
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.documents import ProblemDocument
from replica.notary.errors import NotActive
from replica.notary.requests import Submission
from tests.api_world import ACTIVE, BANK, NOTARY_KEY, PASSIVE, ApiWorld, StubParticipant, make_submission, notarise

QUICK = RetryPolicy(deadline_s=5.0, delay_first_s=0.01, delay_max_s=0.05, attempt_max_s=2.0)
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)


class Stumbling:
    """Says NotNow the first times it sees a submission, then notarises."""

    def __init__(self, times: int) -> None:
        self.seen: Counter[Submission] = Counter()
        self.times = times

    def __call__(self, submission: Submission) -> Answer:
        self.seen[submission] += 1
        if self.seen[submission] <= self.times:
            return NotNow("OUTCOME_UNKNOWN", "not yet", 0.01)
        return notarise(submission)


async def test_not_now_is_tried_again_with_the_same_ids(tmp_path: Path) -> None:
    """Goal: an application need not care about a fail-over. Method: two NotNow, then a success, the same submission."""
    judge, submission = Stumbling(2), make_submission()
    async with (
        ApiWorld(tmp_path, StubParticipant(judge)).serve() as world,
        NotaryClient(world.endpoint, QUICK) as client,
    ):
        answer = await client.submit(submission)
    assert isinstance(answer, Notarised)
    assert certifies(answer, submission, NOTARY_PUBLIC_KEY)
    assert judge.seen == {submission: 3}


async def test_only_what_is_open_in_a_batch_is_sent_again(tmp_path: Path) -> None:
    """Goal: final answers stand, results keep their places. Method: every third one stumbles once, one is refused."""
    submissions = [make_submission() for _ in range(9)]
    judge = Stumbling(1)

    def answer(submission: Submission) -> Answer:
        place = submissions.index(submission)
        if place == 4:
            judge.seen[submission] += 1
            return Refused("TX_ID_REUSED", submission.request[16:48], 3)
        return judge(submission) if place % 3 == 0 else notarise(submission)

    world = ApiWorld(tmp_path, StubParticipant(answer))
    async with world.serve(), NotaryClient(world.endpoint, QUICK) as client:
        results = await client.submit_batch(submissions)
        assert await client.submit_batch([]) == []
    assert results[4] == Refused("TX_ID_REUSED", submissions[4].request[16:48], 3)
    for place, result in enumerate(results):
        if place != 4:
            assert isinstance(result, Notarised)
            assert certifies(result, submissions[place], NOTARY_PUBLIC_KEY)
    assert [judge.seen[submission] for submission in submissions] == [2, 0, 0, 2, 1, 0, 2, 0, 0]


async def test_a_server_that_is_away_is_waited_for(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: refused connections are not the application's problem. Method: the server appears after the first tries."""
    port = ports.take()
    world = ApiWorld(tmp_path, StubParticipant())
    async with NotaryClient(f"http://127.0.0.1:{port}", QUICK) as client:
        waiting = asyncio.create_task(client.submit(make_submission()))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        listener = await asyncio.get_running_loop().create_server(world.server, "127.0.0.1", port)
        assert isinstance(await waiting, Notarised)
        listener.close()
        await world.server.shutdown(0.1)


async def test_the_deadline_ends_the_trying(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: a call is bounded and says that nothing is known. Method: nobody listens; a passive; a short deadline."""
    short = RetryPolicy(deadline_s=0.2, delay_first_s=0.01, delay_max_s=0.05)
    async with NotaryClient(f"http://127.0.0.1:{ports.take()}", short) as client:
        answer = await client.submit(make_submission())
        assert isinstance(answer, NotNow) and answer.code == "OUTCOME_UNKNOWN"
        assert len(await client.submit_batch([make_submission()] * 3)) == 3
        with pytest.raises(NotActive):
            await client.describe()
    participant = StubParticipant()
    participant.standing = PASSIVE
    async with ApiWorld(tmp_path, participant).serve() as world, NotaryClient(world.endpoint, short) as client:
        answer = await client.submit(make_submission())
        assert isinstance(answer, NotNow) and answer.code == "NOT_ACTIVE"


async def test_a_request_that_is_wrong_is_not_tried_again(tmp_path: Path) -> None:
    """Goal: the application learns what to change. Method: an oversize batch, an unknown party, a long deadline."""
    stranger = Party("O=Bank B,L=Paris,C=FR")
    world = ApiWorld(tmp_path, StubParticipant(), batch_max=1)
    async with world.serve(), NotaryClient(world.endpoint, QUICK) as client:
        answer = await client.submit(stranger.sign(bytes(32)))
        assert isinstance(answer, ProblemDocument) and answer.code == "PARTY_UNKNOWN"
        both = await client.submit_batch([BANK.sign(bytes(32)), BANK.sign(bytes(32))])
        assert [getattr(result, "code", None) for result in both] == ["BATCH_TOO_LARGE"] * 2


async def test_look_up_and_describe(tmp_path: Path) -> None:
    """Goal: a receipt can be fetched later; the notary tells its key. Method: one found, one not."""
    participant, submission = StubParticipant(), make_submission()
    tx_id = submission.request[16:48]
    participant.found[tx_id] = notarise(submission)
    async with ApiWorld(tmp_path, participant).serve() as world, NotaryClient(world.endpoint, QUICK) as client:
        found = await client.look_up(tx_id)
        assert isinstance(found, Notarised)
        assert certifies(found, submission, bytes.fromhex((await client.describe()).notary_key))
        assert not certifies(found, make_submission(), NOTARY_PUBLIC_KEY)
        assert not certifies(found, submission, bytes(32))
        assert await client.look_up(bytes(32)) == Refused("TX_NOT_FOUND", bytes(32))
        assert (await client.describe()).epoch == ACTIVE.epoch
