"""Early acceptance, and the questions about the log's own entries, over real HTTP."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ledger_api.client import NotaryClient
from ledger_api.client.errors import RequestRejected
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.submissions import submission_to_document
from replica.link.interface import CommitQuestion, SubmitOptions, TxQuestion
from replica.notary.answers import AcceptedEarly, CommitUnderstood, NotNow, TxUnderstood
from replica.notary.codes import Code
from tests.integration.test_api_queries import completion, get
from tests.worlds.api_world import ACTIVE, PASSIVE, ApiWorld, StubParticipant, make_submission

COMMITTED = TxUnderstood("2.17", "Committed", "3.20", 41)


def stub(answer: TxUnderstood | CommitUnderstood = COMMITTED) -> StubParticipant:
    participant = StubParticipant()
    participant.log_answer = answer
    return participant


async def post(world: ApiWorld, path: str) -> tuple[int, dict[str, object]]:
    body = msgspec.json.encode(submission_to_document(make_submission()))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    raw = await world.exchange(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, close=False)
    return int(raw.split()[1]), msgspec.json.decode(raw.partition(b"\r\n\r\n")[2])


async def test_an_early_answer_is_a_place_and_no_acceptance(tmp_path: Path) -> None:
    """Goal: nobody takes it for a recorded one. Method: both kinds of 202; the options that reach the core."""
    participant = stub()
    async with ApiWorld(participant, log_nodes=True).serve() as world:
        status, early = await post(world, "/v1/submissions/async?accept=early")
        assert (status, early["code"], early["transaction_id"]) == (202, "ACCEPTED_EARLY", "2.17")
        status, recorded = await post(world, "/v1/submissions/async")
        assert (status, recorded["code"]) == (202, "ACCEPTED")
        assert "transaction_id" not in recorded
    assert participant.options == [SubmitOptions(asynchronous=True, early=True), SubmitOptions(asynchronous=True)]


async def test_another_log_refuses_it_before_anything_is_logged(tmp_path: Path) -> None:
    """Goal: a stable code and what to do. Method: every call of this page on a log that is not on log nodes."""
    participant = stub()
    async with ApiWorld(participant).serve() as world:
        status, problem = await post(world, "/v1/submissions/async?accept=early")
        assert (status, problem["code"], problem["retry"]) == (400, "EARLY_NOT_OFFERED", "no")
        assert "without accept=early" in str(problem["remedy"])
        for path in ("/v1/log/2.17", "/v1/commit"):
            status, problem = await get(world, path)
            assert (status, problem["code"]) == (404, "NO_LOG_NODES")
    assert participant.reached == 0


@pytest.mark.parametrize("query", ["accept=late", "accept=", "accept=early&accept=early", "acept=early"])
async def test_a_misspelt_option_is_not_ignored(tmp_path: Path, query: str) -> None:
    participant = stub()
    async with ApiWorld(participant, log_nodes=True).serve() as world:
        status, problem = await post(world, f"/v1/submissions/async?{query}")
        assert (status, problem["code"]) == (400, "QUERY_INVALID")
        for path in ("/v1/submissions", "/v1/submissions/batch", "/v1/submissions/batch/async"):
            status, problem = await post(world, f"{path}?accept=early")
            assert (status, problem["code"]) == (400, "QUERY_INVALID")
    assert participant.reached == 0


async def test_what_became_of_an_entry(tmp_path: Path) -> None:
    """Goal: status, offsets, and whether the record counts. Method: published or not; passive; a silent log."""
    participant = stub()
    async with ApiWorld(participant, log_nodes=True).serve() as world:
        found = {"transaction_id": "2.17", "status": "Committed", "committed": "3.20", "log_offset": 41}
        assert await get(world, "/v1/log/2.17") == (200, found | {"ledger_offset": None})
        participant.database.completions = [(1, completion(41, b"\x01" * 32, "O=A"))]
        participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=1)
        assert await get(world, "/v1/log/2.17") == (200, found | {"ledger_offset": 1})
        participant.standing = PASSIVE
        assert await get(world, "/v1/log/2.17") == (200, found | {"ledger_offset": None})
        assert participant.log_questions == [TxQuestion(2, 17)] * 3
        participant.log_answer = NotNow(Code.LOG_NODES_SILENT.name, "nobody", 0.25)
        status, problem = await get(world, "/v1/log/2.17")
        assert (status, problem["code"], problem["retry_after_s"]) == (503, "LOG_NODES_SILENT", 0.25)


@pytest.mark.parametrize("place", ["", "2", "0.1", "1.0", "01.1", "a.b", "1.1.1", "-1.1", "1" * 16 + ".1"])
async def test_a_place_is_two_numbers(tmp_path: Path, place: str) -> None:
    participant = stub()
    async with ApiWorld(participant, log_nodes=True).serve() as world:
        status, problem = await get(world, f"/v1/log/{place}")
        assert (status, problem["code"]) == (400, "MALFORMED_REQUEST")
    assert participant.reached == 0


async def test_the_commit_and_its_views(tmp_path: Path) -> None:
    """Goal: CCF's question, bounded. Method: with and without views; what is no view."""
    participant = stub(CommitUnderstood("3.20", (1, 1, 18)))
    async with ApiWorld(participant, log_nodes=True).serve() as world:
        views = {"transaction_id": "3.20", "view_history": [1, 1, 18]}
        assert await get(world, "/v1/commit?view_history=true") == (200, views | {"view_history_since": 1})
        assert await get(world, "/v1/commit?view_history_since=2") == (200, views | {"view_history_since": 2})
        participant.log_answer = CommitUnderstood("3.20")
        assert await get(world, "/v1/commit") == (200, {"transaction_id": "3.20"})
        assert participant.log_questions == [CommitQuestion(1), CommitQuestion(2), CommitQuestion(None)]
        for wrong in ("view_history=yes", "view_history_since=0", "view_history_since=-1", "views=true"):
            status, problem = await get(world, f"/v1/commit?{wrong}")
            assert (status, problem["code"]) == (400, "QUERY_INVALID")


async def test_the_client_knows_both(tmp_path: Path) -> None:
    """Goal: an application need not speak HTTP for it. Method: each call; another log's refusal."""
    participant = stub()
    async with ApiWorld(participant, log_nodes=True).serve() as world, NotaryClient(world.endpoint) as client:
        submission = make_submission()
        early = await client.submit_early(submission)
        assert early == AcceptedEarly(submission.submission_id, "2.17", ACTIVE.retry_after_s)
        assert (await client.log_transaction(early.transaction_id)).status == "Committed"
        participant.log_answer = CommitUnderstood("3.20", (18,))
        assert (await client.commit(view_history_since=3)).view_history == [18]
    (tmp_path / "other").mkdir()
    async with ApiWorld(stub()).serve() as world, NotaryClient(world.endpoint) as client:
        refused = await client.submit_early(make_submission())
        assert isinstance(refused, ProblemDocument)
        assert refused.code == Code.EARLY_NOT_OFFERED.name
        with pytest.raises(RequestRejected, match="NO_LOG_NODES"):
            await client.commit()
