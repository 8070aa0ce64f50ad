"""Free loopback ports for servers that are started a moment later.

A port that was free a moment ago may be taken when the server binds it. Two measures prevent that. Ports come from
below the range that the kernel gives to outgoing connections. An abstract Unix socket marks each port, and every
supervisor on this machine takes that mark first. The kernel drops the mark with the process that holds it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from types import TracebackType

from replica.notary.codes import Code
from replica.notary.errors import NotaryError

PORT_FIRST = 15_000
EPHEMERAL_FIRST_DEFAULT = 32_768  # Linux's default
LOOPBACK = "127.0.0.1"


class NoFreePort(NotaryError):
    """Every port of the range is in use."""

    default_code = Code.LOCAL_SERVER_FAILED


class PortReservation:
    """Ports that no other reservation on this machine gets until this one is closed."""

    def __init__(self) -> None:
        self._marks: dict[int, socket.socket] = {}

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def take(self) -> int:
        """A loopback TCP port that is free now and stays ours. Raises NoFreePort."""
        count = _ephemeral_first() - PORT_FIRST
        start = os.getpid() * 61 + len(self._marks)  # supervisors start their search apart from one another
        for step in range(count):
            port = PORT_FIRST + (start + step) % count
            if self.take_exactly(port):
                return port
        raise NoFreePort(f"no free port between {PORT_FIRST} and {PORT_FIRST + count - 1}")

    def take_exactly(self, port: int) -> bool:
        """Reserve this very port, such as a restarted server's former one; False if it is in use."""
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            mark.bind(f"\0replicated-notary-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections may linger
                probe.bind((LOOPBACK, port))
        except OSError:
            mark.close()
            return False
        self._marks[port] = mark
        return True

    def close(self) -> None:
        """Give all ports back. May repeat."""
        for mark in self._marks.values():
            mark.close()
        self._marks.clear()


def _ephemeral_first() -> int:
    first = EPHEMERAL_FIRST_DEFAULT
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return first if first > PORT_FIRST else EPHEMERAL_FIRST_DEFAULT  # a widened range leaves no room below it
