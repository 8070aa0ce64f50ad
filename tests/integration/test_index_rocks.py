"""The index on real files: what a crash, a bad disk or a second process does to it, and that it never lies."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from replica.index.interface import BEFORE_KEY, POSITION_KEY
from replica.index.quarantine import QUARANTINED_MAX, open_or_start_anew, quarantine_index, quarantined
from replica.index.rocks import RocksIndex, table_options, verify_index
from replica.index.summary import summarise
from replica.notary.errors import IndexDamaged, IndexDamagedAgain, IndexUnreadable
from replica.notary.position import POSITION_VERSION, Position, encode_position
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import OF_COMMANDS, OF_PARTIES, OF_STATES

BATCHES, PER_BATCH = 30, 100
FLUSHED = (11, 21)  # batches in front of which a checkpoint is taken, which moves what is logged into a file


def entries_of(batch: int) -> dict[bytes, bytes]:
    """A batch's entries: keys and values as the rules make them, spread over the key space."""
    names = [((batch * PER_BATCH + n) * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") * 4 for n in range(PER_BATCH)]
    return {
        key: name + batch.to_bytes(8, "big") for name in names for key in (STATE_KEY + name + bytes(4), TX_KEY + name)
    }


def at(batch: int) -> Position:
    return Position(POSITION_VERSION, b"L" * 16, "topic", batch, b"d" * 32)


def entries_until(batch: int) -> dict[bytes, bytes]:
    return {key: value for before in range(batch + 1) for key, value in entries_of(before).items()}


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an index whose process was killed: two table files, and the newest batches in the log only."""
    folder = tmp_path_factory.mktemp("crashed") / "index"
    index = RocksIndex(folder)
    for batch in range(BATCHES):
        if batch in FLUSHED:
            index.checkpoint(folder.with_name(f"checkpoint-{batch}"))
        index.write(entries_of(batch), at(batch))
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("LOCK"))
    index.close()
    assert (len(list(copy.glob("*.sst"))), len(list(copy.glob("*.log")))) == (2, 1)
    return copy


@pytest.fixture
def folder(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "index"))


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern))


def flip(path: Path, at_byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[at_byte] ^= 0x10
    path.write_bytes(content)


def state_of(folder: Path) -> int | None:
    """The batch that a damaged index is at, None if it refuses. Anything else it may say fails the test."""
    try:
        index = RocksIndex(folder)
        try:
            position = index.position()
            batch = -1 if position is None else position.offset
            expected = entries_until(batch)
            for key, value in expected.items():
                assert index.lookup([key]) == [value]
            assert index.lookup(list(expected)) == list(expected.values())
            assert dict(index.entries()) == expected
        finally:
            index.close()
    except IndexUnreadable:
        return None
    return batch


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Goal: unsynced is not unsafe. Method: SIGKILL a process that writes; all it reported is there, and consistent."""
    code = (
        "import sys; from pathlib import Path; from tests.integration.test_index_rocks import *\n"
        "index = RocksIndex(Path(sys.argv[1]))\n"
        "for batch in range(10_000):\n"
        "    index.write(entries_of(batch), at(batch)); print(batch, flush=True)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "index")]
    reported = -1
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            reported = int(line)
            if reported == 150:
                writer.send_signal(signal.SIGKILL)
    state = state_of(tmp_path / "index")
    assert state is not None
    assert state in (reported, reported + 1)


@pytest.mark.thorough
def test_whatever_the_log_lost_is_rewound_and_can_be_written_again(folder: Path, tmp_path: Path) -> None:
    """Goal: position and data rewind together. Method: cut and flip the write-ahead log in many places, replay."""
    size = newest(folder, "*.log").stat().st_size
    reached = set()
    for at_byte in range(5, size, size // 12):
        for damage in (os.truncate, flip):
            copy = Path(shutil.copytree(folder, tmp_path / "damaged"))
            damage(newest(copy, "*.log"), at_byte)
            state = state_of(copy)
            assert state is not None
            assert FLUSHED[-1] - 1 <= state < BATCHES
            reached.add(state)
            index = RocksIndex(copy)
            for batch in range(state + 1, BATCHES):
                index.write(entries_of(batch), at(batch))
            index.close()
            assert state_of(copy) == BATCHES - 1
            shutil.rmtree(copy)
    assert len(reached) > 5


def test_a_flipped_bit_in_a_table_is_never_read_as_absent(folder: Path, tmp_path: Path) -> None:
    """Goal: no key gets lost. Method: flip a bit in 25 places of each file; refused, or every answer is true."""
    refused = 0
    for name in ("*.sst", "MANIFEST-*", "CURRENT"):
        for path in folder.glob(name):
            size = path.stat().st_size
            for at_byte in range(0, size, max(1, size // 25)):
                copy = Path(shutil.copytree(folder, tmp_path / "damaged"))
                flip(copy / path.name, at_byte)
                state = state_of(copy)
                assert state in (None, BATCHES - 1)
                refused += state is None
                shutil.rmtree(copy)
    assert refused > 40


def test_a_manifest_cut_anywhere_leaves_no_hole(folder: Path, tmp_path: Path) -> None:
    """Goal: the newest position never stands over missing older entries. Method: cut the manifest at every length."""
    size = newest(folder, "MANIFEST-*").stat().st_size
    outcomes = set()
    for length in range(0, size, 7):
        copy = Path(shutil.copytree(folder, tmp_path / "damaged"))
        os.truncate(newest(copy, "MANIFEST-*"), length)
        outcomes.add(state_of(copy))
        shutil.rmtree(copy)
    assert None in outcomes
    assert outcomes <= {None, BATCHES - 1}


DAMAGE: dict[str, Callable[[Path], object]] = {
    "table cut short": lambda folder: os.truncate(newest(folder, "*.sst"), 4096),
    "table missing": lambda folder: newest(folder, "*.sst").unlink(),
    "oldest table missing": lambda folder: min(folder.glob("*.sst")).unlink(),
    "table of another index": lambda folder: shutil.copy(min(folder.glob("*.sst")), newest(folder, "*.sst")),
    "manifest missing": lambda folder: newest(folder, "MANIFEST-*").unlink(),
    "manifest empty": lambda folder: os.truncate(newest(folder, "MANIFEST-*"), 0),
    "CURRENT missing": lambda folder: (folder / "CURRENT").unlink(),
    "CURRENT empty": lambda folder: os.truncate(folder / "CURRENT", 0),
    "only tables left": lambda folder: [p.unlink() for p in folder.iterdir() if p.is_file() and p.suffix != ".sst"],
    "only the log left": lambda folder: [p.unlink() for p in folder.iterdir() if p.is_file() and p.suffix != ".log"],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_index_is_refused_and_says_what_to_do(damage: str, folder: Path) -> None:
    """Goal: half an index is not a new one. Method: damage the files, open; the error has a code and a remedy."""
    DAMAGE[damage](folder)
    with pytest.raises(IndexUnreadable) as caught:
        RocksIndex(folder)
    assert caught.value.code.name == "INDEX_UNREADABLE"
    assert "rebuilds the index" in caught.value.code.remedy
    assert str(folder) in caught.value.detail


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_index_is_moved_aside_and_started_anew(damage: str, folder: Path) -> None:
    """Goal: nobody is woken up for a cache. Method: damage the files, start as a replica does: empty, evidence kept."""
    DAMAGE[damage](folder)
    index = open_or_start_anew(folder, 1_789_000_000_000_000)
    assert (index.position(), list(index.entries())) == (None, [])
    index.close()
    (moved,) = quarantined(folder)
    assert state_of(moved) is None


def test_an_index_that_is_only_in_use_or_newer_stays(tmp_path: Path) -> None:
    """Goal: nothing good is moved aside. Method: a newer release's position; the lock of another process."""
    folder = tmp_path / "index"
    index = RocksIndex(folder)
    index.write({}, Position(POSITION_VERSION + 1, b"L" * 16, "topic", 1))
    index.close()
    with pytest.raises(IndexUnreadable, match=f"version {POSITION_VERSION + 1}"):
        open_or_start_anew(folder, 0)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from replica.index.rocks import RocksIndex\n"
            "index = RocksIndex(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()",
            str(tmp_path / "held"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"
    with pytest.raises(IndexUnreadable, match="another process"):
        open_or_start_anew(tmp_path / "held", 0)
    holder.communicate()
    assert quarantined(folder) == quarantined(tmp_path / "held") == []


def test_a_machine_that_damages_again_and_again_needs_a_person(folder: Path, crashed: Path) -> None:
    """Goal: no loop of rebuilds on a bad disk, no disk filled with evidence. Method: damage one time more than
    allowed."""
    for round_at in range(QUARANTINED_MAX):
        DAMAGE["manifest empty"](folder)
        open_or_start_anew(folder, 1_789_000_000_000_000 + round_at).close()
        shutil.rmtree(folder)
        shutil.copytree(crashed, folder)
    DAMAGE["manifest empty"](folder)
    with pytest.raises(IndexDamagedAgain, match="2 were moved aside before"):
        open_or_start_anew(folder, 1_789_000_000_000_009)
    assert len(quarantined(folder)) == QUARANTINED_MAX
    assert folder.exists()


def test_a_missing_log_only_rewinds(folder: Path) -> None:
    """Goal: tables are whole without the log. Method: delete the write-ahead log."""
    newest(folder, "*.log").unlink()
    assert state_of(folder) == FLUSHED[-1] - 1


def test_an_older_log_without_its_end_leaves_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: several logs, as after a crash of the machine, are as safe as one. Method: cut an older one anywhere."""
    monkeypatch.setattr("replica.index.rocks.WRITE_BUFFER_BYTES", 65_536)
    index, batch = RocksIndex(tmp_path / "index"), 0
    while len(list((tmp_path / "index").glob("*.log"))) < 4:
        index.write(entries_of(batch), at(batch))
        batch += 1
    shutil.copytree(tmp_path / "index", tmp_path / "crashed", ignore=shutil.ignore_patterns("LOCK"))
    index.close()
    assert state_of(Path(shutil.copytree(tmp_path / "crashed", tmp_path / "whole"))) == batch - 1
    for older in sorted((tmp_path / "crashed").glob("*.log"))[:3]:
        size = older.stat().st_size
        for left in (0, 1, size // 3, size // 2, size - 100, size - 1):
            cut = Path(shutil.copytree(tmp_path / "crashed", tmp_path / f"{older.stem}-{left}"))
            os.truncate(cut / older.name, left)
            assert state_of(cut) in (None, *range(-1, batch - 1))


def test_files_beside_the_data_may_be_lost(folder: Path) -> None:
    """Goal: nothing but data matters. Method: delete options, identity, diary and the wrapper's file."""
    for pattern in ("OPTIONS-*", "IDENTITY", "LOG*", "rocksdict-config.json"):
        for path in folder.glob(pattern):
            path.unlink()
    assert state_of(folder) == BATCHES - 1


def test_a_failed_look_up_is_final(folder: Path) -> None:
    """Goal: no verdict from an index that failed once. Method: hit a corrupt block, then ask for a good key."""
    table = newest(folder, "*.sst")
    flip(table, table.stat().st_size // 3)
    index = RocksIndex(folder)
    everything = list(entries_until(BATCHES - 1))
    good = next(iter(entries_of(BATCHES - 1)))  # in another file than the damaged one
    with pytest.raises(IndexUnreadable, match="Corruption"):
        index.lookup(everything)
    for use in (lambda: index.lookup([good]), index.position, lambda: index.write({}, at(BATCHES))):
        with pytest.raises(IndexDamaged, match="Corruption"):
            use()
    index.close()


def test_entries_never_end_early(folder: Path) -> None:
    """Goal: a summary of half an index is no summary. Method: a corrupt block in the middle of a table, read all."""
    table = newest(folder, "*.sst")
    flip(table, table.stat().st_size // 3)
    index = RocksIndex(folder)
    with pytest.raises(IndexUnreadable, match="Corruption"):
        list(index.entries())
    index.close()
    with pytest.raises(IndexUnreadable, match="Corruption"):
        verify_index(folder)


def test_a_write_that_fails_is_final_and_the_index_whole(tmp_path: Path) -> None:
    """Goal: a full disk stops the replica, no more. Method: limit the size of files, write, fail; reopen without."""
    code = (
        "import sys, resource; from pathlib import Path; from tests.integration.test_index_rocks import *\n"
        "index = RocksIndex(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))\n"
        "batch = 0\n"
        "try:\n"
        "    while batch < 1000: index.write(entries_of(batch), at(batch)); batch += 1\n"
        "except IndexUnreadable as error: print(batch, error.detail)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "for use in (lambda: index.write({}, at(batch)), lambda: index.lookup([b's'])):\n"
        "    try: use()\n"
        "    except IndexUnreadable: print('final')\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "index")], capture_output=True, text=True, check=True
    )
    first, *rest = done.stdout.splitlines()
    assert "a write failed" in first
    assert rest == ["final", "final"]
    written = int(first.split()[0])
    state = state_of(tmp_path / "index")
    assert state is not None
    assert written - 2 <= state < written


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Goal: two replicas with one folder are found out. Method: open it from a second process; the first goes on."""
    index = RocksIndex(tmp_path / "index")
    code = (
        "import sys; from pathlib import Path; from replica.index.rocks import RocksIndex\n"
        "from replica.notary.errors import IndexUnreadable\n"
        "try: RocksIndex(Path(sys.argv[1]))\n"
        "except IndexUnreadable as error: print(error, error.person)\n"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "index")], capture_output=True, text=True, check=True
    )
    assert second.stdout.startswith("NOT_POSSIBLE_NOW: "), "an index that is in use is not damaged"
    assert "another process has it open" in second.stdout
    assert second.stdout.endswith("False\n"), "a supervisor starts it again: the other one may be ending"
    index.write({b"s1": b"one"}, at(1))
    assert index.lookup([b"s1"]) == [b"one"]
    index.close()


def test_a_position_of_a_newer_release_is_not_guessed(tmp_path: Path) -> None:
    """Goal: a downgrade does not misread. Method: store a position of the next version."""
    index = RocksIndex(tmp_path / "index")
    index.write({}, Position(POSITION_VERSION + 1, b"L" * 16, "topic", 1))
    index.close()
    with pytest.raises(IndexUnreadable, match=f"version {POSITION_VERSION + 1}"):
        RocksIndex(tmp_path / "index")


def test_an_index_of_many_files_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a large index is not taken for a damaged one. Method: more files than RocksDB looks into as it opens, open
    again; then with one file less than the manifest names."""

    def many_files(*, create: bool = False) -> Options:
        options = table_options(create=create)
        options.set_disable_auto_compactions(True)
        return options

    monkeypatch.setattr("replica.index.rocks.table_options", many_files)
    folder = tmp_path / "index"
    index = RocksIndex(folder)
    for batch in range(BATCHES):
        index.write(entries_of(batch), at(batch))
        index._db.flush()
    index.close()
    index = RocksIndex(folder)
    assert (index.entry_count, index.position()) == (BATCHES * PER_BATCH * 2, at(BATCHES - 1))
    index.close()
    files = sorted(folder.glob("*.sst"))
    assert len(files) == BATCHES
    files[-2].unlink()
    with pytest.raises(IndexDamaged):
        RocksIndex(folder)


def test_an_index_of_an_earlier_layout_is_refused_and_stays(tmp_path: Path) -> None:
    """Goal: nothing of it is taken for spent or unspent, and a person is told what to do. Method: its position's key
    beside an entry, and alone, as where nothing was decided; opened, read, and opened as a start of a replica does."""
    for name, entries in (("whole", {b"s" + bytes(36): bytes(40)}), ("empty", {})):
        folder = tmp_path / name
        db = Rdict(str(folder), table_options(create=True))
        for key, value in {**entries, b"m/position": bytes(7) + bytes([len(entries)]) + encode_position(at(1))}.items():
            db.put(key, value)
        db.close()
        for use in (RocksIndex, verify_index, lambda found: open_or_start_anew(found, 1)):
            with pytest.raises(IndexUnreadable, match="delete this folder") as caught:
                use(folder)
            assert not isinstance(caught.value, IndexDamaged)
        assert not list(tmp_path.glob("*.corrupt-*"))


def test_an_index_opened_again_keeps_its_bloom_filter(tmp_path: Path) -> None:
    """Goal: look-ups stay fast after a restart. Method: the options that RocksDB reports it runs with."""
    folder = tmp_path / "index"
    for _ in range(3):
        RocksIndex(folder).close()
        (options,) = sorted(folder.glob("OPTIONS-*"))[-1:]
        assert "filter_policy=bloomfilter" in options.read_text()
        assert "paranoid_checks=true" in options.read_text()


@pytest.fixture
def index(folder: Path) -> Iterator[RocksIndex]:
    made = RocksIndex(folder)
    yield made
    made.close()


def test_a_checkpoint_is_a_whole_index_that_goes_its_own_way(index: RocksIndex, tmp_path: Path) -> None:
    """Goal: a checkpoint restores a replica. Method: take one, go on in both, compare with what each was given."""
    copy = tmp_path / "checkpoint"
    index.checkpoint(copy)
    index.write({b"s-later": b"in the original"}, at(BATCHES))
    assert verify_index(copy) == summarise(at(BATCHES - 1), entries_until(BATCHES - 1).items())
    restored = RocksIndex(copy)
    restored.write({b"s-later": b"in the copy"}, at(BATCHES))
    assert restored.lookup([b"s-later"]) == [b"in the copy"]
    assert index.lookup([b"s-later"]) == [b"in the original"]
    restored.close()
    assert verify_index(copy).entry_count == len(entries_until(BATCHES - 1)) + 1


def test_a_checkpoint_never_overwrites(index: RocksIndex, tmp_path: Path) -> None:
    """Goal: an old checkpoint survives a mistake, and so does the index. Method: the same folder twice."""
    index.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(IndexUnreadable, match="no checkpoint in"):
        index.checkpoint(tmp_path / "checkpoint")
    assert index.position() == at(BATCHES - 1)
    assert verify_index(tmp_path / "checkpoint").position == at(BATCHES - 1)


def test_verify_counts_what_should_be_there(folder: Path) -> None:
    """Goal: a hole is found in a checkpoint, too. Method: cut the manifest so that a table is forgotten."""
    os.truncate(newest(folder, "MANIFEST-*"), newest(folder, "MANIFEST-*").stat().st_size - 60)
    with pytest.raises(IndexUnreadable):
        verify_index(folder)


def test_verify_of_no_index_is_an_error(tmp_path: Path) -> None:
    """Goal: a mistyped folder is not an empty index. Method: verify one that is not there."""
    with pytest.raises(IndexUnreadable, match="cannot be verified"):
        verify_index(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere" / "CURRENT").exists()


def test_quarantine_moves_an_index_aside_whole(folder: Path) -> None:
    """Goal: evidence is kept and the name is free. Method: move it, look at both names, and again at the same time."""
    moved = quarantine_index(folder, 1_789_000_000_123_456)
    assert moved.name == "index.corrupt-20260910T002640.123456Z"
    assert not folder.exists()
    assert state_of(moved) == BATCHES - 1
    RocksIndex(folder).close()
    with pytest.raises(OSError):
        quarantine_index(folder, 1_789_000_000_123_456)
    assert folder.exists()


def test_the_position_sorts_before_every_entry() -> None:
    """Goal: the count of entries per file holds. Method: compare the first bytes of all kinds of key."""
    assert all(bytes([kind]) > BEFORE_KEY > POSITION_KEY for kind in OF_STATES + OF_COMMANDS + OF_PARTIES)
