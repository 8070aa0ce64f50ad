"""Three log nodes in this process, and a log on them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from replica.log.interface import RequestLog
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.raft.node import LogNode
from replica.log.raft.opening import Opening
from replica.log.raft.process import find_identity
from replica.log.raft.settings import LogNodeSettings
from replica.notary.errors import LogUnavailable
from tests.lognode.real_nodes import GROUP, WAIT_S, free_ports


class NodesHere:
    """Three log nodes in this process, with real links and disks; a log on them as the contract suite sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(3)
        self.addresses = {f"r{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
        self.nodes: dict[str, LogNode] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def settings(self, name: str) -> LogNodeSettings:
        return LogNodeSettings(
            group=GROUP,
            name=name,
            listen=self.addresses[name],
            peers={peer: address for peer, address in self.addresses.items() if peer != name},
            data_dir=self.folder / name,
            message_timeout_ms=100,
            election_timeout_ms=1_000,
            segment_bytes=2**22,
            core_silence_ms=0,  # no replica reads all the time here
        )

    def start_node(self, name: str, *, new_group: bool = False) -> None:
        settings = self.settings(name)
        identity, files = find_identity(settings, new_group=new_group)
        opened = Opening(settings.group, identity.node_id, identity.key, files, settings.segment_bytes).finished()
        node = LogNode(settings, opened)
        self.nodes[name] = node
        self._running[name] = asyncio.create_task(node.run(new_group=new_group))

    async def start(self) -> None:
        self.start_nodes()
        async with asyncio.timeout(WAIT_S):
            while len(self.nodes["r1"].links.connected) < 2:
                await asyncio.sleep(0.02)
            client = await LogClient.connect(self.addresses["r1"], GROUP)
            await client.change([node.node_id for node in self.nodes.values()])
            await client.close()

    def start_nodes(self) -> None:
        for name in self.addresses:
            self.start_node(name, new_group=name == "r1")

    async def stop_node(self, name: str) -> None:
        self.nodes.pop(name).stop()
        await self._running.pop(name)

    async def kill_node(self, name: str) -> None:
        """It ends without asking anybody to take over."""
        del self.nodes[name]
        running = self._running.pop(name)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def stop(self) -> None:
        for name in list(self.nodes):
            await self.stop_node(name)

    def log(self, node: str = "r2", **changed: object) -> RequestLog:
        return self.raft_log(node, **changed)

    def raft_log(self, node: str = "r2", **changed: object) -> RaftLog:
        return RaftLog(self.log_settings(node=node, **changed))

    def log_settings(self, **changed: object) -> RaftLogSettings:
        nodes = ",".join(f"{name}={address}" for name, address in self.addresses.items())
        return RaftLogSettings.model_validate({"group": GROUP, "nodes": nodes} | changed)

    async def put(self, *values: bytes | None) -> None:
        async with asyncio.timeout(WAIT_S):
            while not await self._put([value or b"" for value in values]):
                await asyncio.sleep(0.05)

    async def put_after_start(self, *values: bytes) -> None:
        """As `put`, also while nodes do not listen yet."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await self.put(*values)
                except LogUnavailable:
                    await asyncio.sleep(0.05)

    async def _put(self, values: Sequence[bytes]) -> bool:
        for name in self.nodes:
            client = await LogClient.connect(self.addresses[name], GROUP)
            try:
                await client.append(values)
                return True
            except CallFailed:
                continue
            finally:
                await client.close()
        return False

    async def cut_off(self, first_offset: int) -> None:
        raise NotImplementedError("no node of this log ever lets go of its start")

    async def recreate(self) -> None:
        await self.stop()
        for name in self.addresses:
            shutil.rmtree(self.folder / name)
        await self.start()
