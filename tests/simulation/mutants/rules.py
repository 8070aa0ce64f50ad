"""Defects in the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pytest import MonkeyPatch

import replica.following.apply
import replica.notary.reading
import replica.notary.rules
from replica.following.apply import Applied, Applier, judge_records
from replica.notary.counted import CountedRequest
from replica.notary.errors import IndexUnreadable
from replica.notary.reading import RunReader, VoidReason
from replica.notary.records import (
    RequestRecord,
)
from replica.notary.rules import TX_KEY, Outcome, Recorded, Verdict
from replica.notary.rules import judge as judge_all
from tests.simulation.mutants.registry import mutant
from tests.simulation.plan import START_US

_judge = replica.notary.rules._by_states


def _rules(patch: MonkeyPatch, judge: Callable[[CountedRequest, Recorded], Verdict]) -> None:
    patch.setattr(replica.notary.rules, "_by_states", judge)


@mutant("an old record is judged on what the index learnt later")
def old_records_judged_on_a_newer_index(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.rules, "if_recorded_before", lambda _, value: value)


@mutant("a transaction id is remembered without its content")
def id_remembered_without_content(patch: MonkeyPatch) -> None:
    def judge(entry: CountedRequest, recorded: Recorded) -> Verdict:
        known = recorded[0]
        if known is not None:
            return Verdict(Outcome.NOTARISED, int.from_bytes(known[32:], "big"))
        return _judge(entry, recorded)

    _rules(patch, judge)


@mutant("conflicts are looked for before the transaction's own earlier success")
def conflicts_before_idempotency(patch: MonkeyPatch) -> None:
    def judge(entry: CountedRequest, recorded: Recorded) -> Verdict:
        return _judge(entry, [None, *recorded[1:]] if any(recorded[1:]) else recorded)

    _rules(patch, judge)


@mutant("a state that is only referred to may be spent")
def references_not_checked(patch: MonkeyPatch) -> None:
    def judge(entry: CountedRequest, recorded: Recorded) -> Verdict:
        inputs = len(entry.request.inputs)
        return _judge(entry, [*recorded[: 1 + inputs], *[None] * len(entry.request.references)])

    _rules(patch, judge)


@mutant("a conflict does not name the winner")
def conflict_names_the_wrong_winner(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.rules, "hash_of_tx_id", lambda _: bytes(32))


@mutant("a request that came outside its window is remembered as refused")
def refusals_remembered(patch: MonkeyPatch) -> None:
    def judge(entries: list[CountedRequest], *rest: Any) -> Any:
        verdicts, added, accepted = judge_all(entries, *rest)
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict.outcome is Outcome.TIME_WINDOW_CLOSED:
                added[TX_KEY + entry.request.tx_id] = bytes(32) + entry.offset.to_bytes(8, "big")
        return verdicts, added, accepted

    patch.setattr(replica.following.apply, "judge", judge)


@mutant("earlier records of the same run do not count")
def earlier_records_of_a_run_do_not_count(patch: MonkeyPatch) -> None:
    def judge(entries: list[CountedRequest], keys: Any, known: Any, newest: Any, registered: Any) -> Any:
        found = iter(known)
        each = [
            judge_all([entry], [own], [next(found) for _ in own], [newest[at]], registered and [registered[at]])
            for at, (entry, own) in enumerate(zip(entries, keys, strict=True))
        ]
        added = {key: value for one in each for key, value in one.added.items()}
        return [one.verdicts[0] for one in each], added, {k: v for one in each for k, v in one.accepted.items()}

    patch.setattr(replica.following.apply, "judge", judge)


@mutant("a window is judged by the record's own stamp, not by the highest so far")
def stamps_judged_alone(patch: MonkeyPatch) -> None:
    request = RunReader.read_request

    def alone(self: RunReader, *rest: Any) -> VoidReason | None:
        self.stamp_us = 0
        return request(self, *rest)

    patch.setattr(RunReader, "read_request", alone)


@mutant("a window is judged by the reader's clock")
def windows_judged_by_the_readers_clock(patch: MonkeyPatch) -> None:
    request = RunReader.read_request

    def now(self: RunReader, record: RequestRecord, version: int) -> VoidReason | None:
        read_us = START_US + int(asyncio.get_running_loop().time() * 1e6)
        return request(self, msgspec.structs.replace(record, stamp_us=read_us), version)

    patch.setattr(RunReader, "read_request", now)


@mutant("an index that cannot be read counts as one that knows nothing")
def read_error_counts_as_unspent(patch: MonkeyPatch) -> None:
    class Optimist:
        def __init__(self, index: Any) -> None:
            self._index = index
            self.newest = index._disk.newest

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
