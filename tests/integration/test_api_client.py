"""The client against a real HTTP server: it keeps on with the same ids until an answer is final."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from ledger_api.client import (
    Bookmark,
    Deduplication,
    NotarisationRefused,
    NotaryClient,
    OutcomeUnknown,
    Party,
    ReceiptInvalid,
    RequestRejected,
    RetryPolicy,
    StreamEnded,
    SyncNotaryClient,
    certifies,
    code_of,
)
from ledger_api.wire.problems import ProblemDocument
from replica.active.signer import create_key
from replica.link.interface import DEFAULT_OPTIONS, SubmitOptions
from replica.local.ports import PortReservation
from replica.notary.answers import Accepted, Answer, Notarised, NotNow, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError, NotActive
from replica.notary.requests import Submission, parse_state_ref
from replica.notary.terms import decode_canonical
from replica.store.interface import Completion
from tests.worlds.api_world import (
    ACTIVE,
    BANK,
    NOTARY_KEY,
    OFFSET,
    PASSIVE,
    ApiWorld,
    StubParticipant,
    make_submission,
    notarise,
)
from tests.worlds.beginning import LEDGER

QUICK = RetryPolicy(deadline_s=5.0, timeout_s=0.01, attempt_max_s=2.0)
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)


class Stumbling:
    """Answers NotNow the first times it sees a submission, then notarises."""

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
        ApiWorld(StubParticipant(judge)).serve() as world,
        NotaryClient(world.endpoint, QUICK) as client,
    ):
        answer = await client.submit(submission)
    assert isinstance(answer, Notarised)
    assert certifies(answer, submission, NOTARY_PUBLIC_KEY)
    assert judge.seen == {submission: 3}


async def test_a_large_body_is_sent_piece_by_piece(tmp_path: Path) -> None:
    """Goal: a batch of megabytes holds nobody up, and warns of nothing. Method: warnings are errors; two megabytes."""
    submissions = [make_submission(inputs_count=1_000) for _ in range(24)]
    async with (
        ApiWorld(StubParticipant()).serve() as world,
        NotaryClient(world.endpoint, QUICK) as client,
    ):
        assert all(isinstance(answer, Notarised) for answer in await client.submit_batch(submissions))


async def test_only_what_is_open_in_a_batch_is_sent_again(tmp_path: Path) -> None:
    """Goal: final answers stand, results keep their places. Method: every third one stumbles once, one is refused."""
    submissions = [make_submission() for _ in range(9)]
    judge = Stumbling(1)

    def answer(submission: Submission) -> Answer:
        place = submissions.index(submission)
        if place == 4:
            judge.seen[submission] += 1
            return Refused("TX_ID_REUSED", submission.request[32:64], 3)
        return judge(submission) if place % 3 == 0 else notarise(submission)

    world = ApiWorld(StubParticipant(answer))
    async with world.serve(), NotaryClient(world.endpoint, QUICK) as client:
        results = await client.submit_batch(submissions)
        assert await client.submit_batch([]) == []
    assert results[4] == Refused("TX_ID_REUSED", submissions[4].request[32:64], 3)
    for place, result in enumerate(results):
        if place != 4:
            assert isinstance(result, Notarised)
            assert certifies(result, submissions[place], NOTARY_PUBLIC_KEY)
    assert [judge.seen[submission] for submission in submissions] == [2, 0, 0, 2, 1, 0, 2, 0, 0]


async def test_a_server_that_is_away_is_waited_for(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: refused connections are not the application's problem. Method: the server appears after the first tries."""
    port = ports.take()
    world = ApiWorld(StubParticipant())
    async with NotaryClient(f"http://127.0.0.1:{port}", QUICK) as client:
        waiting = asyncio.create_task(client.submit(make_submission()))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        listener = await asyncio.get_running_loop().create_server(world.server, "127.0.0.1", port)
        assert isinstance(await waiting, Notarised)
        listener.close()
        await world.server.shutdown(0.1)


