"""Defects in what keys are judged by: officers, registrations, and the filter before the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest import MonkeyPatch

import replica.active.admission
import replica.following.apply
import replica.notary.parties
import replica.notary.rules
from replica.active.admission import Admission
from replica.active.waiting import Waiting
from replica.index.interface import OFFSET_END, Index
from replica.index.newest import newest_with
from replica.notary.answers import Answer
from replica.notary.counted import CountedRequest
from replica.notary.parties import registration_id
from replica.notary.reading import RunReader, VoidReason
from replica.notary.records import RequestRecord
from replica.notary.rules import Judged, Outcome, key_outcome
from replica.notary.rules import judge as judge_all
from replica.notary.terms import Signed
from tests.next_version.release import PRESENT
from tests.simulation.mutants.registry import mutant
from tests.simulation.parties import registering


@mutant("a registration counts for requests before it, if the replica has read it already", registering)
def registration_counts_before_its_offset(patch: MonkeyPatch) -> None:
    def newest(index: Index, requests: Sequence[CountedRequest], added: Mapping[bytes, bytes]) -> list[bytes | None]:
        ids = [registration_id(one.request.party, one.record.public_key) for one in requests]
        ends = [OFFSET_END] * len(ids)
        return newest_with(added, ids, ends, index.newest(ids, ends))

    patch.setattr(replica.following.apply, "newest_registrations", newest)


@mutant("a retry of what was notarised is refused after the key's revocation", registering)
def key_judged_before_deduplication(patch: MonkeyPatch) -> None:
    def judge(entries: Sequence[CountedRequest], keys: Any, known: Any, newest: Any, registered: Any) -> Judged:
        asked = zip(entries, newest, registered, strict=True)
        seen = [None if key_outcome(registration, entry.judged_us) else found for entry, found, registration in asked]
        return judge_all(entries, keys, known, seen, registered)

    patch.setattr(replica.following.apply, "judge", judge)


@mutant("a revoked key goes on signing", registering)
def revocation_ignored(patch: MonkeyPatch) -> None:
    def outcome(registration: bytes | None, _: int) -> Outcome | None:
        return Outcome.PARTY_UNKNOWN if registration is None else None

    patch.setattr(replica.notary.rules, "key_outcome", outcome)


@mutant("what an officer signed has its effect whatever was registered since", registering)
def registration_played_again(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.parties, "follows_on", lambda note, before: True)
    patch.setattr("replica.active.noting.why_no_effect", lambda *_: None)


@mutant("the filter calls a key unknown that it has not looked for", registering)
def filter_knows_nobody(patch: MonkeyPatch) -> None:
    patch.setattr(replica.active.admission, "registration_id", lambda *_: b"p" + bytes(32))


@mutant("the filter lets bytes that nobody can read end the process", registering)
def filter_reads_everything(patch: MonkeyPatch) -> None:
    patch.setattr(replica.active.admission, "BadRequest", ZeroDivisionError)


@mutant("the filter refuses, and the caller gets no answer", registering)
def filter_is_silent(patch: MonkeyPatch) -> None:
    refuse = Admission._refuse_keys

    def silent(self: Admission, fresh: Sequence[Waiting]) -> list[tuple[Waiting, Answer]]:
        for waiting, _ in (refused := refuse(self, fresh)):
            waiting.answered = True
        return refused

    patch.setattr(Admission, "_refuse_keys", silent)


@mutant("a reader judges by the rules before the raise", registering)
def rules_stay_as_they_were(patch: MonkeyPatch) -> None:
    count = RunReader.count_request

    def count_as_before(self: RunReader, record: RequestRecord, signed: Signed, version: int) -> VoidReason | None:
        return count(self, record, signed, min(version, PRESENT.rules))

    patch.setattr(RunReader, "count_request", count_as_before)
