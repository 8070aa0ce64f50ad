"""What a worker asks where replicas share no database: its own ledger, and numbers that are a word in the log."""

from __future__ import annotations

import asyncio
import os
from itertools import count

import pytest

from replica.active.log_desk import CLOCK_EVERY_S, LogDesk, draw_range
from replica.active.numbers import Numbers, needs_range, range_of, usable
from replica.log.raft.log import median_of_majority
from replica.notary.errors import StoreMismatch
from replica.notary.granters import THE_LOG, Claim
from replica.notary.leases import OTHERS_FROM
from replica.notary.position import POSITION_VERSION, Position
from replica.notary.records import BarrierRecord
from replica.notary.words import NewWord
from replica.store.interface import Published
from replica.store.words import NUMBERS, drawn, draws_in
from tests.unit.store.test_ledger_board import WordsHere
from tests.worlds.ha_world import LoopClock


class Words(WordsHere):
    """With clocks beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_us: int | None = 7
        self.asked = 0

    async def agreed_wall_us(self) -> int | None:
        self.asked += 1
        return self.wall_us


class Ledger:
    """A ledger up to the record 11, with two completions."""

    async def reached(self, offset: int) -> Published:
        return Published(Position(POSITION_VERSION, b"L" * 16, "log", 11), 2, 1)


class Clock(LoopClock):
    """Boot time that is set."""

    now_s = 100.0

    def boottime_s(self) -> float:
        return self.now_s


def claim(epoch: int, witnessed: int) -> BarrierRecord:
    return BarrierRecord(epoch, bytes([epoch]) * 16, "R1", Claim(witnessed), 2, 3)


async def test_each_draw_is_given_to_one() -> None:
    """Goal: no number twice, whoever asks at once. Method: draws one after the other, then five that look at the same
    value before any of them says its own."""

    class AtOnce(Words):
        together = asyncio.Event()

        async def say(self, word: NewWord) -> object:  # type: ignore[override]
            self.waiting = getattr(self, "waiting", 0) + 1
            if self.waiting == 5:
                self.together.set()
            await self.together.wait()
            return await super().say(word)

    words = Words()
    assert [await draw_range(words, os.urandom) for _ in range(3)] == [1, 2, 3]
    at_once = AtOnce()
    drawn_at_once = await asyncio.gather(*(draw_range(at_once, os.urandom) for _ in range(5)))
    assert sorted(drawn_at_once) == [1, 2, 3, 4, 5]


async def test_draws_that_look_alike_are_told_apart_by_their_marks() -> None:
    """Goal: who reads its own value in force drew it. Method: two with one mark take the same draw; with two, not."""
    assert drawn(b"", "a") != drawn(b"", "b")
    for marks, found in (([b"m", b"m"], [1, 1]), ([b"m", b"n"], [1, 2])):
        words = Words()
        words.late = [NewWord(NUMBERS, 0, drawn(b"", marks[0].hex()))]
        assert [draws_in(words.late[0].value), await draw_range(words, lambda _, mark=marks[1]: mark)] == found  # type: ignore[misc]


async def test_a_count_that_this_release_cannot_read_gives_nothing_away() -> None:
    """Goal: no number twice where a newer release counts otherwise. Method: a value of another form."""
    words = Words()
    await words.say(NewWord(NUMBERS, 0, b"[1]"))
    with pytest.raises(StoreMismatch):
        await draw_range(words, os.urandom)


async def test_a_desk_shows_the_own_ledger_as_one_pair_and_asks_the_clocks_now_and_then() -> None:
    """Goal: what a worker counts on from is one moment's. Method: looks within a second and after it; a draw."""
    words, clock = Words(), Clock()
    numbers = count()
    desk = LogDesk(Ledger(), words, lambda: "raft:9f", clock, lambda size: next(numbers).to_bytes(size, "big"))
    seen = await desk.look()
    assert (seen.wall_us, seen.published_offset, seen.ledger_end, seen.pruned_to) == (7, 11, 2, 1)
    assert (await desk.look()).wall_us is None
    clock.now_s += CLOCK_EVERY_S
    words.wall_us = None  # no majority
    assert (await desk.look()).wall_us is None
    assert words.asked == 2
    assert (await desk.draw()).database == THE_LOG


def test_a_range_holds_for_all_claims_to_one_log() -> None:
    """Goal: a change of holder needs no new range. Method: claims that witnessed different records."""
    numbers = Numbers(range_of(1, THE_LOG))
    assert usable(numbers, claim(1, -1), ())
    assert usable(numbers, claim(2, 17), ())
    assert not needs_range(numbers, claim(2, 17), ())


def test_a_range_that_was_used_in_the_log_that_this_one_is_a_copy_of_is_drawn_again() -> None:
    """Goal: no number is used twice under an activation. Method: records of a claim that was copied with the log have
    numbers of the range that the new log gives first; then our own are in it."""
    numbers, next_to_it = Numbers(range_of(1, THE_LOG)), ((0, 7), (2 * OTHERS_FROM, 2 * OTHERS_FROM + 5))
    for seen in ((OTHERS_FROM, OTHERS_FROM + 3),), ((OTHERS_FROM + 9, OTHERS_FROM + 10),):
        assert not usable(numbers, claim(1, -1), seen)
        assert needs_range(numbers, claim(1, -1), seen)
    assert usable(numbers, claim(1, -1), next_to_it)
    numbers.use(3)
    assert usable(numbers, claim(1, -1), ((OTHERS_FROM, OTHERS_FROM + 3),))


@pytest.mark.parametrize(
    ("clocks", "told"),
    [
        ([5, 7, 90], 7),
        ([5, 90, None], 5),  # of two the slower: a fast clock stamps what lies in the future
        ([5, None, None], None),
        ([None, None, None], None),
        ([1, 2, 3, 4, None], 2),
        ([4], 4),
    ],
)
def test_a_majority_of_clocks_tells_the_time(clocks: list[int | None], told: int | None) -> None:
    """Goal: one clock that is wrong moves nobody. Method: medians, with clocks that are not told."""
    assert median_of_majority(clocks) == told
