"""A log that was cut and may have grown again: what of it is still what answers were given from."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.archive import cut
from pipeline.archive.cut import Evidence, Kept, kept_of
from pipeline.archive.salvage import Survivors, merge
from replica.active.completions import completions_of
from replica.following.apply import Applier
from replica.index.compare import recorded_at
from replica.index.memory import MemoryIndex
from replica.notary.errors import RestoreRefused
from replica.notary.position import POSITION_VERSION, Position, begin
from replica.notary.reading import read_records
from replica.notary.salvage import NO_SALVAGES
from tests.worlds.archive_world import SIGNER
from tests.worlds.notary_logs import TOPIC, Log, begun, request_of
from tests.worlds.notary_logs import logs as mixed_logs
from tests.worlds.salvage_world import LostTail, some_tail


def index_of(log: Log) -> MemoryIndex:
    index = MemoryIndex()
    Applier(index, TOPIC).apply(log)
    return index


def held_against(found: Log, old: Log, *, index: bool = True, published: int = -1) -> Kept:
    """The log as it is found, held against what an index, or completions, know of the old one."""
    applied = Applier(MemoryIndex(), TOPIC).apply(old)
    completions = [one for _, one in completions_of(applied) if one.log_offset <= published]
    evidence = Evidence(("r1", index_of(old)) if index else None, completions, [], NO_SALVAGES)
    return kept_of(begin(TOPIC), len(found), lambda first, end: found[first:end], evidence)


@pytest.mark.thorough
@settings(deadline=None, max_examples=300)
@given(mixed_logs(), mixed_logs(), st.integers(0, 30), st.sampled_from([1, 3, 5_000]))
def test_what_is_kept_is_what_an_index_knows(old: Log, other: Log, kept: int, run: int) -> None:
    """Goal: nothing that an index contradicts is kept, and nothing that it does not is given up without need. Method:
    random logs that lose an end, and grow again with records of another one, in runs of several lengths."""
    kept = min(kept, len(old))
    found = list(enumerate([value for _, value in old[:kept]] + [value for _, value in other]))
    assume(old)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "RUN_RECORDS", run)
        result = held_against(found, old)
    until = result.position.offset
    assert result.position == read_records(begin(TOPIC), found[: until + 1]).position
    assert until >= kept - 1
    known = min(until, len(old) - 1)
    of_old = {key: value for key, value in index_of(old).entries() if recorded_at(value) <= known}
    of_found = {key: value for key, value in index_of(found[: until + 1]).entries() if recorded_at(value) <= known}
    assert of_old == of_found
    assert (result.contradiction is None) == (until == len(found) - 1)


def a_log(*numbers: int) -> Log:
    """What a log begins with, and a transaction of each number, which spends the state of it."""
    maker = begun()
    for number in numbers:
        maker.submit(request_of(number, (number,)))
    return maker.log


def test_a_log_that_ends_earlier_is_kept_whole() -> None:
    """Goal: a mere cut is no contradiction. Method: the first records of a log, without and with an index."""
    old = a_log(1, 2, 3, 4)
    for index in (True, False):
        assert held_against(old[:3], old, index=index, published=4) == Kept(
            read_records(begin(TOPIC), old[:3]).position, None
        )


def test_each_kind_of_evidence_finds_other_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a log that grew again is found out by whatever survives. Method: another transaction at offset 5; nothing
    at all there, which only the number of the index's entries shows; by completions; by a position; and no evidence."""
    old, other = a_log(1, 2, 3, 4), a_log(1, 2, 9, 4)
    nothing = [*old[:5], (5, b"nothing")]
    for index, published, found in ((True, -1, other), (True, -1, nothing), (False, 6, other), (False, 6, nothing)):
        kept = held_against(found, old, index=index, published=published)
        assert kept.position.offset == 4 and kept.contradiction is not None, (index, published)
    assert held_against(other, old, index=False).contradiction is None
    mark = read_records(begin(TOPIC), old[:6]).position
    evidence = Evidence(None, [], [("mark 1", mark)], NO_SALVAGES)
    assert kept_of(begin(TOPIC), 7, lambda first, end: other[first:end], evidence).contradiction == (
        "mark 1 is of another record at offset 5"
    )
    with pytest.raises(RestoreRefused, match="of log another"):
        kept_of(begin(TOPIC), 0, lambda first, end: [], evidence._replace(positions=[("r2", begin("another"))]))
    monkeypatch.setattr(cut._Looking, "first_invented", lambda self, until: None)
    assert held_against(nothing, old).contradiction is None  # which the property above would see


def marked(offset: int, digest: bytes = bytes(32), topic_id: str = TOPIC) -> Position:
    return Position(POSITION_VERSION, b"L" * 16, topic_id, offset, digest)


@pytest.mark.parametrize(
    ("marks", "exposed", "last"), [((), 0, 9), ((4,), 0, 9), ((12, 11), 0, 12), ((12,), 20_000, 20_012), ((), 5, 14)]
)
def test_the_lost_range_ends_at_the_highest_mark_and_what_is_exposed(
    marks: tuple[int, ...], exposed: int, last: int
) -> None:
    """Goal: no offset that an answer may have named is used again. Method: marks below and above what indexes know."""
    survivors = survivors_of(some_tail(), marks, exposed)
    header, _ = merge(survivors, at_us=7, public_key=SIGNER.public_key)
    assert (header.last, header.mark, header.exposed) == (last, max(marks, default=-1), exposed)


def test_marks_of_another_log_or_record_are_refused_and_exposure_alone_is_a_loss() -> None:
    """Goal: a foreign mark decides nothing; a cut that nobody noted is still one. Method: a mark of another log, one of
    another record at the end of what is left; and a log of which nothing is known to be missing, with and without."""
    tail = some_tail()
    for wrong in (marked(12, topic_id="another"), marked(tail.base.offset)):
        with pytest.raises(RestoreRefused, match="mark"):
            merge(replace(tail.survivors(), marks=[wrong]), at_us=7, public_key=SIGNER.public_key)
    whole = some_tail(archived=10)
    with pytest.raises(RestoreRefused, match="nothing is lost"):
        whole.merged()
    header, entries = merge(replace(whole.survivors(), exposed=20), at_us=7, public_key=SIGNER.public_key)
    assert (header.last, entries) == (29, [])


def survivors_of(tail: LostTail, marks: tuple[int, ...], exposed: int) -> Survivors:
    return replace(tail.survivors(), marks=[marked(at) for at in marks], exposed=exposed)
