"""The client library and the commands, where the API asks for tokens and certificates: all of them real."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from ledger_api.client import (
    Access,
    AnswerUnreadable,
    NotaryClient,
    Party,
    RequestRejected,
    RetryPolicy,
    StreamEnded,
    SubmissionStream,
    SyncNotaryClient,
    encode_submission,
)
from ledger_api.wire.problems import ProblemDocument
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.requests import Submission
from tests.certificates import Authority
from tests.closing import listening
from tests.integration.test_api_client import make_completion
from tests.integration.test_cli_ledger import notary
from tests.tokens import AUDIENCE, Issuer
from tests.unit.client.test_access import write
from tests.worlds.api_world import ACTIVE, BANK, NOTARY_KEY, ApiWorld, StubParticipant, make_submission
from tests.worlds.beginning import LEDGER

QUICK = RetryPolicy(deadline_s=20.0, timeout_s=0.01, attempt_max_s=5.0)
SHORT_LIFE_S = 4  # a token's times are whole seconds
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)
GRANTS = {"act_as": [BANK.name], "admin": True}


def fresh(party: Party = BANK) -> Submission:
    """A submission of the tokens' user."""
    return make_submission(party, user_id="treasury")


class Guarded:
    """A world that takes the tokens of its issuer, over TLS with client certificates where that is asked for."""

    def __init__(self, folder: Path, participant: StubParticipant, *, tls: bool = False) -> None:
        self.issuer = Issuer()
        self.token_file = folder / "token"
        tokens = {"keys_file": self.issuer.write(folder / "keys.json"), "audience": AUDIENCE, "leeway_s": 0.0}
        authority = Authority(folder / "pki")
        certificate_file, key_file = authority.issue("api")
        files = {"certificate_file": certificate_file, "key_file": key_file, "client_ca_file": authority.ca_file}
        self.world = ApiWorld(participant, tokens=tokens, checkpoint_s=0.1, tls=files if tls else None)
        certificate_file, key_file = authority.issue("client")
        self.mutual = {"ca_file": authority.ca_file, "certificate_file": certificate_file, "key_file": key_file}
        self.asked = 0

    def token(self, life_s: float = 600.0) -> str:
        """A token that lasts so long; less than 0: it is too old already."""
        return self.issuer.token(expires_at_s=int(time.time() + life_s), notary=GRANTS)

    def first_short(self) -> str:
        """A source whose first token is short-lived."""
        self.asked += 1
        return self.token(SHORT_LIFE_S if self.asked == 1 else 600.0)

    def first_old(self) -> str:
        """A source whose first token is too old."""
        self.asked += 1
        return self.token(-5 if self.asked == 1 else 600.0)


def published(count: int) -> StubParticipant:
    """A participant with this many completions."""
    participant = StubParticipant()
    participant.database.completions = [(number, make_completion(number)) for number in range(1, count + 1)]
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=count)
    return participant


async def test_every_call_shows_the_token_and_the_certificate(tmp_path: Path) -> None:
    """Goal: nothing of the library is shut out by mutual TLS with tokens. Method: each call; then without either."""
    guarded = Guarded(tmp_path, published(3), tls=True)
    access = Access(token=guarded.token(), **guarded.mutual)
    submission = fresh()

    def use(endpoint: str) -> None:
        with SyncNotaryClient(endpoint, QUICK, access=access) as client:
            assert client.notarise(submission, NOTARY_PUBLIC_KEY).tx_id == submission.request[32:64]
            assert [c.offset for c in islice(client.completions(), 3)] == [1, 2, 3]
            assert len(client.submit_all([submission, fresh()])) == 2

    async with guarded.world.serve() as world:
        async with NotaryClient(world.endpoint, QUICK, access=access) as client:
            assert isinstance(await client.submit(submission), Notarised)
            assert all(isinstance(answer, Notarised) for answer in await client.submit_batch([submission] * 3))
            assert all(isinstance(answer, Notarised) for answer in await client.submit_all([submission]))
            assert isinstance(await client.look_up(bytes(32)), Refused)
            assert len([raw async for raw in client.published()]) == 3
            assert (await client.describe()).replica == "r1"
        await asyncio.to_thread(use, world.endpoint)
        bare = Access(ca_file=guarded.mutual["ca_file"], token=guarded.token())
        impatient = RetryPolicy(deadline_s=0.2, timeout_s=0.05)
        async with NotaryClient(world.endpoint, impatient, access=bare) as client:
            assert isinstance(await client.submit(submission), NotNow)
        async with NotaryClient(world.endpoint, impatient, access=Access(token=guarded.token())) as client:
            stranger = await client.submit(submission)
            assert isinstance(stranger, NotNow) and "certificate" in stranger.detail.lower()
            with pytest.raises(AnswerUnreadable, match="certificate"):
                await asyncio.wait_for(anext(client.completions()), 20)
        await asyncio.sleep(
            0.2
        )  # a handshake that failed leaves a connection that nobody closes before its other end does


