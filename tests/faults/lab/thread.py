"""Stops one thread of a process, as only a debugger can: SIGSTOP would stop all threads."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17  # of linux/ptrace.h
_WAIT_ALL = 0x40000000  # __WALL: threads as well

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@contextmanager
def stalled_main_thread(pid: int) -> Iterator[None]:
    """While the block runs, the main thread of a process stands still and its other threads run on.

    Enter and leave it in one thread: the kernel knows the debugger by its thread. Raises OSError.
    """
    _ptrace(_SEIZE, pid)
    try:
        _ptrace(_INTERRUPT, pid)
        os.waitpid(pid, _WAIT_ALL)
        yield
    finally:
        _ptrace(_DETACH, pid)


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(request, pid, None, None) != 0:
        number = ctypes.get_errno()
        hint = "; it takes ptrace: root, CAP_SYS_PTRACE, or kernel.yama.ptrace_scope below 2"
        raise OSError(number, os.strerror(number) + (hint if number == errno.EPERM else ""))
