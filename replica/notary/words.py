"""Operators' words: small values, each under a name, that all replicas agree on where there is no database. Pure.

A word is an entry of the log that is no record. It names the version of the value that it replaces, and counts only if
that version is in force. So a word that is sent twice, or comes late, changes nothing: of pause, resume and a second
copy of the same pause, the resume is what holds. Every reader folds the committed words in their order, and so all of
them have the same. Only the newest of each name is kept. A name never goes: what is not in force is an empty value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Protocol, runtime_checkable

import msgspec

from replica.notary.errors import LogUnavailable
from replica.notary.untrusted import UNREADABLE

NAMES_MAX = 512
NAME_PATTERN = r"^[a-z0-9_./-]{1,64}\Z"
VALUE_MAX_BYTES = 4_096
TRIES_MAX = 20  # of one change, while others change the same word
NOTHING_SAID = 0  # the version of a name that nobody has used
_Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
_Version = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Value = Annotated[bytes, msgspec.Meta(max_length=VALUE_MAX_BYTES)]


class NewWord(msgspec.Struct, frozen=True, array_like=True):
    """What somebody says: this value, in place of the one of the version `replaces`."""

    name: _Name
    replaces: _Version
    value: _Value  # empty: nothing is in force


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What is in force under a name. `version`: the index of its entry in the log, so no two words share one."""

    version: _Version
    value: _Value


UNSAID = Word(NOTHING_SAID, b"")
_decoder = msgspec.msgpack.Decoder(NewWord)


def encode_word(word: NewWord) -> bytes:
    """The body of its entry."""
    return msgspec.msgpack.encode(word)


def decode_word(body: bytes) -> NewWord | None:
    """The word of an entry; None for a body that is none, which changes nothing for any reader."""
    try:
        return _decoder.decode(body)
    except UNREADABLE:
        return None


def counts(words: Mapping[str, Word], word: NewWord) -> bool:
    """Whether a word that comes now takes effect: it names the version in force, and there is room for its name."""
    room = word.name in words or len(words) < NAMES_MAX
    return room and words.get(word.name, UNSAID).version == word.replaces


def fold(words: dict[str, Word], version: int, body: bytes) -> None:
    """Take the next committed entry into account: its index and its body."""
    word = decode_word(body)
    if word is not None and counts(words, word):
        words[word.name] = Word(version, word.value)


@runtime_checkable
class WordsLog(Protocol):
    """A log that has operators' words between its records."""

    async def words(self, prefix: str) -> Mapping[str, Word]:
        """The words in force under names that begin so, with all that were said before the call.

        Raises LogUnavailable.
        """

    async def say(self, word: NewWord) -> Word:
        """What is in force under the word's name, once it is in the log; another value where it did not count.

        Raises LogUnavailable: then it may still count later; or it counted, and another word came after it.
        """

    async def said_at(self, version: int) -> NewWord | None:
        """The word that was said as this version, whether it is in force or not; None: that entry is no word.

        Raises LogUnavailable.
        """

    async def end_offset(self) -> int:
        """The number of records at the call. Raises LogUnavailable."""

    async def appended_us(self, offsets: Sequence[int]) -> Sequence[int]:
        """When these records were appended, by the clocks of the log's servers: microseconds UTC.

        Raises LogUnavailable, and LogTruncated where the log ends before one of them.
        """


async def value_of(log: WordsLog, name: str) -> bytes:
    """The value in force, empty if there is none. Raises LogUnavailable."""
    return (await log.words(name)).get(name, UNSAID).value


async def replace(
    log: WordsLog, name: str, change: Callable[[bytes], bytes], *, always: bool = False
) -> tuple[bytes, bytes]:
    """Say what `change` makes of the value in force, again where another word came first. The values before and after.

    `always`: also where that changes nothing. Then no word that was said before, and is not in the log yet, counts.
    Raises LogUnavailable, and what `change` raises.
    """
    word = (await log.words(name)).get(name, UNSAID)
    for _ in range(TRIES_MAX):
        value = change(word.value)
        if value == word.value and not always:
            return word.value, value
        found = await log.say(NewWord(name, word.version, value))
        if found.value == value:
            return word.value, value
        word = found
    raise LogUnavailable(f"{name} was changed by others {TRIES_MAX} times meanwhile")