async def test_the_deadline_ends_the_trying(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: a call is bounded, and its outcome is unknown. Method: nobody listens; a passive; a short deadline."""
    short = RetryPolicy(deadline_s=0.2, timeout_s=0.01)
    async with NotaryClient(f"http://127.0.0.1:{ports.take()}", short) as client:
        answer = await client.submit(make_submission())
        assert isinstance(answer, NotNow) and answer.code == "OUTCOME_UNKNOWN"
        assert len(await client.submit_batch([make_submission()] * 3)) == 3
        with pytest.raises(NotActive):
            await client.describe()
    participant = StubParticipant()
    participant.standing = PASSIVE
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, short) as client:
        answer = await client.submit(make_submission())
        assert isinstance(answer, NotNow) and answer.code == "NOT_ACTIVE"


def forged() -> Submission:
    """A submission that the front end refuses by itself."""
    return msgspec.structs.replace(make_submission(), signature=bytes(64))


async def test_a_request_that_is_wrong_is_not_tried_again(tmp_path: Path) -> None:
    """Goal: the application learns what to change. Method: an oversize batch, a forged signature, a long deadline."""
    world = ApiWorld(StubParticipant(), batch_max=1)
    async with world.serve(), NotaryClient(world.endpoint, QUICK) as client:
        answer = await client.submit(forged())
        assert isinstance(answer, ProblemDocument) and answer.code == "SIGNATURE_INVALID"
        both = await client.submit_batch([BANK.sign(bytes(32)), BANK.sign(bytes(32))])
        assert [getattr(result, "code", None) for result in both] == ["BATCH_TOO_LARGE"] * 2


async def test_look_up_and_describe(tmp_path: Path) -> None:
    """Goal: a receipt can be fetched later; the notary publishes its key. Method: one found, one not."""
    participant, submission = StubParticipant(), make_submission()
    tx_id = submission.request[32:64]
    participant.found[tx_id] = notarise(submission)
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, QUICK) as client:
        found = await client.look_up(tx_id)
        assert isinstance(found, Notarised)
        assert certifies(found, submission, bytes.fromhex((await client.describe()).notary_key))
        assert not certifies(found, make_submission(), NOTARY_PUBLIC_KEY)
        assert not certifies(found, submission, bytes(32))
        assert await client.look_up(bytes(32)) == Refused("TX_NOT_FOUND", bytes(32))
        assert (await client.describe()).epoch == ACTIVE.epoch


async def test_notarise_returns_a_success_that_verifies_or_raises_what_to_do(tmp_path: Path) -> None:
    """Goal: typed errors, and a success nobody forged. Method: each kind of answer, and another notary's key."""
    participant = StubParticipant()
    short = RetryPolicy(deadline_s=0.05, timeout_s=0.01)
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, short) as client:
        submission = make_submission()
        assert (await client.notarise(submission, NOTARY_PUBLIC_KEY)).tx_id == submission.request[32:64]
        with pytest.raises(ReceiptInvalid):
            await client.notarise(submission, BANK.public_key)
        with pytest.raises(RequestRejected) as rejected:
            await client.notarise(forged(), NOTARY_PUBLIC_KEY)
        assert rejected.value.code is Code.SIGNATURE_INVALID
        participant.answer = lambda asked: Refused("TX_ID_REUSED", asked.request[32:64], 3)
        with pytest.raises(NotarisationRefused) as refused:
            await client.notarise(submission, NOTARY_PUBLIC_KEY)
        assert refused.value.refused.record_offset == 3
        participant.answer = lambda _: NotNow("OUTCOME_UNKNOWN", "x", 0.01)
        with pytest.raises(OutcomeUnknown):
            await client.notarise(submission, NOTARY_PUBLIC_KEY)


async def test_bulk_work_goes_over_one_stream(tmp_path: Path) -> None:
    """Goal: the batch helper pipelines. Method: 500 at once; results in order; one connection."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, QUICK) as client:
        submissions = [make_submission() for _ in range(500)]
        answers = await client.submit_all(submissions)
        assert [a.tx_id for a in answers if isinstance(a, Notarised)] == [s.request[32:64] for s in submissions]
        assert world.counts.requests == {"/v1/submissions/stream 101": 1}


async def test_completions_go_on_where_a_lost_connection_left_off(tmp_path: Path) -> None:
    """Goal: no gap and no duplicate. Method: cut every connection after each few of 30 completions."""
    participant = StubParticipant()
    participant.database.completions = [(number, make_completion(number)) for number in range(1, 31)]
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=10)
    async with (
        ApiWorld(participant, checkpoint_s=0.05).serve() as world,
        NotaryClient(world.endpoint, QUICK) as client,
    ):
        seen: list[int] = []
        async for completion in client.completions(2):
            seen.append(completion.offset)
            if len(seen) % 5 == 0:
                participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=min(30, completion.offset + 8))
                participant.standing_changes.notify()
                for connection in list(world.server.connections):
                    if connection.transport is not None:
                        connection.transport.abort()
            if completion.offset == 30:
                break
        assert seen == list(range(3, 31))


def make_completion(number: int) -> Completion:
    tx_id = number.to_bytes(32, "big")
    return Completion(number, tx_id, "u", f"c{number}", ("A",), "s", tx_id, tx_id, "NOTARISED", number, number)


async def test_a_submission_that_is_not_waited_for(tmp_path: Path) -> None:
    """Goal: an application need not speak HTTP for it. Method: Accepted; a passive first; the error names what is
    wrong."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, QUICK) as client:
        submission = make_submission()
        assert await client.submit_async(submission) == Accepted(submission.submission_id, ACTIVE.retry_after_s, OFFSET)
        participant.standing = PASSIVE
        waiting = asyncio.create_task(client.submit_async(submission))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        participant.standing = ACTIVE
        assert isinstance(await waiting, Accepted)
        refused = await client.submit_async(forged())
        assert isinstance(refused, ProblemDocument) and refused.code == "SIGNATURE_INVALID"
        assert participant.submitted == [submission] * 2


