"""A client with several endpoints: it turns, goes on with the same ids, and nothing is done twice.

The replicas are real HTTP servers over one notary in memory, which answers a submission that it has seen as before.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from ledger_api.client import NotaryClient, RetryPolicy, SubmissionStream, SyncNotaryClient
from ledger_api.server.settings import ListedReplica, Listing
from ledger_api.wire.problems import problem_document
from replica.checker.findings import Findings, Summary
from replica.checker.history import Event, HistoryWriter, Invoke, Ok, Unknown, read_history
from replica.checker.operations import Operation, collect
from replica.link.interface import PeerSeen
from replica.local.haproxy import find_haproxy
from replica.local.ports import PortReservation
from replica.local.process import Command, ManagedProcess
from replica.local.recording import RecordingClient
from replica.notary.answers import Accepted, Answer, Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.requests import Submission
from replica.notary.terms import decode_canonical
from replica.store.interface import NOTARISED, Completion
from tests.waiting import eventually
from tests.worlds.api_world import ACTIVE, PASSIVE, ApiWorld, StubParticipant, make_submission, notarise

PATIENT = RetryPolicy(deadline_s=60.0, timeout_s=0.01, attempt_max_s=45.0)


class Notary:
    """What several replicas have in common: which submission was accepted, and how often."""

    def __init__(self) -> None:
        self.accepted: dict[tuple[str, str], Submission] = {}
        self.doubles = 0

    def __call__(self, submission: Submission) -> Answer:
        ids = (submission.command_id, submission.submission_id)
        earlier = self.accepted.setdefault(ids, submission)
        self.doubles += earlier != submission
        return notarise(submission)


class Replicas:
    """Three of them, one active."""

    def __init__(self) -> None:
        self.notary = Notary()
        self.stubs = [StubParticipant(self.notary) for _ in range(3)]
        self.worlds = [ApiWorld(stub) for stub in self.stubs]
        self.lead(0)

    def lead(self, leader: int | None, epoch: int = 7) -> None:
        for number, stub in enumerate(self.stubs):
            stub.standing = msgspec.structs.replace(ACTIVE if number == leader else PASSIVE, epoch=epoch)
            stub.standing_changes.notify()

    @property
    def string(self) -> str:
        return "http://" + ",".join(f"127.0.0.1:{world.port}" for world in self.worlds) + "/"

    @property
    def reached(self) -> list[int]:
        return [len(stub.submitted) for stub in self.stubs]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Replicas]:
        async with AsyncExitStack() as stack:
            for world in self.worlds:
                await stack.enter_async_context(world.serve())
            yield self


@pytest.fixture
async def replicas() -> Replicas:
    return Replicas()


async def test_a_client_finds_the_active_and_stays(replicas: Replicas) -> None:
    """Goal: any endpoint may be named first; passives cost one refusal. Method: the last is active; twenty calls."""
    replicas.lead(2)
    async with replicas.serve(), NotaryClient(replicas.string, PATIENT) as client:
        for _ in range(20):
            assert isinstance(await client.submit(make_submission()), Notarised)
        calls = [world.counts.requests.get("/v1/submissions 503", 0) for world in replicas.worlds]
    assert replicas.reached == [0, 0, 20]
    assert calls == [1, 1, 0]


async def test_turning_waits_only_after_a_whole_round(replicas: Replicas) -> None:
    """Goal: a refusal costs no pause while another endpoint was not asked. Method: pauses of a minute; the last is
    active; then none is, and the deadline ends the call after one round."""
    slow = RetryPolicy(deadline_s=5.0, timeout_s=60.0, attempt_max_s=5.0)
    replicas.lead(2)
    async with replicas.serve(), NotaryClient(replicas.string, slow) as client:
        async with asyncio.timeout(5):
            assert isinstance(await client.submit(make_submission()), Notarised)
        replicas.lead(None)
        answer = await client.submit(make_submission())
        assert isinstance(answer, NotNow)
        assert answer.code == Code.NOT_ACTIVE.name
        refused = [world.counts.requests["/v1/submissions 503"] for world in replicas.worlds]
    assert refused == [2, 2, 1]


async def test_a_dead_endpoint_is_passed_by(replicas: Replicas, ports: PortReservation) -> None:
    """Goal: refused connections turn as well. Method: nobody listens at the first endpoint."""
    async with replicas.serve():
        endpoints = [f"http://127.0.0.1:{ports.take()}", replicas.worlds[0].endpoint]
        async with NotaryClient(endpoints, PATIENT) as client, SubmissionStream(endpoints, PATIENT) as stream:
            assert isinstance(await client.submit(make_submission()), Notarised)
            assert isinstance(await stream.submit(make_submission()), Notarised)
        with_thread = await asyncio.to_thread(_described, endpoints)
    assert with_thread == "r1"


def _described(endpoints: list[str]) -> str:
    with SyncNotaryClient(endpoints, PATIENT) as client:
        return client.describe().replica


async def test_an_unknown_outcome_goes_to_the_next_with_the_same_ids(replicas: Replicas) -> None:
    """Goal: no double submission. Method: the active takes each submission, and its connections are cut before any
    answer; another is active then. Every one that arrives twice is the same, byte for byte."""
    replicas.stubs[0].gate = asyncio.Event()
    submissions = [make_submission() for _ in range(20)]
    async with replicas.serve(), NotaryClient(replicas.string, PATIENT) as client:
        waiting = [asyncio.create_task(client.submit(submission)) for submission in submissions[:10]]
        batch = asyncio.create_task(client.submit_batch(submissions[10:]))

        async def taken() -> bool:
            return replicas.reached[0] == 20

        await eventually(taken)
        replicas.lead(1, epoch=8)
        for connection in list(replicas.worlds[0].server.connections):
            assert connection.transport is not None
            connection.transport.abort()
        answers = [*await asyncio.gather(*waiting), *await batch]
        replicas.stubs[0].gate.set()
    assert all(isinstance(answer, Notarised) for answer in answers)
    assert sorted(map(_ids, replicas.stubs[1].submitted)) == sorted(map(_ids, submissions))
    assert sorted(map(_ids, replicas.stubs[0].submitted)) == sorted(map(_ids, submissions))
    assert replicas.notary.doubles == 0


async def test_each_attempt_is_an_operation_of_the_history(replicas: Replicas) -> None:
    """Goal: whichever record an attempt left belongs to an operation, and no other record does. Method: the active
    takes two batches, and its connections are cut; another one is active then."""
    replicas.stubs[0].gate = asyncio.Event()
    written = io.BytesIO()
    submissions = [make_submission() for _ in range(4)]
    async with replicas.serve(), RecordingClient(replicas.string, HistoryWriter(written), "several") as client:
        waiting = [
            asyncio.create_task(client.submit_batch(submissions[:3])),
            asyncio.create_task(client.submit_batch(submissions[3:])),
        ]

        async def taken() -> bool:
            return replicas.reached[0] == 4

        await eventually(taken)
        replicas.lead(1, epoch=8)
        for connection in list(replicas.worlds[0].server.connections):
            assert connection.transport is not None
            connection.transport.abort()
        await asyncio.gather(*waiting)
        replicas.stubs[0].gate.set()
    written.seek(0)
    events = list(read_history(written))
    sent = Counter(event.tx_id for event in events if isinstance(event, Invoke))
    assert sent == {decode_canonical(one.request)[0].tx_id.hex(): 2 for one in submissions}
    ended = Counter(type(event) for event in events)
    assert (ended[Unknown], ended[Ok]) == (4, 4)
    assert all(operation.answer is None or operation.answer.log_offset is not None for operation in operations(events))
    assert len(operations(events)) == 8


def operations(events: list[Event]) -> list[Operation]:
    """The operations of a history; raises HistoryError where it contradicts itself."""
    return collect(events, None, Findings(), Summary())


def _ids(submission: Submission) -> tuple[str, str, bytes]:
    return submission.command_id, submission.submission_id, submission.request


async def test_a_frozen_active_is_left_once_another_one_leads(replicas: Replicas) -> None:
    """Goal: a replica that holds the connection and says nothing does not hold the client for `attempt_max_s`.
    Method: the active takes a call and a stream's submission, and never answers; another one leads."""
    replicas.stubs[0].gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with (
        replicas.serve(),
        NotaryClient(replicas.string, PATIENT) as client,
        SubmissionStream(replicas.string, PATIENT) as stream,
    ):
        waiting = [
            asyncio.create_task(client.submit(make_submission())),
            asyncio.create_task(stream.submit(make_submission())),
        ]
        await asyncio.sleep(1.5)  # the others were asked meanwhile; none was active
        assert not any(task.done() for task in waiting)
        replicas.lead(1, epoch=8)
        changed_at_s = loop.time()
        assert all(isinstance(answer, Notarised) for answer in await asyncio.gather(*waiting))
        took_s = loop.time() - changed_at_s
        replicas.stubs[0].gate.set()
    assert took_s < 20.0  # usually 2; `attempt_max_s` is 45
    assert replicas.notary.doubles == 0


