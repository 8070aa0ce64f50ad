"""One activation of this replica, from the epoch to the purge: what exists only while it is active.

The order of opening is the protocol (docs/architecture.md): read the log to its end, see it move, epoch, log writer,
lock verified, barrier, catch up to it, publish up to it, settle what can never be logged any more, serve. Nothing here
decides a verdict; answers are what the log says once a record is read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog

from ha.clock import Clock
from ha.ending import Cause, Ending
from ha.errors import ActivationFailed, HaError, LockLost
from ha.lock.interface import DatabaseIdentity
from replica.active.admission import Admission
from replica.active.admission_budget import AdmissionBudget
from replica.active.endings import ending_of
from replica.active.estimate import CompletionEstimate
from replica.active.failures import SubmissionFailures
from replica.active.lineage import Descent, check_descent
from replica.active.publisher import CODE_OF, Publisher, publish_backlog
from replica.active.receipt_signer import ReceiptSigner
from replica.active.waiting import Waiting, send
from replica.following.apply import Applied
from replica.following.follower import Follower, end_after
from replica.following.salvaged import SalvagesFound
from replica.index.interface import Index
from replica.link.interface import Replies, Terms
from replica.log.interface import LogWriter, RequestLog
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.counted import CountedRequest
from replica.notary.errors import Code, InvariantBroken, LogUnavailable, NotaryError, StoreUnavailable
from replica.notary.formats import Formats, to_write
from replica.notary.position import Position
from replica.notary.receipts import Receipt
from replica.notary.records import (
    ACTIVATION_ID_BYTES,
    BarrierRecord,
    RequestRecord,
    SettledCommand,
    SettlementRecord,
    encode_record,
    settled_together,
)
from replica.notary.requests import Submission
from replica.notary.rules import Outcome, Verdict
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.settings import CoreSettings
from replica.store.interface import AdmissionResult, Command, ParticipantStore, Pruned, Published
from replica.telemetry.core_spans import UNTRACED, Trace

log = structlog.get_logger()

_STALL_TICK_S = 0.1
_SILENT_TICKS_MAX = 5  # beyond the follower's own patience: one look at a thawed process proves nothing
_DRAIN_TICK_S = 0.005
_PENDING_TOGETHER = 50_000  # commands read from the database at a time; settings bound what one activation leaves
_CLOCK_JUMP_MAX_US = 1_500_000  # above a leap second; two heartbeats may pass until the lock session sees a jump


class Activation:
    """An activation. `open`, then `submit` and `on_applied` while it lasts, then `close`; never opened again."""

    def __init__(
        self,
        *,
        name: str,
        database: DatabaseIdentity,
        request_log: RequestLog,
        index: Index,
        follower: Follower,
        store: ParticipantStore,
        verify_lock: Callable[[], Awaitable[object]],
        receipt_signer: ReceiptSigner,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        settings: CoreSettings,
        estimate: CompletionEstimate,
        failures: SubmissionFailures,
        announce: Callable[[], None],
        on_lost: Callable[[Ending], None],
        on_broken: Callable[[Exception], None],
        trace: Trace = UNTRACED,
        salvages: Salvages = NO_SALVAGES,
        salvages_found: Callable[[int], Awaitable[frozenset[str]]] | None = None,
    ) -> None:
        self._name = name
        self._salvages = salvages
        self._salvages_found = salvages_found or SalvagesFound(index, salvages).found
        self._database = database
        self._log = request_log
        self._index = index
        self._follower = follower
        self._store = store
        self._verify_lock = verify_lock
        self._receipt_signer = receipt_signer
        self._clock = clock
        self._random_bytes = random_bytes
        self._settings = settings
        self._estimate = estimate
        self._failures = failures
        self._announce = announce
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._trace = trace
        self.budget = AdmissionBudget(settings)
        self.epoch = 0
        self.activation_id = b""
        self._writes = Formats()  # named by our barrier
        self.serving = False
        self.steps_s: dict[str, float] = {}  # how long each step of the activation took
        self._writer: LogWriter | None = None
        self._sequence = 0
        self._waiting: dict[int, Waiting] = {}
        self._in_force: Position | None = None  # behind the run in which our barrier came into force
        self._busy_since_s = clock.boottime_s()
        self._booted_us = self._boot_moment_us()  # by the wall clock that agreed with the database's just now
        self.publisher = Publisher(store, clock, settings, self._on_published, announce)
        self._admission = Admission(
            store=store,
            publisher=self.publisher,
            clock=clock,
            settings=settings,
            budget=self.budget,
            estimate=estimate,
            failures=failures,
            append=self._append,
            answer_accepted=self._answer_accepted,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._session_over = False
        self.end_told = False  # the database has our word on why this activation ended
        self._ending = asyncio.Event()

    # ---- activation ----

    async def open(self) -> None:
        """Carry out the activation. Raises ActivationFailed, or the error of the step that failed."""
        began_s = self._clock.boottime_s()

        def done(step: str) -> None:
            nonlocal began_s
            now_s = self._clock.boottime_s()
            self.steps_s[step], began_s = now_s - began_s, now_s

        position = await self.read_to_the_end()
        self._check_descent(position)
        done("read_log")
        salvages = await self._salvages_found(position.offset)
        self._writes = to_write(await self._store.bind(position.topic_id, salvages), position.barrier)
        await self._see_the_log_move(position)
        done("log_moves")
        self.epoch = await self._store.raise_epoch(position.epoch, self._name)
        done("epoch")
        if self._writer is None:
            self._writer = await self._log.open_writer()
        done("open_log")
        await self._verify_lock()
        done("verify_lock")
        published = await self._published_in_the_log()
        position = await self._put_barrier_in_force()
        done("barrier")
        published = await publish_backlog(
            self._log,
            self._index,
            self._store,
            published=published,
            applied_to=position,
            settings=self._settings,
            salvages=self._salvages,
        )
        self.publisher.begin(published)
        done("publish_backlog")
        self._start(self.publisher.run(), "publish")
        await self._settle()
        done("settle")
        self._start(self._admission.run(), "admit")
        self._start(self._watch_for_stall(), "watch")
        self.serving = True

    def _check_descent(self, position: Position) -> None:
        """Raises DatabaseSuperseded where a later primary of our database granted the epoch in force."""
        barrier = position.barrier
        if check_descent(self._database, barrier) is Descent.ANOTHER and barrier is not None:
            log.warning("database_changed", database=str(self._database), in_force=barrier.database)

    async def read_to_the_end(self) -> Position:
        """The applied position, behind everything that was in the log when this was called.

        Raises ActivationFailed when the log stalls, and LogUnavailable.
        """
        await self._applied(lambda _: True, "the log's first record")
        end = await self._log.end_offset()
        return await self._applied(partial(_has_read_below, end), f"the log's record {end - 1}")

    async def _see_the_log_move(self, position: Position) -> None:
        """Return once the log is seen to take a record and to show it. Raises ActivationFailed when it does not.

        Otherwise no barrier could come into force, and one epoch after the other would be raised for nothing. What is
        written when no record came lately is the barrier in force, once more: it changes nothing for any reader.
        """
        if position.barrier is None or self._follower.moved_lately():
            return
        await self._published_in_the_log()  # or nothing may be written
        self._writer = await self._log.open_writer()
        self._writer.append(encode_record(position.barrier))
        await self._applied(lambda at: at.offset > position.offset, "a record that changes nothing")

    async def _published_in_the_log(self) -> Published:
        """What is published. Raises LogTruncated when the log ends before that: nothing may be written to it then, or
        the lost records could not be brought back to their offsets. Only an index that is behind has to ask the log."""
        published = await self._store.published()
        position = published.position
        if position is not None and position.offset > self._follower.applied_offset:
            await end_after(self._log, position.offset)
        return published

    async def _put_barrier_in_force(self) -> Position:
        """Append our barrier until one reads back in force, each try above every epoch seen; the position behind it."""
        while True:
            self.activation_id = self._random_bytes(ACTIVATION_ID_BYTES)
            barrier = BarrierRecord(
                self.epoch,
                self.activation_id,
                self._name,
                str(self._database),
                self._writes.records,
                self._writes.rules,
            )
            self._require_writer().append(encode_record(barrier))
            position = await self._applied(partial(_has_epoch, self.epoch), f"the barrier of epoch {self.epoch}")
            if self._in_force is not None:
                return self._in_force
            log.warning("barrier_void", epoch=self.epoch, in_force=position.epoch)
            self._check_descent(position)
            self.epoch = await self._store.raise_epoch(position.epoch, self._name)

    async def _settle(self) -> None:
        """Reject, through the log, every command that is pending: its record can never count any more."""
        settled: list[Command] = []
        while pending := await self._store.pending(_PENDING_TOGETHER):
            if pending[0] in settled:
                raise InvariantBroken(f"command {pending[0].command_id!r} is settled and still pending")
            left = [_settled(command) for command in pending]
            while left:
                commands = settled_together(left[: self._settings.settlement_batch_max])
                record = SettlementRecord(self._writes.records, self.activation_id, self._next_sequence(), commands)
                self._require_writer().append(encode_record(record))
                left = left[len(commands) :]
            await self._applied(partial(_has_seen_below, self._sequence), "a settlement")
            await self.publisher.flush()
            log.info("commands_settled", count=len(pending))
            settled = pending

    async def _applied(self, condition: Callable[[Position], bool], what: str) -> Position:
        """Wait for an applied position, for as long as the follower makes progress. Raises ActivationFailed."""
        while True:
            before = self._follower.applied_offset
            try:
                async with asyncio.timeout(self._settings.log_stall_max_s):
                    return await self._follower.wait_for(condition)
            except TimeoutError:
                if self._follower.applied_offset == before:
                    raise ActivationFailed(f"{what} did not read back") from None

    # ---- while active ----

    @property
    def queued(self) -> int:
        """Submissions that wait to be admitted."""
        return self._admission.queued

    @property
    def eta_s(self) -> float:
        """How long a request that comes now will take at most, as clients are told."""
        return self._estimate.wait_s(self.budget.states)

    def submit(self, replies: Replies, batch: list[tuple[int, Submission]], terms: Terms) -> None:
        """Take a front end's submissions; each ticket gets its answer later."""
        self._admission.offer(batch, replies, terms)

    def _on_published(self, submissions: int, states: int) -> None:
        self.budget.leave(submissions, states)
        self._admission.wake()

    async def confirm_lock(self) -> None:
        """Return once a statement on the lock session was answered that was sent after this call."""
        await self._verify_lock()

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """Move the bound of what completions are kept; front ends are told before anybody may delete."""
        async with self._admission.bound:  # no period reaches below what goes meanwhile
            pruned = await self._store.prune(up_to, recorded_before_us)
            self.publisher.note_pruned(await self._store.published())
        self._announce()
        return pruned

    def on_applied(self, applied: Applied) -> None:
        """Take note of records that the follower has applied: answer those who wait, and queue completions."""
        barrier = applied.position.barrier
        if self._in_force is None:
            if barrier is not None and barrier.activation_id == self.activation_id:
                self._in_force = applied.position  # published by `open`, together with what lies before
            return
        self._answer_unreadable(applied)
        answered = self._match(applied)
        periods = {entry.offset: waiting.period for waiting, entry, _ in answered}
        offsets = self.publisher.add(applied, len(answered), sum(waiting.states for waiting, _, _ in answered), periods)
        if answered:
            self._answer_decided(answered, offsets)
        if barrier is None or barrier.activation_id != self.activation_id:
            self._on_lost(Ending(Cause.SUPERSEDED, "a higher barrier is in force"))

    def _answer_unreadable(self, applied: Applied) -> None:
        """A record of ours whose request nobody can read counts for nothing: its sender alone is concerned."""
        for void in applied.reading.voids:
            if void.record is None or void.record.activation_id != self.activation_id:
                continue
            waiting = self._waiting.pop(void.record.sequence, None)
            if waiting is not None:
                error = InvariantBroken(f"a request was logged at offset {void.offset} that no reader can read")
                send([(waiting, self._failures.answer(waiting.command.submission_id, error))])
                self._on_published(1, waiting.states)

    def _match(self, applied: Applied) -> list[tuple[Waiting, CountedRequest, Verdict]]:
        answered = []
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                if entry.record.activation_id != self.activation_id:
                    continue
                waiting = self._waiting.pop(entry.record.sequence, None)
                if waiting is not None:
                    answered.append((waiting, entry, verdict))
        return answered

    def _answer_decided(
        self, answered: Sequence[tuple[Waiting, CountedRequest, Verdict]], offsets: Mapping[int, int]
    ) -> None:
        """Answer a batch with one signature for all that were notarised in it. `offsets`: see Publisher.add."""
        now_s = self._clock.boottime_s()
        states = sum([waiting.states for waiting, _, _ in answered])
        if self._estimate.note_batch(states, now_s - self._busy_since_s, self.budget.states - states):
            self._busy_since_s = now_s
        began_us, everybody = self._clock.wall_us(), answered
        answered = [decided for decided in answered if not decided[0].terms.asynchronous]
        notarised = [
            (entry.request.tx_id, entry.content_digest)
            for _, entry, verdict in answered
            if verdict.outcome is Outcome.NOTARISED
        ]

        def answer(receipts: Sequence[Receipt] | None) -> None:
            send(self._answers(answered, receipts, offsets))
            self._trace.answered(everybody, began_us)

        self._receipt_signer.make(notarised, answer)

    def _answers(
        self,
        answered: Sequence[tuple[Waiting, CountedRequest, Verdict]],
        made: Sequence[Receipt] | None,
        offsets: Mapping[int, int],
    ) -> list[tuple[Waiting, Answer]]:
        """What was decided, for those who wait; a success without a receipt is not told yet."""
        receipts = iter(made or ())
        answers: list[tuple[Waiting, Answer]] = []
        for waiting, entry, verdict in answered:
            answer: Answer
            if verdict.notarised_offset is not None and made is None:
                answer = self._unsigned()
            elif verdict.notarised_offset is not None:
                answer = Notarised(
                    entry.request.tx_id,
                    entry.content_digest,
                    verdict.notarised_offset,
                    entry.offset,
                    False,
                    next(receipts),
                    offsets[entry.offset],
                )
            else:
                closed = verdict.outcome is Outcome.TIME_WINDOW_CLOSED
                answer = Refused(
                    CODE_OF[verdict.outcome],
                    entry.request.tx_id,
                    entry.offset,
                    verdict.conflicts,
                    entry.judged_us if closed else None,
                    window=entry.request.window if closed else None,
                    ledger_offset=offsets[entry.offset],
                )
            answers.append((waiting, answer))
        return answers

    def _answer_accepted(self, accepted: Sequence[tuple[Waiting, AdmissionResult]]) -> None:
        """Give recorded answers again: the command was accepted before, its transaction is in the log."""
        contents = [(waiting.command.tx_id, waiting.command.content_digest) for waiting, _ in accepted]

        def answer(made: Sequence[Receipt] | None) -> None:
            if made is None:
                send((waiting, self._unsigned()) for waiting, _ in accepted)
                return
            send(
                (waiting, _recorded(waiting.command, found, receipt))
                for (waiting, found), receipt in zip(accepted, made, strict=True)
            )

        self._receipt_signer.make(contents, answer)

    def _unsigned(self) -> NotNow:
        detail = "it is decided, but the notary's key cannot be used just now"
        return NotNow(Code.OUTCOME_UNKNOWN.name, detail, self._settings.retry_after_s)

    def _append(self, admitted: Sequence[Waiting]) -> dict[int, NotNow]:
        """Log admitted submissions; each waits by its sequence number, never by its transaction id.

        Returns the answers, by `id` of who waits, to those that no record can be made of: they stay pending, and the
        next activation settles them.
        """
        if not admitted:
            return {}
        if not self._waiting:
            self._busy_since_s = self._clock.boottime_s()
        stamp_us = self._clock.wall_us()
        values: list[bytes] = []
        failed: dict[int, NotNow] = {}
        for waiting in admitted:
            sequence, submission = self._sequence, waiting.submission
            record = RequestRecord(self._writes.records, self.activation_id, sequence, stamp_us, submission)
            try:
                values.append(encode_record(record))
            except Exception as error:  # one caller's values
                failed[id(waiting)] = self._failures.answer(submission.submission_id, error)
                continue
            self._waiting[self._next_sequence()] = waiting
        self._log_records(values)
        return failed

    def _log_records(self, values: Sequence[bytes]) -> None:
        if abs(self._boot_moment_us() - self._booted_us) > _CLOCK_JUMP_MAX_US:
            # a stamp from the future would close time windows for everybody, until that future is past
            self._on_lost(Ending(Cause.CLOCK, "the wall clock jumped"))
            return
        try:
            self._require_writer().append_all(values)
        except LogUnavailable as error:
            # pending in the database and not in the log: only another activation may settle it
            self._on_lost(ending_of(error, Cause.LOG_STALLED))

    async def _watch_for_stall(self) -> None:
        """Step down when our oldest record does not read back, or the log says nothing at all, for too long.

        Ticks count, so that a suspended process does not.
        """
        oldest, ticks, silent_ticks = -1, 0, 0
        while not await self._ends_within(_STALL_TICK_S):
            first = next(iter(self._waiting), -1)
            ticks = ticks + 1 if first >= 0 and first == oldest else 0
            oldest = first
            silent_ticks = 0 if self._follower.reaches_log() else silent_ticks + 1
            if ticks * _STALL_TICK_S >= self._settings.log_stall_max_s:
                stalled_s = self._settings.log_stall_max_s
                self._on_lost(Ending(Cause.LOG_STALLED, f"record {oldest} did not read back for {stalled_s} s"))
                return
            if silent_ticks >= _SILENT_TICKS_MAX:
                self._on_lost(Ending(Cause.LOG_STALLED, "the log does not answer"))
                return

    # ---- the end ----

    async def close(self, reason: str) -> None:
        """Stop serving, let what is on its way be answered briefly, purge the rest, and answer it as unknown.

        The reason is left with the epoch, for those who ask in the morning; `end_told` says whether that was possible.
        """
        self.serving = False
        refused = NotNow(Code.NOT_ACTIVE.name, "the replica stepped down", self._settings.retry_after_s)
        send((waiting, refused) for waiting in self._admission.close_queue())
        await self._drain()
        await self._end_tasks()
        await self._tell_end(reason)
        if self._writer is not None:
            await self._writer.close()
        unknown = NotNow(Code.OUTCOME_UNKNOWN.name, "the replica stepped down", self._settings.retry_after_s)
        untold = (waiting for waiting in self._waiting.values() if not waiting.terms.asynchronous)
        send((waiting, unknown) for waiting in (*self._admission.admitting, *untold))
        self._waiting.clear()

    async def _drain(self) -> None:
        """Wait briefly until what was logged is answered and published; a lost session cannot publish any more."""
        try:
            async with asyncio.timeout(self._settings.drain_answers_s):
                while self._waiting or (self._admission.admitting and not self._session_over):
                    await self._clock.sleep_s(_DRAIN_TICK_S)
                if self._tasks and not self._session_over:
                    await self.publisher.flush()
        except TimeoutError:
            pass

    async def _tell_end(self, reason: str) -> None:
        """Bounded: a session that does not answer now is lost, and closed a moment later anyway."""
        if self._session_over or not self.epoch:
            return
        try:
            async with asyncio.timeout(self._settings.drain_answers_s):
                await self._store.end_epoch(self.epoch, self._name, reason)
            self.end_told = True
        except (TimeoutError, HaError, NotaryError, InvariantBroken) as error:  # the next active tells it
            log.info("end_untold", epoch=self.epoch, detail=str(error) or "no answer in time")

    async def _end_tasks(self) -> None:
        """End the tasks between two statements: one that is cancelled inside a statement closes the lock session."""
        self._admission.stop()
        self.publisher.stop()
        self._ending.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._settings.drain_answers_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _ends_within(self, delay_s: float) -> bool:
        """Sleep, unless the activation ends meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._ending.wait()
        return self._ending.is_set()

    def _start(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(self._run(work), name=name)
        self._tasks.append(task)

    async def _run(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except LockLost:  # the session reports its own end to the election; a second messenger would contradict it
            self._session_over = True
        except (HaError, StoreUnavailable) as error:  # the session lives, and the server takes no writes any more
            self._session_over = True
            self._on_lost(ending_of(error, Cause.STORE_REFUSED))
        except Exception as error:  # a bug or bad data: the process must end, and is told so
            self._on_broken(error)

    def _boot_moment_us(self) -> int:
        """When the machine booted by its wall clock, microseconds UTC: the same for ever, unless that clock jumps."""
        return self._clock.wall_us() - round(self._clock.boottime_s() * 1e6)

    def _next_sequence(self) -> int:
        sequence, self._sequence = self._sequence, self._sequence + 1
        return sequence

    def _require_writer(self) -> LogWriter:
        if self._writer is None:
            raise ActivationFailed("the log is not open for writing")
        return self._writer


def _recorded(command: Command, found: AdmissionResult, receipt: Receipt) -> Answer:
    """The answer to a command that was accepted before."""
    if found.notarised_offset is None:
        raise InvariantBroken(f"command {command.command_id!r} is accepted, and its transaction is nowhere")
    offset = None if found.earlier is None else found.earlier.ledger_offset
    return Notarised(command.tx_id, command.content_digest, found.notarised_offset, None, True, receipt, offset)


def _settled(command: Command) -> SettledCommand:
    return SettledCommand(
        command.user_id,
        command.command_id,
        command.act_as,
        command.submission_id,
        command.tx_id,
        command.content_digest,
    )


def _has_read_below(end: int, position: Position) -> bool:
    return position.offset >= end - 1


def _has_epoch(epoch: int, position: Position) -> bool:
    return position.epoch >= epoch


def _has_seen_below(sequence: int, position: Position) -> bool:
    """Whether every number below was read: the log may store them in another order."""
    return position.seen == ((0, sequence),)
