"""Shares of a bound: whoever comes next finds room, and whoever has most gives way."""

from __future__ import annotations

import random

import pytest

from replica.notary.shares import Shares, may_take


@pytest.mark.parametrize("greedy", [1, 2, 3, 7])
def test_the_next_caller_finds_room_however_much_the_others_take(greedy: int) -> None:
    shares = Shares(1_000)
    while sum(shares.take(holder) for holder in range(greedy)):
        pass
    assert [shares.of(holder) for holder in range(greedy)] == pytest.approx([1_000 / (greedy + 1)] * greedy, abs=greedy)
    assert shares.take("another", 1_000 // (greedy + 2))


def test_a_first_call_only_has_to_fit() -> None:
    assert may_take(wanted=900, own=0, free=950)
    assert not may_take(wanted=951, own=0, free=950)
    assert may_take(wanted=10, own=40, free=60)
    assert not may_take(wanted=11, own=40, free=60)
    assert Shares(10).take("large", 500)  # alone, or it could never be served


def test_without_a_holder_only_the_bound_counts() -> None:
    shares = Shares(10)
    assert [shares.take(None) for _ in range(11)] == [True] * 10 + [False]


@pytest.mark.parametrize("seed", range(20))
def test_accounts_are_right_and_whole_again(seed: int) -> None:
    """Method: takes and returns at random, against sums; nobody holds more than it leaves free when it takes more."""
    drawn, shares, held = random.Random(seed), Shares(200), list[tuple[int, int]]()
    for _ in range(500):
        if held and drawn.random() < 0.45:
            holder, count = held.pop(drawn.randrange(len(held)))
            shares.free(holder, count)
        else:
            holder, count = drawn.randrange(6), drawn.randint(1, 20)
            own = shares.of(holder)
            if shares.take(holder, count):
                held.append((holder, count))
                assert not own or own + count <= shares.most - shares.held
        assert shares.held == sum(count for _, count in held) <= shares.most
    for holder, count in held:
        shares.free(holder, count)
    assert shares.held == 0
    assert not shares._by_holder


def test_whoever_has_most_gives_way() -> None:
    shares = Shares(100)
    for holder, count in {"a": 50, "b": 20, "c": 5}.items():
        shares.take(holder, count)
    assert shares.gives_way("new", "abc") == "a"
    assert shares.gives_way("b", "abc") == "a"
    assert shares.gives_way("a", "abc") == "a"
    assert shares.gives_way("c", "bc") == "b"  # the largest has nothing that could go
    assert shares.gives_way("a", "bc") is None  # never somebody who has less
    assert shares.gives_way("b", "c") is None


def test_among_equals_the_newcomer_gives_way_itself() -> None:
    shares = Shares(100)
    shares.take("a", 11)
    shares.take("b", 10)
    assert shares.gives_way("b", "ab") == "b"


@pytest.mark.parametrize("seed", range(10))
def test_who_floods_a_full_bound_pushes_nobody_out_but_itself(seed: int) -> None:
    """Method: modest callers have some, a flood comes from another; whoever gives way loses one."""
    drawn, shares = random.Random(seed), Shares(100)
    modest = {f"m{n}": drawn.randint(1, 5) for n in range(8)}
    for holder, count in modest.items():
        assert shares.take(holder, count)
    for _ in range(500):
        while not shares.has_room("flood"):
            loser = shares.gives_way("flood", [*modest, "flood"])
            assert loser == "flood"
            shares.free(loser)
        shares.take("flood")
    assert {holder: shares.of(holder) for holder in modest} == modest
    assert shares.take("late")
