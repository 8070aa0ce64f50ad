"""Defects in what is answered, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from pytest import MonkeyPatch

import replica.active.activation
import replica.active.publisher
import replica.active.receipt_signer
import replica.following.apply
import replica.notary.reading
import replica.notary.rules
import replica.participant
from replica.active.activation import Activation
from replica.active.waiting import Waiting
from replica.following.apply import Applied, judge_records
from replica.notary.answers import NotNow, Refused
from replica.notary.counted import CountedRequest
from replica.notary.errors import Code
from replica.notary.receipts import Receipt, make_receipts
from replica.notary.records import (
    FORMAT,
    RequestRecord,
    encode_record,
)
from replica.participant import Participant
from tests.simulation.mutants.registry import mutant


@mutant("a submission is answered when its record is appended, by what the index says then")
def answer_before_read_back(patch: MonkeyPatch) -> None:
    append = Activation._append

    def hasty(self: Activation, admitted: Sequence[Waiting]) -> None:
        for waiting in admitted:
            answer(self, waiting)

    def answer(self: Activation, waiting: Waiting) -> None:
        ahead = len(self._waiting)
        append(self, [waiting])
        self._waiting.popitem()
        self.budget.leave(1, waiting.states)
        record = RequestRecord(FORMAT, self.activation_id, 0, self._clock.wall_us(), waiting.submission)
        start = msgspec.structs.replace(self._follower.position, seen=())
        run = [(start.offset + 1, encode_record(record))]
        applied, _ = judge_records(self._index, start, run)
        ((entry, verdict),) = applied.decided()
        if isinstance(entry, CountedRequest) and verdict is not None:
            entry = msgspec.structs.replace(entry, offset=entry.offset + ahead)
            self._answer_decided([(waiting, entry, verdict)])

    patch.setattr(Activation, "_append", hasty)


@mutant("what the index said of a state once is kept in memory and believed for ever")
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

    patch.setattr(
        replica.following.apply, "judge_records", lambda index, *rest: judge_records(Remembering(index), *rest)
    )


@mutant("answers find their submission by transaction id instead of sequence number")
def answers_matched_by_transaction_id(patch: MonkeyPatch) -> None:
    def match(self: Activation, applied: Applied) -> list[Any]:
        answered = []
        for entry, verdict in applied.decided():
            if isinstance(entry, CountedRequest) and verdict is not None:
                waits = [s for s, w in self._waiting.items() if w.command.tx_id == entry.request.tx_id]
                if waits:
                    answered.append((self._waiting.pop(waits[-1]), entry, verdict))
        return answered

    patch.setattr(Activation, "_match", match)


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
    answer = Activation._answer_accepted

    def wrong(self: Activation, accepted: Sequence[tuple[Waiting, int]]) -> None:
        answer(self, [(waiting, self._follower.applied_offset) for waiting, _ in accepted])

    patch.setattr(Activation, "_answer_accepted", wrong)


@mutant('"not found" is said without asking the lock, nor the log for its end')
def not_found_without_the_lock(patch: MonkeyPatch) -> None:
    async def sure(self: Activation) -> None:
        await asyncio.sleep(0)

    patch.setattr(Activation, "confirm_lock", sure)
    patch.setattr(replica.participant, "_denies", lambda told: False)


@mutant("a look-up is answered by whoever gets it")
def look_ups_answered_by_anybody(patch: MonkeyPatch) -> None:
    async def look_up(self: Participant[Any], tx_ids: list[bytes]) -> dict[bytes, Any]:
        await asyncio.sleep(0)
        return await self._find(tx_ids)

    patch.setattr(Participant, "_look_up", look_up)
