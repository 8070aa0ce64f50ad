"""The core's parts, each alone, and what no scenario can reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ha.invariant import InvariantBroken
from ha.raft import following, quorums
from ha.raft.batches import BatchSize
from ha.raft.core import LogIncomplete, Raft, next_entries
from ha.raft.membership import Configuration, Membership, Phase
from ha.raft.messages import AppendEntries, AppendResponse, Effects, Entry, HardState, Kind, RequestVote, TxId
from ha.raft.settings import RaftSettings, RaftSettingsError
from ha.raft.state import Leadership
from ha.raft.views import ViewHistory
from tests.raft.mutants import MUTANTS

DURABLE = RaftSettings(message_timeout_ms=10, election_timeout_ms=100, durable=True)


def history(*starts: tuple[int, int]) -> ViewHistory:
    views = ViewHistory()
    for idx, view in starts:
        views.update(idx, view)
    return views


def test_view_history() -> None:
    views = history((1, 2), (3, 2), (5, 4), (8, 5))
    assert [views.view_at(idx) for idx in (0, 1, 4, 5, 7, 8, 99)] == [0, 2, 2, 4, 4, 5, 5]
    assert views.dense() == [1, 1, 5, 5, 8]  # CCF's form: empty views share a start
    assert [views.end_of_run(idx, 9) for idx in (1, 5, 8)] == [4, 7, 9]
    views.rollback(5)
    assert views.dense() == [1, 1, 5, 5]
    for idx, view in ((5, 3), (4, 6), (9, 3)):
        with pytest.raises(InvariantBroken):
            views.update(idx, view)


@pytest.mark.parametrize(
    ("at", "last_idx", "match"),
    [((5, 20), 9, 9), ((4, 9), 9, 7), ((3, 9), 9, 4), ((2, 3), 9, 3), ((1, 9), 9, 0), ((0, 0), 9, 0)],
)
def test_highest_possible_match_skips_whole_views(at: tuple[int, int], last_idx: int, match: int) -> None:
    assert history((1, 2), (5, 4), (8, 5)).highest_possible_match(TxId(*at), last_idx) == match


def test_quorums_are_of_each_configuration() -> None:
    old, new = Configuration(1, frozenset("abc")), Configuration(5, frozenset("adefg"))
    assert not quorums.won([old, new], set("adef"))  # a majority of the union, and one of the old
    assert not quorums.won([old, new], set("abc"))
    assert quorums.won([old, new], set("abde"))
    assert quorums.won([Configuration(1, frozenset("a"))], {"a"})
    assert not quorums.won([Configuration(1, frozenset("abcd"))], set("ab"))
    matches = {"a": 9, "b": 7, "c": 3, "d": 8, "e": 5, "f": 4, "g": 0}
    assert quorums.agreed_idx([old], matches.__getitem__) == 7
    assert quorums.agreed_idx([new], matches.__getitem__) == 5
    assert quorums.agreed_idx([old, new], matches.__getitem__) == 5
    assert quorums.heard([old, new], set("abde").__contains__)
    assert not quorums.heard([old, new], set("abd").__contains__)


def test_batches_follow_the_size_of_entries_slowly() -> None:
    batch = BatchSize(20_000, 20, 1, fixed=False)
    for _ in range(1_000):
        assert not batch.count(10, 10 * 430)
        batch.update()
    assert 45 <= batch.entries <= 46
    for _ in range(1_000):
        batch.update()
    assert batch.entries == 1
    assert batch.count(47, 47 * 430)  # a whole message's worth
    fixed = BatchSize(20_000, 20, 1, fixed=True)
    fixed.count(10, 43)
    fixed.update()
    assert fixed.entries == 20


def test_settings_state_what_an_outage_costs() -> None:
    settings = RaftSettings()
    assert settings.outage_ms(round_trip_ms=5) == (415, 625)  # goals: median 500, worst 1,000
    with pytest.raises(RaftSettingsError, match="message_timeout_ms is 101, more than election_timeout_ms / 6 = 100"):
        RaftSettings(message_timeout_ms=101)
    with pytest.raises(RaftSettingsError, match="tick_ms is 60"):
        RaftSettings(tick_ms=60)
    with pytest.raises(RaftSettingsError, match="not above 0"):
        RaftSettings(tick_ms=0)
    assert all(rule.holds for rule in settings.rules())
    assert "docs/settings.md" in RaftSettingsError.remedy


def member_of(*entries: Entry) -> Membership:
    members = Membership("a")
    for entry in entries:
        members.append(entry)
    return members


def configuration(idx: int, nodes: str) -> Entry:
    return Entry(2, idx, Kind.RECONFIGURATION, nodes=tuple(nodes))


def signed_retirement_rolled_back() -> Phase | None:
    members = member_of(configuration(1, "ab"), configuration(2, "b"), Entry(2, 3, Kind.SIGNATURE))
    assert members.phase is Phase.SIGNED
    members.rollback(2)
    assert members.retirement is not None
    return members.phase


def test_a_retirement_whose_signature_is_gone_is_ordered_only() -> None:
    """A retirement outlives its signature only where nothing is committed yet: a new leader keeps an unsigned end."""
    assert signed_retirement_rolled_back() is Phase.ORDERED
    with MUTANTS["rollback_keeps_signed"].applied():
        assert signed_retirement_rolled_back() is Phase.SIGNED


def follower_of(*views: int) -> Raft:
    """A follower in view 9, cut once already, whose log has entries of these views."""
    raft = Raft("b", DURABLE, lambda: 0.0)
    raft.state.adopt(9)
    for idx, view in enumerate(views, 1):
        raft.state.append([Entry(view, idx)])
    raft.state.may_truncate = False
    raft.take()
    return raft


def after_a_second_cut() -> int:
    raft = follower_of(2, 2, 3)
    entries = (Entry(9, 3),)
    raft.receive("a", AppendEntries(9, 2, 2, 3, 9, 0, entries))
    effects = raft.take()
    assert bool(effects.messages) is bool(effects.appended)
    return raft.state.log.view_of(3)


def test_a_log_is_cut_once_in_each_leadership() -> None:
    """An honest leader never asks twice: whatever was taken since is its own."""
    assert after_a_second_cut() == 3
    with MUTANTS["truncates_twice"].applied():
        assert after_a_second_cut() == 9


def alone(*, synced: bool = True) -> tuple[Raft, list[Effects]]:
    raft = Raft("a", DURABLE, lambda: 0.0)
    raft.force_become_leader()
    raft.replicate([Entry(2, 1, Kind.RECONFIGURATION, nodes=("a",)), Entry(2, 2, Kind.SIGNATURE)], 2)
    effects = [raft.take()]
    if synced:
        raft.synced(TxId(2, 2))
        effects.append(raft.take())
    return raft, effects


def test_a_leader_alone_commits_what_it_has_synced() -> None:
    raft, effects = alone(synced=False)
    assert effects[0].hard_state == HardState(2, None, 0)
    assert [entry.idx for entry in effects[0].appended] == [1, 2]
    assert raft.commit_idx == 0
    raft, effects = alone()
    assert (raft.commit_idx, effects[1].committed_idx, effects[1].hard_state) == (2, 2, HardState(2, None, 2))


def commit_after(move: Callable[[Raft], None]) -> int:
    raft, _ = alone()
    move(raft)
    return raft.commit_idx


def test_news_of_a_sync_of_what_was_cut_changes_nothing() -> None:
    def move(raft: Raft) -> None:
        raft.replicate(next_entries(raft, [b"dead"]), 2)
        raft.state.adopt(3)
        raft.state.rollback(2)
        raft.tick(100)  # alone: it leads at once, in view 4
        raft.replicate(next_entries(raft, [b""], Kind.SIGNATURE), 4)
        raft.synced(TxId(2, 3))  # the dead entry's

    assert commit_after(move) == 2
    with MUTANTS["believes_late_syncs"].applied():
        assert commit_after(move) == 3


def test_what_was_cut_is_no_longer_synced() -> None:
    def move(raft: Raft) -> None:
        raft.replicate(next_entries(raft, [b"dead", b"dead"]), 2)
        raft.synced(TxId(2, 4))
        raft.state.rollback(2)
        raft.replicate(next_entries(raft, [b""], Kind.SIGNATURE), 2)

    assert commit_after(move) == 2
    with MUTANTS["truncation_stays_synced"].applied():
        assert commit_after(move) == 3


def test_replicate_takes_the_next_entries_of_its_own_view_or_nothing() -> None:
    raft, _ = alone()
    for entries, view in (
        ([Entry(2, 3)], 3),  # asked in another view
        ([Entry(3, 3)], 2),
        ([Entry(2, 4)], 2),  # a gap
        ([Entry(2, 3), Entry(2, 3)], 2),
        ([], 2),
    ):
        assert not raft.replicate(entries, view)
        assert raft.take() == Effects()
    assert raft.replicate([Entry(2, 3), Entry(2, 4)], 2)
    assert not Raft("b", DURABLE, lambda: 0.0).replicate([Entry(0, 1)], 0)


def test_every_message_follows_the_hard_state_it_rests_on() -> None:
    raft, _ = alone()
    raft.receive("b", RequestVote(7, 2, 2))
    effects = raft.take()
    assert effects.hard_state == HardState(7, "b", 2)
    assert [out.durable_idx for out in effects.messages] == [0]
    raft.receive("b", AppendEntries(7, 2, 2, 3, 7, 2, (Entry(7, 3),)))
    effects = raft.take()
    assert effects.hard_state is None  # nothing of it changed
    assert effects.messages[0].message == AppendResponse(7, 3, True)
    assert effects.messages[0].durable_idx == 3


def test_effects_of_several_calls_are_one_change() -> None:
    raft = follower_of(2, 2, 3)
    raft.state.may_truncate = True
    raft.state.append([Entry(3, 4)])
    raft.receive("a", AppendEntries(9, 2, 2, 3, 9, 0, (Entry(9, 3),)))
    raft.receive("a", AppendEntries(9, 3, 9, 4, 9, 0, (Entry(9, 4),)))
    effects = raft.take()
    assert effects.truncated_to == 2
    assert effects.appended == [Entry(9, 3), Entry(9, 4)]


def test_a_node_comes_back_with_what_its_disk_has() -> None:
    log = [
        Entry(2, 1, Kind.RECONFIGURATION, nodes=("a", "b", "c")),
        Entry(2, 2, Kind.SIGNATURE),
        Entry(4, 3, Kind.SIGNATURE),
        Entry(4, 4),
    ]
    raft = Raft.restored("a", DURABLE, lambda: 0.0, HardState(5, "b", 2), log)
    assert (raft.view, raft.state.voted_for, raft.commit_idx, raft.last_idx) == (5, "b", 2, 4)
    assert (raft.leadership, raft.take()) == (Leadership.FOLLOWER, Effects())
    assert raft.view_history() == [1, 1, 3, 3]
    older = Raft.restored("a", DURABLE, lambda: 0.0, HardState(3, "b", 0), log)
    assert (older.view, older.state.voted_for) == (4, None)  # the hard state was torn, so no vote had been sent
    with pytest.raises(LogIncomplete, match="ends at 1, but 2 was committed"):
        Raft.restored("a", DURABLE, lambda: 0.0, HardState(5, "b", 2), log[:1])
    landmarks = [entry for entry in log if entry.kind is not Kind.RAW or entry.idx == 4]
    shorter = Raft.restored("a", DURABLE, lambda: 0.0, HardState(5, "b", 2), landmarks)
    assert (shorter.details(), shorter.last_idx, shorter.view_history()) == (raft.details(), 4, [1, 1, 3, 3])
    fresh = Raft.restored("a", DURABLE, lambda: 0.0, HardState(0, None, 0), [])
    assert fresh.leadership is Leadership.NONE


def test_malformed_entries_are_refused() -> None:
    for message in (
        AppendEntries(9, 3, 3, 5, 9, 0, (Entry(9, 4),)),  # one is missing
        AppendEntries(9, 3, 3, 4, 9, 0, (Entry(9, 4), Entry(9, 5))),
        AppendEntries(9, 3, 3, 4, 2, 0, (Entry(2, 4),)),  # views fall
        AppendEntries(9, 3, 3, 4, 10, 0, (Entry(10, 4),)),  # of a later view than the leader's
    ):
        raft = follower_of(2, 2, 3)
        raft.receive("a", message)
        effects = raft.take()
        assert effects.appended == []
        assert [out.message for out in effects.messages] == [AppendResponse(9, 3, False)]


def test_an_acknowledgement_beyond_the_log_counts_for_nothing() -> None:
    raft, _ = alone()
    raft.replicate([Entry(2, 3, Kind.RECONFIGURATION, nodes=("a", "b")), Entry(2, 4, Kind.SIGNATURE)], 2)
    raft.synced(TxId(2, 4))
    raft.receive("b", AppendResponse(2, 5, True))
    assert (raft.commit_idx, raft.state.peers["b"].match_idx) == (2, 0)
    raft.receive("b", AppendResponse(2, 4, True))
    assert raft.commit_idx == 4


def answered_by_an_earlier_leadership() -> int:
    raft, _ = alone()
    raft.replicate([Entry(2, 3, Kind.RECONFIGURATION, nodes=("a", "b")), Entry(2, 4, Kind.SIGNATURE)], 2)
    assert raft.ask_end() == 1
    raft.receive("b", AppendResponse(1, 2, False, round=7))  # of a leadership before a restart, which started again
    return raft.answered_round


def test_an_answer_to_an_earlier_leadership_answers_nothing() -> None:
    assert answered_by_an_earlier_leadership() == 0
    with MUTANTS["answers_of_any_view"].applied():
        assert answered_by_an_earlier_leadership() == 1


def test_nothing_committed_is_ever_cut() -> None:
    raft, _ = alone()
    with pytest.raises(InvariantBroken):
        raft.state.rollback(1)


@pytest.mark.parametrize(
    ("message_view", "views", "first_conflict"),
    [(2, (2, 2, 2, 2), None), (3, (2, 2, 2, 2), 3), (3, (2, 2, 3, 4), 4), (3, (2, 2, 3, 3), None), (3, (2, 2), None)],
)
def test_first_conflict(message_view: int, views: tuple[int, ...], first_conflict: int | None) -> None:
    raft = follower_of(*views)
    assert following.first_conflict(raft.state, AppendEntries(9, 2, 2, 4, message_view, 0)) == first_conflict


def test_details_have_the_names_of_ccf() -> None:
    raft, _ = alone()
    assert raft.details() == {
        "configs": [{"idx": 1, "nodes": ["a"], "rid": 1}],
        "acks": {},
        "membership_state": "Active",
        "leadership_state": "Leader",
        "primary_id": "a",
        "current_view": 2,
        "ticking": True,
    }
