"""The power cut of tests proves itself: what a disk lost and kept, and cuts that are none."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.lossy_disk
from tests.lossy_disk import (
    FLUSH_FIRST,
    CutVoid,
    DiskFailed,
    LossyDisks,
    holders,
    lossy_disks,
    remove_abandoned,
    why_no_loop_device,
)

HOLDS_A_DISK = """
import time
from tests.lossy_disk import lossy_disks
with lossy_disks("a") as disks:
    disks.arm()
    disks.cut()
    print(disks["a"].folder, flush=True)
    time.sleep(1_000)
"""
DIRECT_BYTES = 65_536
RECORD = b"a record of some bytes\n"


@pytest.fixture(params=["ext4", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("torn", "btrfs"))])
def disks(request: pytest.FixtureRequest) -> Iterator[LossyDisks]:
    """Two of them."""
    with lossy_disks("a", "b", kind=request.param) as disks:
        yield disks


@pytest.mark.parametrize(
    ("all_must_run", "missing", "failure"),
    [
        ("yes", None, DiskFailed),  # the machine could play it
        ("yes", "no such device", pytest.skip.Exception),
        ("", None, pytest.skip.Exception),
    ],
)
def test_a_disk_that_cannot_be_made_fails_where_all_tests_must_run(
    monkeypatch: pytest.MonkeyPatch, all_must_run: str, missing: str | None, failure: type[BaseException]
) -> None:
    """Goal: CI as root does not pass by leaving power cuts out. Method: a tool that fails, with and without devices."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("NOTARY_ALL_TESTS", all_must_run)
    monkeypatch.setitem(tests.lossy_disk._MAKE, "ext4", ["false"])
    monkeypatch.setattr(tests.lossy_disk, "why_no_loop_device", lambda: missing)
    with pytest.raises(failure, match=missing or "false"), lossy_disks("a"):
        pass


def test_why_there_is_no_loop_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.lossy_disk, "_run", lambda *argv: "/dev/loop-of-nobody\n")
    assert "/dev/loop-of-nobody" in str(why_no_loop_device())


def append(path: Path, *, sync: bool) -> None:
    """Append a record to a file."""
    with path.open("ab") as file:
        file.write(RECORD)
        file.flush()
        if sync:
            os.fdatasync(file.fileno())


def overwrite(path: Path, *, sync: bool) -> None:
    """Overwrite the file's first record, in place."""
    with path.open("r+b") as file:
        file.write(RECORD.upper())
        file.flush()
        if sync:
            os.fdatasync(file.fileno())


def test_each_cut_loses_what_was_not_synced_and_nothing_else(disks: LossyDisks) -> None:
    """Goal: bytes and names are lost, synced ones kept. Method: two cuts; a file of each kind on both disks."""
    for round_number in range(2):
        for name in ("a", "b"):
            folder = disks[name].folder / f"round-{round_number}"
            folder.mkdir()
            for kind in ("appended", "appended, synced", "overwritten", "overwritten, synced"):
                append(folder / kind, sync=False)
        disks.arm()
        disks.freeze()
        for name in ("a", "b"):
            folder = disks[name].folder / f"round-{round_number}"
            append(folder / "appended", sync=False)
            overwrite(folder / "overwritten", sync=False)
            (folder / "new").write_bytes(RECORD)
        disks.cut()
        with pytest.raises(OSError, match="Input/output error"):
            append(disks["a"].folder / f"round-{round_number}" / "appended", sync=True)
        assert "2 disks lost" in disks.bring_back()
        for name in ("a", "b"):
            folder = disks[name].folder / f"round-{round_number}"
            assert (folder / "appended").read_bytes() == (folder / "overwritten").read_bytes() == RECORD
            assert not (folder / "new").exists()
    append(disks["a"].folder / "round-1" / "appended, synced", sync=True)
    overwrite(disks["a"].folder / "round-1" / "overwritten, synced", sync=True)
    disks.arm("b")
    disks.cut()
    disks.bring_back()
    assert (disks["a"].folder / "round-1" / "appended, synced").read_bytes() == 2 * RECORD


