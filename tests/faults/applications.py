"""Applications that use the ledger API as usual and keep their answers: for the kill loop."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from ledger_api.client import NotaryClient, Party, RetryPolicy, SubmissionStream, encode_submission
from ledger_api.wire.feed import CompletionDocument, CompletionsDocument, LedgerEndDocument
from replica.notary.answers import Notarised
from replica.notary.outcomes import DEDUPLICATED, NOTARISED
from replica.notary.requests import Submission
from tests.promises import promised

PATIENT = RetryPolicy(deadline_s=120.0)
INPUTS = 4
CALLERS, STREAMERS, ASYNCHRONOUS = 6, 12, 6  # submissions that each kind of application has under way
PAGE = 500
PAUSE_S = 0.02  # the applications are no benchmark: each kill is to meet some submissions at every step
_JSON = {"Content-Type": "application/json"}


class Applications:
    """Three applications, and one follower of all completions. Submissions spend fresh states: each can succeed."""

    def __init__(self, endpoint: str, party: Party, after: int) -> None:
        """`after`: the ledger offset after which the follower begins."""
        self.followed: list[CompletionDocument] = []
        self.answers: dict[str, object] = {}  # by command: the library's last answer, of calls and of the stream
        self.accepted: list[str] = []  # attempts that got a 202, by submission id
        self.connections_count = 0  # of the stream
        self._endpoint = endpoint
        self._party = party
        self._after = after
        self._stopping = False
        self._completed: dict[str, asyncio.Future[str]] = {}  # by submission id: the completion's code
        self._tasks: list[asyncio.Task[None]] = []
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to submit and to follow."""
        self._following = asyncio.create_task(self._follow())
        work = (self._call, self._stream, self._submit_asynchronously)
        self._tasks = [asyncio.create_task(one()) for one in work]

    async def stop(self) -> None:
        """Submit nothing more; returns once each submission has its outcome. Raises what an application ran into."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def follow_to_end(self) -> int:
        """Let the follower see all that is published, and end it; returns the ledger's end."""
        end = await ledger_end(self._endpoint)
        assert self._following is not None
        while not self._following.done() and (not self.followed or self.followed[-1].offset < end):
            await asyncio.sleep(PAUSE_S)
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        return end

    # ---- the applications ----

    async def _call(self) -> None:
        async with NotaryClient(self._endpoint, PATIENT) as client:
            await self._keep_asking(CALLERS, client.submit)

    async def _stream(self) -> None:
        async with SubmissionStream(self._endpoint, PATIENT) as stream:
            await self._keep_asking(STREAMERS, stream.submit)
            self.connections_count = stream.connections_count

    async def _keep_asking(self, count: int, submit: Callable[[Submission], Awaitable[object]]) -> None:
        async def ask() -> None:
            submission = self._fresh()
            self.answers[submission.command_id] = await submit(submission)

        await self._repeat(count, ask)

    async def _submit_asynchronously(self) -> None:
        """Submit by hand: each attempt needs an id of its own, so that its completions can be counted."""
        async with aiohttp.ClientSession(headers=_JSON) as session:
            await self._repeat(ASYNCHRONOUS, lambda: self._until_notarised(session, self._fresh()))

    async def _until_notarised(self, session: aiohttp.ClientSession, submission: Submission) -> None:
        """Submit until there is a completion."""
        for number in itertools.count(1):
            attempt = msgspec.structs.replace(submission, submission_id=f"{submission.command_id[:32]}/{number}")
            completed = self._completed[attempt.submission_id] = asyncio.get_running_loop().create_future()
            status = await self._submit(session, attempt)
            if status == 202:
                self.accepted.append(attempt.submission_id)
            if status == 202:
                await completed
            if status in (200, 202):
                return
            await asyncio.sleep(PAUSE_S)

    async def _submit(self, session: aiohttp.ClientSession, submission: Submission) -> int:
        url = self._endpoint + "/v1/submissions/async"
        try:
            async with session.post(url, data=encode_submission(submission)) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def _repeat(self, count: int, work: Callable[[], Awaitable[None]]) -> None:
        async def work_on() -> None:
            while not self._stopping:
                await work()
                await asyncio.sleep(PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(work_on())

    def _fresh(self) -> Submission:
        inputs = [os.urandom(32) + bytes(4) for _ in range(INPUTS)]
        return self._party.sign(os.urandom(32), inputs)

    async def _follow(self) -> None:
        async with NotaryClient(self._endpoint, PATIENT) as client:
            async for completion in client.completions(self._after):
                self.followed.append(completion)
                waiting = self._completed.get(completion.submission_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(completion.code)


def check(applications: Applications, after: int, end: int) -> None:
    """Dense offsets; one completion for each accepted attempt; one acceptance for each command, and the same offset in
    all its successes; nothing surfaced."""
    followed = applications.followed
    told = [completion.offset for completion in followed]
    promised(told == list(range(after + 1, end + 1)), "a gap or a duplicate")
    notarised = Counter(completion.command_id for completion in followed if completion.code == NOTARISED)
    offsets: dict[str, set[int | None]] = {command: set() for command in applications.answers}
    for completion in followed:
        if completion.command_id in applications.answers:
            assert completion.code in (NOTARISED, DEDUPLICATED), completion
            offsets[completion.command_id].add(completion.notarised_offset)
    for command, answer in applications.answers.items():
        assert isinstance(answer, Notarised), f"surfaced to the application: {answer}"
        found = (notarised[command], offsets[command])
        promised(found == (1, {answer.log_offset}), f"{command}: {found}, and the answer was {answer}")
    completed = Counter(completion.submission_id for completion in followed)
    wrong = [submission_id for submission_id in applications.accepted if completed[submission_id] != 1]
    promised(not wrong, f"accepted, and without exactly one completion: {wrong}")


async def ledger_end(endpoint: str) -> int:
    """The newest offset that is published, once a replica reports it."""
    return msgspec.json.decode(await _get(f"{endpoint}/v1/ledger-end"), type=LedgerEndDocument).ledger_end


async def page_behind(endpoint: str, after: int, count: int) -> list[bytes]:
    """The bytes of up to `PAGE` completions after an offset."""
    body = await _get(f"{endpoint}/v1/completions?after={after}&limit={count}")
    return [bytes(raw) for raw in msgspec.json.decode(body, type=CompletionsDocument).completions]


async def _get(url: str) -> bytes:
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    body = await response.read()
                    if response.status == 200:
                        return body
            except (aiohttp.ClientError, OSError):
                pass  # between two replicas
            await asyncio.sleep(PAUSE_S)