async def test_a_token_that_is_refused_is_asked_for_once_more(tmp_path: Path) -> None:
    """Goal: an old token is no error. Method: a source that begins with one; a file that is changed meanwhile."""
    guarded = Guarded(tmp_path, StubParticipant())
    async with guarded.world.serve() as world:
        async with NotaryClient(world.endpoint, QUICK, access=Access(token=guarded.first_old)) as client:
            answers = await asyncio.gather(*(client.submit(fresh()) for _ in range(20)))
            assert all(isinstance(answer, Notarised) for answer in answers)
            assert guarded.asked == 2
        guarded.asked = 0
        async with SubmissionStream(world.endpoint, QUICK, access=Access(token=guarded.first_old)) as stream:
            assert isinstance(await stream.submit(fresh()), Notarised)
            assert guarded.asked == 2
        write(guarded.token_file, guarded.token(-5))
        async with NotaryClient(world.endpoint, QUICK, access=Access(token=guarded.token_file)) as client:
            assert isinstance(await client.submit(fresh()), ProblemDocument)
            write(guarded.token_file, guarded.token())
            assert isinstance(await client.submit(fresh()), Notarised)


@pytest.mark.parametrize("has_token", [True, False])
async def test_a_client_without_a_good_token_is_told_at_once(tmp_path: Path, has_token: bool) -> None:
    """Goal: a typed error, no waiting, and no token in it. Method: each call with an old token, and with none."""
    guarded = Guarded(tmp_path, published(3))
    old = guarded.token(-5)
    access = Access(token=old) if has_token else Access()
    code = "TOKEN_INVALID" if has_token else "TOKEN_MISSING"
    told: list[str] = []
    async with guarded.world.serve() as world, NotaryClient(world.endpoint, QUICK, access=access) as client:
        results = [
            await client.submit(fresh()),
            *await client.submit_batch([fresh()] * 2),
        ]
        results += await client.submit_all([fresh()] * 2)
        for result in results:
            assert isinstance(result, ProblemDocument)
            assert result.code == code
            told.append(result.detail)
        with pytest.raises(StreamEnded) as ended:
            await anext(client.completions())
        with pytest.raises(RequestRejected) as rejected:
            await anext(client.published())
        assert ended.value.code.name == rejected.value.code.name == code
        told += [str(ended.value), str(rejected.value)]
    assert old not in "".join(told)


@pytest.mark.thorough
async def test_streams_outlive_their_token(tmp_path: Path) -> None:
    """Goal: no gap, no duplicate and no error when a token expires. Method: a first one of seconds; both streams."""
    participant = published(3)
    guarded = Guarded(tmp_path, participant)
    seen: list[int] = []
    async with guarded.world.serve() as world:
        write(guarded.token_file, guarded.token(SHORT_LIFE_S))
        async with (
            NotaryClient(world.endpoint, QUICK, access=Access(token=guarded.first_short)) as reader,
            SubmissionStream(world.endpoint, QUICK, access=Access(token=guarded.token_file)) as stream,
        ):

            async def follow() -> None:
                async for completion in reader.completions():
                    seen.append(completion.offset)
                    if completion.offset == 5:
                        return

            following = asyncio.create_task(follow())
            assert isinstance(await stream.submit(fresh()), Notarised)
            await asyncio.sleep(SHORT_LIFE_S + 0.5)  # both streams have been ended, and only one has a new token
            late = asyncio.create_task(stream.submit(fresh()))
            participant.database.completions = [(n, make_completion(n)) for n in range(1, 6)]
            participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=5)
            participant.standing_changes.notify()
            await asyncio.wait_for(following, 10)
            assert not late.done(), "a file that may be written any moment is waited for"
            write(guarded.token_file, guarded.token())
            assert isinstance(await asyncio.wait_for(late, 10), Notarised)
            assert stream.connections_count == 2
    assert seen == [1, 2, 3, 4, 5]
    assert guarded.asked == 2


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    """Goal: a server cannot have the token sent elsewhere. Method: a 307 to a server that notes what comes."""
    heard: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(10_000))

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())

    impatient = RetryPolicy(deadline_s=0.3, timeout_s=0.05)
    async with (
        listening(elsewhere, "127.0.0.1") as other,
        listening(redirect, "127.0.0.1") as port,
        NotaryClient(f"http://127.0.0.1:{port}", impatient, access=Access(token="secret")) as client,
    ):
        location = f"http://127.0.0.1:{other}/"
        assert isinstance(await client.submit(fresh()), NotNow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(client.completions()), 0.5)
        assert heard == []
        assert isinstance((await client.submit_all([fresh()]))[0], NotNow)  # a handshake is redirected
    assert [raw for raw in heard if b"secret" in raw] == []


