"""Defects, put into the product's own code while it runs: each must be noticed, or the simulator is worth nothing.

A mutant is caught when a run of the mutated code breaks a promise: a finding of the history checker, an invariant of
tests/simulation/verdict.py, no recovery after the faults, or a process that ends by a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pytest import MonkeyPatch

import ha.election.core
import replica.core.apply
import replica.core.participant
import replica.core.publish
import replica.core.reign
import replica.notary.reading
import replica.notary.rules
from ha.election.driver import Election
from ha.election.states import Activating, Active, SteppingDown
from ha.lock.interface import NEVER_S
from ha.lock.memory import MemoryLockSession
from replica.core.admission import Admission, Load, Waiting
from replica.core.apply import Applied, Applier, judge_records
from replica.core.follow import Follower
from replica.core.participant import Participant
from replica.core.reign import Reign
from replica.notary.answers import NotNow, Refused
from replica.notary.errors import Code, IndexUnreadable, LogRefused
from replica.notary.position import Position
from replica.notary.reading import CountedRequest, VoidReason, _Run
from replica.notary.receipts import Receipt, make_receipts
from replica.notary.records import (
    FORMAT,
    BarrierRecord,
    RequestRecord,
    SettlementRecord,
    encode_record,
)
from replica.notary.rules import RULES, TX_KEY, Outcome, Recorded, Verdict
from replica.notary.rules import judge as judge_all
from replica.store.memory import MemoryDatabase, MemoryStore
from tests.simulation.plan import START_US

_judge = RULES[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: what is wrong with it, how it gets into the code, and seeds that are known to catch it."""

    name: str
    sentence: str
    apply: Callable[[MonkeyPatch], None]


MUTANTS: list[Mutant] = []


def _mutant(sentence: str) -> Callable[[Callable[[MonkeyPatch], None]], Callable[[MonkeyPatch], None]]:
    def note(apply: Callable[[MonkeyPatch], None]) -> Callable[[MonkeyPatch], None]:
        MUTANTS.append(Mutant(apply.__name__, sentence, apply))
        return apply

    return note


# ---- answers and verdicts ----


@_mutant("a submission is answered when its record is appended, by what the index says then")
def answer_before_read_back(patch: MonkeyPatch) -> None:
    append = Reign._append

    def hasty(self: Reign, waiting: Waiting) -> None:
        ahead = len(self._waiting)
        append(self, waiting)
        self._waiting.popitem()
        self.load.leave(1, waiting.states)
        record = RequestRecord(FORMAT, self.activation_id, 0, self._clock.wall_us(), waiting.submission)
        start = msgspec.structs.replace(self._follower.position, seen=())
        run = [(start.offset + 1, encode_record(record))]
        applied, _ = judge_records(self._index, start, run)
        ((entry, verdict),) = applied.decided()
        if isinstance(entry, CountedRequest) and verdict is not None:
            entry = msgspec.structs.replace(entry, offset=entry.offset + ahead)
            self._answer_decided([(waiting, entry, verdict)])

    patch.setattr(Reign, "_append", hasty)


@_mutant("what the index said of a state once is kept in memory and believed for ever")
def verdict_from_memory(patch: MonkeyPatch) -> None:
    memories: dict[int, dict[bytes, bytes | None]] = {}

    class Remembering:
        def __init__(self, index: Any) -> None:
            self._index = index
            self._memory = memories.setdefault(id(index), {})

        def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
            for key, value in zip(keys, self._index.lookup(keys), strict=True):
                self._memory.setdefault(key, value)
            return [self._memory[key] for key in keys]

    patch.setattr(replica.core.apply, "judge_records", lambda index, *rest: judge_records(Remembering(index), *rest))


@_mutant("answers find their submission by transaction id instead of sequence number")
def answers_matched_by_transaction_id(patch: MonkeyPatch) -> None:
    def match(self: Reign, applied: Applied) -> list[Any]:
        answered = []
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                waits = [s for s, w in self._waiting.items() if w.command.tx_id == entry.request.tx_id]
                if waits:
                    answered.append((self._waiting.pop(waits[-1]), entry, verdict))
        return answered

    patch.setattr(Reign, "_match", match)


