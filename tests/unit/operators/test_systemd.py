"""What a replica reports to systemd, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from replica.operators.systemd import ServiceManager


@pytest.fixture
def manager_socket(tmp_path: Path) -> socket.socket:
    """The service manager's end."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "notify"))
    receiver.setblocking(False)
    return receiver


async def test_it_hears_ready_then_beats_then_stopping(manager_socket: socket.socket) -> None:
    """Goal: Type=notify and WatchdogSec work. Method: a watchdog of 60 ms, three messages, the end."""
    environment = {"NOTIFY_SOCKET": manager_socket.getsockname(), "WATCHDOG_USEC": "60000"}
    manager = ServiceManager(environment)
    assert manager.watchdog_s == 0.06
    manager.start(lambda: "passive, epoch 3")
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(manager_socket, 500) == b"READY=1\nSTATUS=passive, epoch 3"
    for _ in range(2):
        assert await loop.sock_recv(manager_socket, 500) == b"WATCHDOG=1\nSTATUS=passive, epoch 3"
    manager.stop()
    manager.stop()
    heard = {await loop.sock_recv(manager_socket, 500), await loop.sock_recv(manager_socket, 500)}
    assert b"STOPPING=1" in heard
    manager_socket.close()


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "@notary-test-nobody", "WATCHDOG_USEC": "x"}],
)
async def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    """Goal: a replica runs as well by hand. Method: no socket, one that is gone, one that is abstract."""
    manager = ServiceManager(environment)
    manager.start(lambda: "")
    manager.stop()


def test_a_watchdog_that_is_for_another_process_is_not_ours() -> None:
    """Goal: a child does not beat for its parent. Method: WATCHDOG_PID of somebody else, then our own."""
    environment = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert ServiceManager(environment).watchdog_s == 0.0
    assert ServiceManager(environment | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 1.0
