"""The Unix-socket link, both ends in one process, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from replica.link.frames import Hello, LinkBroken, Submit, encode_frame
from replica.link.interface import PeerSeen
from replica.link.settings import LinkSettings
from replica.link.unix_client import LinkClient
from replica.link.unix_server import LinkServer, counted_s
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.errors import ConfigError
from replica.notary.requests import parse_tx_id
from replica.telemetry.counts import ApiCounts
from tests.waiting import eventually
from tests.worlds.api_world import ACTIVE, BANK, PASSIVE, StubHandler, make_submission

GENERATION = "generation-of-this-test"
QUICK = LinkSettings(keep_alive_s=0.02, standing_max_age_s=3.0, answer_max_s=5.0, hello_max_s=0.5)


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A short path: Unix sockets take 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="link-") as folder:
        yield Path(folder) / "link.sock"


@contextlib.asynccontextmanager
async def linked(
    path: Path, handler: StubHandler, settings: LinkSettings = QUICK
) -> AsyncIterator[tuple[LinkServer, LinkClient]]:
    """A server and one connected client."""
    server = LinkServer(path, GENERATION, handler, settings)
    await server.start()
    client = LinkClient(path, GENERATION, "r1/api-1", settings)
    try:
        await client.connect()
        yield server, client
    finally:
        client.close()
        await server.stop()
        await asyncio.sleep(0)


async def test_submissions_of_one_turn_share_a_frame(socket_path: Path) -> None:
    """Goal: a turn of the loop costs one frame. Method: three submits started together, one batch at the handler."""
    handler = StubHandler(at_once=True)
    async with linked(socket_path, handler) as (_, client):
        submissions = [make_submission() for _ in range(5)]
        answers = await asyncio.gather(
            client.submit(submissions[:1]), client.submit(submissions[1:4]), client.submit(submissions[4:])
        )
    assert [len(batch) for batch in handler.batches] == [5]
    assert [submission for _, submission in handler.batches[0]] == submissions
    given = [answer.tx_id for part in answers for answer in part if isinstance(answer, Notarised)]
    assert given == [bytes(submission.request[32:64]) for submission in submissions]


async def test_answers_in_any_order_reach_who_asked(socket_path: Path) -> None:
    """Goal: answers are matched by ticket. Method: answer a batch of three last first, and a later one in between."""
    handler = StubHandler()
    async with linked(socket_path, handler) as (_, client):
        async with asyncio.TaskGroup() as group:
            three = group.create_task(client.submit([make_submission() for _ in range(3)]))
            await eventually(lambda: _holds(len(handler.waiting) == 3))
            one = group.create_task(client.submit([make_submission()]))
            await eventually(lambda: _holds(len(handler.waiting) == 4))
            waiting = [submission for _, _, submission in handler.waiting]
            for at in (3, 2, 0, 0):
                handler.answer(at)
        answers = three.result() + one.result()
    assert [a.tx_id for a in answers if isinstance(a, Notarised)] == [bytes(s.request[32:64]) for s in waiting]


async def test_look_ups_pass(socket_path: Path) -> None:
    """Goal: a look-up is answered. Method: one through a real socket."""
    handler, tx_id = StubHandler(), parse_tx_id("ab" * 32)
    async with linked(socket_path, handler) as (_, client):
        assert await client.look_up(tx_id) == Refused("TX_NOT_FOUND", tx_id)
    assert [asked for _, asked in handler.looked_up] == [tx_id]


async def test_what_waits_is_unknown_when_the_core_goes(socket_path: Path) -> None:
    """Goal: nobody waits for a core that is gone, and nobody gets a verdict. Method: stop the server meanwhile."""
    handler = StubHandler()
    async with linked(socket_path, handler) as (server, client):
        waiting = asyncio.create_task(client.submit([make_submission(), make_submission()]))
        await eventually(lambda: _holds(len(handler.waiting) == 2))
        handler.answer()
        await server.stop()
        answers = await waiting
        assert await client.wait_ended()
        assert not client.standing.active
        assert _code((await client.submit([make_submission()]))[0]) == "NOT_ACTIVE"
        assert _code(await client.look_up(b"\x01" * 32)) == "NOT_ACTIVE"
    assert _code(answers[1]) == "OUTCOME_UNKNOWN"
    handler.answer()  # late: for a front end that is gone, dropped silently


async def test_an_answer_that_does_not_come_is_unknown(socket_path: Path) -> None:
    """Goal: a wait is bounded, and its ticket stays open at the core. Method: a short deadline, then a late answer."""
    handler = StubHandler()
    settings = QUICK.model_copy(update={"answer_max_s": 0.1, "tickets_max": 2})
    async with linked(socket_path, handler, settings) as (_, client):
        first, second = make_submission(), make_submission()
        assert [_code(answer) for answer in await client.submit([first, second])] == ["OUTCOME_UNKNOWN"] * 2
        assert _code((await client.submit([first]))[0]) == "OVERLOADED"
        handler.answer()
        handler.answer()
        await eventually(lambda: _holds(client._pending.open_count == 0))
        retried = asyncio.create_task(client.submit([first]))
        await eventually(lambda: _holds(len(handler.waiting) == 1))
        handler.answer()
        assert isinstance((await retried)[0], Notarised)


async def test_the_core_is_passive_once_it_is_not_heard(socket_path: Path) -> None:
    """Goal: a front end of a frozen core does not queue work. Method: stop the keep-alive, wait past the age."""
    settings = QUICK.model_copy(update={"standing_max_age_s": 0.3})
    async with linked(socket_path, StubHandler(), settings) as (server, client):
        await eventually(lambda: _holds(client.standing == ACTIVE))
        assert server._keep_alive is not None
        server._keep_alive.cancel()
        await eventually(lambda: _holds(not client.standing.active))
        assert client.standing == ACTIVE.as_passive()
        server.announce()
        await eventually(lambda: _holds(client.standing.active))


async def test_news_are_what_has_changed_and_silence_and_the_end(socket_path: Path) -> None:
    """Goal: who waits wakes for every change, and not for a keep-alive. Method: nothing, a change, silence, the end."""
    handler = StubHandler()
    settings = QUICK.model_copy(update={"keep_alive_s": 0.02, "standing_max_age_s": 0.3, "answer_max_s": 2.0})
    async with linked(socket_path, handler, settings) as (server, client):
        await eventually(lambda: _holds(client.standing == ACTIVE))
        heard = asyncio.create_task(client.standing_changes.wait(30.0))
        await asyncio.sleep(0.1)
        assert not heard.done()
        handler.word = msgspec.structs.replace(ACTIVE, ledger_end=5)
        await heard
        assert client.standing.ledger_end == 5
        assert server._keep_alive is not None
        server._keep_alive.cancel()
        await client.standing_changes.wait(30.0)
        assert not client.standing.active
        ending = asyncio.create_task(client.standing_changes.wait(30.0))
        await asyncio.sleep(0)
        await server.stop()
        await ending


async def test_a_change_of_standing_is_told_at_once(socket_path: Path) -> None:
    """Goal: no front end learns of a step-down by its keep-alive only. Method: a slow keep-alive and an announce."""
    handler = StubHandler()
    slow = QUICK.model_copy(update={"keep_alive_s": 5.0, "standing_max_age_s": 15.0})
    async with linked(socket_path, handler, slow) as (server, client):
        await eventually(lambda: _holds(client.standing.active))
        handler.word = PASSIVE
        server.announce()
        await eventually(lambda: _holds(client.standing == PASSIVE), timeout_s=1.0)


async def test_a_front_end_counts_while_it_is_heard(socket_path: Path) -> None:
    """Goal: a connection is no answer. Method: one that said hello and is silent; a frame of its later."""
    settings = QUICK.model_copy(update={"front_end_silent_s": 0.2})
    async with linked(socket_path, StubHandler(), settings) as (server, client):
        assert server.front_ends == ("r1/api-1",)
        await eventually(lambda: _holds(server.silent_front_ends == ("r1/api-1",)))
        assert server.front_ends == ()
        assert (server.silence_s("r1/api-1") or 0.0) >= 0.2
        assert server.silence_s("r1/api-9") is None
        client.report(ApiCounts())
        await eventually(lambda: _holds(server.front_ends == ("r1/api-1",)))
        assert server.silent_front_ends == ()


def test_a_core_that_stood_still_does_not_blame_its_front_ends() -> None:
    """Goal: a stalled core kills nobody. Method: the time that counts after a pause of any length."""
    assert counted_s(0.2, 0.2) == 0.2
    assert counted_s(60.0, 0.2) == 0.4
    assert counted_s(60.0, 0.2) < LinkSettings().front_end_silent_s


async def test_generations_do_not_mix(socket_path: Path) -> None:
    """Goal: nothing passes between generations. Method: a client with another token; the core cuts it off."""
    handler = StubHandler()
    async with linked(socket_path, handler) as (server, _):
        stranger = LinkClient(socket_path, "another generation", "r1/api-9", QUICK)
        with pytest.raises(LinkBroken):
            await stranger.connect()
        assert not stranger.standing.active
        assert server.front_ends == ("r1/api-1",)


async def test_a_core_of_another_generation_is_not_heard(socket_path: Path) -> None:
    """Goal: a front end believes its own core only. Method: a core that lets everybody in, with another token."""

    gone = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame(Hello(1, "another generation", "core"), QUICK.frame_max_bytes))
        await reader.read()
        await _hang_up(writer, gone)

    async with await asyncio.start_unix_server(impostor, str(socket_path)):
        client = LinkClient(socket_path, GENERATION, "r1/api-1", QUICK)
        with pytest.raises(LinkBroken, match="another generation"):
            await client.connect()
        await gone.wait()


async def test_a_core_that_says_nothing_is_not_waited_for(socket_path: Path) -> None:
    """Goal: connecting is bounded. Method: a socket that never answers, and none at all."""
    with pytest.raises(LinkBroken):
        await LinkClient(socket_path, GENERATION, "r1/api-1", QUICK).connect()
    gate, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await _hang_up(writer, gone)

    async with await asyncio.start_unix_server(silent, str(socket_path)):
        client = LinkClient(socket_path, GENERATION, "r1/api-1", QUICK.model_copy(update={"hello_max_s": 0.1}))
        with pytest.raises(LinkBroken):
            await client.connect()
        client.close()
        gate.set()
        await gone.wait()


async def _hang_up(writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
    """Close for good: a transport that the test's end finds open is told as a failure of a later test."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    gone.set()


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


