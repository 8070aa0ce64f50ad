"""Defects in operators' words, which are in the log where there is no database."""

from __future__ import annotations

from collections.abc import Callable

from pytest import MonkeyPatch

import replica.notary.words
import replica.store.sqlite.looking
import tests.simulation.words
from replica.active.shared_bound import SharedBound
from replica.notary.words import UNSAID, NewWord, WordsLog, replace
from replica.store.bulletin import Bulletin
from replica.store.words import PRUNED, Bound, bound_in, written
from tests.simulation.draw import draw, leased, worded
from tests.simulation.mutants.registry import mutant
from tests.simulation.plan import Plan


def _worded(seed: int) -> Plan:
    return worded(leased(draw(seed)))


@mutant("a word counts whatever it replaces, so a late copy of a pause undoes what was said since", _worded)
def late_copies_count(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.words, "counts", lambda words, word: True)


@mutant("a word that another one came before is not said again", _worded)
def overtaken_word_given_up(patch: MonkeyPatch) -> None:
    async def once(
        log: WordsLog, name: str, change: Callable[[bytes], bytes], *, always: bool = False
    ) -> tuple[bytes, bytes]:
        word = (await log.words(name)).get(name, UNSAID)
        value = change(word.value)
        await log.say(NewWord(name, word.version, value))
        return word.value, value

    patch.setattr(replica.notary.words, "replace", once)
    patch.setattr(replica.store.sqlite.looking, "replace", once)


@mutant("who resumes says nothing where nothing is paused yet, and a pause that was on its way counts later", _worded)
def resumed_without_a_word(patch: MonkeyPatch) -> None:
    async def sparing(log: WordsLog, name: str, change: Callable[[bytes], bytes], *, always: bool) -> object:
        return await replace(log, name, change)

    patch.setattr(replica.store.sqlite.looking, "replace", sparing)


@mutant("a replica asks for the lease although fail-over is paused for another", _worded)
def pause_ignored(patch: MonkeyPatch) -> None:
    patch.setattr(Bulletin, "is_barred", lambda self: False)


@mutant("a bound of pruning that comes after a higher one lowers it", _worded)
def bound_lowered(patch: MonkeyPatch) -> None:
    patch.setattr(tests.simulation.words, "raised", lambda value, pruned_to: written(Bound(pruned_to)))


@mutant("a replica forgets the bound of pruning that its ledger does not cover yet", _worded)
def bound_followed_once(patch: MonkeyPatch) -> None:
    look = SharedBound.look

    async def once(self: SharedBound) -> None:
        bound = bound_in(await replica.notary.words.value_of(self._words, PRUNED))
        if bound > getattr(self, "seen", 0):
            self.seen = bound  # type: ignore[attr-defined]
            await look(self)

    patch.setattr(SharedBound, "look", once)
