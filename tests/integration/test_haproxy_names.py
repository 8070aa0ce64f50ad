"""A real HAProxy that looks its replicas' names up again, as in a cluster of containers, where addresses change."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from haproxy.render import ReplicaAddress
from replica.local.haproxy import HaproxyServer
from replica.local.machine import Machine
from replica.local.ports import PortReservation
from tests.integration.test_haproxy import StandIn, only_up, reaches, running, settings_for
from tests.waiting import eventually

NAME_SERVER = "127.77.0.53"  # asked on port 53, like every name server of a resolv.conf
MOVED_MAX_S = 20.0  # 1 s until the name is asked for again, and a busy machine


class NameServer(asyncio.DatagramProtocol):
    """Answers questions for an address (type A) from a table; every other name does not exist."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self.transport is not None
        end = data.index(0, 12) + 5  # the name, its zero byte, type and class
        name, asked = self._name(data[12 : end - 4]), data[end - 4 : end - 2]
        address = self.addresses.get(name)
        answers = address is not None and asked == b"\0\1"
        flags = b"\x81\x80" if address is not None else b"\x81\x83"
        reply = data[:2] + flags + b"\0\1" + (b"\0\1" if answers else b"\0\0") + b"\0\0\0\0" + data[12:end]
        if answers and address is not None:
            reply += b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(address)
        self.transport.sendto(reply, addr)

    @staticmethod
    def _name(labels: bytes) -> str:
        parts, at = [], 0
        while labels[at]:
            parts.append(labels[at + 1 : at + 1 + labels[at]].decode())
            at += 1 + labels[at]
        return ".".join(parts).lower()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root has a resolv.conf of its own for HAProxy"
)
async def test_a_replica_that_starts_again_at_another_address_is_found(
    servers_folder: Path, ports: PortReservation
) -> None:
    """Goal: a pod that is replaced gets connections again, and HAProxy starts before any pod is there. Method: a name
    server of the test's; the one replica has no address at first, then one, then another."""
    folder = servers_folder / "names"
    folder.mkdir()
    (folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
    own = f'mount --bind {folder}/resolv.conf /etc/resolv.conf && exec "$@"'
    machine = Machine(enter=("unshare", "--mount", "sh", "-c", own, "sh"))
    stand_in, port = StandIn("pod", ports), ports.take()
    stand_in.active = True
    named = StandIn("pod", ports)
    named.address = ReplicaAddress(
        name="pod",
        host="pod-0.replicas.test",
        api_port=stand_in.address.api_port,
        health_port=stand_in.address.health_port,
    )
    settings = settings_for(folder, port, named, look_up_names=True)
    names = NameServer()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: names, local_addr=(NAME_SERVER, 53))
    try:
        async with AsyncExitStack() as pods:
            lb = await pods.enter_async_context(running(HaproxyServer(folder, settings, machine)))
            for address in ("127.77.0.2", "127.77.0.3"):
                stand_in.address = stand_in.address.model_copy(update={"host": address})
                names.addresses["pod-0.replicas.test"] = address
                async with stand_in.serving():
                    await eventually(lambda: only_up(lb, "pod"), MOVED_MAX_S)
                    await eventually(lambda: reaches(port, "pod"), MOVED_MAX_S)
    finally:
        transport.close()
