"""One activation after another, on virtual time: what is answered, published, settled and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from ha.errors import TransitionFailed
from ha.lock.memory import Network
from ha.settings import ElectionSettings
from replica.active import receipt_signer as receipt_desk
from replica.log.memory import Delivery, MemoryTopic
from replica.notary.answers import Notarised, NotNow, Refused, StateStatus
from replica.notary.canonical import change_id
from replica.notary.errors import Code, IndexUnreadable, LogTruncated, NotActive
from replica.notary.formats import Formats
from replica.notary.receipts import verify_receipt
from replica.notary.records import BarrierRecord, RequestRecord, SettlementRecord, decode_record, encode_record
from replica.notary.requests import TimeWindow
from replica.notary.rules import hash_of_tx_id
from replica.running import run_to_the_end
from replica.settings import CoreSettings
from replica.store.interface import NOTARISED, Admitted, Command, Pruned
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import PARTY, SIGNER, Replica, World, name_of, state, submission


def test_a_request_is_notarised_remembered_and_certified() -> None:
    """Goal: the first success, its repeats and its receipt. Method: one replica, the same transaction three ways."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            (first,) = await replica.submit(submission(1, [state(9)]))
            assert isinstance(first, Notarised)
            assert (first.log_offset, first.record_offset, first.duplicate) == (1, 1, False)
            assert verify_receipt(first.receipt, SIGNER.public_key)
            (again,) = await replica.submit(submission(1, [state(9)]))
            assert isinstance(again, Notarised)
            assert (again.log_offset, again.record_offset, again.duplicate) == (1, None, True)
            (other_command,) = await replica.submit(submission(1, [state(9)], command_id="other"))
            assert isinstance(other_command, Notarised)
            assert (other_command.log_offset, other_command.record_offset) == (1, 2)

    run_virtually(story())


def test_a_conflict_names_the_winner_by_its_hash_and_spends_nothing() -> None:
    """Goal: all-or-nothing. Method: B wants A's state and a free one; C then gets the free one."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            a, b, c = await replica.submit(
                submission(1, [state(9)]), submission(2, [state(9), state(8)]), submission(3, [state(8)])
            )
            assert isinstance(a, Notarised)
            assert isinstance(b, Refused)
            assert b.code == Code.STATE_CONFLICT.name
            assert [(x.state, x.consumed_by_hash) for x in b.conflicts] == [(state(9), hash_of_tx_id(name_of(1)))]
            assert isinstance(c, Notarised)

    run_virtually(story())


def test_a_command_runs_once_and_belongs_to_one_transaction() -> None:
    """Goal: deduplication by command. Method: same command with other content, accepted and refused ones again."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            await replica.submit(submission(1, [state(9)], command_id="c"))
            (reused,) = await replica.submit(submission(2, [state(8)], command_id="c"))
            assert isinstance(reused, Refused)
            assert reused.code == Code.COMMAND_ID_REUSED.name
            assert reused.record_offset is None
            early = TimeWindow(from_us=world.shared.clock.wall_us() + 5_000_000)
            (too_early,) = await replica.submit(submission(3, [state(7)], window=early, command_id="d"))
            assert isinstance(too_early, Refused)
            assert too_early.code == Code.TIME_WINDOW_CLOSED.name
            await asyncio.sleep(6)
            (in_time,) = await replica.submit(submission(3, [state(7)], window=early, command_id="d"))
            assert isinstance(in_time, Notarised)

    run_virtually(story())


