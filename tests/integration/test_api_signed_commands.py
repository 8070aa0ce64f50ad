"""Signatures that cover the command: the API takes them, and refuses what nobody signed for, in JSON and in streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from ledger_api.client import Deduplication, NotaryClient, RetryPolicy, SubmissionStream, certifies, encode_submission
from ledger_api.server.authorisation import Caller
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.stream_frames import Answers, Rejected, Submissions
from replica.link.interface import SubmitOptions
from replica.notary.answers import Notarised
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission
from replica.notary.terms import Terms, decode_canonical
from tests.integration.test_api_stream import raw_stream
from tests.worlds.api_world import BANK, NOTARY_KEY, ApiWorld, StubParticipant

QUICK = RetryPolicy(timeout_s=0.01, deadline_s=10.0)
HOUR = Deduplication(3_600.0)
OTHER = "O=Bank B,L=Paris,C=FR"


def signed(**about: Any) -> Submission:
    """A submission whose signature covers its command."""
    return BANK.sign(**{"command_id": "c", "user_id": "alice", **about})


async def post(world: ApiWorld, body: bytes) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(world.endpoint + "/v1/submissions", data=body) as response,
    ):
        found: dict[str, Any] = await response.json(content_type=None)
        return found


@pytest.mark.parametrize(
    ("period", "options"),
    [
        (None, SubmitOptions()),
        (HOUR, SubmitOptions(deduplication_s=3_600.0)),
        (Deduplication(after_offset=0), SubmitOptions(deduplication_after=0)),
        (Deduplication(after_offset=7), SubmitOptions(deduplication_after=7)),
    ],
    ids=["none", "an hour", "the first offset", "an offset"],
)
async def test_what_was_signed_reaches_the_notary(
    tmp_path: Path, period: Deduplication | None, options: SubmitOptions
) -> None:
    """Goal: canonical bytes and period arrive as they were signed. Method: each way of submitting, each kind of period;
    in a stream the signature alone has it."""
    participant = StubParticipant()
    one = signed(deduplication=period)
    async with ApiWorld(participant).serve() as world:
        async with NotaryClient(world.endpoint, QUICK) as client:
            for answer in (await client.submit(one), *await client.submit_batch([one])):
                assert isinstance(answer, Notarised)
                assert certifies(answer, one, bytes(NOTARY_KEY.verify_key))
        async with SubmissionStream(world.endpoint, QUICK) as stream:
            assert isinstance(await stream.submit(one), Notarised)
    assert participant.submitted == [one] * 3
    assert participant.options == [options] * 3


def other_command(document: dict[str, Any]) -> None:
    document["command_id"] = "d"


def other_user(document: dict[str, Any]) -> None:
    document["user_id"] = "bob"


def other_parties(document: dict[str, Any]) -> None:
    document["act_as"] = [OTHER]


def other_period(document: dict[str, Any]) -> None:
    document["deduplication"] = {"duration_s": 3_600.000001}


def no_period(document: dict[str, Any]) -> None:
    del document["deduplication"]


def an_offset(document: dict[str, Any]) -> None:
    document["deduplication"] = {"after_offset": 3_600_000_000}


CHANGES = [other_command, other_user, other_parties, other_period, no_period, an_offset]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_relay_cannot_submit_it_under_another_command(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """Goal: nobody but the party chooses command and terms. Method: each change of a body that is good; the submission
    id is free."""
    participant = StubParticipant()
    document = json.loads(encode_submission(signed(deduplication=HOUR)))
    async with ApiWorld(participant).serve() as world:
        document["submission_id"] = "another attempt"
        await post(world, json.dumps(document).encode())
        assert len(participant.submitted) == 1
        change(document)
        problem = await post(world, json.dumps(document).encode())
    assert problem["code"] == Code.SIGNATURE_INVALID.name
    assert len(participant.submitted) == 1


@pytest.mark.parametrize(
    ("changed", "frame"),
    [
        ({"command_id": "d"}, {}),
        ({"user_id": "bob"}, {}),
        ({"act_as": (OTHER,)}, {}),
        ({}, {"deduplication_s": 60.0}),
        ({}, {"deduplication_after": 7}),
    ],
    ids=["command", "user", "parties", "period", "offset"],
)
async def test_a_stream_takes_no_other_command_or_period(
    tmp_path: Path, changed: dict[str, Any], frame: dict[str, Any]
) -> None:
    """Goal: a record that nobody signed for is never logged. Method: each part changed around the signed bytes; beside
    it one that is good."""
    participant = StubParticipant()
    bad = replace(signed(deduplication=HOUR), **changed)
    after = frame.get("deduplication_after")
    good = signed(
        deduplication=Deduplication(after_offset=after) if after else Deduplication(frame.get("deduplication_s"))
    )
    async with ApiWorld(participant).serve() as world, raw_stream(world) as (raw, _):
        await raw.send(Submissions([(0, bad), (1, good)], **frame))
        answers: dict[int, Any] = {}
        while len(answers) < 2:
            found = await raw.receive()
            assert isinstance(found, Answers)
            answers |= dict(found.batch)
    assert isinstance(answers[0], Rejected)
    assert answers[0].code == Code.SIGNATURE_INVALID.name
    assert isinstance(answers[1], Notarised)
    assert participant.submitted == [good]
    assert participant.options == [SubmitOptions(False, frame.get("deduplication_s"), frame.get("deduplication_after"))]


async def test_a_stream_mixes_periods(tmp_path: Path) -> None:
    """Goal: each submission has its own terms. Method: one frame, two periods that were signed for, and none."""
    participant = StubParticipant()
    batch = [BANK.sign(), signed(deduplication=HOUR), signed(deduplication=Deduplication(60.0)), signed()]
    async with ApiWorld(participant).serve() as world, raw_stream(world) as (raw, _):
        await raw.send(Submissions(list(enumerate(batch))))
        found = await raw.receive()
        assert isinstance(found, Answers)
        assert sorted(number for number, _ in found.batch) == [0, 1, 2, 3]
    assert sorted(participant.submitted, key=batch.index) == batch
    assert {options.deduplication_s for options in participant.options} == {None, 3_600.0, 60.0}


async def test_a_token_does_not_change_the_user_that_was_signed_for(tmp_path: Path) -> None:
    """Goal: what is logged was signed. Method: a token of a user, and a signature for nobody in particular, then for
    this user; JSON and stream."""
    participant = StubParticipant()
    caller = Caller(subject="alice", user_id="alice", act_as=frozenset([BANK.name]), read_as=frozenset([BANK.name]))
    nobody, alice = signed(user_id="anonymous"), signed()
    async with ApiWorld(participant, caller).serve() as world:
        async with NotaryClient(world.endpoint, QUICK) as client:
            refused = await client.submit(nobody)
            assert isinstance(await client.submit(alice), Notarised)
        async with SubmissionStream(world.endpoint, QUICK) as stream:
            also = await stream.submit(nobody)
            assert isinstance(await stream.submit(alice), Notarised)
    for found in (refused, also):
        assert isinstance(found, ProblemDocument)
        assert found.code == Code.PERMISSION_DENIED.name
    assert participant.submitted == [alice, alice]


async def test_a_client_does_not_send_what_was_signed_otherwise(tmp_path: Path) -> None:
    """Goal: a mistake is found where it is made. Method: another period at the call than in the signature."""
    one = signed(deduplication=HOUR)
    assert decode_canonical(one.request)[2] == Terms("alice", "c", (BANK.name,), 3_600_000_000)
    with pytest.raises(BadRequest, match="another deduplication period"):
        encode_submission(one, Deduplication(60.0))
    assert msgspec.json.decode(encode_submission(one, HOUR)) == msgspec.json.decode(encode_submission(one))
    async with (
        ApiWorld(StubParticipant()).serve() as world,
        SubmissionStream(world.endpoint, QUICK, deduplication=Deduplication(60.0)) as stream,
    ):
        with pytest.raises(BadRequest, match="another deduplication period"):
            await stream.submit(one)