HELLO = encode_frame(Hello(1, GENERATION, "r1/api-2"), QUICK.frame_max_bytes)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(_frame(b"\xc1"), id="no MessagePack"),
        pytest.param(_frame(b"\x92\x09\x90"), id="unknown kind"),
        pytest.param((2**31).to_bytes(4, "big"), id="frame too large"),
        pytest.param(encode_frame(Submit([(1, make_submission())]), QUICK.frame_max_bytes), id="no hello"),
        pytest.param(encode_frame(Hello(2, GENERATION, "x"), QUICK.frame_max_bytes), id="another protocol"),
        pytest.param(encode_frame(Hello(1, GENERATION, ""), QUICK.frame_max_bytes), id="no name"),
        pytest.param(HELLO + HELLO, id="hello twice"),
        pytest.param(HELLO + (2**31).to_bytes(4, "big"), id="frame too large after a hello"),
        pytest.param(b"", id="silence"),
    ],
)
async def test_a_front_end_that_breaks_the_protocol_is_cut_off(socket_path: Path, sent: bytes) -> None:
    """Goal: nothing of it reaches the handler, and others go on. Method: raw bytes beside a good front end."""
    handler = StubHandler(at_once=True)
    async with linked(socket_path, handler) as (server, client):
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(2):
                while await reader.read(65_536):
                    pass
        writer.close()
        assert handler.batches == []
        assert server.front_ends == ("r1/api-1",)
        assert isinstance((await client.submit([make_submission()]))[0], Notarised)


