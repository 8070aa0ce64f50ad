"""The check: every answer ever given, and every completion ever published, must agree with the log.

The log gives one order to everything, so the check is polynomial: replay the log in the reference judge, compare the
answers, and walk the log backwards once for real-time order. Invariants (docs/architecture.md) and findings:

    I1  no state consumed by two successes           DOUBLE_SPEND
    I2  nothing answered is lost or changed          LOST_ANSWER, OK_FOR_VOID, WRONG_RECORD, WRONG_VERDICT,
                                                     WRONG_DIGEST, WRONG_TIME, DENIED, SHARED_RECORD, RECEIPT_INVALID,
                                                     REFUSED_WRONGLY
    I3  a conflict names a winner sent before it     WRONG_CONFLICT, WINNER_FROM_NOWHERE, RECORD_FROM_NOWHERE
    I4  all inputs are consumed, or none             follows from the judge; WRONG_CONFLICT, WRONG_VERDICT
    I5  a success stays, with its log offset         WRONG_OFFSET, WRONG_VERDICT
    I6  log order embeds real-time order             ORDER_BROKEN
    I7  one replica per epoch, epochs rise           PASSIVE_ANSWERED (barriers: the void rule itself)
    I8  ledger offsets dense, completions once       COMPLETION_*, COMMAND_*
    I10 a passive replica never answers              PASSIVE_ANSWERED, OK_FOR_VOID; not where all serve
    I11 what is not definite is unknown              an open operation may be in the log or not; else HistoryError
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from replica.checker.answers import AnswerCheck
from replica.checker.completions import CompletionCheck, CompletionRow, completions_of
from replica.checker.findings import Findings, Report, Summary
from replica.checker.history import Event
from replica.checker.judge import (
    Judged,
    JudgedBarrier,
    JudgedGenesis,
    JudgedLost,
    JudgedNote,
    JudgedRequest,
    ReferenceJudge,
)
from replica.checker.operations import collect
from replica.notary.receipts import Receipt, verify_receipt
from replica.notary.records import SignOfLifeRecord
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.notary.signatures import notary_signature_holds

_SIGNATURES_KEPT = 65_536  # one signature covers a batch: most are met again soon


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What the history and the completions cover of the log.

    tokens: whether callers have to show one.
    first_offset: records below it are older than the history. complete: the history has every attempt of every client.
    published_offset: the completions cover the log up to this offset; None: to its end.
    pruned_to: completions up to this ledger offset may be gone, and are not looked for.
    all_serve: any replica answers, whoever leads (`serving = "all"`).
    """

    tokens: bool = True
    first_offset: int = 0
    complete: bool = True
    published_offset: int | None = None
    pruned_to: int = 0
    all_serve: bool = False


def receipt_verifier(*notary_keys: bytes) -> Callable[[Receipt], bool]:
    """Return a verifier of receipts by any of the notary's public keys. It checks a signature over a batch once."""
    holds = lru_cache(_SIGNATURES_KEPT)(notary_signature_holds)
    return lambda receipt: receipt.notary_key in notary_keys and verify_receipt(receipt, receipt.notary_key, holds)


def check(
    history: Iterable[Event],
    log: Iterable[tuple[int, bytes]],
    *,
    completions: Iterable[CompletionRow] | None = None,
    verify: Callable[[Receipt], bool] | None = None,
    scope: Scope | None = None,
    salvages: Salvages = NO_SALVAGES,
) -> Report:
    """Check a history, and the completions in order of their ledger offsets, against the whole log (offset, value).

    `salvages`: those that lost records of the log name; answers about lost records are judged by them.

    Raises SalvageMissing when one of them is not given, HistoryError when the history is not valid, InvariantBroken
    when the log has a gap, and FormatUnknown when a newer release wrote it. Memory grows with operations, consumed
    states and commands: about 1.9 kB for an operation of four inputs. The log is streamed.
    """
    scope = scope or Scope()
    findings, summary = Findings(), Summary()
    operations = collect(history, verify, findings, summary, tokens=scope.tokens)
    answers = AnswerCheck(operations, scope.first_offset, scope.complete, findings, all_serve=scope.all_serve)
    published = None
    if completions is not None:
        published = CompletionCheck(completions, findings)
    tally: Counter[str] = Counter()
    voids: Counter[str] = Counter()
    judge = ReferenceJudge(salvages)
    for judged in judge.judge(log):
        summary.records += 1
        _count(judged, tally, voids, summary)
        answers.see(judged)
        is_published = scope.published_offset is None or judged.offset <= scope.published_offset
        if isinstance(judged, JudgedLost):
            if published is not None and is_published:
                published.see_lost(judged)
            continue
        expected = completions_of(judged)
        if published is not None and is_published:
            published.see(judged.offset, [row for row in expected if row.ledger_offset > scope.pruned_to])
    answers.finish(summary.epochs, judge.notarised)
    if published is not None:
        published.finish()
        summary.completions = published.compared
    summary.outcomes, summary.voids = dict(tally), dict(voids)
    return Report(findings.kept, {code.name: count for code, count in findings.counts.items()}, summary)


def _count(judged: Judged, tally: Counter[str], voids: Counter[str], summary: Summary) -> None:
    if isinstance(judged, JudgedRequest):
        tally[judged.outcome] += 1
    elif isinstance(judged, JudgedNote):
        tally["SIGN_OF_LIFE" if isinstance(judged.record, SignOfLifeRecord) else "NOTE"] += 1
    elif isinstance(judged, JudgedGenesis):
        tally["GENESIS"] += 1
    elif isinstance(judged, JudgedLost):
        tally["LOST"] += 1
    elif isinstance(judged, JudgedBarrier):
        summary.epochs[judged.record.epoch] = judged.record.replica
    else:
        voids[judged.reason] += 1
