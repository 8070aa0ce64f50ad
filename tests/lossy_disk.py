"""Disks that lose at a power cut what was not synced: an image, a loop device and ext4 for each machine of a test.

The cut is the kernel's own shutdown call of ext4, which drops dirty pages and uncommitted names and answers EIO from
then on. Stop (SIGSTOP) whatever runs on the disks first, so that nothing answers between, and end it afterwards.

At every cut two files on every disk prove that it was one: bytes that were synced must all be there afterwards, and of
those that were not some must be gone. Else the cut is void, and the test has failed. Dirty pages are written by
themselves after 30 s, and by any `sync` on the machine: cut seconds after `arm`.

It needs root, loop devices, `mkfs.ext4` (Debian: e2fsprogs), `mount` and `losetup` (mount).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import pytest

from replica.local.process import descendants

PREFIX = "notary-lossy-"
SIZE_MIB = 2_048  # of an image, which is sparse
IN_MEMORY_MIN_BYTES = 8 * 2**30  # images are kept in memory where there is so much room
MEMORY = Path("/dev/shm")
SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN, linux/fs.h
LOSE, FLUSH_FIRST = 2, 0  # its flags: the journal is not flushed; everything is flushed first
RECORD = struct.Struct("<Q")
ROUND_PAUSE_S = 0.01
SYNCED_EVERY, SYNCED_MAX = 50, 512  # rounds; records
HELD_MAX_S = 10.0
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,nodiscard"],
    "btrfs": ["mkfs.btrfs", "--quiet", "--nodiscard"],
}
_MOUNT = {  # names are committed after minutes, instead of seconds
    "ext4": "noauto_da_alloc,commit=600",
    "btrfs": "commit=300",
}


class CutVoid(AssertionError):
    """A power cut that lost nothing, or that lost what was synced: the test proves nothing, and has failed."""


class DiskFailed(Exception):
    """A command that makes, mounts or removes a disk failed."""


class LossyDisk:
    """One disk, mounted at `folder` from `make` to `remove`."""

    def __init__(self, image: Path, folder: Path, file_system: str = "ext4") -> None:
        self.image = image
        self.folder = folder
        self._file_system = file_system
        self._attached: tuple[str, Path] | None = None  # the loop device and its file

    def make(self) -> None:
        """A new file system, mounted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(SIZE_MIB * 2**20)
        _run(*_MAKE[self._file_system], str(self.image))
        self.attach()
        for name in ("synced", "unsynced"):
            self.proof(name).mkdir(parents=True)

    def attach(self) -> None:
        """Mount the image, as a machine does that starts; what the journal holds is replayed."""
        self._mount(self.image)

    def _mount(self, file: Path) -> None:
        loop = _run("losetup", "--find", "--show", str(file)).strip()
        self._attached = loop, file
        _run("mount", "-t", self._file_system, "-o", _MOUNT[self._file_system], loop, str(self.folder))

    def detach(self) -> None:
        """Unmount it. Raises AssertionError when somebody still has it, or a mount namespace keeps it."""
        assert not (found := holders(self.folder)), f"{self.folder} is held by {found}"
        _run("umount", str(self.folder))
        assert self._attached is not None
        (loop, file), self._attached = self._attached, None
        _detach(loop, file)

    def end(self) -> None:
        """End what serves the disk. May be repeated."""

    def snapshot(self) -> Path:
        """A copy of the disk as it is now, its writers paused meanwhile."""
        image = self.image.with_suffix(".snapshot")
        _run("fsfreeze", "--freeze", str(self.folder))
        try:
            _run("cp", "--sparse=always", str(self.image), str(image))
        finally:
            _run("fsfreeze", "--unfreeze", str(self.folder))
        return image

    def swap(self, image: Path) -> None:
        """Put another disk in its place, while nothing uses either; this one's content is in `image` then."""
        self.detach()
        aside = image.with_suffix(".aside")
        self.image.rename(aside)
        image.rename(self.image)
        aside.rename(image)
        self.attach()

    def settle(self) -> None:
        """Return once all of it is on disk."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
                raise OSError(ctypes.get_errno(), f"syncfs of {self.folder}")
        finally:
            os.close(handle)

    def cut(self, flag: int = LOSE) -> None:
        """Lose what is not synced; from now on every read and write fails."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", flag))
        finally:
            os.close(handle)

    def proof(self, name: str) -> Path:
        """The folder of the proof's file, `synced` or `unsynced`: of its own, so that neither saves the other."""
        return self.folder / "proof" / name

    def records(self, name: str) -> int:
        """How many records the proof's file has."""
        return sum(number > 0 for (number,) in RECORD.iter_unpack((self.proof(name) / "records").read_bytes()))