@_mutant("a receipt covers the transaction id only")
def receipt_without_content(patch: MonkeyPatch) -> None:
    def careless(notarised: Sequence[tuple[bytes, bytes]], *rest: Any) -> list[Receipt]:
        receipts = make_receipts([(tx_id, bytes(32)) for tx_id, _ in notarised], *rest)
        return [
            msgspec.structs.replace(receipt, content_digest=digest)
            for receipt, (_, digest) in zip(receipts, notarised, strict=True)
        ]

    patch.setattr(replica.core.reign, "make_receipts", careless)


@_mutant("what was purged at a step-down is answered as a refusal, not as unknown")
def unknown_answered_as_refused(patch: MonkeyPatch) -> None:
    def certain(code: str, detail: str, retry_after_s: float) -> Any:
        if code == Code.OUTCOME_UNKNOWN.name:
            return Refused(Code.TIME_WINDOW_CLOSED.name, bytes(32))
        return NotNow(code, detail, retry_after_s)

    patch.setattr(replica.core.reign, "NotNow", certain)


@_mutant("the recorded answer of an accepted command names the newest offset instead of its own")
def recorded_answer_with_wrong_offset(patch: MonkeyPatch) -> None:
    answer = Reign._answer_accepted

    def wrong(self: Reign, accepted: Sequence[tuple[Waiting, int]]) -> None:
        answer(self, [(waiting, self._follower.applied_offset) for waiting, _ in accepted])

    patch.setattr(Reign, "_answer_accepted", wrong)


@_mutant('"not found" is said without asking the lock')
def not_found_without_the_lock(patch: MonkeyPatch) -> None:
    async def sure(self: Reign) -> None:
        await asyncio.sleep(0)

    patch.setattr(Reign, "confirm_lock", sure)


@_mutant("a passive replica answers look-ups from its own index")
def passive_answers_look_ups(patch: MonkeyPatch) -> None:
    async def look_up(self: Participant[Any], replies: Any, batch: list[tuple[int, bytes]]) -> None:
        replies.send(list(self._find(batch).items()))

    patch.setattr(Participant, "_look_up", look_up)
    patch.setattr(Participant, "_serves", lambda self: self._following is not None)


# ---- rules ----


def _rules(patch: MonkeyPatch, judge: Callable[[CountedRequest, Recorded], Verdict]) -> None:
    patch.setitem(RULES, 1, judge)


@_mutant("an old record is judged on what the index learnt later")
def old_records_judged_on_a_newer_index(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.rules, "_if_recorded_before", lambda _, value: value)


@_mutant("a transaction id is remembered without its content")
def id_remembered_without_content(patch: MonkeyPatch) -> None:
    def judge(entry: CountedRequest, recorded: Recorded) -> Verdict:
        known = recorded[0]
        if known is not None:
            return Verdict(Outcome.NOTARISED, int.from_bytes(known[32:], "big"))
        return _judge(entry, recorded)

    _rules(patch, judge)


@_mutant("conflicts are looked for before the transaction's own earlier success")
def conflicts_before_idempotency(patch: MonkeyPatch) -> None:
    def judge(entry: CountedRequest, recorded: Recorded) -> Verdict:
        return _judge(entry, [None, *recorded[1:]] if any(recorded[1:]) else recorded)

    _rules(patch, judge)


@_mutant("a state that is only referred to may be spent")
def references_not_checked(patch: MonkeyPatch) -> None:
    def judge(entry: CountedRequest, recorded: Recorded) -> Verdict:
        inputs = len(entry.request.inputs)
        return _judge(entry, [*recorded[: 1 + inputs], *[None] * len(entry.request.references)])

    _rules(patch, judge)


@_mutant("a conflict does not name the winner")
def conflict_names_the_wrong_winner(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.rules, "hash_of_tx_id", lambda _: bytes(32))


