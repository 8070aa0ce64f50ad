"""Operators' words where no database is: pause, resume and reasons, over a log that has words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from replica.notary.errors import LogTruncated, LogUnavailable, StoreMismatch, StoreUnavailable
from replica.notary.formats import Formats
from replica.notary.words import UNSAID, VALUE_MAX_BYTES, NewWord, Word, encode_word, fold, replace
from replica.store.bulletin import Pause
from replica.store.sqlite import looking
from replica.store.sqlite.file import Begun, LedgerFile
from replica.store.sqlite.looking import RELEASED, LedgerBoard
from replica.store.sqlite.tables import FILE
from replica.store.words import ENDED, ENDINGS_KEPT, FORMATS, PAUSE, TRAIL, Ended, ended, ends_in, slot_of, written
from tests.contracts.store_contract import TOPIC, at, command, completion
from tests.worlds.trails import trail_of

NOW = datetime(2026, 5, 1, tzinfo=UTC)


class WordsHere:
    """See WordsLog. `late` is said just before the next word, as by somebody else."""

    def __init__(self, end: int = 0) -> None:
        self.in_force: dict[str, Word] = {}
        self.said: list[NewWord] = []
        self.end = end
        self.appended: dict[int, int] = {}  # microseconds, by log offset; a log that ends before one has none
        self.late: list[NewWord] = []

    async def words(self, prefix: str) -> Mapping[str, Word]:
        return {name: word for name, word in self.in_force.items() if name.startswith(prefix)}

    async def say(self, word: NewWord) -> Word:
        for one in [*self.late, word]:
            self.said.append(one)
            fold(self.in_force, len(self.said), encode_word(one))
        self.late = []
        return self.in_force.get(word.name, UNSAID)

    async def said_at(self, version: int) -> NewWord | None:
        return self.said[version - 1]

    async def end_offset(self) -> int:
        return self.end

    async def appended_us(self, offsets: Sequence[int]) -> list[int]:
        if not self.appended.keys() >= set(offsets):
            raise LogTruncated("the log ends before")
        return [self.appended[offset] for offset in offsets]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger up to offset 9: r1 led and released the lease, r2 leads."""
    ledger = LedgerFile(tmp_path / FILE, TOPIC)
    ledger.append([], [Begun(1, "r1", 0, 0), Begun(2, "", 5, 10), Begun(3, "r2", 6, 10)], at(9))
    ledger.close()
    return tmp_path / FILE


async def test_a_pause_keeps_the_holder_until_it_is_ended(file: Path) -> None:
    """Goal: as with a database. Method: pause, again with another reason, resume twice, a late copy of the pause."""
    log = WordsHere(end=10)
    board = LedgerBoard([file], log)
    assert await board.paused() is None
    first = await board.pause("a disk")
    assert first is not None
    assert (first.keeper, first.reason) == ("r2", "a disk")
    again = await board.pause("two disks")
    assert again == Pause("r2", "two disks", first.paused_at) == await board.paused()
    assert await board.resume() == again
    assert await board.resume() is None
    await log.say(log.said[0])
    assert await board.paused() is None