class StrictDisk(LossyDisk):
    """The same over a volatile write cache: see `tests/volatile_cache.py`.

    With btrfs a rename, an unlink or a truncation is lost as well unless it is synced itself. `share` of the un-synced
    sectors are kept by chance, as a disk that reorders writes keeps some.
    """

    def __init__(self, image: Path, folder: Path, file_system: str, share: float) -> None:
        super().__init__(image, folder, file_system)
        self._share = share
        self._cache: subprocess.Popen[bytes] | None = None

    @property
    def _cached(self) -> Path:
        return self.image.with_suffix(".cache")

    def attach(self) -> None:
        self._cached.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "tests.volatile_cache", str(self.image), str(self._cached), str(self._share)]
        self._cache = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._expect(b"mounted\n")
        self._mount(self._cached / "disk")

    def detach(self) -> None:
        super().detach()
        _run("umount", str(self._cached))
        self.end()

    def end(self) -> None:
        if self._cache is not None:
            cache, self._cache = self._cache, None
            with cache:
                cache.kill()

    def cut(self, flag: int = LOSE) -> None:
        if flag == FLUSH_FIRST:
            self.settle()
        assert self._cache is not None
        assert self._cache.stdin is not None
        self._cache.stdin.write(b".")
        self._expect(b"cut\n")
        if self._file_system == "ext4":
            super().cut()

    def _expect(self, line: bytes) -> None:
        assert self._cache is not None
        assert self._cache.stdout is not None
        if (said := self._cache.stdout.readline()) != line:
            raise DiskFailed(f"the cache of {self.image} says {said!r}")


class Proof:
    """Records in two files on each disk until the cut: one is synced after each record, one never.

    The synced one has its length before, and gets a record seldom: its syncs should save nothing else.
    """

    def __init__(self, disks: Iterable[LossyDisk], told: Path) -> None:
        self._disks, self._told = list(disks), told
        for disk in self._disks:
            (disk.proof("unsynced") / "records").write_bytes(b"")
            (disk.proof("synced") / "records").write_bytes(bytes(SYNCED_MAX * RECORD.size))
            disk.settle()
        told.write_bytes(bytes(2 * RECORD.size * len(self._disks)))
        argv = [sys.executable, "-m", "tests.lossy_disk", str(told), *(str(disk.folder) for disk in self._disks)]
        self._armed_s = monotonic()
        self._writer = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def begun(self) -> None:
        """Return once both files on each disk have a record."""
        until_s = monotonic() + HELD_MAX_S
        while not all(pair[0] and pair[1] for pair in self._counts()):
            if monotonic() > until_s:
                raise CutVoid("the proof's writer does not write")
            sleep(ROUND_PAUSE_S)

    def freeze(self) -> None:
        """Stop writing. It comes before the cut."""
        self.begun()
        freeze([self._writer.pid])

    def end(self) -> None:
        """End the writer. May be repeated."""
        self._writer.kill()
        self._writer.wait()

    def verify(self) -> str:
        """Once the disks are back: what was lost and kept, in words. Raises CutVoid unless it was a power cut."""
        took_s = monotonic() - self._armed_s
        told = self._counts()
        kept = [tuple(map(disk.records, ("unsynced", "synced"))) for disk in self._disks]
        for disk, (told_unsynced, told_synced), (unsynced, synced) in zip(self._disks, told, kept, strict=True):
            what = f"{disk.folder.name}: {unsynced} of {told_unsynced} un-synced and {synced} of {told_synced} synced"
            if not told_unsynced or unsynced >= told_unsynced:
                raise CutVoid(f"{what} records are there {took_s:.0f} s after the first: nothing was lost")
            if synced < told_synced:
                raise CutVoid(f"{what} records are there: the disk lost what was synced")
        lost = sum(one[0] - other[0] for one, other in zip(told, kept, strict=True))
        return f"{len(told)} disks lost {lost} un-synced records and kept all {sum(pair[1] for pair in told)} synced"

    def _counts(self) -> list[tuple[int, int]]:
        numbers = [number for (number,) in RECORD.iter_unpack(self._told.read_bytes())]
        return list(zip(numbers[::2], numbers[1::2], strict=True))