async def test_every_call_takes_a_deduplication_period(tmp_path: Path) -> None:
    """Goal: a duration or an offset, however it is sent. Method: what reaches the core, of each way to submit."""
    participant = StubParticipant()
    period, after = Deduplication(duration_s=60.0), Deduplication(after_offset=7)
    submission, later = make_submission(deduplication=period), make_submission(deduplication=after)
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, QUICK) as client:
        await client.submit(submission, deduplication=period)
        await client.submit_async(submission, deduplication=period)
        await client.submit_batch([submission], deduplication=period)
        await client.submit_all([submission], deduplication=period)
        await client.notarise(later, NOTARY_PUBLIC_KEY, deduplication=after)
        await client.submit(make_submission())
    assert participant.options == [
        SubmitOptions(False, 60.0),
        SubmitOptions(True, 60.0),
        *[SubmitOptions(False, 60.0)] * 2,
        SubmitOptions(False, None, 7),
        DEFAULT_OPTIONS,
    ]


async def test_questions_and_updates(tmp_path: Path) -> None:
    """Goal: every question of the API has a method. Method: a transaction, a state, its history, the end, updates."""
    participant, submission = StubParticipant(), make_submission()
    tx_id = submission.request[32:64]
    state = bytes(36)
    participant.found[tx_id] = notarise(submission)
    winner = make_completion(1).tx_id
    participant.consumed[state] = StateStatus(state, winner, 1)
    participant.database.completions = [(number, make_completion(number)) for number in range(1, 4)]
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=3)

    def use(endpoint: str) -> None:
        with SyncNotaryClient(endpoint, QUICK) as client:
            status = client.transaction(tx_id)
            assert status is not None and (status.tx_id, status.log_offset) == (tx_id.hex(), 41)
            assert client.transaction(bytes(32)) is None
            assert client.state(state).consumed_by == winner.hex()
            assert not client.state(b"x" * 36).consumed
            assert (client.ledger_end().ledger_end, client.ledger_end().pruned_to) == (3, 0)
            assert [update.offset for update in islice(client.updates(1), 2)] == [2, 3]
            assert list(client.attempts(b"x" * 36)) == []
            assert isinstance(client.submit_async(submission), Accepted)

    async with ApiWorld(participant).serve() as world:
        await asyncio.to_thread(use, world.endpoint)
        async with NotaryClient(world.endpoint, QUICK) as client:
            assert [attempt.offset async for attempt in client.attempts(state)] == [1]
            participant.standing = PASSIVE
            waiting = asyncio.create_task(client.ledger_end())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            participant.standing = ACTIVE
            assert (await waiting).ledger_end == ACTIVE.ledger_end


async def test_a_question_that_nobody_answers_ends(tmp_path: Path) -> None:
    """Goal: typed errors, in time. Method: a passive until the deadline; a query that only the server can judge."""
    participant = StubParticipant()
    short = RetryPolicy(deadline_s=0.2, timeout_s=0.01)
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, short) as client:
        with pytest.raises(RequestRejected) as wrong:
            await anext(client.published(parties=[""]))
        assert wrong.value.code is Code.QUERY_INVALID
        participant.standing = PASSIVE
        with pytest.raises(NotActive):
            await client.ledger_end()


@pytest.mark.parametrize("offset", [-1, 2**63, 0.5])
async def test_an_offset_that_no_ledger_has_is_not_sent(tmp_path: Path, offset: int) -> None:
    """Goal: validation before the network. Method: each way to name an offset, without a server."""
    async with NotaryClient("http://127.0.0.1:9", QUICK) as client:
        for reading in (
            client.attempts(bytes(36), after=offset),
            client.completions(offset),
            client.updates(offset),
            client.published(offset),
        ):
            with pytest.raises(BadRequest, match="ledger offset"):
                await anext(reading)
        with pytest.raises(BadRequest):
            Deduplication(after_offset=offset)


