"""What waits for the disk, what is kept in memory, and when a client is answered."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ha.raft.messages import AppendEntries, Entry, Outgoing, VoteResponse
from replica.log.raft.outbox import HELD_MAX, Calls, Outbox, Recent, Waiting
from replica.log.raft.wire import fill, size_of


def message(number: int, to: str = "r2") -> Outgoing:
    return Outgoing(to, VoteResponse(number, True))


def entries(first: int, last: int, size: int = 0) -> list[Entry]:
    return [Entry(2, idx, body=bytes(size)) for idx in range(first, last + 1)]


def test_memory_gives_nothing_for_what_is_on_disk_only() -> None:
    """Goal: a reader of old entries gets no new ones in their place. Method: ranges below, across and above memory."""
    recent = Recent(11, 1_000_000)
    recent.append(entries(11, 20))
    assert [recent.read(11, last) for last in (0, 3, 9, 10)] == [[]] * 4
    assert recent.read(11, 12) == entries(11, 12)
    assert recent.read(19, 25) == entries(19, 20)
    assert recent.read(21, 25) == []


def test_nothing_leaves_before_what_it_names_is_on_disk() -> None:
    """Goal: a vote and an acknowledgement are on disk first. Method: jobs that are done one after the other."""
    outbox = Outbox()
    assert outbox.put(message(1), need=0)
    assert not outbox.put(message(2), need=2)
    assert outbox.done(1) == []
    assert outbox.done(2) == [message(2)]
    assert outbox.put(message(3), need=2)


def test_nothing_overtakes_what_waits_for_the_same_node() -> None:
    """Goal: links keep the order of the core. Method: a message that needs nothing, after one that waits."""
    outbox = Outbox()
    assert not outbox.put(message(1), need=1)
    assert not outbox.put(message(2), need=0)
    assert outbox.put(message(3, "r3"), need=0)
    assert not outbox.put(message(4), need=2)
    assert outbox.done(1) == [message(1), message(2)]
    assert outbox.done(2) == [message(4)]


def test_what_waits_is_bounded() -> None:
    """Goal: a disk that stands still fills no memory. Method: more messages than the bound."""
    outbox = Outbox()
    for number in range(HELD_MAX + 5):
        assert not outbox.put(message(number), need=1)
    assert len(outbox.done(1)) == HELD_MAX


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 9)),
            st.tuples(st.just("cut"), st.integers(0, 9)),
            st.tuples(st.just("written"), st.integers(0, 9)),
        )
    )
)
def test_recent_has_all_that_is_not_written(steps: list[tuple[str, int]]) -> None:
    """Goal: a message's entries are in memory or on disk. Method: any life against a plain list."""
    recent, log, written = Recent(1, 400), list[Entry](), 0
    for kind, count in steps:
        if kind == "append":
            more = entries(len(log) + 1, len(log) + count, size=20)
            recent.append(more)
            log += more
        elif kind == "cut":
            idx = max(len(log) - count, 0)
            recent.cut(idx)
            del log[idx:]
            written = min(written, idx)
        else:
            written = min(written + count, len(log))
            recent.written(written)
        assert recent.first_idx <= written + 1
        assert recent.read(recent.first_idx, len(log)) == log[recent.first_idx - 1 :]
        if kind == "written" and written == len(log):
            assert size_of(recent.read(recent.first_idx, len(log))) <= 400


def test_a_call_is_settled_only_when_it_is_final() -> None:
    """Goal: no client is answered "never" about entries that another node may still commit. Method: cut off, then two
    ends."""
    views = {5: 2, 6: 4}

    def view_of(idx: int) -> int:
        return views.get(idx, 0)

    for settled_view, counts in ((2, True), (4, False)):
        calls: Calls[str] = Calls()
        calls.add(Waiting("a", 2, 4, 5, 10))
        assert calls.settle(3, lambda idx: 2) == []  # cut off or not: nothing is final yet
        views[5] = settled_view
        assert [(one.call, found) for one, found in calls.settle(5, view_of)] == [("a", counts)]
    calls = Calls()
    calls.add(Waiting("high", 2, 90, 99, 10))
    assert [(one.call, found) for one, found in calls.settle(6, view_of)] == [("high", False)]


def test_a_message_is_split_where_it_would_be_too_large() -> None:
    """Goal: no frame is larger than the other side takes. Method: entries of many sizes, small frames."""
    header = AppendEntries(5, 10, 3, 20, 4, 9)
    found = [Entry(4, idx, body=bytes(idx * 50)) for idx in range(11, 21)]
    parts = list(fill(header, found, 3_000))
    assert len(parts) > 2
    assert [entry for part in parts for entry in part.entries] == found
    assert (parts[0].prev_idx, parts[0].prev_view, parts[-1].idx) == (10, 3, 20)
    for before, after in pairwise(parts):
        assert (after.prev_idx, after.prev_view) == (before.idx, 4)
    assert list(fill(header, found, 2**20)) == [AppendEntries(5, 10, 3, 20, 4, 9, tuple(found))]
