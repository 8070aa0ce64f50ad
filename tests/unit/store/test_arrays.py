"""Columns as Postgres arrays: the short way for elements of one length makes the same bytes as the definition."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from replica.store.postgres.arrays import byteas, texts


def _by_definition(kind: int, elements: list[bytes]) -> bytes:
    head = struct.pack(">iiiii", 1, 0, kind, len(elements), 1)
    return head + b"".join([struct.pack(">i", len(element)) + element for element in elements])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.text("aü€", max_size=2), max_size=6) | st.lists(st.text("xyz", min_size=3, max_size=3), max_size=6))
def test_a_column_has_each_element_with_its_length(values: list[str]) -> None:
    """Goal: no value moves into its neighbour. Method: columns of equal and of different lengths, empty ones too."""
    elements = [value.encode() for value in values]
    assert texts(values) == _by_definition(25, elements)
    assert byteas(elements) == _by_definition(17, elements)