@_mutant("a request that came outside its window is remembered as refused")
def refusals_remembered(patch: MonkeyPatch) -> None:
    def judge(entries: list[CountedRequest], known: Mapping[bytes, bytes | None]) -> Any:
        verdicts, added = judge_all(entries, known)
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict.outcome is Outcome.TIME_WINDOW_CLOSED:
                added[TX_KEY + entry.request.tx_id] = bytes(32) + entry.offset.to_bytes(8, "big")
        return verdicts, added

    patch.setattr(replica.core.apply, "judge", judge)


@_mutant("earlier records of the same run do not count")
def earlier_records_of_a_run_do_not_count(patch: MonkeyPatch) -> None:
    def judge(entries: list[CountedRequest], known: Mapping[bytes, bytes | None]) -> Any:
        each = [judge_all([entry], known) for entry in entries]
        return [verdict for (verdict,), _ in each], {k: v for _, added in each for k, v in added.items()}

    patch.setattr(replica.core.apply, "judge", judge)


@_mutant("a window is judged by the record's own stamp, not by the highest so far")
def stamps_judged_alone(patch: MonkeyPatch) -> None:
    request = _Run._request

    def alone(self: _Run, *rest: Any) -> VoidReason | None:
        self.stamp_us = 0
        return request(self, *rest)

    patch.setattr(_Run, "_request", alone)


@_mutant("a window is judged by the reader's clock")
def windows_judged_by_the_readers_clock(patch: MonkeyPatch) -> None:
    request = _Run._request

    def now(self: _Run, record: RequestRecord, version: int) -> VoidReason | None:
        read_us = START_US + int(asyncio.get_running_loop().time() * 1e6)
        return request(self, msgspec.structs.replace(record, stamp_us=read_us), version)

    patch.setattr(_Run, "_request", now)


@_mutant("an index that cannot be read counts as one that knows nothing")
def read_error_counts_as_unspent(patch: MonkeyPatch) -> None:
    class Optimist:
        def __init__(self, index: Any) -> None:
            self._index = index

        def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
            try:
                found: list[bytes | None] = self._index.lookup(keys)
            except IndexUnreadable:
                return [None] * len(keys)
            return found

    apply = Applier.apply

    def stubborn(self: Applier, records: Any) -> Applied:
        try:
            return apply(self, records)
        except IndexUnreadable:
            applied, added = judge_records(Optimist(self.index), self.position, records)  # type: ignore[arg-type]
            self.index._disk.write(added, applied.position)  # type: ignore[attr-defined]
            self.position = applied.position
            return applied

    patch.setattr(Applier, "apply", stubborn)


# ---- the void rule, and positions ----


@_mutant("a record counts whatever activation it is from")
def records_of_any_activation_count(patch: MonkeyPatch) -> None:
    decode = replica.notary.reading.decode_record
    take = _Run.take

    def lenient(self: _Run, offset: int, value: bytes) -> None:
        def decode_as_ours(raw: bytes, format_in_force: int) -> Any:
            record = decode(raw, format_in_force)
            if isinstance(record, BarrierRecord) or self.barrier is None:
                return record
            return msgspec.structs.replace(record, activation_id=self.barrier.activation_id)

        with MonkeyPatch.context() as inner:
            inner.setattr(replica.notary.reading, "decode_record", decode_as_ours)
            take(self, offset, value)

    patch.setattr(_Run, "take", lenient)


@_mutant("a barrier of the epoch in force replaces the barrier in force")
def equal_epochs_come_into_force(patch: MonkeyPatch) -> None:
    barrier = _Run._barrier

    def lenient(self: _Run, record: BarrierRecord) -> VoidReason | None:
        if self.barrier is not None and record.epoch == self.barrier.epoch and record != self.barrier:
            self.barrier = msgspec.structs.replace(self.barrier, epoch=record.epoch - 1)
        return barrier(self, record)

    patch.setattr(_Run, "_barrier", lenient)