class LossyDisks:
    """Disks by name. `arm`, then seconds later `cut`, then `bring_back`."""

    def __init__(self, folder: Path, disks: Mapping[str, LossyDisk]) -> None:
        self._folder = folder
        self._disks = disks
        self._proof: Proof | None = None
        self._armed: list[str] = []

    def __getitem__(self, name: str) -> LossyDisk:
        return self._disks[name]

    def arm(self, *names: str) -> None:
        """Let all that is on these disks, by default all, be synced, and begin to write the proof."""
        self._armed = list(names or self._disks)
        self.disarm()
        for name in self._armed:
            self._disks[name].settle()
        self._proof = Proof([self._disks[name] for name in self._armed], self._folder / "told")
        self._proof.begun()

    def freeze(self) -> None:
        """Stop writing the proof, before the cut does."""
        assert self._proof is not None, "not armed"
        self._proof.freeze()

    def cut(self, flag: int | None = LOSE) -> None:
        """Cut the power of the armed disks, on which nothing runs any more; None: only the proof's writer ends."""
        self.freeze()
        assert self._proof is not None
        for name in self._armed if flag is not None else ():
            self._disks[name].cut(flag)
        self._proof.end()

    def bring_back(self) -> str:
        """Mount the disks again; what was lost, in words. Raises CutVoid unless it was a power cut."""
        assert self._proof is not None, "not armed"
        for name in self._armed:
            self._disks[name].detach()
            self._disks[name].attach()
        proof, self._proof = self._proof, None
        return proof.verify()

    def disarm(self) -> None:
        """End the proof's writer, if there is one."""
        if self._proof is not None:
            self._proof.end()
            self._proof = None


KINDS: Mapping[str, Callable[[Path, Path], LossyDisk]] = {
    "ext4": LossyDisk,
    "torn": partial(StrictDisk, file_system="ext4", share=0.5),
    "btrfs": partial(StrictDisk, file_system="btrfs", share=0.0),
}


@contextmanager
def lossy_disks(*names: str, kind: str = "ext4") -> Iterator[LossyDisks]:
    """New disks, each mounted at a folder of its own, which other accounts may enter; nothing is left of them.

    Where they cannot be made the test is skipped, with the reason. It fails where all tests must run, as in CI, and the
    machine has loop devices.
    """
    if os.geteuid() != 0:
        pytest.skip("NOT PLAYED: a power cut takes root, loop devices and `mount`")
    remove_abandoned()
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= IN_MEMORY_MIN_BYTES
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY if in_memory else None))
    folder.chmod(0o755)
    disks = LossyDisks(folder, {name: KINDS[kind](folder / f"{name}.img", folder / name) for name in names})
    try:
        try:
            for name in names:
                disks[name].make()
        except DiskFailed as error:
            if kind != "ext4":  # it was asked for
                raise
            missing = why_no_loop_device()
            if missing is None and os.environ.get("NOTARY_ALL_TESTS"):
                raise  # this machine could play it
            pytest.skip(f"NOT PLAYED: a power cut takes loop devices, e2fsprogs and mount, as root: {missing or error}")
        yield disks
    finally:
        disks.disarm()
        remove(folder)
        for name in names:
            disks[name].end()


def why_no_loop_device() -> str | None:
    """Why this machine gives us no loop device; None: it does."""
    try:
        os.close(os.open(_run("losetup", "--find").strip(), os.O_RDWR))
    except (DiskFailed, OSError) as error:
        return str(error)
    return None


