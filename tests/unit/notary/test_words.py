"""Operators' words: what counts, whatever arrives twice, late or broken."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from replica.notary.words import NAMES_MAX, UNSAID, NewWord, Word, decode_word, encode_word, fold


def folded(said: Sequence[NewWord]) -> dict[str, Word]:
    """What is in force after these words, at the versions 1, 2, …"""
    words: dict[str, Word] = {}
    for version, word in enumerate(said, 1):
        fold(words, version, encode_word(word))
    return words


def test_a_second_copy_of_a_pause_after_the_resume_changes_nothing() -> None:
    """Goal: a lost answer may be asked for again. Method: pause, resume, the same pause; and pause twice."""
    pause, resume = NewWord("pause", 0, b"p"), NewWord("pause", 1, b"")
    assert folded([pause, resume, pause]) == {"pause": Word(2, b"")}
    assert folded([pause, pause]) == {"pause": Word(1, b"p")}
    assert folded([pause, resume, NewWord("pause", 2, b"again")]) == {"pause": Word(3, b"again")}


def test_of_two_that_replace_the_same_the_first_counts() -> None:
    """Goal: nobody overwrites what he has not read. Method: two words for one version; a version from the future."""
    assert folded([NewWord("a", 0, b"1"), NewWord("a", 0, b"2")]) == {"a": Word(1, b"1")}
    assert folded([NewWord("a", 5, b"1")]) == {}


def test_no_more_names_than_there_is_room_for() -> None:
    """Goal: bounded memory. Method: one name too many; those that are there still change."""
    names = [NewWord(f"n{number}", 0, b"x") for number in range(NAMES_MAX + 1)]
    words = folded([*names, NewWord("n0", 1, b"y")])
    assert len(words) == NAMES_MAX
    assert words["n0"] == Word(NAMES_MAX + 2, b"y")


@given(st.binary(max_size=200))
def test_any_body_is_a_word_or_changes_nothing(body: bytes) -> None:
    """Goal: whatever is in the log, every reader goes on. Method: any bytes."""
    words = {"a": Word(1, b"x")}
    fold(words, 2, body)
    assert (decode_word(body) is None) <= (words == {"a": Word(1, b"x")})


@given(st.data())
def test_copies_never_change_what_each_speaker_reads(data: st.DataObject) -> None:
    """Goal: with any copies put in anywhere later, the words in force are those of the log without them. Method: each
    speaker reads, then replaces; copies of what was said come at random."""
    names = st.sampled_from(("a", "b"))
    words: dict[str, Word] = {}
    plain: dict[str, bytes] = {}
    said: list[NewWord] = []
    for version in range(1, 30):
        if said and data.draw(st.booleans()):
            fold(words, version, encode_word(data.draw(st.sampled_from(said))))
        else:
            name = data.draw(names)
            word = NewWord(name, words.get(name, UNSAID).version, b"%d" % version)
            said.append(word)
            plain[name] = word.value
            fold(words, version, encode_word(word))
    assert {name: word.value for name, word in words.items()} == plain
