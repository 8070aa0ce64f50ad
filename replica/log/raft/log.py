"""The request log on log nodes of our own: a replica reads from the node beside it, and appends at the leader.

Offsets count records; the log's own entries (signatures, configurations) are between them and have none. A node
shows only what is committed and on its disk; it may lag. Only a leader that a majority confirms reports the log's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ha.raft.messages import Kind, TxId
from replica.log.interface import LogEnd, RoundTrip
from replica.log.raft.client import CallFailed, LogClient, within
from replica.log.raft.identity import believed_log
from replica.log.raft.lifelines import Lifelines, wait_for_end
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.raft.operating import Membership, membership_of
from replica.log.raft.proof import LogProof, Prover, log_id_of
from replica.log.raft.reader import WAIT_MAX_S, RaftReader
from replica.log.raft.signing import decode_signature
from replica.log.raft.wire import name_of
from replica.log.raft.writer import FindLeader, RaftWriter
from replica.notary.answers import CommitUnderstood, TxUnderstood
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable
from replica.notary.tasks import cancelled
from replica.notary.words import UNSAID, NewWord, Word, decode_word

_CLOCK_MAX_S = 0.25  # for one node's answer; whoever compares clocks allows for the wait
_LOOK_S = 0.01  # between two looks at who leads
_NOMINATE_MAX_S = 0.1  # longest wait for the node beside the writer to have the whole log
_LEAD_MAX_S = 0.5  # longest wait for the node beside the writer to take the lead; any other node may lead, too
_GRACE_S = 0.05  # for nodes that answer after the first: a leader that was replaced may not know that yet
_LOOK_AHEAD = 16  # entries that are read at once to find the signature after a record; a barrier's is the next one
ResultT = TypeVar("ResultT")


class RaftLog:
    """A `RequestLog` of one replica. It connects when first asked."""

    def __init__(self, settings: RaftLogSettings) -> None:
        self._settings = settings
        self._tls = None if settings.tls is None else settings.tls.contexts()[1]
        self._log_id = ""  # of the log that a majority had when it was checked, or first asked for
        self._named: dict[str, str] = {}  # by node: the log that it named last
        self._clients: dict[str, LogClient] = {}  # by node, for questions
        self._open: set[RaftReader | RaftWriter] = set()

    @property
    def answer_times(self) -> Mapping[str, RoundTrip]:
        """See `RequestLog.answer_times`: nothing is measured."""
        return {}

    async def check(self) -> str:
        """See `RequestLog.check`: the log's id is that of its first entry, which has the first node's key."""
        self._log_id = await self._believed()
        client = await self.connect_near()
        try:
            problems = await self._problems(client)
        finally:
            await client.close()
        if problems:
            raise LogRefused("; ".join(problems), Code.TOPIC_UNSAFE)
        return self._log_id

    async def hazards(self) -> Sequence[str]:
        """See `RequestLog.hazards`. No record is ever taken from such a log's start."""
        client = await self.connect_near()
        try:
            return await self._problems(client)
        finally:
            await client.close()

    async def log_id(self) -> str:
        """The identity of the log, whether or not it keeps the contract. Raises LogUnavailable."""
        self._log_id = self._log_id or await self._believed()
        return self._log_id

    async def consensus(self) -> Mapping[str, object]:
        """See `ConsensusLog.consensus`."""
        client = await self.connect_near()
        try:
            return await self._within(client.status())
        finally:
            await client.close()

    async def transaction(self, view: int, seqno: int) -> TxUnderstood:
        """See `ConsensusLog.transaction`."""
        found = await self._ask_near(lambda client: client.tx(TxId(view, seqno)))
        committed = f"{found.committed_view}.{found.committed_idx}"
        return TxUnderstood(f"{view}.{seqno}", found.status.value, committed, found.offset)

    async def commit(self, since_view: int | None = None) -> CommitUnderstood:
        """See `ConsensusLog.commit`."""
        found = await self._ask_near(lambda client: client.commit(since_view or 0))
        return CommitUnderstood(f"{found.view}.{found.idx}", None if since_view is None else found.starts)

    async def _ask_near(self, ask: Callable[[LogClient], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """The answer of the node beside this replica, else of any that answers; over connections that stay open.

        Raises LogUnavailable.
        """
        failure = LogUnavailable("the log has no nodes")
        for name in self._names:
            try:
                client = await self._client(name)
            except LogUnavailable as error:
                failure = error
                continue
            try:
                return await self._within(ask(client))
            except LogUnavailable as error:
                failure = error
                await client.close()  # else the next question would wait for it as well
        raise failure

    async def prove(self, offset: int) -> LogProof:
        """The proof of a committed record's place; reads the log from its start. Raises LogTruncated, LogUnavailable.

        An entry costs about 100 bytes of memory.
        """
        client = await self.connect_near()
        try:
            if offset >= (end := await self.agreed_end_offset()):
                raise LogTruncated(f"the log has offsets from 0 to below {end}, asked for is {offset}")
            prover = Prover(self._settings.group, await self.place(client, offset), offset)
            while True:
                entries, _ = await self._within(client.read(prover.next_idx, wait_ms=int(WAIT_MAX_S * 1_000)))
                if (proof := prover.read(entries)) is not None:
                    return proof
        finally:
            await client.close()

    async def membership(self) -> Membership:
        """The members as the leader reports them. Raises LogUnavailable."""
        return membership_of(await self._within((await self._client(await self.leader())).status()))

    async def _problems(self, client: LogClient) -> list[str]:
        status = await self._within(client.status())
        members = min((len(found["nodes"]) for found in status["configs"]), default=0)
        wanted = self._settings.members_min
        return [f"the log has {members} members, and needs {wanted}"] if members < wanted else []

    async def end_offset(self) -> int:
        """See `RequestLog.end_offset`."""
        return await self.agreed_end_offset()

    async def agreed_end_offset(self) -> int:
        """The number of records committed when this was called, confirmed by a majority; waits for an election."""
        return (await self.end_and_quiet()).offset

    async def end_and_quiet(self) -> LogEnd:
        """See `TimedLog.end_and_quiet`. The leader had each record at the latest when it came to its log."""
        told = await self._ask_leader(lambda client: client.end())
        return LogEnd(told.records, None if told.quiet_ms is None else told.quiet_ms / 1_000)

    async def agreed_wall_us(self) -> int | None:
        """See `ClockedLog.agreed_wall_us`."""
        return median_of_majority(await asyncio.gather(*(self._wall_us_of(name) for name in self._names)))

    async def _wall_us_of(self, name: str) -> int | None:
        async def ask() -> int | None:
            return (await (await self._client(name)).commit()).wall_us

        try:
            return await within(ask(), _CLOCK_MAX_S)
        except (LogUnavailable, CallFailed):
            return None

    async def words(self, prefix: str) -> Mapping[str, Word]:
        """See `WordsLog.words`."""
        return await self._ask_leader(lambda client: client.words(prefix))

    async def say(self, word: NewWord) -> Word:
        """See `WordsLog.say`. An answer may be lost and the word sent again: the second copy does not count.

        Where another word is in force by then, the first copy may have counted before it: whoever said this one must
        not say it again by itself.
        """
        lost = 0

        async def ask(client: LogClient) -> Mapping[str, Word]:
            nonlocal lost
            lost += 1
            try:
                told = await client.say(word)
            except CallFailed:
                lost -= 1  # it has no effect, and never will have one
                raise
            lost -= 1
            return told

        found = (await self._ask_leader(ask)).get(word.name, UNSAID)
        if lost and found.value != word.value:
            raise LogUnavailable(
                f"an answer was lost, and another word is in force as {word.name} by now: look whether yours counted"
            )
        return found

    async def said_at(self, version: int) -> NewWord | None:
        """See `WordsLog.said_at`."""
        entries, _ = await self._ask_leader(lambda client: client.read(version, version))
        entry = next((entry for entry in entries if entry.idx == version), None)
        return None if entry is None or entry.kind is not Kind.WORD else decode_word(entry.body)

    async def appended_us(self, offsets: Sequence[int]) -> list[int]:
        """See `WordsLog.appended_us`: of each record, the time in the signature entry that follows it."""
        newest, end = max(offsets, default=-1), await self.agreed_end_offset()
        if newest >= end:
            raise LogTruncated(f"the log has offsets from 0 to below {end}, asked for is {newest}")
        client = await self.connect_near()
        try:
            return [await self._within(self._appended_us(client, offset)) for offset in offsets]
        finally:
            await client.close()

    async def _appended_us(self, client: LogClient, offset: int) -> int:
        next_idx = await self.place(client, offset)
        while True:
            last_idx = next_idx + _LOOK_AHEAD - 1
            entries, _ = await client.read(next_idx, last_idx, wait_ms=int(WAIT_MAX_S * 1_000))
            for entry in entries:
                if entry.kind is Kind.SIGNATURE:
                    return decode_signature(entry).at_ms * 1_000
            next_idx += len(entries)

    async def _ask_leader(self, ask: Callable[[LogClient], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """The leader's answer; waits for an election. Raises LogUnavailable.

        A leader that has not answered for an election timeout is replaced by then: another one is asked.
        """
        until_s = asyncio.get_running_loop().time() + self._settings.answer_max_s
        asked_max_s = min(self._settings.election_timeout_ms / 1_000, self._settings.answer_max_s)
        while True:
            try:
                client = await self._client(await self.leader())
                return await within(ask(client), asked_max_s)
            except (CallFailed, LogUnavailable) as error:
                if asyncio.get_running_loop().time() >= until_s:
                    raise LogUnavailable(str(error)) from None
            await asyncio.sleep(_LOOK_S)

    async def open_reader(self, start_offset: int) -> RaftReader:
        """See `RequestLog.open_reader`; waits for a node that lags."""
        client = await self.connect_near()
        try:
            async with asyncio.timeout(self._settings.answer_max_s):
                next_idx = await self.place(client, start_offset)
        except TimeoutError:
            await client.close()
            raise LogUnavailable(f"{client.node_id} does not have record {start_offset} yet") from None
        except BaseException:
            await client.close()
            raise
        reader = RaftReader(client, next_idx, start_offset, self._settings.answer_max_s)
        own = self._settings.node
        if own is not None and name_of(client.node_id) != own:
            reader.look_for(partial(self.connect, own))
        self._open.add(reader)
        return reader

    async def place(self, client: LogClient, offset: int) -> int:
        """The index from which the record with this offset is to be read; waits for a node that lags.

        Raises LogTruncated where the log ends before it, and LogUnavailable.
        """
        asked = False
        while True:
            placed = await client.place(offset)
            if placed.idx is not None:
                return placed.idx
            if offset == placed.records:
                return placed.end_idx + 1
            if not asked and offset > (end := await self.agreed_end_offset()):
                raise LogTruncated(f"the log has offsets from 0 to below {end}, asked for is {offset}")
            asked = True
            await client.read(placed.end_idx + 1, wait_ms=int(WAIT_MAX_S * 1_000))

    async def open_writer(self) -> RaftWriter:
        """See `RequestLog.open_writer`."""
        return await self._open_writer(self.leader_for_writing)

    async def open_shared_writer(self) -> RaftWriter:
        """See `WatchingLog.open_shared_writer`."""
        return await self._open_writer(self.any_leader)

    async def _open_writer(self, find_leader: FindLeader) -> RaftWriter:
        writer = RaftWriter(self.connect, self._settings, find_leader)
        await writer.start()
        self._open.add(writer)
        return writer

    def tie(self, activation_id: bytes) -> Lifelines:
        """See `WatchingLog.tie`."""
        return Lifelines(self._names, self.connect, activation_id)

    async def wait_for_end(self, activation_id: bytes) -> None:
        """See `WatchingLog.wait_for_end`."""
        await wait_for_end(self._names, self.connect, activation_id)

    async def close(self) -> None:
        """See `RequestLog.close`."""
        for opened in list(self._open):
            await opened.close()
        self._open.clear()
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    # ------------------------------------------------------------------------------------------------- nodes and calls

    @property
    def _names(self) -> list[str]:
        """All nodes, the one beside this replica first."""
        return sorted(self._settings.addresses, key=lambda name: (name != self._settings.node, name))

    async def leader(self) -> str:
        """The name of the node that leads in the newest view, of those that answer. Raises LogUnavailable."""
        asked = [asyncio.create_task(self._standing(name)) for name in self._names]
        try:
            return await _newest_leader(asked)
        finally:
            await cancelled(*asked)

    async def _leads(self, name: str) -> bool:
        standing = await self._standing(name)
        return standing is not None and standing.leads

    async def _standing(self, name: str) -> _Standing | None:
        """None: it does not answer."""
        try:
            status = await self._within((await self._client(name)).status())
        except (LogUnavailable, CallFailed):
            return None
        return _Standing(name, status["current_view"], status.get("leadership_state") == "Leader")

    async def leader_for_writing(self) -> str:
        """The leader, once there is one: the node beside this replica if it takes the lead within `_LEAD_MAX_S`.

        Then the active's records make one hop less. Raises LogUnavailable.
        """
        loop, own = asyncio.get_running_loop(), self._settings.node
        found = await self.any_leader()
        if own is None or found == own:
            return found
        if not await self._nominated(own, found):
            return found
        until_s = loop.time() + _LEAD_MAX_S
        while loop.time() < until_s:
            if await self._leads(own):
                return own
            await asyncio.sleep(_LOOK_S)
        return await self.leader()

    async def any_leader(self) -> str:
        """The leader, once there is one. Raises LogUnavailable."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.answer_max_s
        while True:
            try:
                return await self.leader()
            except LogUnavailable:
                if loop.time() >= until_s:
                    raise
            await asyncio.sleep(_LOOK_S)

    async def _nominated(self, own: str, leader: str) -> bool:
        """Whether the leader has asked this node to take over. Not if it does not keep up, or is no member."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _NOMINATE_MAX_S
        while loop.time() < until_s:
            with suppress(CallFailed):
                try:
                    await self._within((await self._client(leader)).nominate(own))
                except LogUnavailable:
                    return False
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def connect_near(self) -> LogClient:
        """A connection to the node beside this replica, else to any that has the log. Raises LogUnavailable."""
        failure = LogUnavailable("the log has no nodes")
        for name in self._names:
            try:
                return await self.connect(name)
            except LogUnavailable as error:
                failure = error
        raise failure

    async def _believed(self) -> str:
        """The id of the log that a majority of the nodes has. Raises LogUnavailable."""
        asked = [asyncio.create_task(self._log_of(name)) for name in self._names]
        found: list[str] = []
        failure = LogUnavailable("the log has no nodes")
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    found.append(await answer)
                except LogUnavailable as error:
                    failure = error
                if (log_id := believed_log(filter(None, found), len(asked))) is not None:
                    return log_id
        finally:
            await cancelled(*asked)
        if (log_id := believed_log(found, len(asked))) is not None:
            return log_id
        named = ", ".join(sorted({log_id or "none yet" for log_id in found}))
        raise LogUnavailable(f"no majority of {len(asked)} log nodes has one log: {named}" if found else str(failure))

    async def _log_of(self, name: str) -> str:
        client = await self._connect(name)
        try:
            return await self._id_of(client)
        finally:
            await client.close()

    async def connect(self, name: str) -> LogClient:
        """A connection to a node of this very log. Raises LogUnavailable, also for a single node that has another log,
        and LogRefused where most nodes have another one."""
        self._log_id = self._log_id or await self._believed()
        client = await self._connect(name)
        try:
            found = self._named[name] = await self._id_of(client)
            if not found:
                raise LogUnavailable(f"{client.node_id} has nothing of the log yet")
            believed = believed_log(self._named.values(), len(self._settings.addresses), known=self._log_id)
            if believed != self._log_id:
                raise LogRefused(f"the log was created anew: {believed}, it was {self._log_id}")
            if found != self._log_id:
                raise LogUnavailable(f"{client.node_id} has another log: {found}, this one is {self._log_id}")
        except BaseException:
            await client.close()
            raise
        return client

    async def _connect(self, name: str) -> LogClient:
        settings = self._settings
        return await LogClient.connect(
            settings.addresses[name],
            settings.group,
            self._tls,
            core_of=settings.node or "",
            answer_max_s=settings.connect_max_s,
        )

    async def _client(self, name: str) -> LogClient:
        client = self._clients.get(name)
        if client is None or client.has_ended:
            client = await self.connect(name)
            other = self._clients.get(name)
            if other is not None and not other.has_ended:  # another question was faster
                await client.close()
                return other
            self._clients[name] = client
        return client

    async def _id_of(self, client: LogClient) -> str:
        """The log that the node has, "": none yet. One of an older release names none as it greets."""
        if client.log_id:
            return client.log_id
        entries, _ = await self._within(client.read(1, 1))
        return log_id_of(entries[0]) if entries else ""

    async def _within(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        return await within(call, self._settings.answer_max_s)


def median_of_majority(clocks: Sequence[int | None]) -> int | None:
    """The median of the clocks that are known, of two the slower one: a fast clock stamps what lies in the future.
    None where no majority is known."""
    known = sorted(clock for clock in clocks if clock is not None)
    return known[(len(known) - 1) // 2] if 2 * len(known) > len(clocks) else None


class _Standing(NamedTuple):
    """A node's view, and whether it leads there."""

    node: str
    view: int
    leads: bool


async def _newest_leader(asked: Sequence[asyncio.Task[_Standing | None]]) -> str:
    """The node that leads in the newest view. Raises LogUnavailable.

    Where a majority has answered, a later view than theirs has no leader yet. So nobody waits for a frozen node then;
    else a leader that was replaced, and does not know it, could be contradicted for a moment more.
    """
    loop, waiting = asyncio.get_running_loop(), set(asked)
    found: list[_Standing] = []
    until_s: float | None = None
    while waiting:
        left_s = None if until_s is None else max(until_s - loop.time(), 0.0)
        done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        found += [standing for task in done if (standing := task.result()) is not None]
        newest = max(found, key=lambda standing: (standing.view, standing.leads), default=None)
        if not done or (newest is not None and newest.leads and 2 * len(found) > len(asked)):
            break
        until_s = loop.time() + _GRACE_S if until_s is None else until_s
    leaders = {standing.view: standing.node for standing in found if standing.leads}
    if not leaders:
        raise LogUnavailable("none of the log's nodes leads, or none answers")
    return leaders[max(leaders)]