async def test_more_tickets_than_allowed_end_the_connection(socket_path: Path) -> None:
    """Goal: the core's memory is bounded whatever a front end does. Method: a raw front end over the bound."""
    handler = StubHandler()
    async with linked(socket_path, handler, QUICK.model_copy(update={"tickets_max": 3})):
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
        submission = make_submission()
        writer.write(HELLO + encode_frame(Submit([(n, submission) for n in range(3)]), QUICK.frame_max_bytes))
        await eventually(lambda: _holds(len(handler.waiting) == 3))
        writer.write(encode_frame(Submit([(3, submission)]), QUICK.frame_max_bytes))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(2):
                while await reader.read(65_536):
                    pass
        writer.close()
        assert len(handler.waiting) == 3


async def test_a_batch_larger_than_a_frame_is_cut_between_items(socket_path: Path) -> None:
    """Goal: large batches pass, in order, both ways. Method: 40 submissions of 9,999 states, 4 MiB frames."""
    handler = StubHandler(at_once=True)
    inputs = [os.urandom(32) + bytes(4) for _ in range(9_999)]
    large = [BANK.sign(os.urandom(32), inputs) for _ in range(40)]
    settings = LinkSettings(frame_max_bytes=4 * 2**20)
    async with linked(socket_path, handler, settings) as (_, client):
        answers = await client.submit(large)
    assert len(handler.batches) > 1
    assert [submission for batch in handler.batches for _, submission in batch] == large
    assert all(isinstance(answer, Notarised) for answer in answers)


