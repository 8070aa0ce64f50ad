"""A disk with a volatile write cache: a file system with one file, `disk`, served over /dev/fuse without any library.

Run as `python -m tests.volatile_cache IMAGE FOLDER SHARE`. Writes stay in memory until the file is synced. A byte on
standard input is the power cut: what was not synced is gone, but for a SHARE of its sectors, chosen by chance, and from
then on every request fails. Layouts are those of linux/fuse.h, protocol 7.31.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import select
import struct
import sys
from collections.abc import Callable
from pathlib import Path

PAGE, SECTOR = 4_096, 512
WRITE_MAX_BYTES = 1 << 20
_NOSUID, _NODEV = 2, 4
_ROOT, _DISK = 1, 2  # node ids
_HEAD, _ANSWER = struct.Struct("<IIQQ16x"), struct.Struct("<IiQ")
_IO = struct.Struct("<QQI")
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 1, 2, 3, 4, 14, 15, 16
RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 18, 20, 25, 26, 36, 42
_DIRECT_IO = 1
_INIT_FLAGS = 1 | 1 << 5 | 1 << 22  # asynchronous reads, big writes, max_pages


class Cache:
    """What was written and not synced, by page, over the image."""

    def __init__(self, image: Path) -> None:
        self._image = os.open(image, os.O_RDWR)
        self.size = image.stat().st_size
        self._pages: dict[int, bytearray] = {}
        self.is_cut = False

    def read(self, at: int, size: int) -> bytes:
        """As the newest writes have it."""
        data = bytearray(os.pread(self._image, size, at))
        for page in range(at // PAGE, (at + len(data) - 1) // PAGE + 1):
            if (cached := self._pages.get(page)) is not None:
                begin = max(at, page * PAGE)
                end = min(at + len(data), (page + 1) * PAGE)
                data[begin - at : end - at] = cached[begin - page * PAGE : end - page * PAGE]
        return bytes(data)

    def write(self, at: int, data: memoryview) -> None:
        """Into memory."""
        while data:
            page, begin = divmod(at, PAGE)
            size = min(PAGE - begin, len(data))
            if page not in self._pages:
                self._pages[page] = bytearray(os.pread(self._image, PAGE, page * PAGE).ljust(PAGE, b"\0"))
            self._pages[page][begin : begin + size] = data[:size]
            at, data = at + size, data[size:]

    def sync(self) -> None:
        """Into the image."""
        for page, data in self._pages.items():
            os.pwrite(self._image, data, page * PAGE)
        self._pages.clear()

    def cut(self, share: float) -> None:
        """Lose what is not synced, but for a share of it."""
        for page, data in self._pages.items():
            for begin in range(0, PAGE, SECTOR):
                if random.random() < share:
                    os.pwrite(self._image, data[begin : begin + SECTOR], page * PAGE + begin)
        self._pages.clear()
        self.is_cut = True


class Server:
    """Answers the kernel's requests."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._answers: dict[int, Callable[[int, memoryview], bytes]] = {
            INIT: self._init,
            LOOKUP: self._look_up,
            GETATTR: lambda node, _: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            SETATTR: lambda node, _: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            OPEN: lambda node, _: struct.pack("<QII", 1, _DIRECT_IO, 0),
            READ: self._read,
            WRITE: self._write,
            FSYNC: self._sync,
            RELEASE: lambda node, _: b"",
            FLUSH: lambda node, _: b"",
        }

    def answer(self, request: memoryview) -> bytes:
        """The answer to a request; empty where none is wanted."""
        _, opcode, unique, node = _HEAD.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return b""
        try:
            body, code = self._answer(opcode, node, request[_HEAD.size :]), 0
        except OSError as error:
            body, code = b"", error.errno or errno.EIO
        return _ANSWER.pack(_ANSWER.size + len(body), -code, unique) + body

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes:
        if opcode not in self._answers:
            raise OSError(errno.ENOSYS, "not implemented")
        if self._cache.is_cut and opcode in (READ, WRITE, FSYNC):
            raise OSError(errno.EIO, "no power")
        return self._answers[opcode](node, body)

    def _init(self, node: int, body: memoryview) -> bytes:
        (flags,) = struct.unpack_from("<12xI", body)
        return struct.pack("<IIIIHHIIHH32x", 7, 31, 131_072, flags & _INIT_FLAGS, 16, 12, WRITE_MAX_BYTES, 1, 256, 0)

    def _look_up(self, node: int, body: memoryview) -> bytes:
        if bytes(body) != b"disk\0":
            raise OSError(errno.ENOENT, "there is only one file")
        return struct.pack("<QQQQII", _DISK, 0, 0, 0, 0, 0) + self._attributes(_DISK)

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o040755, 0) if node == _ROOT else (0o100600, self._cache.size)
        return struct.pack("<6Q10I", node, size, size // SECTOR, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)

    def _read(self, node: int, body: memoryview) -> bytes:
        _, at, size = _IO.unpack_from(body)
        return self._cache.read(at, size)

    def _write(self, node: int, body: memoryview) -> bytes:
        _, at, size = _IO.unpack_from(body)
        self._cache.write(at, body[40 : 40 + size])
        return struct.pack("<II", size, 0)

    def _sync(self, node: int, body: memoryview) -> bytes:
        self._cache.sync()
        return b""


def main(image: Path, folder: Path, share: float) -> None:
    """Mount, print a line, and serve until it is unmounted, or whoever started it is gone."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={WRITE_MAX_BYTES}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"lossy", os.fsencode(folder), b"fuse", _NOSUID | _NODEV, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"fuse at {folder}")
    cache = Cache(image)
    server = Server(cache)
    print("mounted", flush=True)
    while True:
        for ready in select.select([device, sys.stdin.fileno()], [], [])[0]:
            if ready == device:
                try:
                    request = os.read(device, WRITE_MAX_BYTES + 65_536)
                except OSError as error:
                    if error.errno == errno.ENODEV:  # unmounted
                        return
                    raise
                if answer := server.answer(memoryview(request)):
                    os.write(device, answer)
            elif os.read(ready, 1):
                cache.cut(share)
                print("cut", flush=True)
            else:  # whoever started it is gone
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