def test_what_was_synced_after_all_was_settled_is_kept(disks: LossyDisks) -> None:
    """Goal: a cut loses no synced byte. Method: appended and overwritten, each with fdatasync."""
    folder = disks["a"].folder
    for kind in ("appended", "overwritten"):
        append(folder / kind, sync=False)
    disks.arm()
    append(folder / "appended", sync=True)
    overwrite(folder / "overwritten", sync=True)
    disks.cut()
    disks.bring_back()
    assert (folder / "appended").read_bytes() == 2 * RECORD
    assert (folder / "overwritten").read_bytes() == RECORD.upper()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kept"), [("ext4", True), ("torn", None), ("btrfs", False)])
def test_bytes_past_the_page_cache(kind: str, kept: bool | None) -> None:
    """Goal: it is known what a kind does not lose. Method: O_DIRECT without a sync; None: some of its sectors."""
    with lossy_disks("a", kind=kind) as disks:
        file = disks["a"].folder / "direct"
        file.write_bytes(bytes(DIRECT_BYTES))
        disks.arm()
        disks.freeze()
        handle = os.open(file, os.O_WRONLY | os.O_DIRECT)
        with mmap.mmap(-1, DIRECT_BYTES) as block:  # aligned
            block[:] = b"x" * DIRECT_BYTES
            os.write(handle, block)
        os.close(handle)
        disks.cut()
        disks.bring_back()
        written = file.read_bytes().count(b"x")
        assert 0 < written < DIRECT_BYTES if kept is None else written == kept * DIRECT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kept"), [("ext4", True), ("torn", True), ("btrfs", False)])
def test_a_name_that_another_file_s_sync_saves(kind: str, kept: bool) -> None:
    """Goal: it is known what a kind does not lose. Method: rename without the folder's sync; sync of another file."""
    with lossy_disks("a", kind=kind) as disks:
        folder = disks["a"].folder
        (folder / "old").write_bytes(RECORD)
        disks.arm()
        (folder / "old").rename(folder / "new")
        append(folder / "other", sync=True)
        disks.cut()
        disks.bring_back()
        assert (folder / "new").exists() == kept


@pytest.mark.parametrize("flag", [pytest.param(None, id="kill alone"), pytest.param(FLUSH_FIRST, id="flush first")])
def test_a_cut_that_loses_nothing_is_void(disks: LossyDisks, flag: int | None) -> None:
    """Goal: a run in which no power was cut fails. Method: end the writer alone; flush everything first."""
    disks.arm()
    disks.cut(flag)
    with pytest.raises(CutVoid, match="nothing was lost"):
        disks.bring_back()


def test_a_disk_that_loses_what_was_synced_is_void(disks: LossyDisks) -> None:
    """Goal: the proof sees the other mistake as well. Method: remove synced records after the cut."""
    disks.arm()
    disks.cut()
    disks["b"].detach()
    disks["b"].attach()
    os.truncate(disks["b"].proof("synced") / "records", 0)
    with pytest.raises(CutVoid, match="lost what was synced"):
        disks.bring_back()


def test_nothing_is_left_of_a_failed_test() -> None:
    """Goal: neither a mount nor a loop device outlives a test. Method: fail while a stopped process holds a mount."""
    left: list[Path] = []
    with pytest.raises(ZeroDivisionError), lossy_disks("a") as disks:
        left = [disks["a"].folder, disks["a"].image]
        with (disks["a"].folder / "held").open("wb") as held:
            holder = subprocess.Popen(["sleep", "1000"], stdout=held)
        holder.send_signal(signal.SIGSTOP)
        assert holders(disks["a"].folder) == {holder.pid}
        disks.arm()
        disks.cut()
        raise ZeroDivisionError
    assert holder.wait() == -signal.SIGKILL
    assert_gone(*left)


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    """Goal: as above, if Python itself is killed. Method: SIGKILL of a process with a disk, after a cut."""
    with subprocess.Popen([sys.executable, "-c", HOLDS_A_DISK], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        folder = Path(killed.stdout.readline().strip())
        assert os.path.ismount(folder)
        killed.kill()
    remove_abandoned()
    assert_gone(folder, folder.with_suffix(".img"))


def assert_gone(folder: Path, image: Path) -> None:
    """Nothing is mounted, attached or there."""
    attached = subprocess.run(["losetup", "--associated", image], capture_output=True, text=True, check=True).stdout
    assert not attached
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not folder.parent.exists()
