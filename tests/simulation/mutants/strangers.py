"""Defects that let one caller, or anyone with a login, harm all others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from pytest import MonkeyPatch

import ha.lock.notes
import replica.active.admission
import replica.active.own_records
from ha.lock.interface import ReleaseNote
from replica.active.failures import SubmissionFailures
from replica.active.own_records import OwnRead, OwnRecords
from replica.following.apply import Applied
from replica.notary.answers import NotNow
from replica.notary.records import Record
from tests.simulation.mutants.registry import mutant


@mutant("a submission that cannot be read ends the replica instead of being answered")
def failure_of_one_raised_for_all(patch: MonkeyPatch) -> None:
    def answer(self: SubmissionFailures, submission_id: str, error: Exception) -> NotNow:
        raise error

    patch.setattr(SubmissionFailures, "answer", answer)


@mutant("a record is made without regard to its size, and the log refuses it with all that come with it")
def records_of_any_size(patch: MonkeyPatch) -> None:
    def encode(record: Record) -> bytes:
        return msgspec.msgpack.encode(record)

    patch.setattr(replica.active.own_records, "encode_record", encode)


@mutant("a request that no reader can read is waited for as if it could still be judged")
def unreadable_request_waited_for(patch: MonkeyPatch) -> None:
    take = OwnRecords.take

    def waiting_on(self: OwnRecords, applied: Applied) -> OwnRead:
        sent = dict(self.sent)
        read = take(self, applied)
        unreadable = [waiting for _, waiting in read.unreadable]
        self.sent.update((number, one) for number, one in sent.items() if one[0] in unreadable)
        return msgspec.structs.replace(read, unreadable=[])

    patch.setattr(OwnRecords, "take", waiting_on)


@mutant("what is told on the lock's channel is read whatever it is")
def notes_of_any_depth(patch: MonkeyPatch) -> None:
    def decode(text: str) -> ReleaseNote | None:
        found: Any = json.loads(text)
        return ReleaseNote(found["by"], found["to"])

    patch.setattr(ha.lock.notes, "decode_note", decode)