def test_completions_are_dense_in_log_order_and_follow_the_log() -> None:
    """Goal: one completion per submission with dense offsets. Method: publish what a mixed batch decided."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            await replica.submit(*(submission(n, [state(n % 3)], submission_id=f"s{n}") for n in range(1, 8)))
            await asyncio.sleep(1)
            completions = world.shared.database.completions
            assert [offset for offset, _ in completions] == list(range(1, 8))
            assert [c.log_offset for _, c in completions] == list(range(1, 8))
            assert [c.outcome for _, c in completions] == [NOTARISED] * 3 + [Code.STATE_CONFLICT.name] * 4
            assert not world.shared.database.in_flight

    run_virtually(story())


def test_front_ends_are_told_how_far_completions_are_published() -> None:
    """Goal: followers are notified at once, and only of what is committed. Method: listen while requests are
    notarised."""

    async def scenario() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            told: list[tuple[int, int]] = []

            async def listen() -> None:
                while True:
                    await replica.link.standing_changes.wait(60.0)
                    told.append((replica.link.standing.ledger_end, len(world.shared.database.completions)))

            listening = asyncio.create_task(listen())
            for tx in range(1, 4):
                await replica.submit(submission(tx, [state(tx)]))
                await asyncio.sleep(0.1)
            assert told == [(1, 1), (2, 2), (3, 3)]
            listening.cancel()
            await replica.stop()
            assert replica.link.standing.ledger_end == 0
            successor = await world.replica(2)
            await successor.until_active()
            assert successor.link.standing.ledger_end == 3

    run_virtually(scenario())


def test_what_never_reached_the_log_is_settled_by_the_next_activation() -> None:
    """Goal: every accepted submission ends in exactly one completion. Method: a pending command without a record."""

    async def story() -> None:
        async with World() as world:
            change = change_id("user", "lost", (PARTY,))
            lost = Command(change, "user", "lost", (PARTY,), "s", name_of(5), b"d" * 32, 1)
            assert world.shared.database.admit([lost], 0)[0].outcome is Admitted.FRESH
            replica = await world.replica()
            await replica.until_active()
            records = [decode_record(value, 1) for _, value in world.shared.topic.records(0, 10)]
            assert [type(record) for record in records] == [BarrierRecord, SettlementRecord]
            assert [(o, c.outcome, c.command_id) for o, c in world.shared.database.completions] == [
                (1, Code.SUBMISSION_NOT_SEQUENCED.name, "lost")
            ]
            assert world.shared.database.pending(10) == []

    run_virtually(story())


def test_the_next_active_publishes_what_its_predecessor_did_not() -> None:
    """Goal: completions past the published position come from the log. Method: R1 is cut off before it publishes."""

    async def story() -> None:
        async with World(core=CoreSettings(publish_linger_s=1.0)) as world:
            first = await world.replica(1)
            await first.until_active()
            second = await world.replica(2)
            (answer,) = await first.submit(submission(1, [state(9)]))
            assert isinstance(answer, Notarised)
            assert world.shared.database.completions == []
            world.shared.lock_server.end_all()
            await second.until_active()
            assert [c.log_offset for _, c in world.shared.database.completions] == [1]
            (again,) = await second.submit(submission(1, [state(9)]))
            assert isinstance(again, Notarised)
            assert (again.log_offset, again.duplicate) == (1, True)

    run_virtually(story())


def test_a_deposed_replica_s_late_record_is_void_and_never_answered_ok() -> None:
    """Goal: fencing by activation id. Method: hold R1's append back until R2's barrier is in force."""

    async def story() -> None:
        async with World() as world:
            first = await world.replica(1)
            held: list[bytes] = []

            class Holding(Delivery):
                def send(self, value: bytes, topic: object, give_up: object) -> None:
                    held.append(value) if isinstance(decode_record(value, 1), RequestRecord) else topic.store(value)  # type: ignore[attr-defined,func-returns-value]

            first.log._delivery = Holding
            await first.until_active()
            second = await world.replica(2)
            waiting = asyncio.create_task(first.submit(submission(1, [state(9)])))
            await asyncio.sleep(0.1)
            world.shared.lock_server.end_all()
            await second.until_active()
            for value in held:
                world.shared.topic.store(value)
            (late,) = await waiting
            assert isinstance(late, NotNow)
            assert late.code == Code.OUTCOME_UNKNOWN.name
            (answer,) = await second.submit(submission(2, [state(9)]))
            assert isinstance(answer, Notarised), "the void record spent nothing"
            assert second.participant.counters.voids == {"not_in_force": 1}

    run_virtually(story())


def test_a_replica_whose_barrier_is_void_raises_the_epoch_and_writes_again() -> None:
    """Goal: rule 2, the database forgot epochs. Method: a barrier of epoch 7 is in the log, the database has 0."""

    async def story() -> None:
        async with World() as world:
            replica = Replica(world.shared, "R1")
            barrier = BarrierRecord(7, b"z" * 16, "R9", "elsewhere", 1, 1)

            class Late(Delivery):
                """Another barrier gets in just before the replica's first one."""

                def send(self, value: bytes, topic: object, give_up: object) -> None:
                    if world.shared.topic.end_offset == 0:
                        world.shared.topic.store(encode_record(barrier))
                    world.shared.topic.store(value)

            replica.log._delivery = Late
            replica.start()
            world.push_async_callback(replica.stop)
            await replica.until_active()
            assert replica.participant.epoch == 8
            assert replica.participant.counters.voids == {"barrier_not_higher": 1}

    run_virtually(story())