@_mutant("a record that the log's client stored twice counts twice")
def repeats_count(patch: MonkeyPatch) -> None:
    first_time = replica.notary.reading._first_time
    patch.setattr(replica.notary.reading, "_first_time", lambda *rest: first_time(*rest) or True)


def _saved(patch: MonkeyPatch, forget: Callable[[Position], Position]) -> None:
    """What is stored with the entries is not the whole position."""

    def apply(self: Applier, records: Any) -> Applied:
        applied, added = judge_records(self.index, self.position, records)
        self.index.write(added, forget(applied.position))
        self.position = applied.position
        return applied

    patch.setattr(Applier, "apply", apply)


@_mutant("the barrier in force is not saved with the position")
def barrier_not_saved_with_position(patch: MonkeyPatch) -> None:
    _saved(patch, lambda position: msgspec.structs.replace(position, barrier=None))


@_mutant("the sequence numbers that were met are not saved with the position")
def sequence_numbers_not_saved_with_position(patch: MonkeyPatch) -> None:
    _saved(patch, lambda position: msgspec.structs.replace(position, seen=()))


@_mutant("the highest stamp is not saved with the position")
def stamp_not_saved_with_position(patch: MonkeyPatch) -> None:
    _saved(patch, lambda position: msgspec.structs.replace(position, stamp_us=0))


@_mutant("the position is written before the entries, in a batch of its own")
def position_outside_the_batch(patch: MonkeyPatch) -> None:
    def apply(self: Applier, records: Any) -> Applied:
        applied, added = judge_records(self.index, self.position, records)
        self.index.write({}, applied.position)
        self.index.write(added, applied.position)
        self.position = applied.position
        return applied

    patch.setattr(Applier, "apply", apply)


# ---- activation ----


@_mutant("the activation does not wait for its barrier to come into force")
def barrier_not_checked(patch: MonkeyPatch) -> None:
    async def trusting(self: Reign) -> Position:
        self.activation_id = self._random_bytes(16)
        barrier = BarrierRecord(self.epoch, self.activation_id, self._name, self._database, FORMAT, 1)
        self._require_writer().append(encode_record(barrier))
        self._in_force = await self._applied(lambda _: True, "any")
        return self._in_force

    patch.setattr(Reign, "_put_barrier_in_force", trusting)
    _deaf_to(patch, "a higher barrier is in force")


def _deaf_to(patch: MonkeyPatch, reason: str) -> None:
    make = Reign.__init__

    def deaf(self: Reign, **parts: Any) -> None:
        lost = parts.pop("on_lost")
        make(self, on_lost=lambda why: None if why == reason else lost(why), **parts)

    patch.setattr(Reign, "__init__", deaf)


@_mutant("activations are told apart by their epoch only")
def epochs_without_activation_ids(patch: MonkeyPatch) -> None:
    put = Reign._put_barrier_in_force

    async def numbered(self: Reign) -> Position:
        self._random_bytes = lambda count: self.epoch.to_bytes(count, "big")
        return await put(self)

    patch.setattr(Reign, "_put_barrier_in_force", numbered)


@_mutant("a replica uses one activation id for all its activations")
def own_old_barrier_taken_for_the_new_one(patch: MonkeyPatch) -> None:
    put = Reign._put_barrier_in_force

    async def named(self: Reign) -> Position:
        self._random_bytes = lambda count: self._name.encode().ljust(count)[:count]
        return await put(self)

    patch.setattr(Reign, "_put_barrier_in_force", named)


@_mutant("an active that takes the lock again goes on in its old epoch")
def reclaim_without_a_new_epoch(patch: MonkeyPatch) -> None:
    last: dict[tuple[int, str], int] = {}
    raise_epoch = MemoryStore.raise_epoch

    async def lazy(self: MemoryStore, above: int, name: str) -> int:
        key = (id(asyncio.get_running_loop()), name)
        epoch = last.pop(key, -1)
        if epoch != above:
            epoch = last[key] = await raise_epoch(self, above, name)
        return epoch

    patch.setattr(MemoryStore, "raise_epoch", lazy)
    own_old_barrier_taken_for_the_new_one(patch)