async def test_a_pause_is_of_the_holder_of_now(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a ledger that lags names nobody. Method: the log goes on, the ledger does not; and a machine without."""
    monkeypatch.setattr(looking, "COVERS_WITHIN_S", 0.1)
    with pytest.raises(StoreUnavailable, match="end at log offset 9, the log at 10"):
        await LedgerBoard([file], WordsHere(end=11)).pause("a disk")
    with pytest.raises(StoreMismatch, match="no replica of this machine"):
        await LedgerBoard([file.with_name("none")], WordsHere()).pause("a disk")


async def test_formats_are_raised_once_and_for_all(file: Path) -> None:
    """Goal: a raise is a word like the others, and neither number falls. Method: none yet; raise rules, then less; a
    late copy; what no release wrote."""
    log = WordsHere(end=10)
    board = LedgerBoard([file], log)
    assert await board.formats() == Formats(2, 3)
    assert await board.raise_formats(Formats(2, 4)) == Formats(2, 4) == await board.formats()
    assert await board.raise_formats(Formats(1, 1)) == Formats(2, 4)
    assert len(log.said) == 1
    log.late = [NewWord(FORMATS, 0, written(Formats(2, 3)))]
    assert await board.raise_formats(Formats(2, 5)) == Formats(2, 5)
    await log.say(NewWord(FORMATS, (await log.words(FORMATS))[FORMATS].version, b"x"))
    with pytest.raises(StoreMismatch, match="another release"):
        await board.formats()


async def test_whoever_comes_second_sees_the_first(file: Path) -> None:
    """Goal: no change is lost between two that change a word at once. Method: a word put in between read and say;
    one that never stops."""
    log = WordsHere(end=10)
    log.late = [NewWord(PAUSE, 0, written(Pause("r1", "first", NOW)))]
    assert await LedgerBoard([file], log).pause("second") == Pause("r1", "second", NOW)

    class Busy(WordsHere):
        async def say(self, word: NewWord) -> Word:
            self.late = [NewWord(word.name, word.replaces, b"%d" % len(self.said))]
            return await super().say(word)

    with pytest.raises(LogUnavailable, match="changed by others"):
        await replace(Busy(), "busy", lambda _: b"mine")


async def test_a_pause_that_is_still_on_its_way_does_not_survive_the_resume(file: Path) -> None:
    """Goal: of two operators, the later one holds. Method: a pause whose sender heard nothing is delivered only after
    the resume, which found nothing paused."""
    log = WordsHere(end=10)
    late = NewWord(PAUSE, 0, written(Pause("r2", "a disk", NOW)))
    assert await LedgerBoard([file], log).resume() is None
    await log.say(late)
    assert await LedgerBoard([file], log).paused() is None


async def test_a_pause_that_cannot_be_read_is_one_that_can_be_ended(file: Path) -> None:
    """Goal: who cannot read the word leads by no guess, and operators are not stuck with it. Method: a value of no
    release of ours; resume; the same, then a pause over it."""
    log = WordsHere(end=10)
    board = LedgerBoard([file], log)
    await log.say(NewWord(PAUSE, 0, b"{"))
    found = await board.paused()
    assert found is not None
    assert (found.keeper, "the word pause in the log is of another release" in found.reason) == ("", True)
    assert await board.resume() == found
    assert await board.paused() is None
    await log.say(NewWord(PAUSE, log.in_force[PAUSE].version, b"{"))
    again = await board.pause("a disk")
    assert again is not None
    assert (again.keeper, again.reason) == ("r2", "a disk")


async def test_a_word_that_cannot_be_read_hides_no_other(file: Path) -> None:
    """Goal: the history shows the rest, names the unreadable one, and its place is not lost. Method: one word that is
    none of ours beside a good one; then the holder says its end in that place."""
    log = WordsHere()
    board = LedgerBoard([file], log)
    await board.end_epoch(1, "r1", "stop", 0.0)
    await log.say(NewWord(slot_of(3), 0, b"{}"))
    newest, oldest = await board.history(5)
    assert oldest.end_reason == "stop"
    assert newest.end_reason is not None
    assert "not readable: the word ended/3 in the log" in newest.end_reason
    await board.end_epoch(3, "r2", "switchover to r1", 0.0)
    assert [one.end_reason for one in await board.history(5)] == ["switchover to r1", "stop"]


async def test_the_holders_own_reason_is_in_the_history(file: Path) -> None:
    """Goal: why an activation ended. Method: a reason, a second one, one of another replica, and none."""
    log = WordsHere()
    board = LedgerBoard([file], log)
    newest, oldest = await board.history(5)
    assert (newest.end_reason, oldest.end_reason) == (None, RELEASED)
    await board.end_epoch(1, "r1", "switchover to r2", 0.0)
    await board.end_epoch(1, "r1", "stop", 0.0)
    await board.end_epoch(3, "r9", "stop", 0.0)
    newest, oldest = await board.history(5)
    assert (newest.end_reason, oldest.end_reason) == (None, "switchover to r2")
    assert oldest.ended_at is not None
    assert abs((datetime.now(UTC) - oldest.ended_at).total_seconds()) < 60


async def test_activations_begin_when_their_barriers_were_appended(tmp_path: Path) -> None:
    """Goal: an idle cluster's changes of holder have moments of their own, though only requests bring stamps. Method:
    a first activation before all requests; a second with one request, ended by its release; one that found that free,
    and one that was killed, without requests. Then the same log as a copy; and a ledger of another log."""
    second = 1_000_000
    ledger = LedgerFile(tmp_path / FILE, TOPIC)
    begun = [Begun(1, "r1", 0, 0), Begun(2, "r2", 1, 0), Begun(3, "", 3, 25 * second)]
    begun += [Begun(4, "r3", 4, 25 * second), Begun(5, "r1", 5, 25 * second)]
    end = msgspec.structs.replace(at(5, 1), stamp_us=25 * second)
    ledger.append([(1, completion(command(1), 2, recorded_us=25 * second))], begun, end)
    ledger.close()
    log = WordsHere(end=6)
    log.appended = {0: 10 * second, 1: 20 * second, 3: 30 * second, 4: 40 * second, 5: 50 * second}

    async def shown() -> list[tuple[int, int, int | None]]:
        found = await LedgerBoard([tmp_path / FILE], log).history(5)
        ends = [one.ended_at or one.found_over_at for one in found]
        whole = [None if end is None else round(end.timestamp()) for end in ends]
        return [(one.epoch, round(one.granted_at.timestamp()), end) for one, end in zip(found, whole, strict=True)]

    assert await shown() == [(5, 50, None), (4, 40, 50), (2, 20, 30), (1, 10, 20)]
    log.appended = dict.fromkeys(log.appended, 100 * second)  # restored then: of those before the request, stamps tell
    assert await shown() == [(5, 100, None), (4, 100, 100), (2, 25, 100), (1, 25, 25)]
    log.appended = {0: 110 * second}
    assert await shown() == [(5, 25, None), (4, 25, 25), (2, 25, 25), (1, 25, 25)]


def test_ends_are_a_ring_and_fit_into_a_word() -> None:
    """Goal: bounded, and a late end of an old epoch takes no newer one's place. Method: two epochs of one slot; the
    longest reason that JSON writes at length; what is no end."""
    old, new = Ended(1, "r1", "old", NOW), Ended(1 + ENDINGS_KEPT, "r2", "new", NOW)
    assert slot_of(old.epoch) == slot_of(new.epoch) == f"{ENDED}1"
    assert ended(ended(b"", old), new) == ended(ended(b"", new), old) == written(new)
    longest = ended(b"", Ended(2**53, "r" * 64, "\x01" * 5_000, NOW))
    assert len(longest) <= VALUE_MAX_BYTES
    assert ends_in({"ended/1": Word(1, written(new)), "ended/2": Word(2, b"")}) == {new.epoch: new}
    assert ends_in({"ended/1": Word(1, b"{}"), "ended/2": Word(2, written(new))}) == {new.epoch: new}


async def test_the_trail_is_what_its_newest_word_leads_back_to(file: Path) -> None:
    """Goal: the log has every entry, though a word replaces the one before. Method: entries with other words between,
    pages, a number that is taken, a second writer that comes first, a copy of an old word."""
    log = WordsHere(end=10)
    board = LedgerBoard([file], log)
    assert (await board.newest_of_trail(), await board.trail(0, 9)) == (None, [])
    lines = trail_of({}, {"who": "ben"}, {}, {})
    for number, line in enumerate(lines, start=1):
        assert await board.extend_trail(number, line)
        assert not await board.extend_trail(number, line)
        await board.pause("a word between")
        await board.resume()
    assert await board.newest_of_trail() == lines[-1]
    assert await board.trail(0, 9) == lines
    assert (await board.trail(1, 2), await board.trail(3, 2), await board.trail(4, 2)) == (lines[1:3], lines[3:], [])
    await log.say(next(word for word in log.said if word.name == TRAIL))
    assert await board.newest_of_trail() == lines[-1]
    word = log.in_force[TRAIL]
    log.late = [NewWord(TRAIL, word.version, trail_of({}, {}, {}, {}, {"who": "ben"})[-1])]
    assert not await board.extend_trail(5, trail_of({}, {}, {}, {}, {})[-1])
    log.said[0] = NewWord("pause", 0, b"")
    with pytest.raises(StoreUnavailable, match="word of the trail"):
        await board.trail(0, 9)