async def test_a_slow_active_is_not_left(replicas: Replicas) -> None:
    """Goal: waiting for the active is right while no other one leads. Method: an answer that takes two seconds."""
    replicas.stubs[0].gate = asyncio.Event()
    async with replicas.serve(), NotaryClient(replicas.string, PATIENT) as client:
        waiting = asyncio.create_task(client.submit(make_submission()))
        await asyncio.sleep(2.0)
        replicas.stubs[0].gate.set()
        assert isinstance(await waiting, Notarised)
    assert replicas.reached == [1, 0, 0]


HAPROXY = """
defaults
    mode tcp
    timeout connect 1s
    timeout client 60s
    timeout server 60s
listen api
    bind 127.0.0.1:{port}
    server active 127.0.0.1:{server}
"""


@asynccontextmanager
async def balanced(folder: Path, ports: PortReservation, server: int) -> AsyncIterator[str]:
    """HAProxy before one server: the endpoint."""
    port, path = ports.take(), folder / "haproxy.cfg"
    path.write_text(HAPROXY.format(port=port, server=server))
    argv = [str(find_haproxy()), "-db", "-f", str(path)]
    process = ManagedProcess(Command(name="haproxy", argv=argv, log_path=folder / "haproxy.log"))
    process.start()

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await eventually(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        await process.kill()


async def test_what_waits_at_a_balancer_is_not_sent_twice(
    replicas: Replicas, tmp_path: Path, ports: PortReservation
) -> None:
    """Goal: with HAProxy's address first and the replicas' after it, a slow answer is waited for as with HAProxy alone.
    Method: a real HAProxy; a call and a stream's submission that take three seconds, while the client looks around."""
    async with replicas.serve(), balanced(tmp_path, ports, replicas.worlds[0].port) as endpoint:
        for given in ([endpoint, *[world.endpoint for world in replicas.worlds]], [endpoint]):
            gate = replicas.stubs[0].gate = asyncio.Event()
            before = replicas.reached
            async with NotaryClient(given, PATIENT) as client, SubmissionStream(given, PATIENT) as stream:
                waiting = [
                    asyncio.create_task(client.submit(make_submission())),
                    asyncio.create_task(stream.submit(make_submission())),
                ]
                await asyncio.sleep(3.0)
                gate.set()
                assert all(isinstance(answer, Notarised) for answer in await asyncio.gather(*waiting))
            assert replicas.reached == [before[0] + 2, 0, 0]
        asked = replicas.worlds[1].counts.requests
        assert asked.get("/v1/notary 200", 0) >= 1  # it did look around, with several
    assert replicas.notary.doubles == 0


async def test_a_stream_that_begins_at_a_frozen_replica_looks_around() -> None:
    """Goal: being let in is waited for as an answer is. Method: the first takes connections and says nothing."""
    loop = asyncio.get_running_loop()
    silent = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with ApiWorld(StubParticipant(notarise)).serve() as world:
        first = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with SubmissionStream([first, world.endpoint], PATIENT) as stream, asyncio.timeout(20):
            assert isinstance(await stream.submit(make_submission()), Notarised)  # `attempt_max_s` is 45
    silent.close()


async def test_a_stream_turns_when_its_replica_is_deposed(replicas: Replicas) -> None:
    """Goal: streams turn as calls do, and lose nothing. Method: the leader changes twice under a stream."""
    async with replicas.serve(), SubmissionStream(replicas.string, PATIENT) as stream:
        for leader in (0, 2, 1):
            replicas.lead(leader, epoch=7 + leader)
            answers = await asyncio.gather(*[stream.submit(make_submission()) for _ in range(50)])
            assert [answer for answer in answers if not isinstance(answer, Notarised)] == []
    assert replicas.reached == [50, 50, 50]
    assert replicas.notary.doubles == 0


async def test_an_asynchronous_submission_turns_as_well(replicas: Replicas) -> None:
    """Goal: every call that submits has the same rule. Method: the last of three is active."""
    replicas.lead(2)
    async with replicas.serve(), NotaryClient(replicas.string, PATIENT) as client:
        assert isinstance(await client.submit_async(make_submission()), Accepted)
        assert all(isinstance(one, Notarised) for one in await client.submit_all([make_submission()] * 3))
    assert replicas.reached[:2] == [0, 0]


def completion(number: int) -> Completion:
    tx_id = number.to_bytes(32, "big")
    return Completion(number, tx_id, "u", f"c{number}", ("A",), "s", tx_id, tx_id, NOTARISED, number, number)


async def test_a_learned_endpoint_is_used_and_the_given_ones_stay(replicas: Replicas) -> None:
    """Goal: a replica that the application never heard of is reached. Method: two are given, the third is listed;
    it becomes the only active."""
    async with replicas.serve():
        urls = [world.endpoint for world in replicas.worlds]
        listing = Listing(replicas=tuple(ListedReplica(name=f"r{n}", url=url) for n, url in enumerate(urls)))
        first = ApiWorld(replicas.stubs[0], listing=listing)
        assert first.settings.tokens is None
        async with first.serve():
            replicas.stubs[0].peers = [PeerSeen("r2", False, 7, 1_700_000_000_000_000, answers=True)]
            async with NotaryClient([first.endpoint, urls[1]], PATIENT) as client:
                connection = client._connection

                async def learned() -> bool:
                    return connection.endpoints.known == (first.endpoint, urls[1], urls[2])

                await eventually(learned)
                replicas.lead(2, epoch=8)
                assert isinstance(await client.submit(make_submission()), Notarised)
    assert replicas.reached == [0, 0, 1]


async def test_one_endpoint_is_used_alone(tmp_path: Path) -> None:
    """Goal: behind a balancer nothing changes: no list is asked for, nobody else is. Method: what a server gets."""
    async with ApiWorld(StubParticipant()).serve() as world, NotaryClient(world.endpoint, PATIENT) as client:
        assert isinstance(await client.submit(make_submission()), Notarised)
        await asyncio.sleep(0.5)
        assert set(world.counts.requests) == {"/v1/submissions 200"}


@pytest.mark.parametrize("body", [b"", b"[]", b"{" * 5_000, b" " * 100_000, b'{"replica":"r","endpoints":[{}]}'])
async def test_a_list_that_is_none_changes_nothing(tmp_path: Path, body: bytes) -> None:
    """Goal: whatever answers at an endpoint cannot end the client, or fill its memory. Method: bad lists."""
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response(body=body, content_type="application/json")

    server = web.Server(answer)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    nonsense = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with (
        ApiWorld(StubParticipant()).serve() as world,
        NotaryClient([nonsense, world.endpoint], PATIENT) as client,
    ):

        async def refreshed() -> bool:
            return "/v1/endpoints" in asked

        await eventually(refreshed)
        assert client._connection.endpoints.known == (nonsense, world.endpoint)
    listener.close()
    await server.shutdown(0.1)


async def test_a_feed_goes_on_at_the_next_active(replicas: Replicas) -> None:
    """Goal: completions across a change of leader, none twice and none missing. Method: one ledger at all; the leader
    changes while the feed is open, and freezes the second time."""
    database = replicas.stubs[0].database
    for stub in replicas.stubs:
        stub.database = database
    database.completions = [(offset, completion(offset)) for offset in range(1, 4)]
    _published(replicas, 0, 7, 3)
    async with (
        replicas.serve(),
        NotaryClient(replicas.string, PATIENT) as client,
        aclosing(client.completions()) as entries,  # type: ignore[type-var]
    ):
        found = [(await anext(entries)).offset for _ in range(3)]
        database.completions.extend((offset, completion(offset)) for offset in range(4, 7))
        _published(replicas, 1, 8, 6)
        async with asyncio.timeout(20):
            found += [(await anext(entries)).offset for _ in range(3)]
    assert found == [1, 2, 3, 4, 5, 6]


def _published(replicas: Replicas, leader: int, epoch: int, end: int) -> None:
    replicas.lead(leader, epoch)
    stub = replicas.stubs[leader]
    stub.standing = msgspec.structs.replace(stub.standing, ledger_end=end)
    stub.standing_changes.notify()


@pytest.mark.parametrize(("status", "code"), [(401, Code.TOKEN_INVALID), (503, Code.NOT_ACTIVE)])
async def test_a_refusal_by_the_next_one_settles_nothing(status: int, code: Code) -> None:
    """Goal: an outcome that is not known stays so. Method: the first takes the submission and breaks the connection,
    the second refuses the token, or is passive; a client whose only attempt that was."""

    async def breaks(request: web.BaseRequest) -> web.Response:
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def refuses(request: web.BaseRequest) -> web.Response:
        document = problem_document(code, "refused")
        return web.Response(status=status, body=msgspec.json.encode(document), content_type="application/problem+json")

    loop = asyncio.get_running_loop()
    servers = [web.Server(breaks), web.Server(refuses)]
    listeners = [await loop.create_server(server, "127.0.0.1", 0) for server in servers]
    urls = [f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}" for listener in listeners]
    async with NotaryClient(urls, RetryPolicy(deadline_s=0.0)) as client:
        answer = await client.submit(make_submission())
    assert isinstance(answer, NotNow)
    assert answer.code != code.name
    for listener, server in zip(listeners, servers, strict=True):
        listener.close()
        await server.shutdown(0.1)
