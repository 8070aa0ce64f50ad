"""Activations that end, or do not begin, on virtual time: by the log, the index, the signing key, an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from ha.errors import TransitionFailed
from ha.lock.interface import LockOwner
from replica.active import receipt_signer as receipt_desk
from replica.log.memory import Delivery, MemoryTopic
from replica.marks.keeper import MarkKeeper
from replica.notary.answers import NotNow
from replica.notary.codes import Code
from replica.notary.errors import IndexUnreadable, LogTruncated, SignerUnavailable
from replica.notary.records import BarrierRecord, RequestRecord, decode_record
from replica.running import run_to_the_end
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import BEGUN, FIRST_EPOCH, SIGNER, Replica, World, state, submission, until_led


@on_virtual_time
async def test_an_active_that_cannot_read_its_record_back_steps_down() -> None:
    """Goal: a stalled log ends the activation. Method: appends vanish; the waiting request is answered unknown."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()

        class Lost(Delivery):
            def send(self, value: bytes, topic: object, give_up: object) -> None:
                if not isinstance(decode_record(value, 2), RequestRecord):
                    world.shared.topic.store(value)

        replica.server.appender._writer._delivery = Lost()  # type: ignore[attr-defined]
        (answer,) = await replica.submit(submission(1, [state(9)]))
        assert isinstance(answer, NotNow)
        assert answer.code == Code.OUTCOME_UNKNOWN.name
        assert not replica.participant.standing().active


class Swallowed(Delivery):
    """Takes every record and stores none while `swallows`: fewer brokers are in sync than the topic asks for, say."""

    swallows = False

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        if not Swallowed.swallows:
            topic.store(value)


@pytest.mark.thorough
@on_virtual_time
async def test_on_a_log_that_does_not_move_no_epoch_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no epoch for an activation that cannot succeed. Method: the log takes no record for ten minutes."""
    barriers = 2  # of the first to lead, and of the replica that serves in the end
    monkeypatch.setattr(Swallowed, "swallows", False)
    async with World() as world:
        replicas = [await world.replica(number) for number in (1, 2, 3)]
        for replica in replicas:
            replica.log._delivery = Swallowed
        active = await until_led(replicas)
        await asyncio.sleep(10.0)
        monkeypatch.setattr(Swallowed, "swallows", True)
        waiting = asyncio.create_task(active.submit(submission(1, [state(9)])))
        await asyncio.sleep(600.0)
        assert world.shared.database.epoch == FIRST_EPOCH
        assert not any(replica.participant.standing().active for replica in replicas)
        monkeypatch.setattr(Swallowed, "swallows", False)
        async with asyncio.timeout(10.0):
            while not any(replica.participant.standing().active for replica in replicas):
                await asyncio.sleep(0.1)
        assert world.shared.database.epoch == FIRST_EPOCH + barriers - 1
        await waiting
        records = [decode_record(value, 2) for _, value in world.shared.topic.records(BEGUN, 100)]
        found = [record for record in records if isinstance(record, BarrierRecord)]
        assert len({record.activation_id for record in found}) == barriers


@pytest.mark.parametrize("problem", ["another topic", "truncated", "replaced record"])
@on_virtual_time
async def test_a_log_that_the_index_was_not_read_from_is_refused(problem: str) -> None:
    """Goal: fail closed. Method: change the log behind a stopped replica's index, start it again."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]), submission(2, [state(8)]))
        await replica.stop()
        topic = world.shared.topic
        if problem == "another topic":
            topic.recreate("memory-2")
        elif problem == "truncated":
            topic.truncate(topic.end_offset - 1)
        else:
            topic.truncate(topic.end_offset - 1)
            topic.store(b"something else")
        again = await world.replica(1, replica.index)
        await asyncio.sleep(1)
        assert again.participant.broken.done()
        code = "LOG_TRUNCATED" if problem == "truncated" else "LOG_MISMATCH"
        assert code in str(again.participant.broken.exception())
        assert not again.participant.standing().active


