"""The operations of tools on the request log on log nodes of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from ha.raft.messages import Kind
from replica.log.admin import LogSurvey, Stretch
from replica.log.raft.client import LogClient, within
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.raft.operating import change_members
from replica.log.raft.signing import decode_signature
from replica.log.raft.wire import name_of
from replica.notary.errors import LogRefused, LogUnavailable

_WAIT_MS = 1_000
_LOOK_S = 0.1
_CREATE_MAX_S = 30.0  # until all nodes are there


class RaftLogAdmin:
    """A `LogAdmin`. It sees committed records only, as a reader does."""

    def __init__(self, settings: RaftLogSettings) -> None:
        self._settings = settings
        self._log = RaftLog(settings)

    async def topic_id(self) -> str:
        """See `LogAdmin.topic_id`."""
        return await self._log.log_id()

    async def first_offset(self) -> int:
        """See `LogAdmin.first_offset`: such a log is kept for ever."""
        return 0

    async def end_offset(self) -> int:
        """See `LogAdmin.end_offset`."""
        return await self._log.end_offset()

    async def server_count(self) -> int:
        """The members of the log, in the smallest configuration that counts."""
        return min(len(found.nodes) for found in (await self._log.membership()).configurations)

    async def survey(self) -> LogSurvey:
        """See `LogAdmin.survey`."""
        members = await self._log.membership()
        return LogSurvey(
            log_id=await self.topic_id(),
            first_offset=0,
            end_offset=await self.end_offset(),
            violations=tuple(await self._log.hazards()),
            spare=min(found.spare for found in members.configurations),
            silent=tuple(sorted(set().union(*(found.nodes - found.live for found in members.configurations)))),
        )

    async def create(self) -> str:
        """See `LogAdmin.create`: make every node that the settings name a member.

        The log itself is begun by one node, once (`notary log-node --new-group`): whoever may begin it from here could
        begin another one in its place. Raises LogUnavailable where a node is missing, and MembersRefused.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _CREATE_MAX_S
        while missing := await self._missing():
            if loop.time() > until_s:
                raise LogUnavailable(f"not members of the log: {', '.join(missing)}; do they run?")
            await asyncio.sleep(_LOOK_S)
        return await self._log.check()

    async def _missing(self) -> list[str]:
        """Add every configured node that is connected; the names of those that are no members yet."""
        try:
            members = await self._log.membership()
        except LogUnavailable:
            return sorted(self._settings.addresses)
        named = {name_of(node) for node in members.newest}
        new = [node for node in members.connected if name_of(node) in self._settings.addresses.keys() - named]
        if new:
            client = await self._log.connect(name_of(members.leader))
            try:
                await change_members(client, members, members.newest | set(new))
            finally:
                await client.close()
        return sorted(self._settings.addresses.keys() - named)

    def stretch(self, first: int, end: int) -> Iterator[Stretch]:
        """See `LogAdmin.stretch`. The records up to a signature entry share its time: they were appended together."""
        with asyncio.Runner() as runner:
            found = self._stretches(first, end)
            try:
                while (stretch := runner.run(_next(found))) is not None:
                    yield stretch
            finally:
                runner.run(found.aclose())

    async def _stretches(self, first: int, end: int) -> AsyncGenerator[Stretch]:
        log = RaftLog(self._settings)  # of this loop
        try:
            if end > (known := await log.end_offset()):
                raise LogUnavailable(f"the log ends at offset {known}, asked for is {end - 1}")
            client = await log.connect_near()
            try:
                next_idx = await within(log.place(client, first), self._settings.answer_max_s)
                async for stretch in _read(client, next_idx, first, end, self._settings.answer_max_s):
                    yield stretch
            finally:
                await client.close()
        finally:
            await log.close()

    async def close(self) -> None:
        """See `LogAdmin.close`."""
        await self._log.close()


async def _next(found: AsyncGenerator[Stretch]) -> Stretch | None:
    return await anext(found, None)


async def _read(client: LogClient, next_idx: int, first: int, end: int, answer_max_s: float) -> AsyncGenerator[Stretch]:
    """The records [first, end), the first of which is found from `next_idx` on; the answer is a stretch each."""
    bodies: list[bytes] = []
    while first < end:
        entries, _ = await within(client.read(next_idx, wait_ms=_WAIT_MS), _WAIT_MS / 1_000 + answer_max_s)
        values: list[bytes | None] = []
        times_ms: list[int] = []
        for entry in entries:
            if entry.idx != next_idx:
                raise LogRefused(f"{client.node_id} sent entry {entry.idx} where {next_idx} was asked for")
            next_idx += 1
            if entry.kind is Kind.RAW:
                bodies.append(entry.body)
            elif entry.kind is Kind.SIGNATURE and bodies:
                values += bodies
                times_ms += [decode_signature(entry).at_ms] * len(bodies)
                bodies = []
        del values[end - first :], times_ms[end - first :]
        if values:
            yield Stretch(first, times_ms, [None] * len(values), values, [None] * len(values))
            first += len(values)
