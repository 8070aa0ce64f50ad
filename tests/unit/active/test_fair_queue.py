"""The queue in front of the log is fair between users, whatever they send."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from replica.active.admission_budget import weight_of
from replica.active.fair_queue import TURN_STATES, FairQueue
from replica.notary.records import encode_record, request_record
from replica.settings import CoreSettings
from tests.worlds.core_world import submission

ANY = (10**9, 10**9)
LARGEST = 9_999


def test_a_small_user_does_not_wait_behind_a_large_one() -> None:
    """Goal: fairness. Method: 5,000 items of one user, then three of another, and look where those come out."""
    queue: FairQueue[str] = FairQueue(10_000, 1_000_000)
    for _ in range(5_000):
        queue.push("large", "large", 4)
    for _ in range(3):
        queue.push("small", "small", 4)
    taken = queue.take(300, 10**9)
    assert taken.count("small") == 3
    assert max(at for at, user in enumerate(taken) if user == "small") <= TURN_STATES // 4 + 3


def test_queues_of_several_replicas_share_a_user_s_bounds() -> None:
    """Goal: who has connections to all replicas queues no more than with one. Method: three queues that know of one
    another; then two are gone. A submission larger than the share enters an empty lane."""
    queues = [FairQueue[str](9, 300) for _ in range(3)]

    def fill(queue: FairQueue[str], user: str, states: int, sharers: int) -> int:
        count = 0
        while queue.has_room(user, states, ANY, sharers):
            queue.push(user, user, states)
            count += 1
        return count

    assert [fill(queue, "small", 1, 3) for queue in queues] == [3, 3, 3]
    assert [fill(queue, "large", 50, 3) for queue in queues] == [2, 2, 2]
    assert [fill(queue, "huge", 250, 3) for queue in queues] == [1, 1, 1]
    assert (fill(queues[0], "small", 1, 1), fill(queues[0], "large", 50, 1)) == (6, 4)


def test_users_get_the_same_share_of_states_whatever_the_size_of_their_requests() -> None:
    """Goal: one with requests of 9,999 states gets no more than one with 4. Method: take a share, compare states."""
    queue: FairQueue[tuple[str, int]] = FairQueue(100_000, 10**9)
    for _ in range(50):
        queue.push("huge", ("huge", LARGEST), LARGEST)
    for _ in range(60_000):
        queue.push("tiny", ("tiny", 4), 4)
    states: Counter[str] = Counter()
    for user, count in queue.take(50_000, 300_000):
        states[user] += count
    assert abs(states["huge"] - states["tiny"]) <= LARGEST + TURN_STATES


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, LARGEST)), max_size=60),
    st.integers(1, 9),
    st.integers(1, 20_000),
)
def test_nothing_is_lost_and_each_user_is_served_in_order(
    pushed: list[tuple[str, int]], items_max: int, states_max: int
) -> None:
    """Goal: every item comes out once, a user's in order, within the bounds. Method: random items, taken to the end."""
    queue: FairQueue[tuple[str, int, int]] = FairQueue(1_000, 10**9)
    for number, (user, states) in enumerate(pushed):
        queue.push(user, (user, number, states), states)
    taken: list[tuple[str, int, int]] = []
    while queue:
        run = queue.take(items_max, states_max)
        assert 1 <= len(run) <= items_max
        assert sum(states for _, _, states in run[:-1]) < states_max
        taken += run
    assert queue.states == 0
    assert sorted(number for _, number, _ in taken) == list(range(len(pushed)))
    for user in "abcd":
        numbers = [number for owner, number, _ in taken if owner == user]
        assert numbers == sorted(numbers)


def test_a_lane_is_bounded_in_items_and_in_states() -> None:
    """Goal: each user has a bound of its own. Method: fill both bounds; another user still has room."""
    queue: FairQueue[int] = FairQueue(2, 10)
    assert not queue.has_room("a", 11, ANY) or queue.has_room("a", 10, ANY)
    queue.push("a", 1, 4)
    assert queue.has_room("a", 6, ANY)
    assert not queue.has_room("a", 7, ANY)
    queue.push("a", 2, 1)
    assert not queue.has_room("a", 1, ANY)
    assert queue.has_room("b", 10, ANY)


def test_a_lane_leaves_as_much_free_as_it_has() -> None:
    """Goal: one user's queue is nobody else's refusal. Method: fill lanes out of one bound; somebody comes who has
    nothing."""
    for greedy in (1, 2, 4):
        queue, items_max = FairQueue[str](10_000, 10**9), 1_000

        def fill(user: str, queue: FairQueue[str] = queue, items_max: int = items_max) -> bool:
            free = items_max - len(queue)
            if not free or not queue.has_room(user, 1, (free, 10**9)):
                return False
            queue.push(user, user, 1)
            return True

        while sum(fill(f"greedy {number}") for number in range(greedy)):
            pass
        assert len(queue) <= items_max * greedy // (greedy + 1)
        assert fill("another")
    queue = FairQueue[str](10_000, 10**9)
    queue.push("a", "a", 60)
    assert queue.has_room("a", 20, (ANY[0], 100))
    assert not queue.has_room("a", 21, (ANY[0], 100))  # of states as well


def test_long_texts_and_requests_without_states_weigh() -> None:
    """Goal: 9 KB without a state cannot fill the log's queue. Method: weigh one, and one of 1,000 inputs."""
    settings = CoreSettings()
    long = submission(1, command_id="ü" * 127, user_id="u" * 255, submission_id="s" * 255)
    record = encode_record(request_record(2, b"a" * 16, 2**62, 10**15, long, 10**15))
    assert 0 <= weight_of(long, 0) - len(record) // 36 <= 1
    many = submission(2, [n.to_bytes(36, "big") for n in range(1_000)])
    assert 1_000 <= weight_of(many, 1_000) <= 1_020
    assert settings.states_in_flight_max * 36 < 32 * 2**20
