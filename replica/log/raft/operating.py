"""Operators' questions to a log's nodes: the members, changes of them, and nodes that may be switched off."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ha.raft.messages import NodeId
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.identity import believed_log, is_other_log
from replica.log.raft.members import Standing, standing
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.wire import Appended, name_of
from replica.notary.codes import Code
from replica.notary.errors import ConfigError, LogUnavailable, NotaryError

_ANSWER_MAX_S = 5.0


class MembersRefused(NotaryError):
    """The members did not change; a person must change something first."""

    default_code = Code.LOG_MEMBERS_REFUSED


@dataclass(frozen=True, slots=True)
class Membership:
    """The log's members as its leader reports them. `configurations`: the one in force, then those that are pending."""

    leader: NodeId
    view: int
    configurations: tuple[Standing, ...]
    connected: tuple[NodeId, ...]  # members or not
    removable: tuple[NodeId, ...]

    @property
    def newest(self) -> frozenset[NodeId]:
        """The members once all that is pending is committed."""
        return self.configurations[-1].nodes

    def known_as(self, wanted: str, among: frozenset[NodeId]) -> NodeId:
        """The id that is meant by an id or a name. Raises MembersRefused if none fits, or several do."""
        found = sorted(node for node in among if wanted in {node, name_of(node)})
        if len(found) != 1:
            raise MembersRefused(f"{wanted!r} is none of {', '.join(sorted(among)) or 'nobody'}, or several of them")
        return found[0]

    def with_node(self, wanted: str) -> frozenset[NodeId]:
        """The members with one more, which must be connected to the leader. Raises MembersRefused."""
        return self.newest | {self.known_as(wanted, frozenset(self.connected) - self.newest)}

    def without(self, wanted: str) -> frozenset[NodeId]:
        """The members with one less. Raises MembersRefused."""
        return self.newest - {self.known_as(wanted, self.newest)}


def membership_of(status: Mapping[str, Any]) -> Membership:
    """The members in a leader's state."""
    live = set(status["live"])
    return Membership(
        leader=status["node_id"],
        view=status["current_view"],
        configurations=tuple(standing(found["nodes"], live) for found in status["configs"]),
        connected=tuple(status["connected"]),
        removable=tuple(status["removable_nodes"]),
    )


@asynccontextmanager
async def leader_of(settings: LogNodeSettings) -> AsyncIterator[tuple[LogClient, Membership]]:
    """The leader among this node and its peers, and its state. Raises LogUnavailable if none is found."""
    tls = None if settings.tls is None else settings.tls.contexts()[1]
    addresses = [settings.listen, *settings.peers.values()]
    found = await asyncio.gather(*(_ask(address, settings.group, tls) for address in addresses))
    answers = [answer for answer in found if answer is not None]
    try:
        log_id = _log_of([client for client, _ in answers], len(addresses))
        leaders = [
            (client, status)
            for client, status in answers
            if status.get("leadership_state") == "Leader" and not is_other_log(log_id, client.log_id)
        ]
        if not leaders:
            raise LogUnavailable(f"of {len(addresses)} nodes {len(answers)} answer, and none of them leads")
        client, status = max(leaders, key=lambda answer: answer[1]["current_view"])
        yield client, membership_of(status)
    finally:
        for client, _ in answers:
            await client.close()


def _log_of(clients: Sequence[LogClient], nodes: int) -> str:
    """The log that is named; where several are, a majority decides. "": nobody names one. Raises LogUnavailable."""
    named = {client.log_id for client in clients} - {""}
    if len(named) <= 1:
        return "".join(named)
    believed = believed_log((client.log_id for client in clients), nodes)
    if believed is None:
        told = ", ".join(f"{client.node_id} {client.log_id or 'none'}" for client in clients)
        raise LogUnavailable(f"the nodes have different logs, and no majority has one: {told}")
    return believed


async def _ask(address: str, group: str, tls: ssl.SSLContext | None) -> tuple[LogClient, dict[str, Any]] | None:
    try:
        client = await LogClient.connect(address, group, tls, answer_max_s=_ANSWER_MAX_S)
    except LogUnavailable:
        return None
    try:
        async with asyncio.timeout(_ANSWER_MAX_S):
            return client, await client.status()
    except (LogUnavailable, TimeoutError):
        await client.close()
        return None


async def change_members(client: LogClient, members: Membership, nodes: frozenset[NodeId]) -> Appended:
    """Make these the members, in place of those that the leader named, and wait for the commit.

    Raises MembersRefused, and LogUnavailable where the outcome is unknown.
    """
    if nodes == members.newest:
        raise ConfigError("these are the members already")
    try:
        return await client.change(sorted(nodes), sorted(members.newest))
    except CallFailed as failed:
        if failed.code == "NOT_LEADER":
            raise LogUnavailable(str(failed)) from None
        raise MembersRefused(str(failed)) from None
