"""Reports the replica's state to systemd: ready, stopping, its status, and that its event loop still runs.

Without a NOTIFY_SOCKET nothing is sent. See sd_notify(3); the protocol is a datagram of lines.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

BEATS_PER_WATCHDOG = 3  # the watchdog may miss two


class ServiceManager:
    """Notifies the service manager over its socket, from `start` to `stop`."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        watchdog_us = environment.get("WATCHDOG_USEC", "0")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(watchdog_us) / 1e6 if ours and watchdog_us.isdigit() else 0.0
        self._beating: asyncio.Task[None] | None = None

    def start(self, status: Callable[[], str]) -> None:
        """Report that the replica is ready; from then on, report regularly its status and that it lives."""
        self.notify(READY=1, STATUS=status())
        if self._address:
            self._beating = asyncio.get_running_loop().create_task(self._beat(status), name="service_manager")

    def stop(self) -> None:
        """Report that the replica stops. May be repeated."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        self.notify(STOPPING=1)

    def notify(self, **values: object) -> None:
        """Send variables. A manager that is gone is no error."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        message = "\n".join(f"{name}={value}" for name, value in values.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
            out.sendto(message.encode(), address)

    async def _beat(self, status: Callable[[], str]) -> None:
        pause_s = self.watchdog_s / BEATS_PER_WATCHDOG if self.watchdog_s else 1.0
        while True:
            await asyncio.sleep(pause_s)
            self.notify(WATCHDOG=1, STATUS=status())