def test_an_active_that_cannot_read_its_record_back_steps_down() -> None:
    """Goal: a stalled log ends the activation. Method: appends vanish; the waiting request is answered unknown."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()

            class Lost(Delivery):
                def send(self, value: bytes, topic: object, give_up: object) -> None:
                    if not isinstance(decode_record(value, 1), RequestRecord):
                        world.shared.topic.store(value)

            activation = replica.participant.activation
            assert activation is not None and activation.appender._writer is not None
            activation.appender._writer._delivery = Lost()  # type: ignore[attr-defined]
            (answer,) = await replica.submit(submission(1, [state(9)]))
            assert isinstance(answer, NotNow)
            assert answer.code == Code.OUTCOME_UNKNOWN.name
            assert not replica.participant.standing().active

    run_virtually(story())


class Swallowed(Delivery):
    """Takes every record and stores none while `swallows`: fewer brokers are in sync than the topic asks for, say."""

    swallows = False

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        if not Swallowed.swallows:
            topic.store(value)


def test_on_a_log_that_does_not_move_no_epoch_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no epoch for an activation that cannot succeed. Method: the log takes no record for ten minutes."""
    barriers = 2  # of R1, and of the replica that serves in the end

    async def story() -> None:
        monkeypatch.setattr(Swallowed, "swallows", False)
        async with World() as world:
            replicas = [await world.replica(number) for number in (1, 2, 3)]
            for replica in replicas:
                replica.log._delivery = Swallowed
            await replicas[0].until_active()
            await asyncio.sleep(10.0)
            monkeypatch.setattr(Swallowed, "swallows", True)
            waiting = asyncio.create_task(replicas[0].submit(submission(1, [state(9)])))
            await asyncio.sleep(600.0)
            assert world.shared.database.epoch == 1
            assert not any(replica.participant.standing().active for replica in replicas)
            monkeypatch.setattr(Swallowed, "swallows", False)
            async with asyncio.timeout(10.0):
                while not any(replica.participant.standing().active for replica in replicas):
                    await asyncio.sleep(0.1)
            assert world.shared.database.epoch == barriers
            await waiting
            records = [decode_record(value, 1) for _, value in world.shared.topic.records(0, 100)]
            found = [record for record in records if isinstance(record, BarrierRecord)]
            assert len({record.activation_id for record in found}) == barriers

    run_virtually(story())


def test_past_the_bounds_a_request_is_refused_with_an_estimate() -> None:
    """Goal: bounded admission, nothing dropped. Method: three slots, five submissions at once."""

    async def story() -> None:
        async with World(core=CoreSettings(in_flight_max=3)) as world:
            replica = await world.replica()
            await replica.until_active()
            answers = await replica.submit(*(submission(n, [state(n)]) for n in range(1, 6)))
            assert [type(answer) for answer in answers] == [Notarised] * 3 + [NotNow] * 2
            assert all(a.code == Code.OVERLOADED.name and a.retry_after_s > 0 for a in answers if isinstance(a, NotNow))
            await asyncio.sleep(1)
            assert replica.participant.activation is not None
            assert (
                replica.participant.activation.intake.budget.submissions,
                replica.participant.activation.intake.budget.states,
            ) == (0, 0)

    run_virtually(story())


