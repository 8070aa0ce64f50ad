"""HAProxy's runtime interface: which replicas it sends applications to, and how to change that without a reload.

These commands affect liveness only. A replica refuses by itself the connections that it should not have. The next
health check after `point_at` sets what the replica itself reports, so there is nothing to undo.
"""

from __future__ import annotations

import asyncio
import csv
from dataclasses import dataclass

from haproxy.nodes import BACKEND, WATCHED

ANSWER_MAX_S = 2.0


class RuntimeRefused(Exception):
    """HAProxy refused a command; the text is HAProxy's. It does not know the replica, or is too old."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """One replica as HAProxy sees it."""

    name: str
    up: bool
    draining: bool  # by `drain`: gets no new connection, whatever its health
    check: str  # result of the last health check, such as L7OK, L7STS, L4CON, L4TOUT
    sessions: int  # connections open now
    sessions_total: int
    checks_failed: int  # while it was up
    downs: int  # how often it went from up to down


class HaproxyRuntime:
    """One HAProxy, by its `stats socket`. Every call is one exchange of at most ANSWER_MAX_S.

    Each raises OSError or TimeoutError when HAProxy does not answer, and RuntimeRefused when it says no.
    """

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path

    async def servers(self) -> dict[str, ServerState]:
        """How HAProxy sees each replica now."""
        answer = await self.ask("show stat")
        rows = csv.DictReader(answer.removeprefix("# ").splitlines())
        try:
            return {row["svname"]: _server_state(row) for row in rows if _is_replica(row)}
        except (KeyError, ValueError, TypeError):
            raise RuntimeRefused(f"show stat: {answer[:100]!r}") from None

    async def point_at(self, name: str) -> None:
        """Send applications to this replica from now on, and cut those connected to another one.

        For a replica that has just become active, so that applications need not wait for the next health check.
        """
        others = [server for server in (await self.servers()).values() if server.name != name and server.up]
        commands = [f"set server {BACKEND}/{name} health up"]
        commands += [f"set server {BACKEND}/{server.name} health down" for server in others]
        await self._tell("; ".join(commands))

    async def drain(self, name: str) -> None:
        """Give this replica no new connection until `ready`; those that are open stay."""
        await self._set_state(name, "drain")

    async def ready(self, name: str) -> None:
        """End a drain: the replica's health decides again."""
        await self._set_state(name, "ready")

    async def _set_state(self, name: str, state: str) -> None:
        """Set it where nothing overwrites it: with a backend that is watched, the other one follows that."""
        backends = (await self.ask("show backend")).split()
        backend = WATCHED if WATCHED in backends else BACKEND
        await self._tell(f"set server {backend}/{name} state {state}")

    async def state(self) -> str:
        """What a reload reads from its `state_file`, so that it starts with what is known of each replica."""
        return await self.ask("show servers state")

    async def ask(self, command: str) -> str:
        """The answer to any command of the runtime interface."""
        async with asyncio.timeout(ANSWER_MAX_S):
            reader, writer = await asyncio.open_unix_connection(self.socket_path)
            try:
                writer.write(command.encode() + b"\n")
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.close()

    async def _tell(self, command: str) -> None:
        """Send a command that has no answer when it succeeds."""
        answer = (await self.ask(command)).strip()
        if answer:
            raise RuntimeRefused(f"{command}: {answer}")


def _is_replica(row: dict[str, str]) -> bool:
    return row["pxname"] == BACKEND and row["svname"] != "BACKEND"


def _server_state(row: dict[str, str]) -> ServerState:
    return ServerState(
        name=row["svname"],
        up=row["status"].startswith("UP"),
        draining=row["status"].startswith("DRAIN"),
        check=row["check_status"].removeprefix("* "),
        sessions=int(row["scur"]),
        sessions_total=int(row["stot"]),
        checks_failed=int(row["chkfail"]),
        downs=int(row["chkdown"]),
    )