@pytest.mark.parametrize("period", [{"duration_s": -1}, {"duration_s": math.nan}, {"duration_s": 1, "after_offset": 1}])
def test_a_deduplication_period_that_no_notary_takes_is_refused_at_once(period: dict[str, float]) -> None:
    """Goal: `Deduplication(-1)` fails where it is written. Method: each rule broken, and one that is kept."""
    with pytest.raises(BadRequest):
        Deduplication(**period)
    assert Deduplication(0.0).duration_s == 0.0


def test_a_party_signs_with_the_file_that_keys_create_makes(tmp_path: Path) -> None:
    """Goal: nothing to convert. Method: a key file; then open to others, of another kind, no key, and not there."""
    path = tmp_path / "bank.key"
    public_key = create_key(path)
    party = Party.from_file("O=Bank A,L=London,C=GB", LEDGER.hex(), str(path))
    state = "ab" * 32 + ":7"
    submission = party.sign(inputs=[state], references=[bytes(36)])
    assert (party.public_key, submission.public_key) == (public_key, public_key)
    request = decode_canonical(submission.request).request
    assert (request.inputs, request.references) == ((parse_state_ref(state),), (bytes(36),))
    assert party.sign().request != party.sign().request  # a random transaction id each
    assert party.sign("cd" * 32).command_id == "cd" * 32
    for wrong in ("12", b"12", 12, None):
        with pytest.raises(BadRequest):
            Party("O=Bank A", wrong)
    for wrong in ("12", b"12", 12):
        with pytest.raises(BadRequest):
            party.sign(wrong)
        with pytest.raises(BadRequest):
            party.sign(inputs=[wrong])
    path.chmod(0o644)
    with pytest.raises(ConfigError) as unsafe:
        Party.from_file("O=Bank A", LEDGER, path)
    assert unsafe.value.code is Code.KEY_UNSAFE
    secret = "-----BEGIN PRIVATE KEY-----\nsecret\n"
    for name, content in (("text.key", secret), ("missing.key", None)):
        other = tmp_path / name
        if content is not None:
            other.touch(mode=0o600)
            other.write_text(content)
        with pytest.raises(ConfigError) as refused:
            Party.from_file("O=Bank A", LEDGER, other)
        assert "secret" not in refused.value.detail