def test_not_found_is_said_only_after_the_lock_has_answered() -> None:
    """Goal: a deposed replica cannot deny. Method: end its session at the server, then look an unknown id up."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            missing = await replica.link.look_up(name_of(4))
            assert isinstance(missing, Refused)
            assert missing.code == Code.TX_NOT_FOUND.name
            await replica.submit(submission(4, [state(1)]))
            found = await replica.link.look_up(name_of(4))
            assert isinstance(found, Notarised)
            assert found.log_offset == 1
            world.shared.lock_server.end_all()
            denied = await replica.link.look_up(name_of(5))
            assert isinstance(denied, NotNow)
            assert denied.code == Code.NOT_ACTIVE.name

    run_virtually(story())


def test_a_state_is_told_from_the_index_once_the_lock_has_answered() -> None:
    """Goal: what consumed a state, and never a denial by a deposed replica. Method: around the end of its session."""

    async def scenario() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            await replica.submit(submission(1, [state(1)]))
            assert await replica.link.look_up_state(state(1)) == StateStatus(state(1), name_of(1), 1)
            assert await replica.link.look_up_state(state(2)) == StateStatus(state(2))
            world.shared.lock_server.end_all()
            denied = await replica.link.look_up_state(state(2))
            assert isinstance(denied, NotNow)
            assert denied.code == "NOT_ACTIVE"

    run_virtually(scenario())


def test_a_passive_refuses_and_names_the_epoch() -> None:
    """Goal: passives reject. Method: two replicas; ask the one that does not lead."""

    async def story() -> None:
        async with World() as world:
            await (await world.replica(1)).until_active()
            passive = await world.replica(2)
            await asyncio.sleep(1)
            (answer,) = await passive.submit(submission(1))
            assert isinstance(answer, NotNow)
            assert answer.code == Code.NOT_ACTIVE.name
            assert "epoch it knows of is 1" in answer.detail
            assert passive.participant.standing() == msgspec.structs.replace(passive.participant.standing(), epoch=1)

    run_virtually(story())


@pytest.mark.parametrize("problem", ["another topic", "truncated", "replaced record"])
def test_a_log_that_the_index_was_not_read_from_is_refused(problem: str) -> None:
    """Goal: fail closed. Method: change the log behind a stopped replica's index, start it again."""

    async def story() -> None:
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

    run_virtually(story())


def test_nothing_is_written_to_a_log_that_lost_what_was_published() -> None:
    """Goal: lost records can be brought back to their offsets. Method: truncate, lose the index too, start."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            await replica.submit(submission(1, [state(9)]), submission(2, [state(8)]))
            await asyncio.sleep(1)
            await replica.stop()
            topic = world.shared.topic
            topic.truncate(topic.end_offset - 1)
            end = topic.end_offset
            again = await world.replica(1)
            await asyncio.sleep(5)
            assert topic.end_offset == end
            assert not again.participant.standing().active
            assert isinstance(
                again.participant.broken.exception(), LogTruncated
            )  # itself: what is done goes by its kind
            with pytest.raises(TransitionFailed, match="LOG_TRUNCATED"):
                await again.stop()

    run_virtually(story())


def test_an_unreadable_index_ends_the_replica_and_gives_no_verdict() -> None:
    """Goal: a read error is neither spent nor unspent. Method: the index fails while a request is on its way."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            replica.index.fail_with = "a bad block"
            waiting = asyncio.create_task(replica.submit(submission(1, [state(9)])))
            await asyncio.sleep(0.5)
            assert "INDEX_UNREADABLE" in str(replica.participant.broken.exception())
            await replica.stop()
            (answer,) = await waiting
            assert isinstance(answer, NotNow)
            assert answer.code == Code.OUTCOME_UNKNOWN.name

    run_virtually(story())


def test_what_operators_raise_comes_into_force_with_the_next_activation() -> None:
    """Goal: a raise is announced by a barrier, and the answers stay. Method: raise the rules, hand over, ask again."""

    async def scenario() -> None:
        async with World() as world:
            first = await world.replica()
            await first.until_active()
            (before,) = await first.submit(submission(1, [state(1)]))
            world.shared.database.formats = Formats(2, 2)
            assert in_force(first) == Formats(1, 1)
            await first.stop()
            second = await world.replica(2)
            await second.until_active()
            assert in_force(second) == Formats(2, 2)
            (after,) = await second.submit(submission(1, [state(1)]))
            assert isinstance(before, Notarised)
            assert isinstance(after, Notarised)
            assert after.log_offset == before.log_offset
            world.shared.database.formats = Formats(1, 1)  # restored from before the raise
            await second.stop()
            third = await world.replica(3)
            await third.until_active()
            assert in_force(third) == Formats(2, 2)

    run_virtually(scenario())


def in_force(replica: Replica) -> Formats:
    position = replica.participant.follower.position
    assert position is not None
    assert position.barrier is not None
    barrier = position.barrier
    return Formats(barrier.record_format, barrier.rules_version)