async def test_counts_add_up_over_front_ends_that_ended(socket_path: Path) -> None:
    """Goal: counters never fall, gauges are of the living. Method: two front ends report, one leaves."""
    async with linked(socket_path, StubHandler()) as (server, client):
        other = LinkClient(socket_path, GENERATION, "r1/api-2", QUICK)
        await other.connect()
        client.report(ApiCounts(answers={"NOTARISED": 2}, signatures_good=2, connections=5))
        other.report(ApiCounts(answers={"NOTARISED": 3, "STATE_CONFLICT": 1}, connections=7, in_flight=1))
        await eventually(lambda: _holds(server.api_counts().answers == {"NOTARISED": 5, "STATE_CONFLICT": 1}))
        assert server.api_counts().connections == 12
        other.close()
        await eventually(lambda: _holds(server.front_ends == ("r1/api-1",)))
        counts = server.api_counts()
        assert (counts.answers["NOTARISED"], counts.connections, counts.in_flight) == (5, 5, 0)


async def test_the_socket_is_for_this_user_only_and_replaces_an_old_one(socket_path: Path) -> None:
    """Goal: nobody else may connect; what a killed core left is no obstacle. Method: look at the mode; start twice."""
    socket_path.write_text("left over")
    async with linked(socket_path, StubHandler()):
        assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
    assert not socket_path.exists()
    with pytest.raises(ConfigError, match="107"):
        await LinkServer(socket_path.with_name("a" * 108), GENERATION, StubHandler(), QUICK).start()


def _code(answer: object) -> str:
    assert isinstance(answer, NotNow)
    return answer.code


async def _holds(what: bool) -> bool:
    return what


async def test_what_the_core_saw_of_the_others_reaches_front_ends_of_any_age(socket_path: Path) -> None:
    """Goal: a front end that starts later knows it as well. Method: one told while connected, one that comes after."""
    seen = [PeerSeen("r2", active=True, epoch=7, seen_us=5, answers=True)]
    async with linked(socket_path, StubHandler()) as (server, client):
        assert list(client.peers) == []
        server.announce_peers(seen)
        await eventually(lambda: _holds(list(client.peers) == seen))
        later = LinkClient(socket_path, GENERATION, "r1/api-2", QUICK)
        await later.connect()
        await eventually(lambda: _holds(list(later.peers) == seen))
        later.close()
        await asyncio.sleep(0)


async def test_nobody_answers_a_core_that_is_silent(socket_path: Path) -> None:
    """Goal: what a frozen core last saw is not what is. Method: a core that repeats its word no more, then goes on."""
    settings = QUICK.model_copy(update={"keep_alive_s": 10.0, "standing_max_age_s": 0.2})
    seen = PeerSeen("r2", active=True, epoch=7, seen_us=5, answers=True)
    async with linked(socket_path, StubHandler(), settings) as (server, client):
        server.announce_peers([seen])
        await eventually(lambda: _holds(list(client.peers) == [seen] and not client.is_silent))
        await eventually(lambda: _holds(client.is_silent))
        assert list(client.peers) == [msgspec.structs.replace(seen, answers=False)]
        server.announce_peers([seen])
        await eventually(lambda: _holds(list(client.peers) == [seen]))