def remove_abandoned() -> None:
    """Remove what processes have left that were killed."""
    for parent in (MEMORY, Path(tempfile.gettempdir())):
        for folder in parent.glob(f"{PREFIX}*"):
            owner = folder.name.removeprefix(PREFIX).partition("-")[0]
            if not Path(f"/proc/{owner}").exists():
                remove(folder)


def remove(folder: Path) -> None:
    """Unmount, detach and delete all disks in a folder, whatever state they are in: who still holds one is killed."""
    mounts = [line.split()[:2] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(source, Path(target)) for source, target in mounts if Path(target).parent == folder]
    for _, target in sorted(inside, key=lambda mount: not mount[0].startswith("/dev/loop")):  # caches are below those
        end_holders(target)
        _run("umount", str(target))
        for loop, file in _loops():
            if file == target.with_suffix(".img") or file.parent == target.with_suffix(".cache"):
                _detach(loop, file)
    shutil.rmtree(folder)


def _detach(loop: str, file: Path) -> None:
    _run("losetup", "--detach", loop)
    until_s = monotonic() + HELD_MAX_S
    while _run("losetup", "--associated", str(file)):  # who looks for a free device opens each for a moment
        assert monotonic() < until_s, f"something keeps {loop}: a mount namespace?"
        sleep(ROUND_PAUSE_S)


def _loops() -> list[tuple[str, Path]]:
    lines = _run("losetup", "--noheadings", "--raw", "--list", "--output", "NAME,BACK-FILE").splitlines()
    return [(loop, Path(file)) for loop, _, file in (line.partition(" ") for line in lines)]


def freeze(pids: Iterable[int]) -> None:
    """SIGSTOP for processes and all their descendants; returns once every thread of theirs stands still."""
    roots, tree, until_s = list(pids), set[int](), monotonic() + HELD_MAX_S
    while (new := {one for pid in roots for one in (pid, *descendants(pid))} - tree) or not all(map(_is_still, tree)):
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        tree |= new
        if monotonic() > until_s:
            raise CutVoid("a process does not stand still")
        sleep(0.001)


def end_holders(folder: Path) -> None:
    """Kill every process that has a file of a mount open, or is in one of its folders, and wait until none has."""
    until_s = monotonic() + HELD_MAX_S
    while found := holders(folder):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if monotonic() > until_s:
            raise CutVoid(f"{folder} is still held by {sorted(found)}")
        sleep(ROUND_PAUSE_S)


def holders(folder: Path) -> set[int]:
    """Processes other than this one that hold a mount."""
    inside = f"{folder}/"
    found = set()
    for link in (*Path("/proc").glob("[0-9]*/fd/*"), *Path("/proc").glob("[0-9]*/cwd")):
        with suppress(OSError):
            if f"{os.readlink(link)}/".startswith(inside):
                found.add(int(link.parts[2]))
    return found - {os.getpid()}


def _is_still(pid: int) -> bool:
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return all(state in "TZX" for state in states)


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise DiskFailed(error) from None
    if done.returncode != 0:
        raise DiskFailed(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def write_proof(told: Path, folders: list[Path]) -> None:
    """The writer: a record in each file of each disk, told once it is written (and synced), until killed or alone."""
    disks = [LossyDisk(folder, folder) for folder in folders]
    files = [[os.open(disk.proof(name) / "records", os.O_WRONLY) for name in ("unsynced", "synced")] for disk in disks]
    counts = os.open(told, os.O_WRONLY)
    rounds, parent = 0, os.getppid()
    while os.getppid() == parent:
        number, is_due = divmod(rounds, SYNCED_EVERY)
        for at, (unsynced, synced) in enumerate(files):
            _append(unsynced, rounds)
            _tell(counts, 2 * at, rounds)
            if is_due == 0 and number < SYNCED_MAX:
                _append(synced, number)
                os.fdatasync(synced)
                _tell(counts, 2 * at + 1, number)
        rounds += 1
        sleep(ROUND_PAUSE_S)


def _append(file: int, number: int) -> None:
    os.pwrite(file, RECORD.pack(number + 1), number * RECORD.size)


def _tell(counts: int, which: int, number: int) -> None:
    os.pwrite(counts, RECORD.pack(number + 1), which * RECORD.size)


if __name__ == "__main__":
    write_proof(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
