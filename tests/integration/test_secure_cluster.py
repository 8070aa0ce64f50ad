"""Mutual TLS and tokens end to end: real replicas behind HAProxy, their clients, and the commands of operators."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ledger_api.client import (
    Access,
    NotaryClient,
    Party,
    RetryPolicy,
    StreamEnded,
    SubmissionStream,
    certifies,
    encode_submission,
)
from ledger_api.client.access import Token
from ledger_api.wire.feed import CompletionDocument
from ledger_api.wire.problems import ProblemDocument
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.participant import party_name
from replica.notary.answers import Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.requests import Submission, state_ref
from replica.store.interface import NOTARISED
from tests.certificates import Authority
from tests.ends import guarded
from tests.integration.test_cli_ledger import notary
from tests.integration.test_operations import document, findings
from tests.tokens import AUDIENCE, Issuer
from tests.unit.client.test_access import write
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

USER = "treasury"  # of the tokens
SHORT_LIFE_S = 4  # of tokens that expire during a test; their times are whole seconds
BATCH = 10
PAUSE_S = 0.02  # the applications are no benchmark
ANSWERS_MAX_S = 60.0
PATIENT = RetryPolicy(deadline_s=60.0)
IMPATIENT = RetryPolicy(deadline_s=0.3, timeout_s=0.05)


class Source:
    """Gives tokens that last so long, one after another, and counts them."""

    def __init__(self, make: Callable[[float], str], *lives_s: float) -> None:
        """The last life is that of all further tokens."""
        self._make, self._lives_s = make, lives_s
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return self._make(self._lives_s[min(self.count, len(self._lives_s)) - 1])


class Secured:
    """A cluster whose API asks for a certificate and a token, and who issues them."""

    cluster: LocalCluster

    def __init__(self, folder: Path) -> None:
        self.issuer, self._authority = Issuer(), Authority(folder / "pki")
        self.keys_file = self.issuer.write(folder / "keys.json")
        self.token_file = write(folder / "token", self.token())
        certificate_file, key_file = self._authority.issue("application")
        self.files = {"ca_file": self._authority.ca_file, "certificate_file": certificate_file, "key_file": key_file}

    def settings(self) -> dict[str, Any]:
        """What is beyond the settings of any cluster."""
        certificate_file, key_file = self._authority.issue("api")
        files = {"certificate_file": certificate_file, "key_file": key_file, "client_ca_file": self.files["ca_file"]}
        return {
            "api": {
                "tls": {name: str(path) for name, path in files.items()},
                "tokens": {"keys_file": str(self.keys_file), "audience": AUDIENCE, "leeway_s": 0.0},
            },
            "client": {name: str(path) for name, path in (self.files | {"token_file": self.token_file}).items()},
            "election": {"hold_down_s": 0.0},  # faults follow one another closely here
        }

    def token(self, life_s: float = 600.0) -> str:
        """A token of the first bank's that lasts so long; less than 0: it is too old already."""
        return self.issuer.token(expires_at_s=int(time.time() + life_s), notary={"act_as": [party_name(1)]})

    def client(self, token: Token | None, policy: RetryPolicy = PATIENT) -> NotaryClient:
        """A client that shows this token, and its certificate."""
        return NotaryClient(self.cluster.endpoint, policy, access=Access(token=token, **self.files))

    def stream(self, token: Token | None) -> SubmissionStream:
        """The same for a stream."""
        return SubmissionStream(self.cluster.endpoint, PATIENT, access=Access(token=token, **self.files))

    def fresh(self, party: Party | None = None) -> Submission:
        """A signed submission that consumes a state of its own; of the first bank, unless another party is named."""
        return (party or self.cluster.parties[0]).sign(os.urandom(32), [state_ref(os.urandom(32), 0)], user_id=USER)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(servers_folder: Path) -> AsyncIterator[Secured]:
    """A cluster that the tests of this module share."""
    folder = servers_folder / "secure"
    folder.mkdir()
    secured = Secured(folder)
    settings = ClusterSettings(folder=folder / "cluster", replicas=2, parties=2, further=secured.settings())
    async with guarded(LocalCluster(settings)) as secured.cluster:
        for replica in secured.cluster.replicas.values():
            replica.restart_pause_s = 0.5
        yield secured


WAYS = ("call", "batch", "stream")


