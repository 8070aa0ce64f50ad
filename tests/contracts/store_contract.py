"""The contract of a participant store. A class that inherits it provides the fixtures `new_store` and `ends`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from hashlib import sha256

import msgspec
import pytest

from replica.notary.answers import Earlier
from replica.notary.errors import Code, InvariantBroken, SalvageMissing, StoreMismatch
from replica.notary.formats import Formats
from replica.notary.position import Position
from replica.notary.records import BarrierRecord
from replica.notary.salvage import bound_name
from replica.store.interface import (
    NOTARISED,
    AdmissionResult,
    Admitted,
    Command,
    Completion,
    ParticipantStore,
    Published,
)
from replica.store.memory import MemoryDatabase

Ends = Callable[[], Awaitable[dict[int, tuple[str | None, str | None]]]]
"""Epoch: what its holder said on its end, and who found it over."""

NewStore = Callable[[], Awaitable[ParticipantStore]]  # a store on a new lock session to the one database of the test

TOPIC = "topic-1"


class Told(msgspec.Struct, frozen=True, eq=False):
    """What a test expects of an outcome; whose the command is, is tested elsewhere."""

    outcome: Admitted
    notarised_offset: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AdmissionResult | Told):
            return NotImplemented
        return (other.outcome, other.notarised_offset) == (self.outcome, self.notarised_offset)

    __hash__ = None  # type: ignore[assignment]


FRESH, IN_FLIGHT, REUSED = (Told(outcome) for outcome in (Admitted.FRESH, Admitted.IN_FLIGHT, Admitted.REUSED))
REJECTED = Code.STATE_CONFLICT.name


def accepted(notarised_offset: int) -> Told:
    return Told(Admitted.ACCEPTED, notarised_offset)


def name_of(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def command(number: int, *, tx: int | None = None, submission: str = "s", submitted_us: int = 1_000) -> Command:
    """Command `number`; its transaction has the same number unless `tx` says otherwise."""
    tx_number = number if tx is None else tx
    return Command(
        name_of(number),
        "alice",
        f'command "{number}" \\ {{é}}',
        ("CN=A, O=Bank", 'CN="B", O=Bänk'),
        submission,
        name_of(1_000_000 + tx_number),
        name_of(2_000_000 + tx_number),
        submitted_us,
    )


def completion(
    of: Command, log_offset: int, outcome: str = NOTARISED, *, recorded_us: int = 5_000, detail: bytes = b""
) -> Completion:
    return Completion(
        log_offset,
        of.change_id,
        of.user_id,
        of.command_id,
        of.act_as,
        of.submission_id,
        of.tx_id,
        of.content_digest,
        outcome,
        log_offset if outcome == NOTARISED else None,
        recorded_us,
        detail,
    )


def in_order(commands: list[Command]) -> list[Command]:
    """As `pending` gives them."""
    return sorted(commands, key=lambda c: (c.submitted_us, c.change_id))


def at(offset: int) -> Position:
    barrier = BarrierRecord(2, b"a" * 16, "r1", "postgres:1:1", 1, 1)
    return Position(1, TOPIC, offset, b"d" * 32, barrier, 0, 17, ((0, max(1, offset)),))


async def activated(new_store: NewStore) -> ParticipantStore:
    """A store as an activation makes it: bound, with an epoch of its own, knowing what is published."""
    store = await new_store()
    await store.bind(TOPIC)
    await store.raise_epoch(0, "r")
    await store.published()
    return store


async def serving(new_store: NewStore) -> ParticipantStore:
    """A store that may admit: nothing is pending from before."""
    store = await activated(new_store)
    assert await store.pending(10) == []
    return store


class StoreContract:
    """Every test gets a database of its own."""

    async def test_the_first_topic_is_the_only_one(self, new_store: NewStore) -> None:
        """Goal: a database is never used with another log. Method: bind twice, then to another topic."""
        assert await (await new_store()).bind(TOPIC) == Formats()
        await (await new_store()).bind(TOPIC)
        with pytest.raises(StoreMismatch) as caught:
            await (await new_store()).bind("topic-2")
        assert caught.value.code is Code.STORE_MISMATCH
        await (await new_store()).bind(TOPIC)

    @pytest.mark.parametrize("topic_id", ["postgres:7b3c9d5e-0c1f-4a53-9d64-0f5d4f0c9b1a", "raft:a", "a+b/c=="])
    async def test_an_identity_may_say_of_which_kind_the_log_is(self, new_store: NewStore, topic_id: str) -> None:
        """Goal: a log of any kind is known again. Method: bind twice to ids with and without a colon; to another."""
        for _ in range(2):
            await (await new_store()).bind(topic_id)
        with pytest.raises(StoreMismatch):
            await (await new_store()).bind(topic_id.partition(":")[0] + ":other")

    async def test_a_salvaged_log_needs_its_salvages(self, new_store: NewStore) -> None:
        """Goal: no index that forgot a lost tail serves. Method: a database that names two salvages; bind with none,
        one and both. A release that knows of none compares the whole name with the topic's id."""
        name = bound_name(bound_name(None, TOPIC, b"d" * 32), TOPIC, b"e" * 32)
        digests = [(b"d" * 32).hex(), (b"e" * 32).hex()]
        with pytest.raises(StoreMismatch):
            await (await new_store()).bind(name)  # recorded, as the first name is
        for held in ([], digests[:1], digests[1:]):
            with pytest.raises(SalvageMissing) as caught:
                await (await new_store()).bind(TOPIC, held)
            assert caught.value.code is Code.SALVAGE_MISSING
        assert await (await new_store()).bind(TOPIC, digests) == Formats()
        with pytest.raises(StoreMismatch):
            await (await new_store()).bind("topic-2", digests)

    async def test_epochs_rise_above_all_before(self, new_store: NewStore) -> None:
        """Goal: no epoch is granted twice. Method: raise above lower, equal and higher epochs, from two sessions."""
        store = await serving(new_store)  # takes epoch 1
        assert [await store.raise_epoch(above, "r1") for above in (0, 2, 10, 3)] == [2, 3, 11, 12]
        other = await serving(new_store)
        assert await other.raise_epoch(0, "r2") == 14

    async def test_only_the_holders_first_word_ends_its_epoch(self, new_store: NewStore, ends: Ends) -> None:
        """Goal: nobody rewrites why an activation ended. Method: say it twice, as another replica, for no epoch."""
        store = await serving(new_store)
        await store.end_epoch(1, "r", "stop")
        await store.end_epoch(1, "r", "another word")
        await store.end_epoch(1, "r2", "another replica")
        await store.end_epoch(99, "r", "no such epoch")
        assert await ends() == {1: ("stop", None)}

    async def test_a_successor_notes_what_its_predecessor_could_not_say(self, new_store: NewStore, ends: Ends) -> None:
        """Goal: the history is true after a crash. Method: an end that was recorded, one that was not, one recorded
        later."""
        store = await serving(new_store)
        await store.end_epoch(1, "r", "stop")
        assert await store.raise_epoch(0, "r2") == 2  # and it dies
        assert await store.raise_epoch(0, "r3") == 3
        assert await ends() == {1: ("stop", None), 2: (None, "r3"), 3: (None, None)}
        await store.end_epoch(2, "r2", "its session was lost")
        assert (await ends())[2] == ("its session was lost", "r3")

    async def test_nothing_is_published_at_first(self, new_store: NewStore) -> None:
        """Goal: a new database reports that. Method: ask."""
        store = await serving(new_store)
        assert await store.published() == Published(None, 0)
        assert await store.pending(10) == []

    async def test_fresh_commands_are_pending_oldest_first(self, new_store: NewStore) -> None:
        """Goal: the next activation learns all that was admitted, as it was. Method: two batches, another session."""
        store = await serving(new_store)
        given = [command(n, submitted_us=100 - n) for n in range(5)]
        assert await store.admit(given[:3], 0) == [FRESH] * 3
        assert await store.admit(given[3:], 0) == [FRESH] * 2
        after = await activated(new_store)
        assert await after.pending(10) == given[::-1]
        assert await after.pending(2) == given[:2:-1]

    async def test_nothing_is_admitted_while_older_commands_are_pending(self, new_store: NewStore) -> None:
        """Goal: an activation settles first. Method: leave a command pending, admit in the next session."""
        store = await serving(new_store)
        await store.admit([command(1)], 0)
        after = await activated(new_store)
        with pytest.raises(InvariantBroken):
            await after.admit([command(2)], 0)
        assert await after.pending(10) == [command(1)]
        with pytest.raises(InvariantBroken):
            await after.admit([command(2)], 0)
        await after.publish([completion(command(1), 7, Code.SUBMISSION_NOT_SEQUENCED.name)], at(7))
        assert await after.pending(10) == []
        assert await after.admit([command(1), command(2)], 0) == [FRESH] * 2

    async def test_a_command_in_flight_is_not_admitted_again(self, new_store: NewStore) -> None:
        """Goal: a resubmission cannot run twice. Method: the same command in the next call, with both transactions."""
        store = await serving(new_store)
        await store.admit([command(1)], 0)
        again = [command(1, submission="s2"), command(2), command(1, tx=9)]
        assert await store.admit(again, 0) == [IN_FLIGHT, FRESH, REUSED]
        assert await (await activated(new_store)).pending(10) == in_order([command(1), command(2)])

    async def test_a_command_twice_in_one_call_is_admitted_once(self, new_store: NewStore) -> None:
        """Goal: one batch is no loophole. Method: equal commands and one with another transaction, in one call."""
        store = await serving(new_store)
        twice = command(1)
        assert await store.admit([twice, twice, command(2), command(1, tx=9), command(1, submission="s2")], 0) == [
            FRESH,
            IN_FLIGHT,
            FRESH,
            REUSED,
            IN_FLIGHT,
        ]
        assert len(await (await activated(new_store)).pending(10)) == 2

    async def test_admitting_and_publishing_at_one_time_do_not_disturb_each_other(self, new_store: NewStore) -> None:
        """Goal: no command is forgotten or unknown. Method: each call started while the database works on the other."""
        store = await serving(new_store)
        await store.admit([command(1), command(2)], 0)
        _, found = await asyncio.gather(
            store.publish([completion(command(1), 7)], at(7)), store.admit([command(1), command(3)], 0)
        )
        assert found in ([IN_FLIGHT, FRESH], [accepted(7), FRESH])
        await asyncio.gather(
            store.admit([command(4), command(5)], 0), store.publish([completion(command(2), 8)], at(8))
        )
        await store.publish([completion(command(4), 9)], at(9))
        assert await (await activated(new_store)).pending(10) == in_order([command(3), command(5)])

    async def test_an_accepted_command_gives_the_recorded_answer(self, new_store: NewStore) -> None:
        """Goal: a duplicate is known, also to the next activation. Method: accept two, ask in a mixed batch."""
        store = await serving(new_store)
        await store.admit([command(1), command(2)], 0)
        await store.publish([completion(command(1), 7), completion(command(2), 8)], at(8))
        for asked in (store, await serving(new_store)):
            mixed = [command(1), command(3), command(2, tx=9), command(2), command(1, submission="s2"), command(3)]
            found = await asked.admit(mixed, 5_000)
            assert found == [accepted(7), FRESH, REUSED, accepted(8), accepted(7), IN_FLIGHT]
            await asked.publish([completion(command(3), 9, REJECTED)], at((await asked.published()).ledger_end + 10))

    async def test_each_command_has_a_period_of_its_own(self, new_store: NewStore) -> None:
        """Goal: one statement whatever periods are asked for. Method: three that were accepted, each asked for with a
        period that it is in, by time and by offset, and with one that it is not in; a rejected and a new one."""
        store = await serving(new_store)
        first, given = (await store.published()).ledger_end, [command(number) for number in (1, 2, 3, 4)]
        await store.admit(given, 0)
        await store.publish(
            [completion(one, 7 + at, recorded_us=5_000 + at) for at, one in enumerate(given[:3])]
            + [completion(command(4), 10, REJECTED)],
            at(10),
        )
        asked = [command(5), command(1), command(2), command(3), command(4), command(1)]
        found = await store.admit(asked, [0, 5_000, 5_002, 0, 0, 5_000], [0, 0, 0, first + 2, 0, 0])
        assert found == [FRESH, accepted(7), FRESH, accepted(9), FRESH, accepted(7)]
        assert await store.admit(asked[1:4], [0] * 3, [first + 1, 0, 0]) == [FRESH, IN_FLIGHT, accepted(9)]
        assert await store.pending(10) == in_order([command(1), command(2), command(4), command(5)])

    async def test_only_accepted_commands_are_known(self, new_store: NewStore) -> None:
        """Goal: what is known already leaves no trace. Method: admit accepted ones alone, look at what is pending."""
        store = await serving(new_store)
        await store.admit([command(1)], 0)
        await store.publish([completion(command(1), 7)], at(7))
        assert await store.admit([command(1), command(1)], 0) == [accepted(7)] * 2
        assert await store.pending(10) == []
        assert await store.admit([], 0) == []

    async def test_a_rejected_command_may_run_again(self, new_store: NewStore) -> None:
        """Goal: only acceptance blocks. Method: reject, then resubmit as it was and with another transaction."""
        store = await serving(new_store)
        await store.admit([command(1), command(2)], 0)
        await store.publish([completion(command(1), 7, REJECTED), completion(command(2), 8, REJECTED)], at(8))
        assert await store.pending(10) == []
        again = [command(1), command(2, tx=9)]
        assert await store.admit(again, 0) == [FRESH] * 2
        assert await (await activated(new_store)).pending(10) == in_order(again)

    async def test_a_rejected_and_resubmitted_command_is_pending_once(self, new_store: NewStore) -> None:
        """Goal: one settlement per submission. Method: reject, resubmit, while its old batch is not over yet."""
        store = await serving(new_store)
        await store.admit([command(1), command(2)], 0)
        await store.publish([completion(command(1), 7, REJECTED)], at(7))
        await store.admit([command(1)], 0)
        assert await (await activated(new_store)).pending(10) == in_order([command(1), command(2)])
        await store.publish([completion(command(1), 8)], at(8))
        assert await (await activated(new_store)).pending(10) == [command(2)]

    async def test_much_that_was_published_since_does_not_hide_what_is_in_flight(self, new_store: NewStore) -> None:
        """Goal: a backup of any age does. Method: commands in flight, then a hundred completions of others from the
        log, with those of some of them in between; activations that ask, settle and ask again."""
        store = await serving(new_store)
        await store.admit([command(1), command(2)], 0)
        await store.admit([command(3), command(4, submission="s1")], 0)
        store = await activated(new_store)
        landed = {30: completion(command(2), 30), 70: completion(command(4, submission="s1"), 70, REJECTED)}
        for n in range(100):
            await store.publish([landed.get(n, completion(command(1_000 + n), n))], at(n))
        for _ in range(2):
            store = await activated(new_store)
            assert await store.pending(10) == in_order([command(1), command(3)])
        await store.publish([completion(command(n), 100, REJECTED) for n in (1, 3)], at(100))
        assert await store.pending(10) == []
        asked = [command(1), command(2), command(4, submission="s2")]
        assert await store.admit(asked, 0) == [FRESH, accepted(30), FRESH]
        assert await (await activated(new_store)).pending(10) == in_order([asked[0], asked[2]])

    async def test_whose_a_command_is_can_be_told(self, new_store: NewStore) -> None:
        """Goal: who is refused learns by which submission, and where it ended. Method: in flight, then accepted, asked
        for by this session and by the next one; with the same and with another transaction."""
        store = await serving(new_store)
        await store.admit([command(1), command(2, submission="first")], 0)
        for tx in (2, 9):
            (found,) = await store.admit([command(2, tx=tx, submission="second")], 0)
            assert found.earlier == Earlier("first", None)
        done = [completion(command(1), 7, REJECTED), completion(command(2, submission="first"), 8)]
        await store.publish(done, at(8))
        for asked in (store, await serving(new_store)):
            for tx, outcome in ((2, Admitted.ACCEPTED), (9, Admitted.REUSED)):
                (found,) = await asked.admit([command(2, tx=tx, submission="second")], 0)
                assert (found.outcome, found.earlier) == (outcome, Earlier("first", 2))
        (fresh,) = await store.admit([command(1, submission="second")], 0)
        assert fresh.earlier is None

    async def test_a_default_command_id_leaves_other_content_to_the_log(self, new_store: NewStore) -> None:
        """Goal: a command without an id of its own leaves reuse to the log. Method: other content under a command named
        after its transaction, in flight and accepted, in a mixed batch; a chosen id, and another transaction's name."""
        store = await serving(new_store)

        def named(tx: int, digest: int, name_after: int | None = None) -> Command:
            of = command(0, tx=tx, submission=f"{tx} {digest}")
            name = name_of(1_000_000 + (tx if name_after is None else name_after)).hex()
            change = name_of(5_000_000 + (tx if name_after is None else name_after))
            return msgspec.structs.replace(of, change_id=change, command_id=name, content_digest=name_of(digest))

        assert await store.admit([named(1, 1), named(1, 2), command(3)], 0) == [FRESH, IN_FLIGHT, FRESH]
        assert await store.admit([named(1, 2), named(2, 1, name_after=1)], 0) == [IN_FLIGHT, REUSED]
        await store.publish([completion(named(1, 1), 7), completion(command(3), 8)], at(8))
        batch = [named(1, 2), named(1, 3), command(3), command(3, tx=9), named(2, 1, name_after=1), command(4)]
        assert await store.admit(batch, 0) == [FRESH, IN_FLIGHT, accepted(8), REUSED, REUSED, FRESH]
        await store.publish([completion(named(1, 2), 9, Code.TX_ID_REUSED.name)], at(9))
        assert await store.admit([named(1, 1), named(2, 1, name_after=1)], 0) == [accepted(7), REUSED]
        assert await (await activated(new_store)).pending(10) == [command(4)]

    async def test_an_old_acceptance_is_forgotten(self, new_store: NewStore) -> None:
        """Goal: the deduplication period ends. Method: ask just inside and just outside of it."""
        store = await serving(new_store)
        await store.admit([command(1)], 0)
        await store.publish([completion(command(1), 7, recorded_us=5_000)], at(7))
        assert await store.admit([command(1)], 5_000) == [accepted(7)]
        assert await store.admit([command(1, tx=9)], 5_001) == [FRESH]
        assert await store.admit([command(1, tx=9)], 5_001) == [IN_FLIGHT]
        await store.publish([completion(command(1, tx=9), 8, recorded_us=6_000)], at(8))
        assert await store.admit([command(1, tx=9), command(1)], 5_001) == [accepted(8), REUSED]

    async def test_ledger_offsets_are_dense_and_in_the_order_given(self, new_store: NewStore) -> None:
        """Goal: completions are numbered by the log alone. Method: three publications, the empty one among them."""
        store = await serving(new_store)
        assert await store.publish([completion(command(n), n + 5) for n in range(3)], at(7)) == 3
        assert await store.publish([], at(8)) == 3
        assert await store.published() == Published(at(8), 3)
        other = await serving(new_store)
        assert await other.publish([completion(command(n), n + 5) for n in (4, 3)], at(12)) == 5
        assert await store.published() == Published(at(12), 5)

    async def test_a_publication_that_does_not_go_forward_is_refused_whole(self, new_store: NewStore) -> None:
        """Goal: no completion is published twice. Method: publish at and before the published position."""
        store = await serving(new_store)
        await store.admit([command(1), command(2)], 0)
        await store.publish([completion(command(1), 7)], at(7))
        for offset in (7, 3):
            with pytest.raises(InvariantBroken):
                await store.publish([completion(command(2), offset)], at(offset))
        assert await store.published() == Published(at(7), 1)
        assert await (await activated(new_store)).pending(10) == [command(2)]

    async def test_an_acceptance_is_never_taken_back(self, new_store: NewStore) -> None:
        """Goal: a rejection of another submission changes nothing. Method: in one publication, and in the next."""
        store = await serving(new_store)
        both = [completion(command(1), 7), completion(command(1, tx=9, submission="s2"), 8, REJECTED)]
        await store.publish(both, at(8))
        await store.publish([completion(command(1, tx=9, submission="s3"), 9, REJECTED)], at(9))
        assert await store.admit([command(1)], 0) == [accepted(7)]

    async def test_the_latest_acceptance_counts(self, new_store: NewStore) -> None:
        """Goal: a command that ran again after its period is known by its new run. Method: two in one publication."""
        store = await serving(new_store)
        await store.publish([completion(command(1), 7), completion(command(1, tx=9), 8)], at(8))
        assert await store.admit([command(1), command(1, tx=9)], 0) == [REUSED, accepted(8)]

    async def test_completions_of_unknown_commands_count(self, new_store: NewStore) -> None:
        """Goal: a restored database catches up. Method: publish what was never admitted here."""
        store = await serving(new_store)
        await store.publish([completion(command(1), 7), completion(command(2), 8, REJECTED)], at(8))
        assert await store.admit([command(1), command(2)], 0) == [accepted(7), FRESH]

    async def test_another_submission_s_completion_does_not_settle(self, new_store: NewStore) -> None:
        """Goal: what is in flight stays so until its own record. Method: a completion with another submission id."""
        store = await serving(new_store)
        await store.admit([command(1, submission="s2")], 0)
        await store.publish([completion(command(1, submission="s1"), 7, REJECTED)], at(7))
        assert await store.admit([command(1)], 0) == [IN_FLIGHT]
        assert await (await activated(new_store)).pending(10) == [command(1, submission="s2")]

    async def test_a_repeated_transaction_keeps_its_first_offset(self, new_store: NewStore) -> None:
        """Goal: the recorded answer names where it was notarised. Method: a second command for the same transaction."""
        store = await serving(new_store)
        again = command(2, tx=1)
        await store.admit([command(1), again], 0)
        first, second = completion(command(1), 7), completion(again, 8)
        await store.publish([first, msgspec.structs.replace(second, notarised_offset=7)], at(8))
        assert await store.admit([again], 0) == [accepted(7)]


