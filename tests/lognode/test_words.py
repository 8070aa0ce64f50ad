"""One node's words follow its log: only what is committed is in force, whatever a change of leader cuts."""

from __future__ import annotations

import random

import pytest

from ha.raft.messages import Entry, Kind
from replica.log.raft.words import KeptWords
from replica.notary.words import NewWord, Word, encode_word, fold


def said(idx: int, view: int, replaces: int) -> Entry:
    return Entry(view, idx, Kind.WORD, encode_word(NewWord("pause", replaces, b"%d in %d" % (idx, view))))


def test_what_is_cut_was_never_said() -> None:
    """Goal: a word of a deposed leader has no effect. Method: two words, the second cut and another in its place."""
    kept = KeptWords()
    kept.append([said(1, 2, 0), Entry(2, 2, body=b"a record"), said(3, 2, 1)])
    assert kept.under("") == {}
    kept.committed(2)
    kept.cut(2)
    kept.append([said(3, 4, 1)])
    assert kept.under("pause") == {"pause": Word(1, b"1 in 2")}
    kept.committed(3)
    assert kept.named("pause") == kept.under("p") == {"pause": Word(3, b"3 in 4")}
    assert kept.named("paus") == kept.under("x") == {}


@pytest.mark.parametrize("seed", range(100))
def test_nodes_that_saw_other_ends_of_the_log_agree(seed: int) -> None:
    """Goal: every node has the words of the committed log. Method: entries, cuts and commits at random, beside a log
    that is folded as a whole."""
    rng, kept, commit_idx, view = random.Random(seed), KeptWords(), 0, 1
    log: list[Entry] = []
    for _ in range(60):
        match rng.randrange(4):
            case 0 | 1:
                log.append(said(len(log) + 1, view, rng.randrange(len(log) + 1)))
                kept.append(log[-1:])
            case 2:
                idx, view = rng.randint(commit_idx, len(log)), view + 1
                del log[idx:]
                kept.cut(idx)
            case _:
                commit_idx = rng.randint(commit_idx, len(log))
                kept.committed(commit_idx)
        words: dict[str, Word] = {}
        for entry in log[:commit_idx]:
            fold(words, entry.idx, entry.body)
        assert kept.under("") == words
