"""Applications that know the replicas' own addresses: no HAProxy and no forwarder is in the way. Real processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from time import monotonic_ns

import pytest

from ledger_api.client import NotaryClient, Result, RetryPolicy, SubmissionStream
from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import Attempts, RecordingClient, event_of, note_exchange
from replica.notary.answers import Notarised
from replica.notary.requests import Submission, state_ref
from tests.ends import guarded
from tests.integration.test_cluster import World
from tests.integration.test_embedded_profile import printed
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

PATIENT = RetryPolicy(deadline_s=120.0)
AT_A_TIME = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="ways-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


class Applications:
    """Calls and a stream that submit without a pause, and a reader of completions."""

    def __init__(
        self,
        cluster: LocalCluster,
        history: HistoryWriter,
        client: NotaryClient,
        stream: SubmissionStream,
    ) -> None:
        self._party = cluster.parties[0]
        self._client = client
        self._stream = stream
        self._history = history
        self._operations = itertools.count()
        self._attempts: dict[str, Attempts] = {}  # by submission id
        client.on_exchange(note_exchange)
        stream.on_sent = lambda submission: self._attempts[submission.submission_id].begin()
        self.notarised: dict[bytes, int] = {}
        self.seen: list[int] = []

    def _submission(self) -> Submission:
        return self._party.sign(os.urandom(32), [state_ref(os.urandom(32), 0)])

    async def _submit(self, number: int) -> None:
        while True:
            submission = self._submission()
            answer = await self._recorded(self._client.submit if number % 2 else self._stream.decide, submission)
            promised(isinstance(answer, Notarised), f"the answer is {answer}")
            assert isinstance(answer, Notarised)
            self.notarised[answer.tx_id] = answer.log_offset

    async def _recorded(self, submit: Callable[[Submission], Awaitable[Result]], submission: Submission) -> Result:
        """Submit, and write each attempt down: it may have its own record, and only the last answer is seen."""
        attempts = Attempts(self._history, "direct", self._operations, [submission])
        self._attempts[submission.submission_id] = attempts
        with attempts.of_this_call():
            answer = await submit(submission)
        attempts.end([event_of("direct", 0, monotonic_ns(), answer)])
        del self._attempts[submission.submission_id]
        return answer

    async def _read(self) -> None:
        async with aclosing(self._client.completions()) as entries:  # type: ignore[type-var]
            async for entry in entries:
                self.seen.append(entry.log_offset)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Ends with all that was submitted answered, or cancelled on its way."""
        work = [asyncio.create_task(self._submit(number)) for number in range(AT_A_TIME)]
        work.append(asyncio.create_task(self._read()))
        try:
            yield
        finally:
            ended = [task for task in work if task.done()]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        for task in ended:
            task.result()

    async def goes_on(self) -> None:
        """Wait until more was answered, by calls and by the stream."""
        before = len(self.notarised)

        async def answered() -> bool:
            return len(self.notarised) >= before + 4 * AT_A_TIME

        await eventually(answered, timeout_s=120)


async def test_applications_go_on_with_the_replicas_addresses_alone(folder: Path) -> None:
    """Goal: no balancer is needed across a kill, a switchover and a freeze, and nothing is accepted twice. Method:
    calls, a stream and a reader with two addresses of three; each fault under load; completions without a gap or a
    duplicate; the checker over everything. The recorder has the balanced endpoint all the time: it works the same."""
    settings = ClusterSettings(folder=folder, parties=2, log="raft", embedded=True, further={"api_workers": 1})
    history = folder.with_name("history.jsonl")
    with history.open("wb") as stream_file:
        writer = HistoryWriter(stream_file)
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, writer, "balanced") as recorder,
        ):
            urls = [f"http://{one.host}:{one.api_port}" for one in cluster.config.replicas]
            string = "http://" + ",".join(url.removeprefix("http://") for url in urls[:2]) + "/"
            async with (
                NotaryClient(string, PATIENT) as client,
                SubmissionStream(urls, PATIENT) as stream,
            ):
                applications = Applications(cluster, writer, client, stream)
                world = World(cluster, recorder, history, stream_file, applications.notarised)
                await faults(world, applications)
                found = await client.endpoints()
                assert [one.url for one in found.endpoints] == urls
                assert found.active == urls[list(cluster.replicas).index((await cluster.wait_for_active()).name)]
            await world.notarise_one()
            await world.check()
    await remove_cluster(folder)


async def faults(world: World, applications: Applications) -> None:
    cluster = world.cluster
    async with applications.at_work():
        await applications.goes_on()
        killed = await cluster.wait_for_active()
        cluster.kill(killed.name)
        await applications.goes_on()
        await cluster.wait_until_ready(list(cluster.replicas))
        active = await cluster.wait_for_active()
        await printed(cluster, "switchover")
        await cluster.wait_for_active(other_than=active.name)
        await applications.goes_on()
        frozen = await cluster.wait_for_active()
        frozen.freeze_group()
        try:
            await cluster.wait_for_active(other_than=frozen.name)
            await applications.goes_on()
        finally:
            frozen.thaw()
        await cluster.wait_until_ready(list(cluster.replicas))
        await applications.goes_on()
        newest = max(applications.notarised.values())

        async def read() -> bool:
            return bool(applications.seen) and applications.seen[-1] >= newest

        await eventually(read, timeout_s=120)
    assert applications.seen == sorted(set(applications.seen))
    missed = {offset for offset in applications.notarised.values() if offset <= newest} - set(applications.seen)
    promised(not missed, f"notarised at {missed}, and no completion was read")
