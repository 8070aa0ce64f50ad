"""The contract of a participant store. A class that inherits it provides the fixtures `new_store` and `ends`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import pytest

from replica.notary.codes import Code
from replica.notary.errors import SalvageMissing, StoreMismatch
from replica.notary.formats import Formats
from replica.notary.granters import Database
from replica.notary.marks import MARK_MAX_BYTES, ContradictedMark, ContradictedMarks
from replica.notary.position import POSITION_VERSION, Position
from replica.notary.records import BarrierRecord
from replica.notary.salvage import bound_name
from replica.store.bulletin import Board
from replica.store.interface import (
    NOTARISED,
    Command,
    Completion,
    ParticipantStore,
)

Ends = Callable[[], Awaitable[dict[int, tuple[str | None, str | None]]]]
"""Epoch: what its holder said on its end, and who found it over."""


async def ends_on(board: Board) -> dict[int, tuple[str | None, str | None]]:
    """As operators read them."""
    return {past.epoch: (past.end_reason, past.found_over_by) for past in await board.history(100)}


NewStore = Callable[[], Awaitable[ParticipantStore]]  # a store on a new lock session to the one database of the test

TOPIC = "topic-1"


REJECTED = Code.STATE_CONFLICT.name


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


def at(offset: int, ledger_offset: int = 0) -> Position:
    barrier = BarrierRecord(2, b"a" * 16, "r1", Database("postgres", "1", 1), 2, 3)
    seen = ((0, max(1, offset)),)
    return Position(POSITION_VERSION, b"L" * 16, TOPIC, offset, b"d" * 32, barrier, 0, 17, seen, 0, ledger_offset)


async def publish(store: ParticipantStore, done: Sequence[Completion], offset: int, after: int = 0) -> int:
    """Publish completions that follow a ledger offset, of the log up to `offset`."""
    return await store.publish(list(enumerate(done, after + 1)), at(offset, after + len(done)))


async def activated(new_store: NewStore) -> ParticipantStore:
    """A store as an activation makes it: bound, with an epoch of its own, knowing what is published."""
    store = await new_store()
    await store.bind(TOPIC)
    await store.raise_epoch(0, "r")
    await store.published()
    return store


class StoreContract:
    """What one example says better than StoreMachine. Every test gets a database of its own."""

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

    async def test_only_the_holders_first_word_ends_its_epoch(self, new_store: NewStore, ends: Ends) -> None:
        """Goal: nobody rewrites why an activation ended. Method: say it twice, as another replica, for no epoch."""
        store = await activated(new_store)
        await store.end_epoch(1, "r", "stop")
        await store.end_epoch(1, "r", "another word")
        await store.end_epoch(1, "r2", "another replica")
        await store.end_epoch(99, "r", "no such epoch")
        assert await ends() == {1: ("stop", None)}

    async def test_a_successor_notes_what_its_predecessor_could_not_say(self, new_store: NewStore, ends: Ends) -> None:
        """Goal: the history is true after a crash. Method: an end that was recorded, one that was not, one recorded
        later."""
        store = await activated(new_store)
        await store.end_epoch(1, "r", "stop")
        assert await store.raise_epoch(0, "r2") == 2  # and it dies
        assert await store.raise_epoch(0, "r3") == 3
        assert await ends() == {1: ("stop", None), 2: (None, "r3"), 3: (None, None)}
        await store.end_epoch(2, "r2", "its session was lost")
        assert (await ends())[2] == ("its session was lost", "r3")


class ContradictedMarksContract:
    """Of the marks that replicas leave when they end. A class that inherits it provides `new_store` and `shared`."""

    async def test_each_replica_has_one_and_everybody_reads_them(
        self, new_store: NewStore, shared: ContradictedMarks
    ) -> None:
        """Goal: who comes later knows of it, and the table is bounded. Method: the largest mark, one more of the same
        replica, one of another; read beside the lock and on its session."""
        store = await activated(new_store)
        assert await shared.contradicted_marks() == await store.contradicted_marks() == []
        first = ContradictedMark("r2", b"\x00\xff" * (MARK_MAX_BYTES // 2), True)
        second, other = ContradictedMark("r2", b"later", False), ContradictedMark("r1", b"other", True)
        await shared.leave_mark(first)
        assert await shared.contradicted_marks() == await store.contradicted_marks() == [first]
        await shared.leave_mark(second)
        await shared.leave_mark(other)
        await shared.leave_mark(other)
        assert await shared.contradicted_marks() == await store.contradicted_marks() == [other, second]

    async def test_only_the_one_that_was_read_is_taken_away(self, shared: ContradictedMarks) -> None:
        """Goal: a replica that ends meanwhile is heard. Method: take away what it has replaced since."""
        old, new, other = (ContradictedMark(*of, True) for of in (("r2", b"old"), ("r2", b"new"), ("r1", b"old")))
        for left in (old, other, new):
            await shared.leave_mark(left)
        await shared.take_mark_away(old)
        assert await shared.contradicted_marks() == [other, new]
        await shared.take_mark_away(new)
        await shared.take_mark_away(new)
        assert await shared.contradicted_marks() == [other]
