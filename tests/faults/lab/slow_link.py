"""A bad line inside a lab's router: packets that are routed through it arrive late, and some are lost.

`python -m tests.faults.lab.slow_link NAME DELAY_S LOSS`, run in the router's namespace, makes a TUN device of that
name, says `ready`, and puts each packet that is routed into it back after the delay, until its input ends. A kernel's
own `netem` would do the same; not every kernel has it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import subprocess
import sys
from contextlib import suppress
from random import Random

READY = b"ready\n"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_MAX = 65_535
_TOGETHER_MAX = 64


def open_tun(name: str) -> int:
    """A TUN device that is up; what is routed into it can be read from the descriptor. Raises OSError."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    return descriptor


class Line:
    """Holds each packet for a while, and loses some by lot."""

    def __init__(self, descriptor: int, delay_s: float, loss: float) -> None:
        self._descriptor = descriptor
        self._delay_s = delay_s
        self._loss = loss
        self._random = Random(1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._take)

    def _take(self) -> None:
        for _ in range(_TOGETHER_MAX):
            try:
                packet = os.read(self._descriptor, _PACKET_MAX)
            except BlockingIOError:
                return
            if self._random.random() >= self._loss:
                self._loop.call_later(self._delay_s, self._put_back, packet)

    def _put_back(self, packet: bytes) -> None:
        with suppress(OSError):  # lost, as on any bad line
            os.write(self._descriptor, packet)


async def run(name: str, delay_s: float, loss: float) -> None:
    """Be the line until standard input ends."""
    line = Line(open_tun(name), delay_s, loss)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    ended = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    await ended.read()
    del line


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