@_mutant("what lies between the published position and the barrier is not published")
def backlog_not_published(patch: MonkeyPatch) -> None:
    async def skip(_: Any, __: Any, store: MemoryStore, ___: Any, ____: Any) -> int:
        return (await store.published()).ledger_end

    patch.setattr(replica.core.reign, "publish_backlog", skip)


@_mutant("pending commands are settled before the backlog is published")
def commands_settled_before_publishing(patch: MonkeyPatch) -> None:
    put = Reign._put_barrier_in_force

    async def hasty(self: Reign) -> Position:
        position = await put(self)
        pending = await self._store.pending(1_000)
        if pending:
            commands = tuple(replica.core.reign._settled(command) for command in pending)
            sequence = self._next_sequence()
            record = SettlementRecord(FORMAT, self.activation_id, sequence, commands)
            self._require_writer().append(encode_record(record))
            await self._applied(lambda at: any(a <= sequence < b for a, b in at.seen), "a settlement")
        return position

    patch.setattr(Reign, "_put_barrier_in_force", hasty)


@_mutant("a pending command whose transaction is in the index counts as decided")
def commands_settled_from_the_index(patch: MonkeyPatch) -> None:
    settle = Reign._settle

    class Sparing:
        def __init__(self, reign: Reign) -> None:
            self._reign, self._store = reign, reign._store

        async def pending(self, limit: int) -> list[Any]:
            pending = await self._store.pending(limit)
            known = self._reign._index.lookup([TX_KEY + command.tx_id for command in pending])
            return [command for command, value in zip(pending, known, strict=True) if value is None]

    async def spare(self: Reign) -> None:
        store, self._store = self._store, Sparing(self)  # type: ignore[assignment]
        try:
            await settle(self)
        finally:
            self._store = store

    patch.setattr(Reign, "_settle", spare)


@_mutant("pending commands are never settled")
def commands_never_settled(patch: MonkeyPatch) -> None:
    async def forget(self: Reign) -> None:
        await asyncio.sleep(0)

    patch.setattr(Reign, "_settle", forget)


# ---- admission and publishing ----


@_mutant("a submission is logged first, and its command recorded after")
def command_recorded_after_produce(patch: MonkeyPatch) -> None:
    async def admit(self: Admission, batch: list[Waiting]) -> None:
        for waiting in batch:
            self._append(waiting)
        await self._store.admit([waiting.command for waiting in batch], 0)

    patch.setattr(Admission, "_admit", admit)


@_mutant("an accepted command is not remembered")
def accepted_commands_forgotten(patch: MonkeyPatch) -> None:
    publish = MemoryDatabase.publish

    def forgetful(self: MemoryDatabase, *rest: Any) -> int:
        end = publish(self, *rest)
        self.accepted.clear()
        return end

    patch.setattr(MemoryDatabase, "publish", forgetful)


@_mutant("ledger offsets are drawn from a sequence, which a lost transaction does not give back")
def ledger_offsets_from_a_sequence(patch: MonkeyPatch) -> None:
    publish = MemoryDatabase.publish

    async def draw_first(self: MemoryStore, completions: Any, position: Position) -> int:
        database = self._database
        count = len(completions)

        def draw() -> int:
            drawn = vars(database).setdefault("drawn", 0)
            vars(database)["drawn"] = drawn + count
            return int(drawn)

        def write(start: int) -> int:
            before = len(database.completions)
            end = publish(database, completions, position)
            numbered = [(start + 1 + at, c) for at, (_, c) in enumerate(database.completions[before:])]
            database.completions[before:] = numbered
            return end

        start = await self._run("nextval", draw)
        return await self._run("publish", lambda: write(start))

    patch.setattr(MemoryStore, "publish", draw_first)


