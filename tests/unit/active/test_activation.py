"""One activation, on virtual time: what is answered, published, looked up, refused and pruned."""

from __future__ import annotations

import asyncio

import pytest

from replica.notary.answers import Notarised, NotNow, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.errors import NotActive
from replica.notary.formats import Formats
from replica.notary.receipts import verify_receipt
from replica.notary.requests import TimeWindow
from replica.notary.rules import hash_of_tx_id
from replica.settings import CoreSettings
from replica.store.interface import NOTARISED, Pruned, Published
from tests.next_version.release import NEXT, PRESENT, registered
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import BEGUN, FIRST_EPOCH, SIGNER, Replica, World, name_of, state, submission


@on_virtual_time
async def test_a_request_is_notarised_remembered_and_certified() -> None:
    """Goal: the first success, its repeats and its receipt. Method: one replica, the same transaction three ways."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        (first,) = await replica.submit(submission(1, [state(9)]))
        assert isinstance(first, Notarised)
        assert (first.log_offset, first.record_offset, first.duplicate) == (BEGUN + 1, BEGUN + 1, False)
        assert verify_receipt(first.receipt, SIGNER.public_key)
        (again,) = await replica.submit(submission(1, [state(9)]))
        assert isinstance(again, Notarised)
        assert (again.log_offset, again.record_offset, again.duplicate) == (BEGUN + 1, None, True)
        (other_command,) = await replica.submit(submission(1, [state(9)], command_id="other"))
        assert isinstance(other_command, Notarised)
        assert (other_command.log_offset, other_command.record_offset) == (BEGUN + 1, BEGUN + 2)


@on_virtual_time
async def test_a_conflict_names_the_winner_by_its_hash_and_spends_nothing() -> None:
    """Goal: all-or-nothing. Method: B wants A's state and a free one; C then gets the free one."""
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


@on_virtual_time
async def test_a_command_runs_once_and_belongs_to_one_transaction() -> None:
    """Goal: deduplication by command. Method: same command with other content, accepted and refused ones again."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)], command_id="c"))
        (reused,) = await replica.submit(submission(2, [state(8)], command_id="c"))
        assert isinstance(reused, Refused)
        assert reused.code == Code.COMMAND_ID_REUSED.name
        assert reused.record_offset is not None
        early = TimeWindow(from_us=world.shared.clock.wall_us() + 5_000_000)
        (too_early,) = await replica.submit(submission(3, [state(7)], window=early, command_id="d"))
        assert isinstance(too_early, Refused)
        assert too_early.code == Code.TIME_WINDOW_CLOSED.name
        await asyncio.sleep(6)
        (in_time,) = await replica.submit(submission(3, [state(7)], window=early, command_id="d"))
        assert isinstance(in_time, Notarised)


@on_virtual_time
async def test_completions_are_dense_in_log_order_and_follow_the_log() -> None:
    """Goal: one completion per submission with dense offsets. Method: publish what a mixed batch decided."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(*(submission(n, [state(n % 3)], submission_id=f"s{n}") for n in range(1, 8)))
        await asyncio.sleep(1)
        completions = world.shared.database.completions
        assert [offset for offset, _ in completions] == list(range(1, 8))
        assert [c.log_offset for _, c in completions] == list(range(BEGUN + 1, BEGUN + 8))
        assert [c.outcome for _, c in completions] == [NOTARISED] * 3 + [Code.STATE_CONFLICT.name] * 4


@on_virtual_time
async def test_front_ends_are_told_how_far_completions_are_published() -> None:
    """Goal: followers are notified at once, and only of what is committed. Method: listen while requests are
    notarised."""
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


@on_virtual_time
async def test_past_the_bounds_a_request_is_refused_with_an_estimate() -> None:
    """Goal: bounded admission, nothing dropped. Method: three slots, five submissions at once."""
    async with World(core=CoreSettings(in_flight_max=3)) as world:
        replica = await world.replica()
        await replica.until_active()
        answers = await replica.submit(*(submission(n, [state(n)], user_id=f"u{n}") for n in range(1, 6)))
        assert [type(answer) for answer in answers] == [Notarised] * 3 + [NotNow] * 2
        assert all(a.code == Code.OVERLOADED.name and a.retry_after_s > 0 for a in answers if isinstance(a, NotNow))
        await asyncio.sleep(1)
        assert (replica.participant.in_flight, replica.participant.states_in_flight) == (0, 0)


