"""The filter over keys: never a wrong "absent", seldom a wrong "perhaps", and no file of anything else."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.index import filter as module
from replica.index.filter import KEY_BYTES_MAX, Filter, restored

SEED, BOUND_TO = b"s" * 32, b"b" * 32
RUNS = st.lists(st.lists(st.binary(max_size=KEY_BYTES_MAX + 4), min_size=1, max_size=60), min_size=1, max_size=8)


def fresh(count: int, kind: bytes = b"s") -> list[bytes]:
    raw = os.urandom(36 * count)
    return [kind + raw[at : at + 36] for at in range(0, len(raw), 36)]


def raw_of(stored: Filter, bound_to: bytes = BOUND_TO) -> np.ndarray:
    return np.frombuffer(bytearray(b"".join(stored.stored(bound_to))), np.uint8)


@given(runs=RUNS, seed=st.binary(min_size=32, max_size=32), capacity=st.integers(0, 40))
def test_no_key_that_was_added_is_called_absent(runs: list[list[bytes]], seed: bytes, capacity: int) -> None:
    """Goal: safety. Method: runs with duplicates into filters of a few words, which their keys share and which grow."""
    asked = Filter(seed, capacity)
    added: list[bytes] = []
    for run in runs:
        asked.add(run)
        added += run
        assert asked.perhaps(added) == list(range(len(added)))


def test_no_bit_is_lost_where_keys_of_one_call_share_a_word() -> None:
    """Goal: what fancy assignment would lose. Method: forty keys for each word, in one call."""
    asked, keys = Filter(SEED, 400), fresh(4_000)
    asked.add(keys)
    assert len(asked.perhaps(keys)) == len(keys)


def test_it_grows_by_blocks_each_twice_the_last_and_forgets_nothing() -> None:
    """Goal: the chain. Method: seven times what the first block has room for; sizes, keys, and mistakes."""
    asked, runs = Filter(SEED, 10_000), [fresh(1_000) for _ in range(70)]
    for run in runs:
        asked.add(run)
    assert asked.block_count == 3 and asked.byte_count == 2 * (10_000 + 20_000 + 40_000)
    assert all(len(asked.perhaps(run)) == len(run) for run in runs)
    assert len(asked.perhaps(fresh(10_000))) < 250  # three full blocks, each half a per cent


def test_a_full_block_calls_one_of_two_hundred_absent_keys_present() -> None:
    """Goal: at most 1 %, at two bytes a key. Method: as many keys as there is room for, then others."""
    asked = Filter(SEED, 100_000)
    asked.add(fresh(100_000))
    assert asked.byte_count == 200_000
    assert len(asked.perhaps(fresh(50_000))) < 350


def test_it_is_restored_with_all_it_had_and_grows_on() -> None:
    """Goal: nothing is lost by a stop. Method: a chain of three blocks; both go on alike."""
    before, keys = Filter(SEED, 100), fresh(500)
    for at in range(0, 500, 50):
        before.add(keys[at : at + 50])
    after = restored(raw_of(before), BOUND_TO)
    assert after is not None and after.block_count == 3
    more, others = fresh(300), fresh(1_000)
    for one in (before, after):
        for at in range(0, 300, 50):
            one.add(more[at : at + 50])
    assert after.block_count == 4
    assert after.perhaps(keys + more) == list(range(800)) and after.perhaps(others) == before.perhaps(others)
    assert restored(raw_of(Filter(SEED, 0)), BOUND_TO) is not None


@given(at=st.integers(0, 87 + 4 * 8), bit=st.integers(0, 7))
def test_a_file_with_any_other_bit_is_refused(at: int, bit: int) -> None:
    """Goal: another seed, room or word is not taken. Method: flip each bit of a small file, the seed's among them."""
    stored = Filter(SEED, 16)
    stored.add(fresh(5))
    raw = raw_of(stored)
    raw[at] ^= 1 << bit
    assert restored(raw, BOUND_TO) is None


REFUSED: dict[str, Callable[[np.ndarray], np.ndarray | None]] = {
    "of other keys": lambda raw: restored(raw, b"c" * 32),
    "empty": lambda raw: restored(raw[:0], BOUND_TO),
    "without its end": lambda raw: restored(raw[:-8], BOUND_TO),
    "with more": lambda raw: restored(np.concatenate([raw, raw[-8:]]), BOUND_TO),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_is_refused(what: str) -> None:
    """Goal: only the whole file, and only for the keys that it is of."""
    stored = Filter(SEED, 16)
    stored.add(fresh(5))
    assert restored(raw_of(stored), BOUND_TO) is not None
    assert REFUSED[what](raw_of(stored)) is None


def test_a_release_that_hashes_otherwise_refuses_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an upgrade cannot make wrong answers of a right file. Method: other bits for a pattern."""
    raw = raw_of(Filter(SEED, 16))
    assert restored(raw, BOUND_TO) is not None
    monkeypatch.setattr(module, "_OTHERS", module._OTHERS + np.uint64(1))
    assert restored(raw, BOUND_TO) is None
