"""A job that is told to stop ends what it is at first; told again, it ends at once."""

from __future__ import annotations

import signal
from threading import Event
from types import FrameType

from replica.cli.common import err

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signal(stopping: Event) -> None:
    """Set the event at the first SIGTERM or SIGINT; the next one does what it does by default."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping.set()
        err.print("stopping after what is being written; once more ends it at once", markup=False)

    for number in _SIGNALS:
        signal.signal(number, stop)
