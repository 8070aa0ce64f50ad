"""Defects where commands are decided in the log: their judging, its raise, and what an active answers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pytest import MonkeyPatch

import replica.active.admission
import replica.active.opening
import replica.following.apply
import replica.notary.rules
from replica.active.admission import Admission
from replica.active.answering import Answering
from replica.active.appending import Appender
from replica.active.terms import Terms, terms_of
from replica.active.waiting import Waiting, send
from replica.link.interface import SubmitOptions
from replica.notary import acceptances
from replica.notary.acceptances import Acceptance, encode_acceptance, first_key, later_key
from replica.notary.answers import Accepted, NotNow
from replica.notary.counted import CountedRequest
from replica.notary.formats import Formats
from replica.notary.position import Position
from replica.notary.reading import RunReader, VoidReason
from replica.notary.records import BarrierRecord, NoteRecord
from replica.notary.rules import RULES, Outcome, Recorded, Verdict
from replica.notary.rules import judge as judge_all
from replica.store.interface import Command
from tests.next_version.release import PRESENT
from tests.simulation.doubles.disk import Disk
from tests.simulation.mutants.registry import mutant
from tests.simulation.parties import registering
from tests.simulation.plan import START_US

_judge = RULES[PRESENT.rules]


@mutant("a notarised command is not remembered")
def acceptance_forgotten(patch: MonkeyPatch) -> None:
    patch.setattr(replica.following.apply, "judge", lambda *rest: judge_all(*rest)._replace(accepted={}))


@mutant("a deduplication period is judged by the reader's clock")
def period_by_the_readers_clock(patch: MonkeyPatch) -> None:
    def counts(acceptance: Acceptance, _: int, deduplication_us: int, after: int | None) -> bool:
        now_us = START_US + int(asyncio.get_running_loop().time() * 1e6)
        return acceptances.counts(acceptance, now_us, deduplication_us, after)

    patch.setattr(replica.notary.rules, "counts", counts)


@mutant("the newest acceptance is taken first, and dropped when it is not below the record")
def newest_taken_before_filtering(patch: MonkeyPatch) -> None:
    newest = Disk.newest

    def hasty(self: Disk, prefixes: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        found = newest(self, prefixes, [2**63 - 1] * len(below))
        return [
            None if value is None or int.from_bytes(value[-8:], "big") >= offset else value
            for value, offset in zip(found, below, strict=True)
        ]

    patch.setattr(Disk, "newest", hasty)


@mutant("an acceptance counts although its period is over")
def expired_acceptance_believed(patch: MonkeyPatch) -> None:
    patch.setattr(
        replica.notary.rules, "counts", lambda one, _now, period, after: acceptances.counts(one, 0, period, after)
    )


@mutant("a repeated success is remembered, which prolongs the period")
def deduplicated_one_remembered(patch: MonkeyPatch) -> None:
    def judge(entries: Sequence[CountedRequest], *rest: Any) -> Any:
        judged = judge_all(entries, *rest)
        for entry, verdict in zip(entries, judged.verdicts, strict=True):
            if verdict.outcome is Outcome.DEDUPLICATED:
                judged.accepted[later_key(entry.change_id, entry.offset)] = _acceptance_of(entry)
        return judged

    patch.setattr(replica.following.apply, "judge", judge)


def _acceptance_of(entry: CountedRequest) -> bytes:
    return encode_acceptance(
        entry.request.tx_id, entry.content_digest, entry.judged_us, entry.ledger_offset, entry.offset
    )


@mutant("a command is remembered only where its transaction is notarised for the first time")
def accepted_only_where_new(patch: MonkeyPatch) -> None:
    def judge(entries: Sequence[CountedRequest], *rest: Any) -> Any:
        judged = judge_all(entries, *rest)
        for entry, verdict in zip(entries, judged.verdicts, strict=True):
            if verdict.notarised_offset != entry.offset:
                for key in (first_key(entry.change_id), later_key(entry.change_id, entry.offset)):
                    if judged.accepted.get(key) == _acceptance_of(entry):
                        del judged.accepted[key]
        return judged

    patch.setattr(replica.following.apply, "judge", judge)


@mutant("an activation writes what the database says, although the log has newer rules", registering)
def rules_fall_back_with_the_database(patch: MonkeyPatch) -> None:
    def written(raised: Formats, _: BarrierRecord | None) -> Formats:
        return raised

    patch.setattr(replica.active.opening, "to_write", written)


@mutant("a position is written apart from the entries of its run")
def position_written_apart(patch: MonkeyPatch) -> None:
    write = Disk.write

    def apart(self: Disk, entries: Mapping[bytes, bytes], position: Position) -> None:
        write(self, {}, position)
        write(self, entries, position)

    patch.setattr(Disk, "write", apart)


@mutant("a repeated success names where the command was accepted, not where its transaction was notarised first")
def offset_of_the_acceptance_answered(patch: MonkeyPatch) -> None:
    def judge(
        entry: CountedRequest, recorded: Recorded, newest: Acceptance | None, registration: bytes | None
    ) -> Verdict:
        verdict = _judge(entry, recorded, newest, registration)
        if verdict.outcome is Outcome.DEDUPLICATED and newest is not None:
            return msgspec.structs.replace(verdict, notarised_offset=newest.offset)
        return verdict

    patch.setitem(RULES, PRESENT.rules, judge)


@mutant("the active forgets which commands are on their way")
def in_flight_forgotten(patch: MonkeyPatch) -> None:
    append = Appender.append

    def forgetful(self: Appender, admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
        failed = append(self, admitted)
        self.commands.clear()
        return failed

    patch.setattr(Appender, "append", forgetful)


@mutant("a command counts as on its way after its record was read back")
def in_flight_for_ever(patch: MonkeyPatch) -> None:
    patch.setattr(Appender, "settle", lambda self, settled: None)


@mutant("a command that was accepted is answered as a success, whatever it was accepted with")
def acceptance_of_another_answered(patch: MonkeyPatch) -> None:
    patch.setattr(replica.active.admission, "is_same", lambda command, acceptance: True)


@mutant("a success that is repeated from the index names the newest offset")
def index_answer_with_wrong_offset(patch: MonkeyPatch) -> None:
    accepted = Admission._accepted

    def wrong(self: Admission, command: Command) -> int:
        accepted(self, command)
        return self._follower.applied_offset

    patch.setattr(Admission, "_accepted", wrong)


@mutant("an asynchronous submission is accepted before its record is read back")
def accepted_before_read_back(patch: MonkeyPatch) -> None:
    append = Appender.append

    def hasty(self: Appender, admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
        failed = append(self, admitted)
        taken = [one for one in admitted if one.options.asynchronous and one not in [each for each, _ in failed]]
        send((one, Accepted(one.command.submission_id, 0.1, -1)) for one in taken)
        return failed

    patch.setattr(Appender, "append", hasty)
    patch.setattr(Answering, "_confirm_accepted", lambda self, answered: None)


@mutant("a ledger offset is taken for a log offset")
def ledger_offset_taken_for_a_log_offset(patch: MonkeyPatch) -> None:
    def counts(acceptance: Acceptance, judged_us: int, deduplication_us: int, after: int | None) -> bool:
        if after is not None:
            return acceptance.offset > after
        return acceptances.counts(acceptance, judged_us, deduplication_us, after)

    patch.setattr(replica.notary.rules, "counts", counts)


@mutant("the period that a submission asks for is not logged")
def terms_not_logged(patch: MonkeyPatch) -> None:
    append = Appender.append

    def plain(self: Appender, admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
        default = terms_of(SubmitOptions(), self._parts.settings.deduplication_max_s)
        assert isinstance(default, Terms)
        for waiting in admitted:
            waiting.terms = default
        return append(self, admitted)

    patch.setattr(Appender, "append", plain)


@mutant("a period above the longest is shortened, and nobody is notified")
def period_clamped(patch: MonkeyPatch) -> None:
    def clamped(options: SubmitOptions, max_s: float) -> Terms:
        wanted_s = max_s if options.deduplication_s is None else options.deduplication_s
        return Terms(round(min(max(0.0, wanted_s), max_s) * 1e6))

    patch.setattr(replica.active.admission, "terms_of", clamped)


@mutant("an officer's note takes a ledger offset, as a request does", registering)
def note_takes_a_ledger_offset(patch: MonkeyPatch) -> None:
    read_note = RunReader.read_note

    def counting(self: RunReader, record: NoteRecord) -> VoidReason | None:
        void = read_note(self, record)
        self.ledger_offset += void is None
        return void

    patch.setattr(RunReader, "read_note", counting)