def test_pruning_moves_the_bound_and_front_ends_hear_of_it() -> None:
    """Goal: only what deduplication is done with goes. Method: inside its period, after it, and while passive."""

    async def scenario() -> None:
        async with World(core=CoreSettings(deduplication_max_s=10.0)) as world:
            replica = await world.replica()
            await replica.until_active()
            for tx in range(1, 4):
                await replica.submit(submission(tx, [state(tx)]))
            await asyncio.sleep(1.0)
            assert await replica.participant.prune(2, 0.0) == Pruned(0, 0)
            await asyncio.sleep(10.0)
            assert await replica.participant.prune(None, 60.0) == Pruned(0, 0)
            assert await replica.participant.prune(2, 0.0) == Pruned(2, 3)
            assert replica.link.standing.pruned_to == 2
            await replica.stop()
            with pytest.raises(NotActive):
                await replica.participant.prune(None, 0.0)
            successor = await world.replica(2)
            await successor.until_active()
            assert successor.link.standing.pruned_to == 2

    run_virtually(scenario())


@pytest.mark.parametrize("cut", range(12))
def test_an_interrupted_active_takes_its_lock_again_although_statements_were_in_flight(cut: int) -> None:
    """Goal: grace works under load: the session alone reports its end, once, so its holder races and does not hold
    down. Method: end the session at a dozen moments of a stream of submissions; a warm peer waits for the grace."""
    settings = ElectionSettings(grace_s=2.0, hold_down_s=30.0)

    async def story() -> None:
        async with World(election=settings, core=CoreSettings(publish_linger_s=0.0)) as world:
            world.shared.lock_server.network = SlowNetwork()
            first = await world.replica(1)
            await first.until_active()
            second = await world.replica(2)
            await asyncio.sleep(1.0)
            asking = [asyncio.create_task(first.submit(submission(tx, [state(tx)]))) for tx in range(1, 40)]
            asking += [asyncio.create_task(submit_later(first, tx)) for tx in range(40, 80)]
            await asyncio.sleep(0.003 * cut)
            world.shared.lock_server.end_all()
            ended_s = world.shared.clock.boottime_s()
            while first.participant.standing().active:
                await asyncio.sleep(0.001)
            await first.until_active()
            assert world.shared.clock.boottime_s() - ended_s < settings.grace_s
            assert not second.participant.standing().active
            assert second.participant.counters.activations == 0
            await asyncio.gather(*asking)

    run_virtually(story())


async def submit_later(replica: Replica, tx: int) -> None:
    await asyncio.sleep(0.001 * (tx - 40))
    await replica.submit(submission(tx, [state(tx)]))


class SlowNetwork(Network):
    """A few milliseconds each way, so that there are statements in flight."""

    async def request(self, session: str, statement: str) -> None:
        await asyncio.sleep(0.002)

    async def answer(self, session: str, statement: str) -> None:
        await asyncio.sleep(0.002)


class DeadToken:
    """A hardware security module that stopped answering once the replica led."""

    public_key = SIGNER.public_key
    blocks = True
    dead = False

    def sign(self, message: bytes) -> bytes:
        if self.dead:
            raise RuntimeError("CKR_DEVICE_REMOVED")
        return SIGNER.sign(message)


class AtOnce:
    """In the place of a thread: virtual time does not wait for a real one."""

    def __init__(self, *, target: Callable[..., None], args: tuple[object, ...], **_: object) -> None:
        self.start = partial(target, *args)


def test_a_dead_signing_token_is_not_the_database_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: causes are values: a dead token counts as that, in metric and history. Method: take the token away."""
    monkeypatch.setattr(receipt_desk, "threading", SimpleNamespace(Thread=AtOnce))

    async def story() -> None:
        async with World() as world:
            token = DeadToken()
            replica = await world.replica()
            replica.participant._receipt_signer._signer = token  # type: ignore[assignment]
            await replica.until_active()
            token.dead = True
            (answer,) = await replica.submit(submission(1, [state(9)]))
            assert isinstance(answer, NotNow)
            await asyncio.sleep(1.0)
            assert replica.participant.counters.step_downs["signer"] >= 1
            assert replica.participant.counters.step_downs["lock_lost"] == 0
            told = world.shared.database.ended[1]
            assert told.startswith("signer SIGNER_UNAVAILABLE: ")

    run_virtually(story())


@pytest.mark.parametrize("session_lives", [True, False])
def test_an_activation_that_dies_of_an_exception_says_so(session_lives: bool) -> None:
    """Goal: the history does not show "stop" for a replica that broke. Method: break the index of an active, with and
    without a lock session to record it on."""

    async def story() -> None:
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
            assert (world.shared.database.ended, told) == (({1: text}, []) if session_lives else ({}, [(1, text)]))
            await replica.participant.stop()

    run_virtually(story())