@on_virtual_time
async def test_not_found_is_said_only_after_the_lock_has_answered() -> None:
    """Goal: a deposed replica cannot deny. Method: end its session at the server, then look an unknown id up."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        missing = await replica.link.look_up(name_of(4))
        assert isinstance(missing, Refused)
        assert missing.code == Code.TX_NOT_FOUND.name
        await replica.submit(submission(4, [state(1)]))
        found = await replica.link.look_up(name_of(4))
        assert isinstance(found, Notarised)
        assert found.log_offset == BEGUN + 1
        world.shared.lock_server.end_all()
        denied = await replica.link.look_up(name_of(5))
        assert isinstance(denied, NotNow)
        assert denied.code == Code.NOT_ACTIVE.name


@on_virtual_time
async def test_a_state_is_told_from_the_index_once_the_lock_has_answered() -> None:
    """Goal: what consumed a state, and never a denial by a deposed replica. Method: around the end of its session."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(1)]))
        assert await replica.link.look_up_state(state(1)) == StateStatus(state(1), name_of(1), BEGUN + 1)
        assert await replica.link.look_up_state(state(2)) == StateStatus(state(2))
        world.shared.lock_server.end_all()
        denied = await replica.link.look_up_state(state(2))
        assert isinstance(denied, NotNow)
        assert denied.code == "NOT_ACTIVE"


@on_virtual_time
async def test_a_passive_refuses_and_names_the_epoch() -> None:
    """Goal: passives reject. Method: two replicas; ask the one that does not lead."""
    async with World() as world:
        await (await world.replica(1)).until_active()
        passive = await world.replica(2)
        await asyncio.sleep(1)
        (answer,) = await passive.submit(submission(1))
        assert isinstance(answer, NotNow)
        assert answer.code == Code.NOT_ACTIVE.name
        assert f"epoch it knows of is {FIRST_EPOCH}" in answer.detail
        assert passive.participant.standing().epoch == FIRST_EPOCH
        assert passive.participant.standing().ledger_id == b"L" * 16


@on_virtual_time
async def test_what_operators_raise_comes_into_force_with_the_next_activation() -> None:
    """Goal: a raise is announced by a barrier, and the answers stay. Method: raise them, hand over, ask again."""
    with registered():
        async with World() as world:
            first = await world.replica()
            await first.until_active()
            (before,) = await first.submit(submission(1, [state(1)]))
            world.shared.database.formats = NEXT
            assert in_force(first) == PRESENT
            await first.stop()
            second = await world.replica(2)
            await second.until_active()
            assert in_force(second) == NEXT
            (after,) = await second.submit(submission(1, [state(1)]))
            assert isinstance(before, Notarised)
            assert isinstance(after, Notarised)
            assert after.log_offset == before.log_offset
            world.shared.database.formats = PRESENT  # restored from before the raise
            await second.stop()
            third = await world.replica(3)
            await third.until_active()
            assert in_force(third) == NEXT


def in_force(replica: Replica) -> Formats:
    position = replica.participant.follower.position
    assert position is not None
    assert position.barrier is not None
    barrier = position.barrier
    return Formats(barrier.record_format, barrier.rules_version)


@on_virtual_time
async def test_pruning_moves_the_bound_and_front_ends_hear_of_it() -> None:
    """Goal: only what deduplication is done with goes. Method: inside its period, after it, and while passive."""
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


@on_virtual_time
async def test_a_bound_that_moves_while_an_activation_opens_is_kept() -> None:
    """Goal: a bound that moves during a fail-over is told. Method: it moves after the opening has read an older one,
    and before."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        activation = replica.participant.activation
        assert activation is not None
        for moved, read in ((5, 3), (0, 7)):
            activation.take_bound(moved)
            activation.publisher.begin(Published(None, 9, read))
            assert replica.participant.standing().pruned_to == max(moved, read)
