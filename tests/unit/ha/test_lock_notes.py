"""What arrives on the lock's channel: release notes, and whatever else any login of the database sends there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.lock.interface import ReleaseNote
from ha.lock.notes import NOTE_MAX_CHARACTERS, decode_note, encode_note

LONGEST = "r" * 64
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["by", "to", "x"]), inner),
)


@pytest.mark.parametrize("note", [ReleaseNote("r1", None), ReleaseNote("r1", "r2"), ReleaseNote(LONGEST, LONGEST)])
def test_a_note_is_read_as_it_was_written(note: ReleaseNote) -> None:
    """Goal: a hand-over names who and for whom. Method: there and back, the longest names as well."""
    assert decode_note(encode_note(note)) == note


def test_an_older_peer_sends_its_bare_name() -> None:
    """Goal: releases go together. Method: a name alone."""
    assert decode_note("r2") == ReleaseNote("r2", None)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 7_990,
        "[" * NOTE_MAX_CHARACTERS,
        '{"by":' * 60,
        '{"by":{},"to":[]}',
        '{"by":"r2"}',
        '{"by":"r2","to":null,"for":"r3"}',
        '{"by":"r2","to":"r 3"}',
        '{"by":"r2","to":1e999}',
        "9" * NOTE_MAX_CHARACTERS,
        "no name",
        "",
        "r" * 65,
        "\ud800",
    ],
)
def test_what_is_no_note_is_none(text: str) -> None:
    """Goal: nesting, size and types are bounded. Method: one of each."""
    assert decode_note(text) is None


@given(st.text() | JSON.map(json.dumps))
def test_nothing_that_is_sent_raises(text: str) -> None:
    """Goal: a login that may connect cannot cost the holder its session. Method: any text, any JSON."""
    note = decode_note(text)
    assert note is None or decode_note(encode_note(note)) == note