class Applications:
    """What submits all the time, in several ways at once, and every answer it got."""

    def __init__(self, fresh: Callable[[], Submission]) -> None:
        self.answers: list[tuple[Submission, object]] = []
        self._fresh = fresh
        self._counts: Counter[str] = Counter()  # batches that were answered, by the way they went
        self._stopping = False

    async def submit(self, way: str, ask: Callable[[Sequence[Submission]], Awaitable[Sequence[object]]]) -> None:
        """Ask for one batch after another until stopped."""
        while not self._stopping:
            submissions = [self._fresh() for _ in range(BATCH)]
            self.answers += zip(submissions, await ask(submissions), strict=True)
            self._counts[way] += 1
            await asyncio.sleep(PAUSE_S)

    async def are_answered(self) -> None:
        """Return once each way was answered a few times more."""
        enough = {way: self._counts[way] + 3 for way in WAYS}
        await eventually(lambda: _holds(all(self._counts[way] >= enough[way] for way in WAYS)), ANSWERS_MAX_S)

    def stop(self) -> None:
        """Submit nothing more."""
        self._stopping = True


async def test_a_fail_over_goes_unnoticed(secured: Secured) -> None:
    """Goal: no error surfaces, nothing is lost. Method: all ways to submit, tokens of seconds, the active killed."""
    cluster, applications = secured.cluster, Applications(secured.fresh)
    of_client, of_stream = Source(secured.token, SHORT_LIFE_S), Source(secured.token, SHORT_LIFE_S)
    followed: list[CompletionDocument] = []

    async def follow(client: NotaryClient, after: int) -> None:
        async for completion in client.completions(after):
            followed.append(completion)

    async with secured.client(of_client) as client, secured.stream(of_stream) as stream:
        after = (await client.ledger_end()).ledger_end
        following = asyncio.create_task(follow(client, after))
        async with asyncio.TaskGroup() as group:
            group.create_task(applications.submit("call", lambda few: asyncio.gather(*map(client.submit, few))))
            group.create_task(applications.submit("batch", client.submit_batch))
            group.create_task(applications.submit("stream", lambda few: asyncio.gather(*map(stream.submit, few))))
            await applications.are_answered()
            active = await cluster.wait_for_active()
            active.kill_group()
            await cluster.wait_for_active(other_than=active.name)
            await applications.are_answered()
            counts = of_client.count, of_stream.count
            await eventually(lambda: _holds(of_client.count > counts[0] and of_stream.count > counts[1]), ANSWERS_MAX_S)
            await applications.are_answered()
            applications.stop()
        commands = Counter(submission.command_id for submission, _ in applications.answers)
        await eventually(lambda: _holds(_notarised(followed).keys() >= commands.keys()), ANSWERS_MAX_S)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    for submission, answer in applications.answers:
        assert isinstance(answer, Notarised), f"surfaced to the application: {answer}"
        assert certifies(answer, submission, cluster.notary_key)
    assert [completion.offset for completion in followed] == list(range(after + 1, after + 1 + len(followed)))
    assert _notarised(followed) == commands
    assert stream.connections_count >= 3  # the first one, at the successor, with the next token
    await cluster.wait_until_ready(list(cluster.replicas))


async def test_who_has_no_right_is_told_at_once(secured: Secured) -> None:
    """Goal: the code, whichever way it goes. Method: another bank's request; tokens too old, replaced, and missing."""
    stranger = secured.fresh(secured.cluster.parties[1])
    async with secured.client(secured.token()) as client, secured.stream(secured.token()) as stream:
        refused = [await client.submit(stranger), await stream.submit(stranger)]
        refused += await client.submit_batch([stranger, secured.fresh()])
        assert isinstance(refused.pop(), Notarised)
        assert _codes(refused) == ["PERMISSION_DENIED"] * 3
    async with secured.client(secured.token(-5)) as client, secured.client(None) as anonymous:
        assert _codes([await client.submit(secured.fresh())]) == ["TOKEN_INVALID"]
        assert _codes([await anonymous.submit(secured.fresh())]) == ["TOKEN_MISSING"]
        with pytest.raises(StreamEnded) as ended:
            await anext(anonymous.completions())
        assert ended.value.code is Code.TOKEN_MISSING
    renewed = Source(secured.token, -5, 600)
    async with secured.client(renewed) as client:
        assert isinstance(await client.submit(secured.fresh()), Notarised)
        assert renewed.count == 2


