"""Defects in answers, and in when they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from pytest import MonkeyPatch

import replica.active.look_ups
import replica.active.receipt_signer
import replica.active.server
import replica.following.apply
from replica.active.activation import Activation
from replica.active.answering import Answering
from replica.active.appending import Appender
from replica.active.look_ups import LookUps
from replica.active.own_records import OwnRead, OwnRecords
from replica.active.server import Server
from replica.active.waiting import Waiting
from replica.following.apply import Applied, judge_reading, judge_records
from replica.index.interface import Index
from replica.notary.answers import NotNow, Refused
from replica.notary.codes import Code
from replica.notary.counted import CountedRequest
from replica.notary.receipts import Receipt, make_receipts
from replica.notary.records import RequestRecord, encode_record
from tests.simulation.mutants.registry import mutant


@mutant("a submission is answered when its record is appended, by what the index says then")
def answer_before_read_back(patch: MonkeyPatch) -> None:
    make = Server.__init__

    def hasty(self: Server, *parts: Any, **named: Any) -> None:
        make(self, *parts, **named)
        append = self.appender.append

        def append_and_answer(admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
            failed, sent = append(admitted), self.appender.own.sent
            for ahead, sequence in enumerate(list(sent)):
                one, record = sent.pop(sequence)
                self.intake.leave(1, one.states)
                answer(self, one, record, ahead)
            return failed

        self.appender.append = append_and_answer  # type: ignore[method-assign]

    def answer(self: Server, waiting: Waiting, record: RequestRecord, ahead: int) -> None:
        parts = self._parts
        position = parts.follower.position
        assert position is not None
        start = msgspec.structs.replace(position, seen=())
        run = [(start.offset + 1, encode_record(record))]
        applied, _ = judge_records(parts.index, start, run)
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                places = {"offset": entry.offset + ahead, "ledger_offset": entry.ledger_offset + ahead}
                guess = msgspec.structs.replace(entry, **places)
                self._answering.answer_decided([(waiting, guess, verdict)], waiting.states)

    patch.setattr(Server, "__init__", hasty)


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
    def take(self: OwnRecords, applied: Applied) -> OwnRead:
        read = OwnRead([], [], [])
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                waits = [number for number, (w, _) in self.sent.items() if w.command.tx_id == entry.request.tx_id]
                if waits:
                    read.decided.append((self.sent.pop(waits[-1])[0], entry, verdict))
        return read

    patch.setattr(OwnRecords, "take", take)


@mutant("who waits is filed under the sequence number of the next one of the batch")
def sequence_numbers_slip(patch: MonkeyPatch) -> None:
    append = Appender.append

    def slipped(self: Appender, admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
        sent = self.own.sent
        before = set(sent)
        failed = append(self, admitted)
        numbers = [number for number in sent if number not in before]
        slipping = [sent[number] for number in numbers]
        sent.update(zip(numbers, slipping[1:] + slipping[:1], strict=True))
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

    patch.setattr(replica.active.server, "NotNow", certain)


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