async def test_the_code_of_every_answer_is_an_enum(tmp_path: Path) -> None:
    """Goal: no text to look up. Method: a success, a refusal, a party that is not known."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, QUICK) as client:
        assert code_of(await client.submit(make_submission())) is None
        assert code_of(await client.look_up("ab" * 32)) is Code.TX_NOT_FOUND
        assert code_of(await client.submit(make_submission(Party("O=Nobody", LEDGER)))) is Code.PARTY_UNKNOWN


async def test_programs_without_an_event_loop_have_the_same_client(tmp_path: Path) -> None:
    """Goal: the synchronous client. Method: each call from a thread, against the same server."""
    participant = StubParticipant()
    participant.database.completions = [(number, make_completion(number)) for number in range(1, 4)]
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=3)

    def use(endpoint: str) -> None:
        submission = make_submission()
        with SyncNotaryClient(endpoint, QUICK) as client:
            assert client.notarise(submission, NOTARY_PUBLIC_KEY).tx_id == submission.request[32:64]
            assert len(client.submit_batch([submission, make_submission()])) == 2
            assert len(client.submit_all([submission, make_submission()])) == 2
            assert isinstance(client.submit(submission), Notarised)
            assert isinstance(client.look_up(bytes(32)), Refused)
            assert client.describe().replica == "r1"
            assert [c.offset for c in islice(client.completions(), 3)] == [1, 2, 3]
        with pytest.raises(RuntimeError, match="with"):
            client.submit(submission)

    async with ApiWorld(participant).serve() as world:
        await asyncio.to_thread(use, world.endpoint)


async def test_an_offset_of_another_ledger_is_told_and_a_lag_is_not(tmp_path: Path) -> None:
    """Goal: nobody waits for ever for a ledger that will not come; a new active that lags for a moment is waited for.
    Method: an offset far behind the end; then one that the ledger reaches before the deadline."""
    participant = StubParticipant()
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=3, retry_after_s=0.02)
    async with (
        ApiWorld(participant).serve() as world,
        NotaryClient(world.endpoint, RetryPolicy(deadline_s=0.5)) as client,
    ):
        for asked in (client.completions(after=10), client.updates(after=10)):
            async with asyncio.timeout(30):
                with pytest.raises(StreamEnded) as ended:
                    await anext(asked)
            assert (ended.value.code, ended.value.after) == (Code.OFFSET_AFTER_END, 10)
        for asking in (anext(client.published(after=10)), anext(client.attempts(bytes(36), after=10))):
            with pytest.raises(RequestRejected) as rejected:
                await asking
            assert rejected.value.code is Code.OFFSET_AFTER_END
        participant.database.completions = [(n, make_completion(n)) for n in range(1, 12)]
        waiting = asyncio.create_task(anext(client.completions(after=10)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        participant.standing = msgspec.structs.replace(participant.standing, ledger_end=11)
        participant.standing_changes.notify()
        assert (await waiting).offset == 11


async def test_a_bookmark_of_another_ledger_is_refused_and_one_of_this_goes_on(tmp_path: Path) -> None:
    """Goal: nobody goes on in a ledger that only looks alike. Method: bookmarks of this ledger; of another one that is
    as long; and one whose entry is pruned."""
    participant = StubParticipant()
    rows = [(n, make_completion(n)) for n in range(1, 6)]
    participant.database.completions = list(rows)
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=5, retry_after_s=0.02)
    async with (
        ApiWorld(participant).serve() as world,
        NotaryClient(world.endpoint, RetryPolicy(deadline_s=0.5)) as client,
    ):
        reading = client.completions()
        third = [await anext(reading) for _ in range(3)][-1]
        kept = Bookmark.parse(str(Bookmark.of(third)))
        async with asyncio.timeout(30):
            assert (await anext(client.completions(kept))).offset == 4
            assert (await anext(client.updates(kept))).offset == 4
            for change in ({"recorded_us": rows[2][1].recorded_us + 1}, {"tx_id": bytes(32)}):
                other = msgspec.structs.replace(rows[2][1], **change)
                participant.database.completions[2] = (3, other)
                world.feed.tail.clear()
                with pytest.raises(StreamEnded) as ended:
                    await anext(client.completions(kept))
                assert (ended.value.code, ended.value.after) == (Code.LEDGER_CHANGED, 3)
                assert str(ended.value).startswith("LEDGER_CHANGED: ")
            participant.standing = msgspec.structs.replace(participant.standing, pruned_to=3)
            assert (await anext(client.completions(kept))).offset == 4
            participant.standing = msgspec.structs.replace(participant.standing, pruned_to=4)
            with pytest.raises(StreamEnded) as ended:
                await anext(client.completions(kept))
            assert ended.value.code is Code.OFFSET_PRUNED


@pytest.mark.parametrize("text", ["", "7", "0-" + "0" * 32, "7-" + "g" * 32, f"{2**63}-" + "0" * 32, "٧-" + "0" * 32])
def test_a_bookmark_that_is_none_is_refused(text: str) -> None:
    """Goal: a text that was cut or mixed up is noticed before it is sent. Method: each way to be wrong."""
    with pytest.raises(BadRequest):
        Bookmark.parse(text)


async def test_every_answer_can_be_read_without_asking_for_its_type(tmp_path: Path) -> None:
    """Goal: one form of all answers. Method: code, final and ledger offset of each kind."""
    participant = StubParticipant()
    tx_id = bytes(32)
    answers = (
        (notarise(make_submission()), ("NOTARISED", True)),
        (Refused("STATE_CONFLICT", tx_id, 4, ledger_offset=2), ("STATE_CONFLICT", True)),
        (Refused("COMMAND_ID_REUSED", tx_id), ("COMMAND_ID_REUSED", False)),
        (NotNow("OVERLOADED", "full", 0.0), ("OVERLOADED", False)),
    )
    async with (
        ApiWorld(participant).serve() as world,
        NotaryClient(world.endpoint, RetryPolicy(deadline_s=0.2)) as client,
    ):
        for answer, expected in answers:
            participant.answer = lambda _, answer=answer: answer
            given = await client.submit(make_submission())
            assert (given.code, given.final) == expected
            assert given.ledger_offset == getattr(answer, "ledger_offset", None)
        problem = await client.submit(forged())
        assert (problem.code, problem.final, problem.ledger_offset) == ("SIGNATURE_INVALID", False, None)


async def test_a_host_that_is_not_there_is_told_in_our_words(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: no text of a library. Method: a port where nobody listens."""
    async with NotaryClient(f"http://127.0.0.1:{ports.take()}", RetryPolicy(deadline_s=0.0)) as client:
        answer = await client.submit(make_submission())
        with pytest.raises(NotActive) as caught:
            await client.ledger_end()
    assert isinstance(answer, NotNow)
    assert answer.detail.startswith("no answer: nobody takes connections at 127.0.0.1:")
    assert caught.value.detail.startswith("no replica answers: nobody takes connections at 127.0.0.1:")
