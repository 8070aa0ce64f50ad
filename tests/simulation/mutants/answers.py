"""Defects in answers, and in when they are given."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any, cast

import msgspec
from pytest import MonkeyPatch

import replica.active.activation
import replica.active.look_ups
import replica.active.read_back
import replica.active.receipt_signer
import replica.following.apply
from replica.active.activation import Activation
from replica.active.answering import Answering
from replica.active.appending import Appender
from replica.active.look_ups import LookUps
from replica.active.waiting import Waiting
from replica.following.apply import Applied, judge_reading, judge_records
from replica.index.interface import Index
from replica.notary.answers import NotNow, Refused
from replica.notary.counted import CountedRequest
from replica.notary.errors import Code
from replica.notary.receipts import Receipt, make_receipts
from replica.notary.records import (
    encode_record,
)
from tests.simulation.mutants.registry import mutant


@mutant("a submission is answered when its record is appended, by what the index says then")
def answer_before_read_back(patch: MonkeyPatch) -> None:
    make = Activation.__init__

    def hasty(self: Activation, *parts: Any, **named: Any) -> None:
        make(self, *parts, **named)
        append = self.appender.append

        def append_and_answer(admitted: Sequence[Waiting]) -> dict[int, NotNow]:
            failed, waiting = append(admitted), self.appender.waiting
            for ahead, sequence in enumerate(list(waiting)):
                one = waiting.pop(sequence)
                self.intake.leave(1, one.states)
                answer(self, one, ahead)
            return failed

        self.appender.append = append_and_answer  # type: ignore[method-assign]

    def answer(self: Activation, waiting: Waiting, ahead: int) -> None:
        parts = self._parts
        record = self.appender._record_of(waiting, parts.clock.wall_us())
        position = parts.follower.position
        assert position is not None
        start = msgspec.structs.replace(position, seen=())
        run = [(start.offset + 1, encode_record(record))]
        applied, _ = judge_records(parts.index, start, run)
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                guess = msgspec.structs.replace(entry, offset=entry.offset + ahead)
                offsets = {guess.offset: self.publisher.ledger_end + 1 + ahead}
                self.admission._answering.answer_decided([(waiting, guess, verdict)], waiting.states, offsets)

    patch.setattr(Activation, "__init__", hasty)


@mutant("what the index said of a state once is kept in memory and believed for ever")
def verdict_from_memory(patch: MonkeyPatch) -> None:
    memories: dict[int, dict[bytes, bytes | None]] = {}

    class Remembering:
        def __init__(self, index: Any) -> None:
            self._index = index
            self.newest = index.newest
            self._memory = memories.setdefault(id(index), {})

        def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
            for key, value in zip(keys, self._index.lookup(keys), strict=True):
                self._memory.setdefault(key, value)
            return [self._memory[key] for key in keys]

    patch.setattr(
        replica.following.apply,
        "judge_reading",
        lambda index, *rest: judge_reading(cast(Index, Remembering(index)), *rest),
    )


@mutant("answers find their submission by transaction id instead of sequence number")
def answers_matched_by_transaction_id(patch: MonkeyPatch) -> None:
    def match(applied: Applied, _: bytes, waiting: MutableMapping[int, Waiting]) -> list[Any]:
        answered = []
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                waits = [s for s, w in waiting.items() if w.command.tx_id == entry.request.tx_id]
                if waits:
                    answered.append((waiting.pop(waits[-1]), entry, verdict))
        return answered

    patch.setattr(replica.active.read_back, "match", match)


@mutant("who waits is filed under the sequence number of the next one of the batch")
def sequence_numbers_slip(patch: MonkeyPatch) -> None:
    append = Appender.append

    def slipped(self: Appender, admitted: Sequence[Waiting]) -> dict[int, NotNow]:
        before = set(self.waiting)
        failed = append(self, admitted)
        numbers = [number for number in self.waiting if number not in before]
        waiting = [self.waiting[number] for number in numbers]
        self.waiting.update(zip(numbers, waiting[1:] + waiting[:1], strict=True))
        return failed

    patch.setattr(Appender, "append", slipped)


@mutant("a receipt covers the transaction id only")
def receipt_without_content(patch: MonkeyPatch) -> None:
    def careless(notarised: Sequence[tuple[bytes, bytes]], *rest: Any) -> list[Receipt]:
        receipts = make_receipts([(tx_id, bytes(32)) for tx_id, _ in notarised], *rest)
        return [
            msgspec.structs.replace(receipt, content_digest=digest)
            for receipt, (_, digest) in zip(receipts, notarised, strict=True)
        ]

    patch.setattr(replica.active.receipt_signer, "make_receipts", careless)


@mutant("what was purged at a step-down is answered as a refusal, not as unknown")
def unknown_answered_as_refused(patch: MonkeyPatch) -> None:
    def certain(code: str, detail: str, retry_after_s: float) -> Any:
        if code == Code.OUTCOME_UNKNOWN.name:
            return Refused(Code.TIME_WINDOW_CLOSED.name, bytes(32))
        return NotNow(code, detail, retry_after_s)

    patch.setattr(replica.active.activation, "NotNow", certain)


@mutant("the recorded answer of an accepted command names the newest offset instead of its own")
def recorded_answer_with_wrong_offset(patch: MonkeyPatch) -> None:
    answer = Answering.answer_accepted

    def wrong(self: Answering, accepted: Sequence[tuple[Waiting, int]]) -> None:
        assert isinstance(self._appender, Appender)
        newest = self._appender._parts.follower.applied_offset
        answer(self, [(one, newest) for one, _ in accepted])

    patch.setattr(Answering, "answer_accepted", wrong)


@mutant('"not found" is said without asking the lock, nor the log for its end')
def not_found_without_the_lock(patch: MonkeyPatch) -> None:
    async def sure(self: Activation) -> None:
        await asyncio.sleep(0)

    patch.setattr(Activation, "confirm_lock", sure)
    patch.setattr(replica.active.look_ups, "denies", lambda answer: False)


@mutant("a look-up is answered by whoever gets it")
def look_ups_answered_by_anybody(patch: MonkeyPatch) -> None:
    async def look_up(self: LookUps, tx_ids: list[bytes]) -> dict[bytes, Any]:
        await asyncio.sleep(0)
        return await self._find(tx_ids)

    patch.setattr(LookUps, "look_up_confirmed", look_up)