async def test_who_is_not_of_the_network_gets_no_answer(secured: Secured) -> None:
    """Goal: TLS holds behind HAProxy. Method: plain HTTP; no certificate; an authority that did not sign the API's."""
    endpoint, token = secured.cluster.endpoint, secured.token()
    certificate = {name: path for name, path in secured.files.items() if name != "ca_file"}
    strangers = [
        (endpoint.replace("https", "http"), Access(token=token), ""),
        (endpoint, Access(token=token, ca_file=secured.files["ca_file"]), ""),
        (endpoint, Access(token=token, **certificate), "certificate"),
    ]
    assert endpoint.startswith("https")
    async with secured.client(token, IMPATIENT) as client:
        assert isinstance(await client.submit(secured.fresh()), Notarised)
    for url, access, why in strangers:
        async with NotaryClient(url, IMPATIENT, access=access) as client:
            answer = await client.submit(secured.fresh())
            assert isinstance(answer, NotNow) and answer.code == Code.OUTCOME_UNKNOWN.name
            assert why in answer.detail.lower()


async def test_keys_of_tokens_are_rotated_while_it_runs(secured: Secured) -> None:
    """Goal: rotation without a restart reaches every front end. Method: a second issuer's key added; SIGHUP; use it."""
    second = Issuer("k2")
    token = second.token(expires_at_s=time.time() + 600, notary={"act_as": [party_name(1)]})
    async with secured.client(token) as new, secured.client(secured.token()) as old:
        assert _codes([await new.submit(secured.fresh())]) == ["TOKEN_INVALID"]
        secured.keys_file.write_text(secured.issuer.jwks(second))
        for replica in secured.cluster.replicas.values():
            os.kill(replica.pid, signal.SIGHUP)

        async def is_known() -> bool:
            """Of a row on fresh connections, so that each front end is likely to be among those that answer."""
            return all([await _is_let_in(secured, token) for _ in range(6)])

        await eventually(is_known, ANSWERS_MAX_S)
        assert isinstance(await new.submit(secured.fresh()), Notarised)
        assert isinstance(await old.submit(secured.fresh()), Notarised)


@pytest.mark.thorough
async def test_the_commands_get_in(secured: Secured, tmp_path: Path) -> None:
    """Goal: operators and scripts get in as well. Method: submit by options; the rest by the file."""
    cluster, file = secured.cluster, tmp_path / "submissions.jsonl"
    await cluster.wait_until_ready(list(cluster.replicas))
    submissions = [secured.fresh() for _ in range(3)]
    file.write_bytes(b"\n".join(map(encode_submission, submissions)))
    files = secured.files | {"token_file": secured.token_file}
    options = [word for name, path in files.items() for word in (f"--{name.replace('_', '-')}", str(path))]
    key = ("--notary-key", cluster.notary_key.hex())
    code, answers, told = await notary("submit", str(file), "--endpoint", cluster.endpoint, *key, *options)
    assert (code, [answer["code"] for answer in answers]) == (0, ["NOTARISED"] * 3), told
    assert "3 of 3 notarised and verified" in told
    commands = {submission.command_id for submission in submissions}

    async def are_published() -> bool:
        code, found, told = await notary("completions", "--config", str(cluster.config_path))
        assert code == 0, told
        return commands <= {str(line["command_id"]) for line in found}

    await eventually(are_published, ANSWERS_MAX_S)
    code, (signed,), told = await notary("sign", "--config", str(cluster.config_path), "--input", f"{'ab' * 32}:0")
    assert (code, signed["user_id"]) == (0, USER), told
    file.write_text(json.dumps(signed))
    code, (answer,), told = await notary("submit", str(file), "--config", str(cluster.config_path))
    assert (code, answer["code"]) == (0, "NOTARISED"), told
    tried = await document(cluster, "try")
    assert (tried["request"]["user_id"], tried["verified"]) == (USER, True)
    status = await document(cluster, "status")
    assert (status["endpoint"], status["problems"]) == (cluster.endpoint, [])
    assert [health["active"] for health in status["replicas"].values()].count(True) == 1
    assert await findings(cluster) == {}


def _codes(results: Sequence[object]) -> list[str]:
    return [result.code if isinstance(result, ProblemDocument) else str(result) for result in results]


def _notarised(completions: Sequence[CompletionDocument]) -> Counter[str]:
    """How often each command was."""
    return Counter(completion.command_id for completion in completions if completion.code == NOTARISED)


async def _is_let_in(secured: Secured, token: str) -> bool:
    async with secured.client(token) as client:
        return isinstance(await client.submit(secured.fresh()), Notarised)


async def _holds(fact: bool) -> bool:
    return fact
