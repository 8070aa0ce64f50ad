"""Defects that let one caller, or anyone with a login, harm all others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from pytest import MonkeyPatch

import ha.lock.notes
import replica.active.admission
import replica.active.appending
from ha.lock.interface import ReleaseNote
from replica.active.failures import SubmissionFailures
from replica.active.read_back import ReadBack
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

    patch.setattr(replica.active.appending, "encode_record", encode)


@mutant("a request that no reader can read is waited for as if it could still be judged")
def unreadable_request_waited_for(patch: MonkeyPatch) -> None:
    patch.setattr(ReadBack, "answer_unreadable", lambda self, applied: None)


@mutant("what is told on the lock's channel is read whatever it is")
def notes_of_any_depth(patch: MonkeyPatch) -> None:
    def decode(text: str) -> ReleaseNote | None:
        found: Any = json.loads(text)
        return ReleaseNote(found["by"], found["to"])

    patch.setattr(ha.lock.notes, "decode_note", decode)
