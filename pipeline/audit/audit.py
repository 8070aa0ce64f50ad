"""The whole audit: judges the log again, and compares with it everything that is derived from it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.answers import client_answers, wrong_answers
from pipeline.audit.completions import (
    logged_completions,
    published_completions,
    wrong_completions,
    wrong_ledger,
    wrong_lost,
)
from pipeline.audit.findings import NOWHERE, Finding, FindingCode
from pipeline.audit.notes import bad_notes
from pipeline.audit.signatures import bad_signatures
from pipeline.audit.watermark import Watermark
from pipeline.jobs.judge import Judged, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import numbered
from pipeline.jobs.verdicts import conflicting_states, lost_verdicts, requests, verdicts
from pipeline.judging.lost import Lost, described, lost_ranges
from pipeline.judging.plan import counted, void_reasons
from replica.notary.errors import LogRefused
from replica.notary.parties import PartyNote
from replica.notary.position import BEGIN, Position, decode_position
from replica.notary.records import record_digest
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.store.open import published_state
from replica.store.trail import Followed

FIRST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Scope:
    """What is audited besides the log itself.

    `ledgers`: where completions are, by what to call it: the participant's database, or each replica's own ledger.
    `answers`: files of JSON lines with the answers that clients got; they need `notary_keys`. `salvages`: those that
    lost records of the log name. `trail`: what following the operators' trail from its first entry has found; None: it
    was not read. `verified`: from an earlier audit; records up to there are judged again, but not verified again.
    """

    ledgers: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[Path, ...] = ()
    notary_keys: tuple[bytes, ...] = ()
    trail: Followed | None = None
    verified: Watermark | None = None
    salvages: Salvages = NO_SALVAGES


class AuditReport(msgspec.Struct, frozen=True):
    """What an audit looked at and what it found. `watermark` is None when something is wrong."""

    end_offset: int
    from_offset: int  # records, signatures and completions were verified from here on
    outcomes: dict[str, int]  # counting requests from there on, by verdict
    voids: dict[str, int]  # void records from there on, by reason; lost ones are not among them
    notes: int  # acts and registrations from there on that count
    trail_entries: int | None  # of the operators' trail, verified; None: it was not read
    epochs: list[tuple[int, int, str]]  # (offset, epoch, replica), in force one after the other
    completions: int  # compared with the log
    answers: int
    counts: dict[str, int]  # findings, by code
    findings: list[Finding]  # the first of them, by offset
    watermark: Watermark | None
    lost: list[Lost] = []  # the log's lost ranges: nothing is wrong there, and not everything is known

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts


def audit_log(
    spark: SparkSession,
    log: LogSlices,
    work: Path,
    scope: Scope,
    *,
    now_us: int,
    progress: Callable[[str], None] = lambda text: None,
) -> AuditReport:
    """Audit a log. `work`: a folder that every worker reaches; what is left there may be deleted.

    Judging checks density and epochs: a gap raises InvariantBroken. Raises LogRefused when the watermark or the
    database belongs to another topic, and the errors of reading the log and the database.
    """
    progress(f"judging {len(log)} slices of the log")
    judged = judge_log(spark, log, work, salvages=scope.salvages)
    with ExitStack() as stack:
        auditing = _Auditing(spark, log, judged, scope, stack)
        auditing.check_signatures()
        auditing.check_notes()
        auditing.check_trail()
        for name, conninfo in scope.ledgers.items():
            progress(f"comparing {name} with the log")
            auditing.check_ledger(name, conninfo)
        if scope.answers:
            auditing.check_answers()
        progress("verifying signatures")
        return auditing.report(now_us)


class _Auditing:
    """One audit under way: which slices are verified one by one, and the checks, which run when all are known."""

    def __init__(self, spark: SparkSession, log: LogSlices, judged: Judged, scope: Scope, stack: ExitStack) -> None:
        self._spark, self._log, self._judged, self._scope = spark, log, judged, scope
        self._stack = stack
        self._plan = judged.plan
        self._checks: list[DataFrame] = []
        self._found: list[Finding] = []
        self._completions = self._answers = 0
        self._ledger_offsets: list[int] = []  # up to where each ledger is verified
        self._after = BEGIN if scope.verified is None else self._verified(scope.verified)
        self._slices = [number for number, end in enumerate(judged.slice_ends) if end > self._after + 1]
        wanted = requests(spark, log, self._plan, self._slices)
        self._decided = verdicts(spark, judged, wanted).where(F.col("offset") > self._after)

    def check_signatures(self) -> None:
        self._checks.append(bad_signatures(self._spark, self._log, self._plan, self._slices, after=self._after))

    def check_notes(self) -> None:
        """On the driver: the plan has all of them, and they are few."""
        self._found += bad_notes(self._plan.notes, after=self._after)

    def check_trail(self) -> None:
        """It has no place in the log, so its finding has none."""
        trail = self._scope.trail
        if trail is not None and trail.broken is not None:
            self._found.append(Finding(FindingCode.TRAIL_BROKEN, NOWHERE, f"the operators' trail: {trail.broken}"))

    def check_answers(self) -> None:
        scope = self._scope
        answered = self._keep(client_answers(self._spark, scope.answers, scope.notary_keys))
        self._answers = answered.count()
        everything = requests(self._spark, self._log, self._plan)
        decided, kept = verdicts(self._spark, self._judged, everything), lost_verdicts(self._spark, self._judged)
        self._checks.append(wrong_answers(answered, decided, kept, self._is_lost()))

    def check_ledger(self, name: str, conninfo: str) -> None:
        state = published_state(conninfo)
        if state.topic_id not in (None, self._log.topic_id):
            raise LogRefused(f"{name} belongs to topic id {state.topic_id}, the log's is {self._log.topic_id}")
        if state.position is None:
            self._ledger_offsets.append(0)
            return
        until = min(self._check_position(name, decode_position(state.position)), self._plan.position.offset)
        verified = 0 if self._scope.verified is None else self._scope.verified.ledger_offset
        start = max(verified, state.pruned_to)
        published = self._keep(published_completions(self._spark, conninfo, start, state.ledger_end))
        extent = published.where(F.col("log_offset") <= until).agg(
            F.count("*").alias("rows"), F.min("log_offset").alias("first"), F.max("ledger_offset").alias("last")
        )
        (row,) = extent.collect()
        self._completions += row.rows
        self._ledger_offsets.append(row.last or start)
        from_offset = self._after + 1
        if start > verified:  # pruned
            from_offset = until + 1 if row.first is None else max(from_offset, row.first)
        logged = logged_completions(
            self._spark,
            self._log,
            self._plan,
            self._slices,
            decided=self._decided,
            conflicts=conflicting_states(self._spark, self._judged),
        )
        kept, of_lost = published.where(~self._is_lost()), published.where(self._is_lost())
        self._checks += [
            wrong_completions(name, logged, kept, from_offset, until),
            wrong_lost(name, of_lost, lost_verdicts(self._spark, self._judged), from_offset),
            wrong_ledger(published),
        ]

    def report(self, now_us: int) -> AuditReport:
        """Run the checks; the driver gets counts and the first findings."""
        findings = self._keep(reduce(DataFrame.unionByName, self._checks))
        counts = Counter(finding.code.name for finding in self._found)
        counts.update({row.code: row["count"] for row in findings.groupBy("code").count().collect()})
        first = self._found + [
            Finding(FindingCode(row.code), row.offset, row.message)
            for row in findings.orderBy("offset", "code").limit(FIRST_FINDINGS).collect()
        ]
        position = self._plan.position
        watermark = Watermark(
            topic_id=self._log.topic_id,
            offset=position.offset,
            digest=position.digest.hex(),
            ledger_offset=min(self._ledger_offsets, default=0),
            verified_us=now_us,
        )
        return AuditReport(
            end_offset=position.offset + 1,
            from_offset=self._after + 1,
            outcomes={row.outcome: row["count"] for row in self._decided.groupBy("outcome").count().collect()},
            voids=self._voids(),
            notes=sum(isinstance(note.record, PartyNote) for note in self._plan.notes if note.offset > self._after),
            trail_entries=None if self._scope.trail is None else len(self._scope.trail.entries),
            epochs=[(offset, barrier.epoch, barrier.replica) for offset, barrier in self._plan.barriers],
            completions=self._completions,
            answers=self._answers,
            counts=dict(counts),
            findings=sorted(first, key=lambda finding: finding.offset)[:FIRST_FINDINGS],
            watermark=None if counts else watermark,
            lost=[described(one, self._scope.salvages) for one in self._judged.lost],
        )

    def _is_lost(self) -> Column:
        """Whether the record at a `log_offset` is lost."""
        ranges = [F.col("log_offset").between(one.first, one.last) for one in self._judged.lost]
        return F.coalesce(reduce(Column.__or__, ranges, F.lit(False)), F.lit(False))

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Cache what is used more than once, and release it when the audit ends: Spark would keep it."""
        frame.persist()
        self._stack.callback(frame.unpersist)
        return frame

    def _verified(self, verified: Watermark) -> int:
        """The offset that is verified already, if the log still has the record that was there."""
        if verified.topic_id != self._log.topic_id:
            raise LogRefused(f"the watermark is of topic id {verified.topic_id}, the log's is {self._log.topic_id}")
        if self._digest_at(verified.offset) == verified.digest:
            return verified.offset
        if any(one.first <= verified.offset <= one.last for one in self._judged.lost):
            return BEGIN  # that it is another record is known, and named; all is verified again
        message = "the record is not the one that was verified: the whole log is verified again"
        self._found.append(Finding(FindingCode.LOG_CHANGED, verified.offset, message))
        return BEGIN

    def _check_position(self, name: str, published: Position) -> int:
        if (
            published.offset <= self._plan.position.offset
            and self._digest_at(published.offset) != published.digest.hex()
        ):
            message = f"{name} goes up to another record than the log has at this offset"
            self._found.append(Finding(FindingCode.POSITION_DIFFERS, published.offset, message))
        return published.offset

    def _digest_at(self, offset: int) -> str | None:
        """SHA-256 of a record, None if the log ends before it."""
        log, number = self._log, bisect_right(self._judged.slice_ends, offset)
        if number == len(self._judged.slice_ends):
            return None

        def digest(_: int) -> Iterator[dict[str, Any]]:
            columns = log.read(number)
            yield {"digest": record_digest(columns.value(offset - columns.first_offset)).hex()}

        (row,) = numbered(self._spark, 1, digest, "digest string").collect()
        return str(row.digest)

    def _voids(self) -> dict[str, int]:
        log, plan, slices, after = self._log, self._plan, self._slices, self._after

        def count(at: int) -> Iterator[dict[str, Any]]:
            columns = log.read(slices[at])
            found = void_reasons(columns, counted(columns, plan), plan)
            lost = {offset for one in lost_ranges(columns) for offset in range(one.first, one.last + 1)}
            reasons = (reason.value for offset, reason in found if offset > after and offset not in lost)
            for reason, voids in Counter(reasons).items():
                yield {"reason": reason, "voids": voids}

        rows = numbered(self._spark, len(slices), count, "reason string, voids bigint").groupBy("reason")
        return {row.reason: row.total for row in rows.agg(F.sum("voids").alias("total")).collect()}