@_mutant("completions and the published position are two transactions")
def published_position_outside_the_transaction(patch: MonkeyPatch) -> None:
    publish = MemoryDatabase.publish

    async def in_two(self: MemoryStore, completions: Any, position: Position) -> int:
        database = self._database

        def first() -> None:
            before = database.position
            publish(database, completions, position)
            database.position = before

        def second() -> int:
            database.position = position
            return len(database.completions)

        await self._run("publish", first)
        return await self._run("publish_position", second)

    patch.setattr(MemoryStore, "publish", in_two)


@_mutant("what was in flight is never given back to the bound on it")
def load_never_given_back(patch: MonkeyPatch) -> None:
    patch.setattr(Load, "leave", lambda *_: None)


@_mutant("nobody watches whether records read back")
def stall_not_watched(patch: MonkeyPatch) -> None:
    async def sleep(self: Reign) -> None:
        await self._ending.wait()

    patch.setattr(Reign, "_watch_for_stall", sleep)


# ---- leadership ----


@_mutant("a passive takes an interrupted lock without waiting for the grace period")
def grace_ignored(patch: MonkeyPatch) -> None:
    may_ask = ha.election.core._may_ask

    def impatient(state: Any, tick: Any, now_s: float, settings: Any) -> bool:
        return may_ask(state, tick, now_s, replace(settings, grace_s=0.0))

    patch.setattr(ha.election.core, "_may_ask", impatient)


def _leading_in(patch: MonkeyPatch, *states: type) -> None:
    def until_s(self: Election[Any]) -> float:
        if not isinstance(self._state, states) or self._session is None or self._session.closed:
            return NEVER_S
        return float(self._session.answered_at_s + self._settings.confirmed_age_max_s)

    patch.setattr(Election, "leads_until_s", property(until_s))


@_mutant("health says active while the replica steps down")
def active_during_step_down(patch: MonkeyPatch) -> None:
    _leading_in(patch, Active, SteppingDown)


@_mutant("health says active before the barrier is applied")
def active_before_the_barrier(patch: MonkeyPatch) -> None:
    _leading_in(patch, Active, Activating)
    opened = Reign.open

    async def eager(self: Reign) -> None:
        self.serving = True
        await opened(self)

    patch.setattr(Reign, "open", eager)


@_mutant("a replica leads until it hears otherwise, however old its last answer")
def lease_ignored(patch: MonkeyPatch) -> None:
    def leads(self: Election[Any]) -> bool:
        return isinstance(self._state, Active) and self._session is not None and not self._session.closed

    patch.setattr(Election, "is_leading", leads)


@_mutant("the lease counts from the answer, not from when the question was sent")
def lease_counted_from_the_answer(patch: MonkeyPatch) -> None:
    answered = MemoryLockSession.answered_at_s.fget
    assert answered is not None
    seen: dict[int, tuple[float, float]] = {}

    def late_s(self: MemoryLockSession) -> float:
        sent_s = float(answered(self))
        known_s, heard_s = seen.get(id(self), (NEVER_S, NEVER_S))
        if sent_s > known_s:
            heard_s = self._clock.boottime_s()
            seen[id(self)] = (sent_s, heard_s)
        return heard_s

    patch.setattr(MemoryLockSession, "answered_at_s", property(late_s))


# ---- defects that were found on the way ----


@_mutant("the log's end is compared with what was applied after it was asked for")
def end_of_the_log_compared_too_late(patch: MonkeyPatch) -> None:
    async def watch(self: Follower) -> None:
        while True:
            self._known_end = await self._log.end_offset()
            self._reached_at_s = self._clock.boottime_s()
            if self._known_end <= self.applied_offset:
                raise LogRefused("the log ends before what is applied")
            await self._clock.sleep_s(self._settings.read_wait_s)

    patch.setattr(Follower, "_watch_end", watch)


@_mutant("a lost lock session counts as a bug of the replica, which ends")
def lost_session_ends_the_process(patch: MonkeyPatch) -> None:
    async def run(self: Reign, work: Any) -> None:
        try:
            await work
        except Exception as error:
            self._on_broken(error)

    patch.setattr(Reign, "_run", run)