async def agrees_with_memory(new_store: NewStore, chance: random.Random) -> MemoryDatabase:
    """150 random steps with a few commands, on the store and on the double: the same answers. Returns the double."""
    memory = MemoryDatabase()
    memory.bind(TOPIC)
    store = await serving(new_store)
    memory.raise_epoch(0, "r")
    offset = 0
    for step in range(150):
        asked = [
            command(chance.randrange(12), tx=chance.randrange(3), submission=f"s{step}", submitted_us=step)
            for _ in range(chance.randrange(1, 5))
        ]
        since_us = chance.choice([0, 0, step * 10 - 100])
        assert await store.admit(asked, since_us) == memory.admit(asked, since_us)
        waiting = chance.sample(
            in_order(list(memory.in_flight.values())), k=min(len(memory.in_flight), chance.randrange(4))
        )
        done = []
        for of in waiting:
            offset += 1
            done.append(completion(of, offset, chance.choice([NOTARISED, REJECTED]), recorded_us=step * 10))
        offset += 1
        assert await store.publish(done, at(offset)) == memory.publish(done, at(offset))
        if step % 25 == 24:  # the replica is killed
            store = await activated(new_store)
            memory.raise_epoch(0, "r")
            left = memory.pending(100)
            assert await store.pending(100) == left
            offset += 1
            settled = [completion(of, offset, REJECTED, recorded_us=step * 10) for of in left]
            assert await store.publish(settled, at(offset)) == memory.publish(settled, at(offset))
            assert await store.pending(100) == []
    assert await store.published() == memory.published()
    return memory
