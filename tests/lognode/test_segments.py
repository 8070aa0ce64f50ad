"""The log's disk: what was synced is found again or its loss is noticed, whatever a crash or a flipped bit does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha.raft.core import LogIncomplete
from ha.raft.messages import Entry, HardState, Kind, TxId
from replica.log.raft import records
from replica.log.raft.files import Files, Folder
from replica.log.raft.notes import Hard, decode_note, encode_note
from replica.log.raft.segments import HARD_STATE, Job, SegmentLog, fresh
from replica.notary.errors import FormatUnknown
from tests.contracts.files_machine import FilesMachine, files_in_memory
from tests.contracts.side_by_side import played
from tests.lognode.sim_files import Crash, SimFiles

SMALL = 512  # bytes of a segment: about a dozen entries


def entry(idx: int, view: int = 2, body: bytes = b"") -> Entry:
    if idx % 5 == 0:
        return Entry(view, idx, Kind.SIGNATURE, body or b"signed")
    if idx % 7 == 0:
        return Entry(view, idx, Kind.RECONFIGURATION, b"", ("r1", "r2"))
    return Entry(view, idx, Kind.RAW, body or b"entry %d of %d" % (idx, view))


def run_of(first: int, last: int, view: int = 2) -> list[Entry]:
    return [entry(idx, view) for idx in range(first, last + 1)]


def start(files: Files, segment_bytes: int = SMALL) -> SegmentLog:
    fresh(files)
    return SegmentLog(files, segment_bytes)


def test_a_folder_answers_as_the_double_does(tmp_path: Path) -> None:
    """Goal: see FilesMachine. Method: random calls."""
    numbers = count()

    @asynccontextmanager
    async def folder() -> AsyncIterator[Files]:
        made = Folder(tmp_path / str(next(numbers)))
        yield made
        made.close()

    played(partial(FilesMachine, files_in_memory, folder), examples=25, steps=40)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    """Goal: entries of all kinds, over several segments, after opening again too. Method: a real folder."""
    log = start(Folder(tmp_path / "log"))
    assert log.carry_out(Job(HardState(2, "r1", 0), [run_of(1, 30)], 10)) == TxId(2, 30)
    assert log.carry_out(Job(None, [[*run_of(31, 100)]], 20)) == TxId(2, 100)
    assert log.read(17, 63) == run_of(17, 63)
    for again in (log, SegmentLog(Folder(tmp_path / "log"), SMALL)):
        assert list(again.entries()) == run_of(1, 100)
        assert again.hard_state[:2] == (2, "r1")
    assert SegmentLog(Folder(tmp_path / "log"), SMALL).hard_state.commit_idx == 20  # by its mark alone
    with pytest.raises(LogIncomplete):
        log.read(95, 101)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 400), st.integers(0, 400), st.sampled_from([SMALL, 2**14]))
def test_records_are_counted_without_what_is_between_them(written: int, cut: int, segment_bytes: int) -> None:
    """Goal: an offset names a record, an index an entry; both ways. Method: many entries, a cut, opened again."""
    files = SimFiles()
    log = start(files, segment_bytes)
    log.carry_out(Job(None, [run_of(1, written)], 0))
    log.carry_out(Job(None, [min(cut, written), run_of(min(cut, written) + 1, written + 70, view=3)], 0))
    for found in (log, SegmentLog(files, segment_bytes)):
        raw = [entry.idx for entry in found.entries() if entry.kind is Kind.RAW]
        for idx in range(0, found.last_idx + 1, 13):
            assert found.raw_upto(idx) == sum(at <= idx for at in raw)
        for number, idx in enumerate(raw):
            assert found.idx_of_raw(number, found.last_idx) == idx
            assert found.idx_of_raw(number, idx - 1) is None
        assert found.idx_of_raw(len(raw), found.last_idx) is None


def test_space_is_reserved_before_it_is_used(tmp_path: Path) -> None:
    """Goal: a full disk is met when a segment begins, not within one. Method: blocks and length of the file."""
    log = start(Folder(tmp_path), 2**20)
    log.carry_out(Job(None, [run_of(1, 3)], 0))
    status = (tmp_path / f"{1:020}.segment").stat()
    assert status.st_size == 2**20
    assert status.st_blocks * 512 >= 2**20
    assert status.st_mode & 0o077 == 0


def test_a_cut_takes_away_what_is_above(tmp_path: Path) -> None:
    """Goal: other entries take the place of those that were cut. Method: within a segment, at its edge, over many."""
    for idx in range(41):
        folder = tmp_path / str(idx)
        log = start(Folder(folder))
        log.carry_out(Job(None, [run_of(1, 40)], 0))
        log.carry_out(Job(None, [idx, run_of(idx + 1, 45, view=3)], 0))
        wanted = run_of(1, idx) + run_of(idx + 1, 45, view=3)
        assert list(log.entries()) == wanted
        assert list(SegmentLog(Folder(folder), SMALL).entries()) == wanted


def test_nothing_that_was_cut_off_comes_back(tmp_path: Path) -> None:
    """Goal: records of equal length line up with the old ones. Method: cut, write one of the same length, open."""
    log = start(Folder(tmp_path), 2**16)
    log.carry_out(Job(None, [[Entry(3 if idx < 10 else 5, idx, Kind.RAW, b"same") for idx in range(1, 20)]], 0))
    log.carry_out(Job(None, [9, [Entry(4, 10, Kind.RAW, b"same")]], 0))
    assert SegmentLog(Folder(tmp_path), 2**16).last == TxId(4, 10)


def tail_of(files: SimFiles) -> str:
    return max(name for name in files.names() if name.endswith(".segment"))


def test_a_file_cut_at_any_byte() -> None:
    """Goal: the log up to there, or a refusal; never another log. Method: cut the only segment at every byte."""
    files = SimFiles()
    start(files, 4096).carry_out(Job(None, [run_of(1, 20)], 0))
    name = tail_of(files)
    size = len(files.read(name).rstrip(b"\x00"))
    found = []
    for at in range(size):
        torn = files.copy()
        torn.cut(name, at)
        try:
            log = SegmentLog(torn, 4096)
        except LogIncomplete:
            assert at < 64  # the file's header
            continue
        assert list(log.entries()) == run_of(1, log.last_idx)
        found.append(log.last_idx)
        log.carry_out(Job(None, [[entry(log.last_idx + 1, view=9)]], 0))
        assert SegmentLog(torn, 4096).last == TxId(9, log.last_idx)
    assert found == sorted(found)
    assert set(found) == set(range(21))


def test_a_bit_that_flips_is_noticed_wherever_it_is() -> None:
    """Goal: no entry that was synced is missing or other unnoticed. Method: flip every bit of a closed log's file."""
    files = SimFiles()
    log = start(files, 1024)
    log.carry_out(Job(None, [run_of(1, 6)], 0))
    log.carry_out(Job(None, [run_of(7, 9)], 0))
    log.close()
    name = tail_of(files)
    last_mark = len(files.read(name).rstrip(b"\x00")) - 49
    noticed = 0
    for at in range(len(files.read(name)) * 8):
        damaged = files.copy()
        damaged.now[name].data[at // 8] ^= 1 << at % 8
        try:
            assert list(SegmentLog(damaged, 1024).entries()) == run_of(1, 9)
            assert at // 8 >= last_mark - 49  # the last marks, and what follows them, prove nothing more
        except LogIncomplete:
            noticed += 1
    assert noticed > (last_mark - 49) * 8 - 1


def test_damage_below_the_commit_is_never_cut_off() -> None:
    """Goal: a node that lost what was committed neither votes nor acknowledges. Method: cut a file below the mark."""
    files = SimFiles()
    log = start(files, 4096)
    log.carry_out(Job(None, [run_of(1, 20)], 0))
    log.carry_out(Job(HardState(3, None, 15), [], 15))
    name = tail_of(files)
    before = files.read(name)
    files.cut(name, 300)
    with pytest.raises(LogIncomplete, match="committed"):
        SegmentLog(files, 4096)
    assert files.read(name) == before[:300]  # left as it was found


@pytest.mark.parametrize("missing", ["first", "middle", HARD_STATE])
def test_a_file_that_is_missing_is_a_hole(missing: str) -> None:
    """Goal: a lost file is no shorter log. Method: take away one of several."""
    files = SimFiles()
    start(files).carry_out(Job(HardState(2, "r1", 0), [run_of(1, 60)], 0))
    segments = [name for name in files.names() if name.endswith(".segment")]
    files.remove({"first": segments[0], "middle": segments[1]}.get(missing, missing))
    with pytest.raises(LogIncomplete):
        SegmentLog(files, SMALL)


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_hard_state_that_is_damaged_is_no_hard_state(at: int) -> None:
    """Goal: a vote that is forgotten could be given twice. Method: flip bits of the file."""
    files = SimFiles()
    start(files).carry_out(Job(HardState(2, "r1", 0), [run_of(1, 3)], 0))
    data = files.now[HARD_STATE].data
    data[at // 8 % len(data)] ^= 1 << at % 8
    with pytest.raises(LogIncomplete, match="damaged"):
        SegmentLog(files, SMALL)


def sealed_log(files: Files) -> SegmentLog:
    log = start(files)
    log.carry_out(Job(None, [run_of(1, 60)], 55))
    while (segment := log.to_seal(55)) is not None:
        log.seal(segment)
    return log


def test_full_segments_are_sealed_once_committed_and_stay() -> None:
    """Goal: what is sealed is exact and never cut. Method: seal, open, append, cut into a sealed one."""
    files = SimFiles()
    log = sealed_log(files)
    seals = [name for name in files.names() if name.endswith(".seal")]
    assert len(seals) == len([name for name in files.names() if name.endswith(".segment")]) - 1 >= 3
    again = SegmentLog(files, SMALL)
    assert list(again.entries()) == run_of(1, 60)
    assert again.damaged == []
    again.carry_out(Job(None, [58, run_of(59, 80)], 55))
    assert list(SegmentLog(files, SMALL).entries()) == run_of(1, 80)
    with pytest.raises(LogIncomplete, match="sealed"):
        log.carry_out(Job(None, [3], 0))


@pytest.mark.parametrize("damage", ["flip", "gone", "short"])
def test_a_damaged_sealed_segment_is_repaired_with_a_peers_entries(damage: str) -> None:
    """Goal: only the very entries that were sealed repair it. Method: damage, open, offer wrong and right ones."""
    files = SimFiles()
    sealed_log(files)
    name = [name for name in files.names() if name.endswith(".segment")][1]
    if damage == "flip":
        files.now[name].data[100] ^= 4
    elif damage == "gone":
        files.remove(name)
    else:
        files.cut(name, 90)
    log = SegmentLog(files, SMALL)
    (seal,) = log.damaged
    with pytest.raises(LogIncomplete):
        list(log.entries())
    right = run_of(seal.first_idx, seal.last_idx)
    wrong = [*right[:-1], Entry(2, seal.last_idx, Kind.RAW, b"another")]
    assert not log.repair(seal, wrong)
    assert not log.repair(seal, right[1:])
    assert log.repair(seal, right)
    assert log.damaged == []
    assert list(log.entries()) == list(SegmentLog(files, SMALL).entries()) == run_of(1, 60)


def test_the_root_does_not_depend_on_the_file() -> None:
    """Goal: two nodes' seals of the same entries can be compared. Method: two folders, other nonces and batches."""
    roots = []
    for batches in ([run_of(1, 60)], [run_of(1, 12), run_of(13, 60)]):
        files = SimFiles()
        log = start(files)
        for batch in batches:
            log.carry_out(Job(None, [batch], 60))
        while (segment := log.to_seal(60)) is not None:
            log.seal(segment)
        roots.append({s.seal.first_idx: (s.seal.last_idx, s.seal.root) for s in log._segments if s.seal is not None})
    (first, second) = roots
    same = [idx for idx in first.keys() & second.keys() if first[idx][0] == second[idx][0]]
    assert 1 in same
    assert all(first[idx] == second[idx] for idx in same)


def jobs(dice: random.Random) -> list[Job]:
    """What a node's life asks of its disk: appends, and cuts above what is committed."""
    made, last, view, commit = [], 0, 2, 0
    for _ in range(dice.randint(2, 6)):
        steps: list[int | list[Entry]] = []
        for _ in range(dice.randint(1, 3)):
            if last > commit and dice.random() < 0.3:
                last = dice.randint(commit, last)
                view += 1
                steps.append(last)
            count = dice.randint(1, 12)
            steps.append(run_of(last + 1, last + count, view))
            last += count
        hard = HardState(view, dice.choice(["r1", None]), commit) if dice.random() < 0.5 else None
        made.append(Job(hard, steps, commit))
        commit = dice.randint(commit, last)
    return made


def outcomes(log: list[Entry], job: Job) -> list[list[Entry]]:
    """Every log that a crash within the job may leave: each step done up to somewhere."""
    found = [log]
    for step in job.steps:
        if isinstance(step, int):
            found += [log[:idx] for idx in range(len(log) - 1, step - 1, -1)]
            log = log[:step]
        else:
            found += [[*log, *step[:count]] for count in range(1, len(step) + 1)]
            log = [*log, *step]
    return found


def play(seed: int, crash_at: int) -> bool:
    """Carry out jobs until the crash; look what the next start finds. False: the crash did not come."""
    dice = random.Random(f"{seed}/{crash_at}")
    files = SimFiles()
    log = start(files)
    files.steps_left = crash_at
    done: list[Entry] = []
    hard = HardState(0, None, 0)
    for job in jobs(random.Random(seed)):
        allowed = outcomes(done, job)
        try:
            log.carry_out(job)
            if (segment := log.to_seal(job.commit_idx)) is not None:
                allowed = [allowed[-1]]
                log.seal(segment)
        except Crash:
            found = SegmentLog(files.crashed(dice), SMALL)
            assert list(found.entries()) in allowed
            assert found.damaged == []
            votes = {hard[:2], (job.hard_state or hard)[:2]}
            assert found.hard_state[:2] in votes
            return True
        done, hard = allowed[-1], job.hard_state or hard
        assert list(log.entries()) == done
    return False


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_between_any_two_steps_loses_nothing_that_was_synced(seed: int) -> None:
    """Goal: what `carry_out` returned for is found again. Method: crash before each write, sync and rename in turn."""
    crash_at = 0
    while play(seed, crash_at):
        crash_at += 1
    assert crash_at > 10


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_a_crash_anywhere_in_any_life(seed: int, crash_at: int) -> None:
    """Goal and method as above, on lives that hypothesis chooses."""
    play(seed, crash_at)


@pytest.mark.parametrize("sealed", [False, True])
def test_an_entry_of_a_kind_of_a_newer_release_is_refused_and_stays(
    sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an older release takes it for no torn write: it would cut off what was committed. Method: a release that
    does not know words opens a log that ends with some, in a file that is sealed or is not; then one that does."""
    files = SimFiles()
    log = start(files)
    words = [Entry(2, idx, Kind.WORD, b"a word %d" % idx) for idx in range(1, 30 if sealed else 4)]
    log.carry_out(Job(None, [words], 0))
    log.carry_out(Job(None, [], len(words)))
    with monkeypatch.context() as older:
        older.delitem(records._KINDS, Kind.WORD.value)
        with pytest.raises(FormatUnknown, match="an entry of kind 4"):
            list(SegmentLog(files, SMALL).entries())
    assert list(SegmentLog(files, SMALL).entries()) == words


@given(st.binary(max_size=120))
def test_notes_from_any_bytes_are_a_note_or_nothing(raw: bytes) -> None:
    """Goal: no traceback. Method: any bytes, with and without a digest that fits."""
    assert decode_note(raw, Hard) is None or encode_note(Hard(1, None, 1)) != raw


def test_entries_keep_their_order_over_a_long_log() -> None:
    """Goal: landmarks lead to the right entry. Method: each of a thousand read alone, and in pairs."""
    log = start(SimFiles(), 2**14)
    log.carry_out(Job(None, [run_of(1, 1_000)], 0))
    assert [log.read(idx, idx)[0].idx for idx in range(1, 1_001)] == list(range(1, 1_001))
    assert all(log.read(a, b) == run_of(a, b) for a, b in pairwise(range(1, 1_001, 37)))