@pytest.mark.thorough
async def test_the_commands_show_a_token_from_a_file(tmp_path: Path) -> None:
    """Goal: a shell gets in as well. Method: mutual TLS, options and environment; then no token, and a bad file."""
    guarded = Guarded(tmp_path, published(5), tls=True)
    write(guarded.token_file, guarded.token())
    file = tmp_path / "submissions.jsonl"
    file.write_bytes(encode_submission(fresh()) + b"\n")
    tls = [word for name, path in guarded.mutual.items() for word in (f"--{name.replace('_', '-')}", str(path))]
    async with guarded.world.serve() as world:
        words = ["--endpoint", world.endpoint, *tls]
        shown = [*words, "--token-file", str(guarded.token_file)]
        code, answers, _ = await notary("submit", str(file), *shown)
        assert (code, [answer["code"] for answer in answers]) == (0, ["NOTARISED"])
        environment = {"NOTARY_CLIENT__TOKEN_FILE": str(guarded.token_file)}
        code, found, _ = await notary("completions", *words, environment=environment)
        assert (code, [line["offset"] for line in found]) == (0, [1, 2, 3, 4, 5])
        _, found, _ = await notary("completions", "--follow", "--after", "2", *shown, lines=3)
        assert [line["offset"] for line in found] == [3, 4, 5]
        code, answers, _ = await notary("submit", str(file), *words)
        assert (code, [answer["code"] for answer in answers]) == (1, ["TOKEN_MISSING"])
        code, _, told = await notary("completions", "--follow", *words)
        assert (code, "TOKEN_MISSING" in told) == (1, True)
        guarded.token_file.chmod(0o644)
        code, _, told = await notary("submit", str(file), *shown)
        assert (code, "KEY_UNSAFE" in told, guarded.token_file.read_text() in told) == (2, True, False)


async def test_the_client_knows_the_user_of_its_token(tmp_path: Path) -> None:
    """Goal: whoever has a token finds whom to sign for. Method: sign for the client's user, then for nobody's."""
    guarded = Guarded(tmp_path, StubParticipant())
    async with (
        guarded.world.serve() as world,
        NotaryClient(world.endpoint, QUICK, access=Access(token=guarded.token())) as client,
        NotaryClient(world.endpoint, QUICK) as bare,
    ):
        assert (await client.user_id(), await bare.user_id()) == ("treasury", "anonymous")
        assert isinstance(await client.submit(make_submission(user_id=await client.user_id())), Notarised)
        refused = await client.submit(make_submission(user_id="anonymous"))
        assert isinstance(refused, ProblemDocument) and refused.code == "PERMISSION_DENIED"
        assert "'anonymous'" in refused.detail and "'treasury'" in refused.detail


async def test_a_token_that_grants_another_party_is_final(tmp_path: Path) -> None:
    """Goal: only what may change is asked for again. Method: a good token, a request of somebody else's."""
    guarded = Guarded(tmp_path, StubParticipant())
    stranger = Party("O=Bank B,L=Paris,C=FR", LEDGER)
    async with (
        guarded.world.serve() as world,
        NotaryClient(world.endpoint, QUICK, access=Access(token=guarded.first_old)) as client,
    ):
        answer = await client.submit(fresh(stranger))
        assert isinstance(answer, ProblemDocument) and answer.code == "PERMISSION_DENIED"
        assert guarded.asked == 2
        await client.submit(fresh(stranger))
        assert guarded.asked == 2
