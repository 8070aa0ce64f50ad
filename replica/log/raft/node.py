"""Carries out what the core decides: disk, links and clients around one `Raft`, in one event loop.

The disk has a thread of its own. While it carries out one job, work collects in the next one. So one sync covers all
of that work, and heartbeats do not wait for it. Each message waits for a job by its number (`outbox.py`): the one with
the newest view and vote, and for an acknowledgement the one with the newest entries.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from ha.raft.core import LogContradicted, LogIncomplete, Raft
from ha.raft.membership import Phase
from ha.raft.messages import AppendEntries, Entry, Kind, Message, NodeId, Outgoing, TxId
from ha.raft.state import Leadership, Withdrawal
from ha.raft.tx_status import TxStatus
from replica.log.raft import wire
from replica.log.raft.links import Lines, Links, failed
from replica.log.raft.lives import Lives
from replica.log.raft.members import objection
from replica.log.raft.opening import Opened
from replica.log.raft.outbox import HELD_MAX, Calls, Outbox, Questions, Recent, Waiting
from replica.log.raft.proof import log_id_of
from replica.log.raft.quiet import Quiet
from replica.log.raft.segments import Job
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.signing import encode_keys
from replica.log.raft.wire import (
    Answer,
    Append,
    Appended,
    AppendedHere,
    AskWords,
    Call,
    Change,
    Commit,
    CommitTold,
    End,
    Ends,
    Entries,
    FindSealed,
    FoundSealed,
    Nominate,
    Nominated,
    Place,
    Placed,
    Read,
    ReadSealed,
    Say,
    SealedBytes,
    Status,
    Told,
    Tx,
    TxTold,
    Watch,
    WordsTold,
    encode_frame,
    name_of,
)

_log = structlog.get_logger(__name__)
Reply = Callable[[Answer], None]
_QUESTIONS_MAX = 10_000
_READERS_MAX = 256  # readers that wait for entries; further ones are answered at once
_HAND_OVER_MESSAGES = 4  # a node that stops waits this many message times for a successor
_NOMINATED_MESSAGES = 2  # a leader that nominated another one appends nothing for so long, or until it is replaced


@dataclass(slots=True)
class _Changing:
    """A change of members that waits until all new ones have caught up."""

    call: Change
    reply: Reply
    until_s: float


@dataclass(frozen=True, slots=True)
class _Reader:
    """A client that waits for entries."""

    call: Read
    reply: Reply
    until_s: float


class LogNode:
    """One node. Run it once; it ends by `stop`, or by an error that it raises."""

    def __init__(self, settings: LogNodeSettings, opened: Opened, *, may_copy: bool = False) -> None:
        """`may_copy`: end where a leader is far ahead, so that peers' segments can be copied (`leader_ahead`).

        Raises LogIncomplete where the disk lacks what it once had.
        """
        log, node_id = opened.log, opened.node_id
        self.settings = settings
        self.node_id = node_id
        self._log = log
        core = settings.raft()
        self._signed = opened.signed
        self._words = opened.words
        self.raft = Raft.restored(node_id, core, random.SystemRandom().random, log.hard_state, opened.shape)
        self.leader_ahead: str | None = None  # the leader's name, when this node ended to copy segments
        self._copies_from_idx = log.last_idx if may_copy and log.last_idx <= log.hard_state.commit_idx else None
        self._tick_s = core.tick_ms / 1_000
        self._key = opened.signed.public_key
        self.links = Links(settings, node_id, self, self._key)
        self._learn_log(log.read(1, 1) if log.last_idx else [])
        self._recent = Recent(log.last_idx + 1, settings.recent_max_bytes)
        self._framed: tuple[AppendEntries | None, list[bytes]] = None, []  # the newest message, encoded
        self._late: dict[NodeId, deque[Outgoing]] = {}  # to nodes that lag
        self._late_due = False
        self._outbox = Outbox()
        self._job, self._job_number = Job(), 1  # the job that collects work
        self._needs_hard = self._needs_steps = 0  # the jobs with the newest view and vote, and the newest entries
        self._vote = log.hard_state[:2]
        self._written_idx = log.last_idx
        self._gathered: list[tuple[Append | Say, Reply]] = []
        self._calls: Calls[tuple[Append | Say | Change, Reply]] = Calls()
        self._waiting_bytes = 0
        self._questions: Questions[tuple[End | AskWords, Reply]] = Questions()
        self._readers: list[_Reader] = []
        self._lives = Lives()
        self._quiet = Quiet()
        self._changing: _Changing | None = None
        self._cleanup: tuple[NodeId, ...] = ()
        self._turn_due = False
        self._nominated_until_s = 0.0
        self._announcing = False
        self._sealing: asyncio.Task[None] | None = None
        self._work, self._stop = asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None
        self._unsent = Lines()
        self._reported = (self.raft.leadership, self.raft.view)

    # ------------------------------------------------------------------------------------------------------- running

    async def run(self, *, new_group: bool = False) -> None:
        """Take part until `stop`. Raises OSError for a disk that fails, LogIncomplete if entries are found missing."""
        await self.links.start()
        disk = asyncio.create_task(self._write_for_ever(), name="disk")
        ticking = asyncio.create_task(self._tick_for_ever(), name="tick")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            if new_group:
                self._start_group()
            await asyncio.wait({disk, ticking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not disk.done() and not ticking.done() and self._failure is None:
                await self._hand_over()
        finally:
            for task in (ticking, disk, stopped):
                task.cancel()
            results = await asyncio.gather(disk, ticking, stopped, self._sealing or _nothing(), return_exceptions=True)
            await self.links.stop()
        for result in [self._failure, *results]:
            if isinstance(result, Exception):
                raise result
        self._log.close()

    def stop(self) -> None:
        """End; a leader asks another node to take over first."""
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """End, and raise this."""
        self._failure = error
        self._stop.set()

    async def _hand_over(self) -> None:
        """A leader nominates its successor, and continues for a moment."""
        if self.raft.leadership is Leadership.LEADER:
            self.raft.nominate()
            self._carry_out()
            await asyncio.sleep(_HAND_OVER_MESSAGES * self.settings.message_timeout_ms / 1_000)

    def _start_group(self) -> None:
        """The first node of a new log leads alone, and is its first member."""
        self.raft.force_become_leader()
        self._carry_out()
        keys = encode_keys({self.node_id: self._key})
        self._sign_and_append([Entry(self.raft.view, 1, Kind.RECONFIGURATION, keys, (self.node_id,))])
        self._carry_out()

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            await asyncio.sleep(self._tick_s)
            ms = int((loop.time() - at_s) * 1_000)
            at_s += ms / 1_000
            # a node that was not scheduled did not read messages either, so little of that time counts
            self.raft.tick(min(ms, self.settings.message_timeout_ms))
            self._carry_out()
            self._look_at_change()
            self._lives.tick(loop.time())

    # ------------------------------------------------------------------------------------------------------- effects

    def receive(self, src: NodeId, message: Message) -> None:
        """Handle a message of a peer's core."""
        if self._is_far(message):
            self.leader_ahead = name_of(src)
            self.stop()
            return
        try:
            self.raft.receive(src, message)
            self._carry_out()
        except Exception as error:  # the caller is a socket, which cannot end the node
            self.fail(error)

    def _is_far(self, message: Message) -> bool:
        """Whether a leader is so far ahead that copying segments is better: nothing has come yet since the start."""
        if self._copies_from_idx != self.raft.last_idx or not isinstance(message, AppendEntries):
            return False
        return message.prev_idx > self.raft.last_idx + self.settings.unacknowledged_max

    def _carry_out(self) -> None:
        """Give the core's effects to the disk and the links, in the order that it demands."""
        effects = self.raft.take()
        if effects.hard_state is not None and effects.hard_state[:2] != self._vote:
            self._vote = effects.hard_state[:2]
            self._job.hard_state, self._needs_hard = effects.hard_state, self._job_number
        if effects.truncated_to is not None:
            self._framed = None, []
            self._signed.cut(effects.truncated_to)
            self._words.cut(effects.truncated_to)
            self._recent.cut(effects.truncated_to)
            self._job.steps.append(effects.truncated_to)
        if effects.appended:
            self._learn_log(effects.appended)
            self._verify(effects.appended)
            self._words.append(effects.appended)
            self._quiet.appended(effects.appended, asyncio.get_running_loop().time())
            self._recent.append(effects.appended)
            self._job.steps.append(effects.appended)
        if effects.truncated_to is not None or effects.appended:
            self._needs_steps = self._job_number
        for out in effects.messages:
            need = max(self._needs_hard, self._needs_steps if out.durable_idx else 0)
            if self._outbox.put(out, need):
                self._send(out)
        if effects.committed_idx is not None:
            self._signed.committed(effects.committed_idx)
            self._words.committed(effects.committed_idx)
            self._committed()
            self._announce_soon()
        if self._questions:
            self._answer_questions()
        if self._readers:
            self._serve_readers()
        self._cleanup = effects.cleanup or self._cleanup
        if self._has_work():
            self._work.set()
        if self.raft.should_sign or self._cleanup or (self._questions.wait and effects.committed_idx is not None):
            self._turn_soon()
        self._report()
        if self.raft.withdrawn is not None:
            self.fail(self._why_withdrawn(self.raft.withdrawn))

    def _why_withdrawn(self, why: Withdrawal) -> LogIncomplete | LogContradicted:
        if why is Withdrawal.EXPELLED:
            return LogIncomplete("the leader found that this disk has less than it once acknowledged")
        return LogContradicted(f"entries up to {self.raft.commit_idx} are committed here, and the leader has others")

    def _learn_log(self, appended: list[Entry]) -> None:
        if appended and appended[0].idx == 1:
            self.links.has_log(log_id_of(appended[0]))

    def _verify(self, appended: list[Entry]) -> None:
        """Compare what others signed with this log; a leader's own are in the tree already. Raises LogDiffers."""
        news = self.raft.last_idx - self._signed.last_idx
        if news:
            self._signed.append(appended[-news:])

    def _has_work(self) -> bool:
        return self._job.hard_state is not None or bool(self._job.steps)

    def _report(self) -> None:
        now = (self.raft.leadership, self.raft.view)
        if now != self._reported:
            self._reported = now
            _log.info("log_leadership", leadership=now[0].value, view=now[1], last_idx=self.raft.last_idx)

    def _send(self, out: Outgoing) -> None:
        """Send a message now, or after those that wait for old entries; a node gets its messages in order."""
        if out.to in self._late or self._is_old(out.message):
            queue = self._late.setdefault(out.to, deque())
            if len(queue) < HELD_MAX:  # the core tolerates lost messages
                queue.append(out)
            self._send_late_soon()
        else:
            self._send_now(out)

    def _is_old(self, message: Message) -> bool:
        """Whether a message's entries must be read from the disk: they are for a node that lags."""
        if not isinstance(message, AppendEntries):
            return False
        return message.prev_idx < message.idx and message.prev_idx + 1 < self._recent.first_idx

    def _send_late_soon(self) -> None:
        if not self._late_due:
            self._late_due = True
            asyncio.get_running_loop().call_soon(self._send_late)

    def _send_late(self) -> None:
        """Send one message to each node that lags, so that other work, above all heartbeats, comes in between."""
        self._late_due = False
        for to, queue in list(self._late.items()):
            self._send_now(queue.popleft())
            if not queue:
                del self._late[to]
        if self._late:
            self._send_late_soon()

    def _send_now(self, out: Outgoing) -> None:
        """Send a message, a leader's with its entries from the log as it is now."""
        message = out.message
        if not self.links.can_send(out.to):
            return
        if not isinstance(message, AppendEntries) or message.idx == message.prev_idx:
            self.links.send(out.to, encode_frame(message))
            return
        for frame in self._frames_of(message):
            if not self.links.send(out.to, frame):
                return

    def _frames_of(self, message: AppendEntries) -> list[bytes]:
        """A leader's message with its entries; none if they were cut. Followers that keep up get the same bytes."""
        if message != self._framed[0]:
            entries = self._read(message.prev_idx + 1, message.idx)
            if entries is None or wire.gone(message, entries):
                return []
            parts = wire.fill(message, entries, self.settings.frame_max_bytes)
            self._framed = message, [encode_frame(part) for part in parts]
        return self._framed[1]

    def _read(self, first: int, last: int) -> list[Entry] | None:
        """Entries from memory, else from disk. None if those on disk are damaged: then the node ends."""
        if first >= self._recent.first_idx:
            return self._recent.read(first, last)
        try:
            old = self._log.read(first, min(last, self._recent.first_idx - 1))
        except (LogIncomplete, OSError) as error:
            self.fail(error)
            return None
        return old + self._recent.read(self._recent.first_idx, last)

    # ---------------------------------------------------------------------------------------------------------- disk

    async def _write_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="disk") as thread:
            while True:
                await self._work.wait()
                self._work.clear()
                if not self._has_work():
                    continue
                job, number = self._job, self._job_number
                self._job, self._job_number = Job(), number + 1
                job.commit_idx = min(self.raft.commit_idx, self._written_idx)
                end = await loop.run_in_executor(thread, self._log.carry_out, job)
                self._written_idx = end.idx
                self._recent.written(end.idx)
                self.raft.synced(end)
                for out in self._outbox.done(number):
                    self._send(out)
                self._carry_out()
                self._seal()

    def _seal(self) -> None:
        """Seal a full segment in the background, one at a time."""
        if self._sealing is not None and not self._sealing.done():
            return
        segment = self._log.to_seal(min(self.raft.commit_idx, self._written_idx))
        if segment is not None:
            self._sealing = asyncio.create_task(asyncio.to_thread(self._log.seal, segment), name="seal")
            self._sealing.add_done_callback(self._sealed)

    def _sealed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    # ------------------------------------------------------------------------------------------------------- clients

    def call(self, call: Call, reply: Reply) -> None:
        """A client calls; `reply` may come at once, later, or never, if this node ends before."""
        match call:
            case Append() | Say():
                self._take_append(call, reply)
            case Read():
                self._take_read(call, reply)
            case Status():
                reply(Told(call.call, self.status()))
            case Change():
                self._take_change(call, reply)
            case End() | AskWords():
                self._take_question(call, reply)
            case Place():
                reply(self._placed(call))
            case FindSealed():
                reply(FoundSealed(call.call, self._log.sealed_with(call.idx)))
            case ReadSealed():
                reply(self._sealed_bytes(call))
            case Tx():
                reply(self._tx(call))
            case Commit():
                reply(self._commit(call))
            case Nominate():
                self._take_nomination(call, reply)
            case Watch():
                self._lives.watch(call, reply, asyncio.get_running_loop().time())

    def heard_core(self) -> None:
        """The core of the replica beside this node calls: another node leads when it falls silent."""
        self.raft.heard_core()

    def ended(self, name: str) -> None:
        """A peer's process has ended. If that peer leads, another node can do so at once."""
        if name_of(self.raft.state.leader_id or "") == name:
            self.raft.leader_ended()
            self._carry_out()

    def life_ended(self, activation_id: bytes) -> None:
        """A replica's process has ended: those that wait for its lease may claim it at once."""
        _log.info("lease_holder_ended", activation_id=activation_id.hex())
        self._lives.ended(activation_id)

    def _refusal(self, call: Append | Say | Change | Nominate) -> Answer | None:
        if self.raft.leadership is not Leadership.LEADER:
            return failed(call, "NOT_LEADER", "this node does not lead", self.raft.state.leader_id)
        if self.raft.state.members.phase not in {None, Phase.ORDERED}:
            return failed(call, "NOT_LEADER", "this node is leaving the log")
        return None

    def _take_nomination(self, call: Nominate, reply: Reply) -> None:
        """A leader asks a member to take over, if that member has the whole log and was heard lately.

        With less it would lose the election, and the log would stand still until the next one.
        """
        refusal = self._refusal(call)
        if refusal is None and call.name != name_of(self.node_id):
            able = [node for node in self._live() if name_of(node) == call.name and self._may_lead(node)]
            if able:
                self.raft.nominate(max(able))
                self._carry_out()
                pause_s = _NOMINATED_MESSAGES * self.settings.message_timeout_ms / 1_000
                self._nominated_until_s = asyncio.get_running_loop().time() + pause_s
            else:
                refusal = failed(call, "REFUSED", f"{call.name} is no member that keeps up")
        reply(refusal or Nominated(call.call))

    def _may_lead(self, node: NodeId) -> bool:
        members = self.raft.state.members.active_nodes()
        return node in members and self.raft.state.peers[node].match_idx >= self.raft.last_idx

    def _take_append(self, call: Append | Say, reply: Reply) -> None:
        _, bodies = wire.contents_of(call)
        size = sum(map(len, bodies))
        refusal = self._refusal(call)
        if refusal is None and max(map(len, bodies)) > self.settings.entry_max_bytes:
            refusal = failed(call, "REFUSED", f"an entry has at most {self.settings.entry_max_bytes} bytes")
        if refusal is None and self._waiting_bytes + size > self.settings.waiting_max_bytes:
            refusal = failed(call, "OVERLOADED", f"{self._waiting_bytes} bytes are not committed yet")
        if refusal is not None:
            reply(refusal)
            return
        self._waiting_bytes += size
        self._gathered.append((call, reply))
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Append all that has arrived, and sign it: nothing unsigned is ever committed.

        Not while another node was asked to lead: with fewer entries than this one it would lose the election.
        """
        loop = asyncio.get_running_loop()
        if self.raft.leadership is Leadership.LEADER and loop.time() < self._nominated_until_s:
            loop.call_later(self._tick_s, self._turn)
            return
        self._turn_due = False
        try:
            self._append_gathered()
            self._carry_out()
            self._ask_end()
        except Exception as error:
            self.fail(error)

    def _announce_soon(self) -> None:
        """Announce the commit, for which readers at followers wait; if more is to be appended, it goes with that."""
        if self.raft.leadership is Leadership.LEADER and not self._announcing:
            self._announcing = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        self._announcing = False
        if not self._turn_due:
            self.raft.announce()
            self._carry_out()

    def _append_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        view, idx = self.raft.view, self.raft.last_idx
        entries: list[Entry] = []
        waiting: list[Waiting[tuple[Append | Say | Change, Reply]]] = []
        if self._cleanup:
            idx += 1
            entries.append(Entry(view, idx, Kind.RETIRED_COMMITTED, b"", self._cleanup))
        for call, reply in gathered:
            kind, bodies = wire.contents_of(call)
            size = sum(map(len, bodies))
            waiting.append(Waiting((call, reply), view, idx + 1, idx + len(bodies), size))
            entries += [Entry(view, at, kind, body) for at, body in enumerate(bodies, idx + 1)]
            idx += len(bodies)
        taken = bool(entries or self.raft.should_sign) and self._sign_and_append(entries)
        self._cleanup = ()  # if it was not taken, the next leader gets it
        for one in waiting:
            self._settle_later(one, taken=taken)

    def _settle_later(self, waiting: Waiting[tuple[Append | Say | Change, Reply]], *, taken: bool) -> None:
        if taken:
            self._calls.add(waiting)
            call, reply = waiting.call
            if isinstance(call, Append) and call.early:
                reply(AppendedHere(call.call, waiting.view, waiting.first_idx))
            return
        self._waiting_bytes -= waiting.size
        call, reply = waiting.call
        reply(failed(call, "NOT_LEADER", "this node no longer leads", self.raft.state.leader_id))

    def _sign_and_append(self, entries: list[Entry]) -> bool:
        """Append entries, and the signature over all so far. False: nothing has changed."""
        view, before = self.raft.view, self.raft.last_idx
        if self.raft.leadership is not Leadership.LEADER:
            return False
        taken = self.raft.replicate([*entries, self._signed.sign(entries, view, _now_ms())], view)
        if not taken:
            self._signed.cut(before)
        self.raft.flush()
        return taken

    def _committed(self) -> None:
        for settled, counts in self._calls.settle(self.raft.commit_idx, self.raft.state.log.view_of):
            call, reply = settled.call
            self._waiting_bytes -= settled.size
            if not counts:
                reply(failed(call, "NOT_LEADER", "cut off by another leader", self.raft.state.leader_id))
            elif isinstance(call, Say):
                reply(WordsTold(call.call, self._words.named(call.word.name)))
            else:
                reply(Appended(call.call, settled.view, settled.first_idx, settled.last_idx))

    def _take_question(self, call: End | AskWords, reply: Reply) -> None:
        if self.raft.leadership is not Leadership.LEADER:
            reply(failed(call, "NOT_LEADER", "this node does not lead", self.raft.state.leader_id))
        elif len(self._questions) >= _QUESTIONS_MAX:
            reply(failed(call, "OVERLOADED", f"{_QUESTIONS_MAX} ask already where the log ends"))
        else:
            self._questions.add((call, reply))
            self._turn_soon()

    def _ask_end(self) -> None:
        """Begin a round for all open questions, as soon as this leader knows what earlier ones committed."""
        if self._questions.wait and (number := self.raft.ask_end()) is not None:
            self._questions.begin(self.raft.view, number, self.raft.commit_idx)
            self._carry_out()

    def _answer_questions(self) -> None:
        leads_view = self.raft.view if self.raft.leadership is Leadership.LEADER else None
        settled = self._questions.settle(leads_view, self.raft.answered_round, self._readable_idx)
        for (call, reply), idx in settled:
            if idx is None or leads_view is None:
                reply(failed(call, "NOT_LEADER", "this node no longer leads", self.raft.state.leader_id))
            elif isinstance(call, AskWords):
                reply(WordsTold(call.call, self._words.under(call.prefix)))
            else:
                quiet_ms = self._quiet.quiet_ms(asyncio.get_running_loop().time())
                reply(Ends(call.call, leads_view, idx, self._log.raw_upto(idx), quiet_ms))

    def _sealed_bytes(self, call: ReadSealed) -> Answer:
        try:
            return SealedBytes(call.call, self._log.read_sealed(call.first_idx, call.at, call.size))
        except OSError as error:
            return failed(call, "REFUSED", f"the segment cannot be read: {error}")

    def _placed(self, call: Place) -> Answer:
        end_idx = self._readable_idx
        return Placed(call.call, self._log.idx_of_raw(call.offset, end_idx), end_idx, self._log.raw_upto(end_idx))

    def _tx(self, call: Tx) -> Answer:
        """A committed record's offset as well, once it is on this node's disk."""
        raft, at = self.raft, TxId(call.view, call.idx)
        status, committed = raft.status_of(at), raft.commit_idx
        offset: int | None = None
        if status is TxStatus.COMMITTED and at.idx <= self._readable_idx:
            entries = self._read(at.idx, at.idx)
            if entries and entries[0].kind is Kind.RAW:
                offset = self._log.raw_upto(at.idx) - 1
        return TxTold(call.call, status, raft.state.log.view_of(committed), committed, offset)

    def _commit(self, call: Commit) -> Answer:
        raft, since = self.raft, call.since_view
        idx = raft.commit_idx
        view = raft.state.log.view_of(idx)
        views = raft.view_history()[:view][since - 1 : since - 1 + wire.VIEWS_MAX] if since else []
        return CommitTold(call.call, view, idx, tuple(views), time.time_ns() // 1_000)

    @property
    def _readable_idx(self) -> int:
        """Readers get what is committed, and on this node's own disk."""
        return min(self.raft.commit_idx, self._written_idx)

    def _take_read(self, call: Read, reply: Reply) -> None:
        until_s = asyncio.get_running_loop().time() + call.wait_ms / 1_000
        if call.wait_ms and call.first_idx > self._readable_idx and len(self._readers) < _READERS_MAX:
            self._readers.append(_Reader(call, reply, until_s))
        else:
            reply(self._entries(call))

    def _serve_readers(self) -> None:
        """Answer the readers that have entries now, and those that have waited long enough."""
        now_s, readable_idx = asyncio.get_running_loop().time(), self._readable_idx
        waiting, self._readers = self._readers, []
        for reader in waiting:
            if reader.call.first_idx <= readable_idx or reader.until_s <= now_s:
                reader.reply(self._entries(reader.call))
            else:
                self._readers.append(reader)

    def _entries(self, call: Read) -> Answer:
        """Committed entries that are on the disk."""
        commit_idx = self._readable_idx
        last = min(call.last_idx or commit_idx, commit_idx, call.first_idx + wire.READ_MAX - 1)
        entries = self._read(call.first_idx, last) if call.first_idx <= last else []
        if entries is None:
            return failed(call, "REFUSED", "this node ends: its disk is damaged")
        fit = wire.fitting(entries, self.settings.frame_max_bytes - wire.HELLO_MAX_BYTES)
        return Entries(call.call, tuple(entries[:fit]), commit_idx)

    def status(self) -> dict[str, object]:
        """The core's state under CCF's names, and the node's."""
        raft = self.raft
        return {
            **raft.details(),
            "node_id": self.node_id,
            "commit_idx": raft.commit_idx,
            "last_idx": raft.last_idx,
            "written_idx": self._written_idx,
            "removable_nodes": list(raft.removable_nodes),
            "live": sorted(self._live()),
            "signed_root": self._signed.root().hex(),
            "connected": list(self.links.connected),
        }

    # ------------------------------------------------------------------------------------------------------- members

    def _take_change(self, call: Change, reply: Reply) -> None:
        refusal = self._refusal(call)
        if refusal is None and self._changing is not None:
            refusal = failed(call, "OVERLOADED", "another change waits for members to catch up")
        if refusal is not None:
            reply(refusal)
            return
        self._changing = _Changing(call, reply, asyncio.get_running_loop().time() + self.settings.change_max_s)

    def _look_at_change(self) -> None:
        """Send the log to new members, and append the change once all of them have it."""
        changing = self._changing
        if changing is None:
            return
        refusal = self._refusal(changing.call)
        missing = [] if refusal else [node for node in changing.call.nodes if not self._has_log(node)]
        for node in missing:
            self.raft.teach(node)
        if missing and asyncio.get_running_loop().time() > changing.until_s:
            refusal = failed(changing.call, "REFUSED", f"not caught up in time: {', '.join(missing)}")
        if refusal is None and missing:
            self._carry_out()
            return
        self._changing = None
        answer = refusal or self._append_change(changing)
        if answer is not None:
            changing.reply(answer)

    def _has_log(self, node: NodeId) -> bool:
        members = self.raft.state.members.active_nodes()
        return node == self.node_id or node in members or self.raft.has_caught_up(node)

    def _append_change(self, changing: _Changing) -> Answer | None:
        """None: it is in the log, and answered once it is committed."""
        call, view, idx = changing.call, self.raft.view, self.raft.last_idx + 1
        configurations = [configuration.nodes for configuration in self.raft.state.members.configurations]
        if call.instead_of and configurations[-1] != set(call.instead_of):
            return failed(call, "REFUSED", f"the members are {', '.join(sorted(configurations[-1]))} by now")
        why = objection(configurations, call.nodes, self._live())
        if why is not None:
            return failed(call, "REFUSED", why)
        keys = {node: self._signed.keys.get(node) or self.links.key_of(node) for node in call.nodes}
        known = {node: key for node, key in keys.items() if key}
        if known.keys() < keys.keys():
            return failed(call, "REFUSED", f"not connected: {', '.join(sorted(keys.keys() - known.keys()))}")
        taken = self._sign_and_append([Entry(view, idx, Kind.RECONFIGURATION, encode_keys(known), call.nodes)])
        if taken:
            self._calls.add(Waiting((call, changing.reply), view, idx, idx, 0))
        self._carry_out()
        return None if taken else failed(call, "REFUSED", "an id that has left never comes back")

    def _live(self) -> set[NodeId]:
        """Members and joiners that answered this leader lately; empty if it does not lead."""
        if self.raft.leadership is not Leadership.LEADER:
            return set()
        peers, silence_ms = self.raft.state.peers, self.settings.election_timeout_ms
        return {self.node_id} | {n for n, p in peers.items() if p.match_idx and p.ack_age_ms < silence_ms}


def _now_ms() -> int:
    """The append time of records is for people and archives; nothing is decided by it."""
    return time.time_ns() // 1_000_000


async def _nothing() -> None:
    """Nothing to wait for."""
