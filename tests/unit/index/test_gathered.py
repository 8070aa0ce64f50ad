"""An index that gathers what it writes: nothing is judged otherwise, also after a kill at any moment."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replica.following.apply import Applier
from replica.index.commands import offset_of
from replica.index.gathered import GatheredIndex
from replica.index.memory import MemoryIndex
from replica.notary.acceptances import encode_acceptance, first_key, later_key
from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position
from tests.worlds.notary_logs import Log, logs
from tests.worlds.party_logs import logs_with_parties

CHANGE = b"c" * 32


def at(offset: int) -> Position:
    return Position(1, "topic", offset, b"d" * 32)


def accepted(offset: int) -> bytes:
    return encode_acceptance(b"t" * 32, b"d" * 32, offset, offset)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(logs(newest=2), logs_with_parties()),
    st.integers(1, 9),
    st.integers(1, 6),
    st.sets(st.integers(0, 40), max_size=4),
)
def test_a_kill_at_any_moment_changes_no_verdict(log: Log, per_run: int, together: int, kills: set[int]) -> None:
    """Goal: verdicts, entries and position are those of an index that writes each run by itself. Method: random logs;
    before some runs the process dies, and with it what waits; the next one goes on from what was written."""
    plain, on_disk = MemoryIndex(), MemoryIndex()
    expected = dict(_verdicts(Applier(plain, "topic"), log, per_run))
    applier, next_run, runs = Applier(GatheredIndex(on_disk, together), "topic"), 0, 0
    while next_run < len(log):
        if runs in kills:
            written = offset_of(on_disk.position())
            for table in (on_disk.commands, on_disk.parties):
                assert offset_of(table.position()) >= written  # never behind
            applier = Applier(GatheredIndex(on_disk, together), "topic")
            next_run = written + 1
        runs += 1
        found = _verdicts(applier, log[next_run : next_run + per_run], per_run)
        assert found == [(at, expected[at]) for at, _ in found]
        next_run += per_run
    applier.index.close()
    assert on_disk.position() == plain.position()
    for one, other in ((on_disk, plain), (on_disk.commands, plain.commands), (on_disk.parties, plain.parties)):
        assert list(one.entries()) == list(other.entries())


def _verdicts(applier: Applier, log: Log, per_run: int) -> list[tuple[int, object]]:
    runs = [log[start : start + per_run] for start in range(0, len(log), per_run)]
    return [(entry.offset, verdict) for run in runs for entry, verdict in applier.apply(run).decided()]


def test_what_waits_is_written_when_it_is_enough_or_asked_for() -> None:
    """Goal: the bound holds, and no table lags behind the states. Method: look at what is on the disk at each step."""
    on_disk = MemoryIndex()
    index = GatheredIndex(on_disk, together=3)
    index.write({b"s1": b"1", b"t1": b"2"}, at(4), {first_key(CHANGE): accepted(4)})
    assert (on_disk.position(), on_disk.entry_count, index.entry_count) == (None, 0, 2)
    index.write({b"s2": b"3"}, at(5))
    assert (on_disk.position(), on_disk.commands.position(), on_disk.entry_count) == (at(5), at(5), 3)
    index.write({}, at(6))
    assert on_disk.position() == at(5)
    index.flush()
    assert (on_disk.position(), on_disk.commands.position()) == (at(6), at(6))


def test_a_command_that_waits_is_found() -> None:
    """Goal: a command that was accepted a moment ago is not accepted again. Method: ask before anything is written."""
    index = GatheredIndex(MemoryIndex())
    index.write({}, at(4), {first_key(CHANGE): accepted(4)})
    assert index.commands.newest([CHANGE], [5]) == [accepted(4)]
    index.write({}, at(6), {later_key(CHANGE, 6): accepted(6)})
    assert index.commands.newest([CHANGE, b"o" * 32], [7, 7]) == [accepted(6), None]
    assert index.commands.newest([CHANGE], [6]) == [accepted(4)]


def test_an_index_that_failed_answers_nothing_of_what_waits() -> None:
    """Goal: no answer from memory once the disk has failed. Method: fail it while entries wait."""
    on_disk = MemoryIndex()
    index = GatheredIndex(on_disk)
    index.write({b"s1": b"1"}, at(4))
    on_disk.fail_with = "input/output error"
    for call in (lambda: index.lookup([b"s1"]), index.position, index.flush):
        with pytest.raises(IndexUnreadable, match="input/output"):
            call()
    index.close()


def test_states_are_written_last() -> None:
    """Goal: registrations never lag behind what was judged by them. Method: their table fails while all are written."""
    on_disk = MemoryIndex()
    index = GatheredIndex(on_disk)
    index.parties.write({}, at(4))
    index.write({b"s1": b"1"}, at(4))
    on_disk.parties.fail_with = "input/output error"
    with pytest.raises(IndexUnreadable):
        index.flush()
    assert (on_disk.position(), on_disk.commands.position()) == (None, None)
