"""The archive's head in an operators' word, where the replicas share no database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replica.notary.errors import StoreMismatch
from replica.notary.words import NAMES_MAX, NewWord, WordsLog
from replica.store.archive_head import ARCHIVE, ArchiveHead, SaidHeads, word_of
from replica.store.words import ENDINGS_KEPT, written
from tests.unit.store.test_ledger_board import WordsHere

ID = "9fdb1e4b-24d5-43b2-b38a-3d17188957e6"
FIRST, SECOND = ArchiveHead(2, "aa", 99), ArchiveHead(3, "bb", 199)


def heads_in(log: WordsHere) -> SaidHeads:
    """The heads in one log."""

    @asynccontextmanager
    async def words() -> AsyncIterator[WordsLog]:
        yield log

    return SaidHeads(words)


def test_a_head_only_moves_forward() -> None:
    """Goal: as in a database. Method: two heads, the first one again, another archive's."""
    log = WordsHere()
    heads = heads_in(log)
    assert heads.newest(ID) is None
    for head in (FIRST, SECOND, FIRST, ArchiveHead(3, "cc", 199)):
        heads.record(ID, head)
    heads.record("other", FIRST)
    assert heads.newest(ID) == SECOND
    assert heads.newest("other") == FIRST
    assert len(log.said) == 3


def test_of_two_archivers_the_newer_head_stays() -> None:
    """Goal: no late word moves it back. Method: another head is said between the look and the word; then the archiver's
    first word arrives a second time."""
    log = WordsHere()
    heads = heads_in(log)
    heads.record(ID, FIRST)
    log.late = [NewWord(word_of(ID), 1, written(ArchiveHead(4, "dd", 299)))]
    heads.record(ID, SECOND)
    assert heads.newest(ID) == ArchiveHead(4, "dd", 299)
    log.late = [log.said[0]]
    heads.record(ID, ArchiveHead(5, "ee", 399))
    assert heads.newest(ID) == ArchiveHead(5, "ee", 399)


def test_what_cannot_be_read_is_refused() -> None:
    """Goal: no head of another release is taken for none. Method: a word that says something else, an odd id."""
    log = WordsHere()
    log.late = [NewWord(word_of(ID), 0, b'{"lines": -1}')]
    heads = heads_in(log)
    heads.record("other", FIRST)
    for call in (lambda: heads.newest(ID), lambda: heads.record(ID, FIRST), lambda: heads.newest("Ä")):
        with pytest.raises(StoreMismatch):
            call()


def test_there_is_room_for_archives_beside_the_other_words() -> None:
    """Goal: an archive is never refused for a lack of names. Method: the names that the others take."""
    assert NAMES_MAX - ENDINGS_KEPT - 2 >= 200
    assert word_of(ID) == f"{ARCHIVE}{ID}"
