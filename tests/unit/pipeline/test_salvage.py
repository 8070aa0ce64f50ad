"""The tail salvage: what it is merged from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.archive.salvage import IndexTail, Survivors, complete_from, merge
from replica.active.publisher import completions_of
from replica.active.signer import FileSigner
from replica.following.apply import judge_records
from replica.following.salvaged import salvages_in
from replica.index.compare import recorded_at
from replica.index.memory import MemoryIndex
from replica.notary.errors import RestoreRefused
from replica.notary.position import begin
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import (
    LostEntry,
    Salvage,
    Salvages,
    decode_salvage,
    encode_salvage,
)
from tests.worlds.archive_world import SIGNER
from tests.worlds.notary_logs import LogMaker, request_of, state, tx
from tests.worlds.salvage_world import RESTORED, LostTail, completions_in, read, restored, some_tail, tail_of

OTHER_KEY = FileSigner(Ed25519PrivateKey.from_private_bytes(b"b" * 32))


def entry(offset: int, key: bytes, name: bytes) -> LostEntry:
    return LostEntry(offset, key, name + offset.to_bytes(8, "big"))


def test_an_index_that_has_everything_leaves_nothing_lost() -> None:
    """Goal: what an index recorded stays, published or not. Method: merge; count what is accepted."""
    header, entries = some_tail().merged()
    assert {one.key for one in entries if one.key[:1] == TX_KEY} == {TX_KEY + tx(n) for n in (4, 5, 6, 9)}
    assert {one.key for one in entries if one.key[:1] == STATE_KEY} == {
        STATE_KEY + state(n) for n in (8, 9, 10, 11, 12, 13, 18)
    }
    assert (header.last, header.applied, header.published, header.accepted_loss) == (9, 9, 7, 0)


def test_what_only_completions_tell_stays_notarised_and_its_states_are_counted() -> None:
    """Goal: a lost machine costs states, not transactions. Method: the only index ends before the published offset."""
    header, entries = some_tail(applied=(4,)).merged()
    assert {one.key for one in entries if one.offset > 4} == {TX_KEY + tx(5), TX_KEY + tx(6)}
    assert (header.last, header.states_unknown, header.accepted_loss) == (7, 2, 2)
    without, _ = some_tail(applied=()).merged()
    assert (without.applied, without.states_unknown) == (-1, 3)


def test_the_furthest_index_counts_and_the_others_must_agree() -> None:
    """Goal: more indexes change nothing. Method: one of them, three of them in another order."""
    assert some_tail(applied=(9,)).merged()[1] == some_tail(applied=(5, 9, 2)).merged()[1]


def lost_again(**changes: object) -> tuple[LostTail, Salvage, Survivors]:
    """A tail that was salvaged and restored; then another activation, which repeats an unpublished transaction and
    adds one; then that topic is gone, before the archive went on. All of it was applied and published."""
    tail = some_tail()
    found = tail.salvage()
    maker = LogMaker(values=[value for _, value in tail.log])
    maker.barrier(5)
    maker.submit(request_of(9, (18,), (19,)))
    maker.submit(request_of(30, (30,)))
    log = restored(tail, found, maker.values[len(tail.log) :])
    held = Salvages([found])
    applied, _ = judge_records(MemoryIndex(), begin(RESTORED), log, held)
    index = read(log, held)
    entries = {key: value for key, value in index.entries() if recorded_at(value) >= tail.archived}
    told = completions_in(tail.log, tail.archived, tail.published)
    told += [one for _, one in completions_of(applied) if one.log_offset > found.last]
    survivors = msgspec.structs.replace(
        tail.survivors(),
        base=msgspec.structs.replace(tail.base, topic_id=RESTORED),
        indexes=[IndexTail("r1", applied.position, entries)],
        published=applied.position.offset,
        completions=told,
        earlier=[found],
    )
    return tail, found, msgspec.structs.replace(survivors, **changes)


def salvaged(survivors: Survivors) -> Salvage:
    header, entries = merge(survivors, at_us=8, public_key=SIGNER.public_key)
    return decode_salvage(encode_salvage(header, entries, SIGNER.sign), SIGNER.public_key)


@pytest.mark.parametrize("archived", [4, 6])
def test_a_restored_log_that_is_lost_again_is_salvaged_again(archived: int) -> None:
    """Goal: a second loss is no dead end. Method: lose a restored topic before the archive has read past the first
    lost range, or even reached it; some of what that range holds was never published, and never will be."""
    tail, first, survivors = lost_again()
    base = first.base if archived == tail.archived else first.position_at(archived - 1, RESTORED)
    base = msgspec.structs.replace(base, topic_id=RESTORED)
    entries = {key: value for key, value in survivors.indexes[0].entries.items() if recorded_at(value) >= archived}
    survivors = msgspec.structs.replace(
        survivors,
        base=base,
        indexes=[IndexTail("r1", survivors.indexes[0].position, entries)],
        completions=[one for one in survivors.completions if one.log_offset >= archived],
        complete_from=archived,
    )
    second = salvaged(survivors)
    assert (second.first, second.last, second.header.accepted_loss) == (archived, 12, 0)
    held = Salvages([first, second])
    lost = [second.lost_record(offset) for offset in range(second.first, second.last + 1)]
    kept = [value for _, value in restored(tail, first)[:archived]]
    again = read(list(enumerate(kept + lost)), held)
    assert dict(again.entries()) == dict(read(restored(tail, first), held).entries()) | {
        entry.key: entry.value for entry in second.entries()
    }
    assert asyncio.run(salvages_in(again, 12, held)) == {first.digest.hex(), second.digest.hex()}


def test_what_a_salvage_tells_is_not_lost_with_the_indexes() -> None:
    """Goal: the states of a salvage stay spent, and the database's demand for it can be met, though no index is left.
    Method: indexes that were still being rebuilt when the restored topic was lost; none at all."""
    early = tail_of("r1", some_tail().log[:3], 4)
    early = msgspec.structs.replace(early, position=msgspec.structs.replace(early.position, topic_id=RESTORED))
    for indexes in ([], [early]):
        _, first, survivors = lost_again(indexes=indexes)
        second = salvaged(survivors)
        assert {*first.entries()} <= {*second.entries()}
        assert second.header.states_unknown == 1  # the one that was notarised since


def test_a_salvage_and_an_index_must_agree() -> None:
    """Goal: nobody guesses. Method: an index of the restored log lacks what the salvage has."""
    _, _, survivors = lost_again()
    del survivors.indexes[0].entries[STATE_KEY + state(18)]
    with pytest.raises(RestoreRefused, match="differ in key"):
        salvaged(survivors)


def test_nothing_lost_makes_no_salvage() -> None:
    """Goal: no lost range where the archive has all. Method: an index and completions no further than it."""
    with pytest.raises(RestoreRefused, match="nothing is lost"):
        some_tail(archived=10).merged()


def drop(of: str) -> Callable[[Survivors], Survivors]:
    """One entry less in the index that goes furthest."""

    def change(found: Survivors) -> Survivors:
        *others, index = found.indexes
        key = {"tx": TX_KEY + tx(5), "state": STATE_KEY + state(10)}[of]
        left = {k: v for k, v in index.entries.items() if k != key}
        return msgspec.structs.replace(found, indexes=[*others, msgspec.structs.replace(index, entries=left)])

    return change


def with_index(**changes: object) -> Callable[[Survivors], Survivors]:
    def change(found: Survivors) -> Survivors:
        *others, index = found.indexes
        position = msgspec.structs.replace(index.position, **changes)
        return msgspec.structs.replace(found, indexes=[*others, msgspec.structs.replace(index, position=position)])

    return change


def with_completion(at: int, **changes: object) -> Callable[[Survivors], Survivors]:
    def change(found: Survivors) -> Survivors:
        completions = list(found.completions)
        completions[at] = msgspec.structs.replace(completions[at], **changes)
        return msgspec.structs.replace(found, completions=completions)

    return change


def without_completion(at: int) -> Callable[[Survivors], Survivors]:
    def change(found: Survivors) -> Survivors:
        kept = [one for place, one in enumerate(found.completions) if place != at]
        return msgspec.structs.replace(found, completions=kept)

    return change


def another_log(found: Survivors) -> Survivors:
    """A second index that spent a state at an offset at which the first did something else."""
    maker = LogMaker(values=[value for _, value in some_tail().log[:4]], sequence=3)
    maker.activation_id = some_tail().base.barrier.activation_id  # type: ignore[union-attr]
    maker.submit(request_of(40, (8, 41)))
    return msgspec.structs.replace(found, indexes=[*found.indexes, tail_of("r9", maker.log, 4)])


DISAGREEMENTS: dict[str, Callable[[Survivors], Survivors]] = {
    "an index forgot a transaction": drop("tx"),
    "an index forgot a state": drop("state"),
    "an index of another topic": with_index(topic_id="other"),
    "an index at another barrier": with_index(barrier_offset=2),
    "an index that recorded beyond its position": with_index(offset=8),
    "an index with an earlier time": with_index(stamp_us=0),
    "two indexes at one offset, of other records": with_index(digest=b"x" * 32),
    "two indexes of two logs": another_log,
    "a completion of other content": with_completion(1, content_digest=b"c" * 32),
    "a completion of another transaction": with_completion(1, tx_id=tx(77)),
    "a completion at another offset": with_completion(0, log_offset=6, notarised_offset=6),
    "a completion that refuses what an index notarised": with_completion(1, outcome="STATE_CONFLICT"),
    "a completion that is not there": without_completion(1),
    "a repetition of what nobody notarised": with_completion(3, notarised_offset=5),
}


@pytest.mark.parametrize("disagreement", DISAGREEMENTS)
def test_sources_that_disagree_are_refused(disagreement: str) -> None:
    """Goal: nobody guesses. Method: two replicas and the completions agree; then one of them differs."""
    survivors = some_tail(applied=(9, 9)).survivors()
    merge(survivors, at_us=7, public_key=SIGNER.public_key)
    changed = DISAGREEMENTS[disagreement](survivors)
    assert changed != survivors
    with pytest.raises(RestoreRefused):
        merge(changed, at_us=7, public_key=SIGNER.public_key)


def test_a_torn_index_is_refused_also_where_it_is_the_only_source() -> None:
    """Goal: half a transaction is not saved. Method: its position is one record short; a transaction is missing."""
    with pytest.raises(RestoreRefused, match="not one record's"):
        merge(drop("tx")(some_tail(published=3).survivors()), at_us=7, public_key=SIGNER.public_key)
    with pytest.raises(RestoreRefused, match="recorded something at 9"):
        merge(with_index(offset=8)(some_tail().survivors()), at_us=7, public_key=SIGNER.public_key)


def test_pruned_completions_are_missed_only_where_no_index_tells() -> None:
    """Goal: house-keeping is no disagreement, and hides no loss. Method: the same, pruned to within the lost range."""
    pruned = without_completion(0)(some_tail(complete_from=5).survivors())
    assert len(merge(pruned, at_us=7, public_key=SIGNER.public_key)[1]) == 16
    for applied in ((), (2,)):
        alone = without_completion(0)(some_tail(applied=applied, complete_from=5).survivors())
        with pytest.raises(RestoreRefused, match="pruned"):
            merge(alone, at_us=7, public_key=SIGNER.public_key)
    base, completions = some_tail().base, some_tail().survivors().completions
    assert complete_from(base, 0, None, 7) == 4
    assert complete_from(base, 9, None, 7) == 8
    assert complete_from(base, 9, completions[1], 7) == 6
    assert complete_from(base, 9, msgspec.structs.replace(completions[0], log_offset=3), 7) == 4