@on_virtual_time
async def test_nothing_is_written_to_a_log_that_lost_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: lost records can be brought back to their offsets, and whoever gets the lock next knows. Method: truncate,
    lose the index too, start; who holds the lock while the mark is left in the database."""
    holders: list[LockOwner | None] = []
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]), submission(2, [state(8)]))
        await asyncio.sleep(1)
        await replica.stop()
        topic = world.shared.topic
        topic.truncate(topic.end_offset - 1)
        end = topic.end_offset
        server = world.shared.lock_server

        async def say(_: MarkKeeper) -> None:
            holders.append(server.owner())

        monkeypatch.setattr(MarkKeeper, "say", say)
        again = await world.replica(1)
        await asyncio.sleep(5)
        assert topic.end_offset == end
        assert [None if one is None else one.name for one in holders] == [again.name]
        assert not again.participant.standing().active
        assert isinstance(again.participant.broken.exception(), LogTruncated)  # itself: what is done goes by its kind
        with pytest.raises(TransitionFailed, match="LOG_TRUNCATED"):
            await again.stop()


@on_virtual_time
async def test_an_unreadable_index_ends_the_replica_and_gives_no_verdict() -> None:
    """Goal: a read error is neither spent nor unspent. Method: the index fails while a request is on its way."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        waiting = asyncio.create_task(replica.submit(submission(1, [state(9)])))
        while not replica.server.appender.own.sent:
            await asyncio.sleep(0)
        replica.index.fail_with = "a bad block"
        await asyncio.sleep(0.5)
        assert "INDEX_UNREADABLE" in str(replica.participant.broken.exception())
        await replica.stop()
        (answer,) = await waiting
        assert isinstance(answer, NotNow)
        assert answer.code == Code.OUTCOME_UNKNOWN.name


class DeadToken:
    """A hardware security module that stopped answering once the replica led."""

    public_key = SIGNER.public_key
    blocks = True
    dead: Exception | None = None

    def sign(self, message: bytes) -> bytes:
        if self.dead is not None:
            raise self.dead
        return SIGNER.sign(message)


class AtOnce:
    """In the place of a thread: virtual time does not wait for a real one."""

    def __init__(self, *, target: Callable[..., None], args: tuple[object, ...], **_: object) -> None:
        self.start = partial(target, *args)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RuntimeError("CKR_DEVICE_REMOVED"), Code.SIGNER_UNAVAILABLE),
        (SignerUnavailable("expired", Code.SIGNER_ACCESS_DENIED), Code.SIGNER_ACCESS_DENIED),
    ],
    ids=["a dead token", "expired credentials"],
)
@on_virtual_time
async def test_a_dead_signing_token_is_not_the_database_s_fault(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, code: Code
) -> None:
    """Goal: causes are values: a dead token counts as that, in metric and history, and the code says where to look.
    Method: take the token away; have a service refuse the credentials."""
    monkeypatch.setattr(receipt_desk, "threading", SimpleNamespace(Thread=AtOnce))
    async with World() as world:
        token = DeadToken()
        replica = await world.replica()
        replica.participant._receipt_signer._signer = token  # type: ignore[assignment]
        await replica.until_active()
        token.dead = failure
        (answer,) = await replica.submit(submission(1, [state(9)]))
        assert isinstance(answer, NotNow)
        await asyncio.sleep(1.0)
        assert replica.participant.counters.step_downs["signer"] >= 1
        assert replica.participant.counters.step_downs["lock_lost"] == 0
        told = world.shared.database.ended[FIRST_EPOCH]
        assert told.startswith(f"signer {code.name}: the notary's key cannot be used: ")


@pytest.mark.parametrize("session_lives", [True, False])
@on_virtual_time
async def test_an_activation_that_dies_of_an_exception_says_so(session_lives: bool) -> None:
    """Goal: the history does not show "stop" for a replica that broke. Method: break the index of an active, with and
    without a lock session to record it on."""
    async with World() as world:
        replica = Replica(world.shared, "R1")
        told = replica.notes.ended
        running = asyncio.create_task(
            run_to_the_end(replica.participant, replica.election, asyncio.Event().wait(), stop_max_s=5.0)  # type: ignore[arg-type]
        )
        replica.participant.start()
        await replica.until_active()
        if not session_lives:
            world.shared.lock_server.end_all()
        replica.participant._break(IndexUnreadable("block 7 has a wrong checksum"))
        with pytest.raises(IndexUnreadable):
            await running
        text = "failed INDEX_UNREADABLE: block 7 has a wrong checksum"
        noted = {FIRST_EPOCH: text}
        assert (world.shared.database.ended, told) == ((noted, []) if session_lives else ({}, [*noted.items()]))
        await replica.participant.stop()
