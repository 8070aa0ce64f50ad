"""Decides what a restore would do, and whether it may, from facts about the archive, the target and the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.archive.manifest import Manifest
from pipeline.sources.topic import TopicView
from replica.notary.errors import RestoreRefused
from replica.notary.position import BEGIN
from replica.notary.salvage import Salvage
from replica.store.archive_head import ArchiveHead


@dataclass(frozen=True, slots=True)
class Until:
    """Where a restore ends: with this offset, or before the first record that the broker stamped later than a time.

    Both None: with the last archived record. `time_ms`: milliseconds UTC.
    """

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a restore depends on."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class RestorePlan:
    """What will be restored: records first..last of the archive; those below `first` are in the topic already.

    With a salvage, lost records follow, up to its last offset.
    """

    archive_id: str
    topic: str
    last: int
    first: int = 0
    checks: list[Check] = field(default_factory=list)
    salvage: Salvage | None = None

    @property
    def end(self) -> int:
        """The offset after the restored topic: lost records fill it where the archive ends before what is known."""
        return (self.last if self.salvage is None else self.salvage.last) + 1

    @property
    def refused(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.passed]

    def refuse(self) -> None:
        """Raise RestoreRefused if a check failed."""
        if self.refused:
            raise RestoreRefused("; ".join(f"{check.name}: {check.detail}" for check in self.refused))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan is decided from.

    `findings`: what `verify_archive` found up to the last record to restore. `head`: the head that was recorded, None
    if there is none or nobody was asked. `target`: the topic, None if there is none. `broken_contract`: how an existing
    target breaks it, empty if not. `same_prefix`: whether the target's records are the archive's, None if not checked.
    `published`: the highest offset that completions were published for, None if the database was not asked.
    """

    findings: list[str]
    head: ArchiveHead | None
    target: TopicView | None
    broken_contract: str = ""
    same_prefix: bool | None = None
    published: int | None = None


def last_offset(manifest: Manifest, until: Until) -> int:
    """The last offset to restore; -1 when there is none before that time. Raises SegmentDamaged."""
    if until.offset is not None:
        return until.offset
    if until.time_ms is None:
        return manifest.last
    for segment in manifest.segments:
        if segment.facts.last_ms > until.time_ms:
            for record in manifest.records(segment.facts):
                if record.timestamp_ms > until.time_ms:
                    return record.offset - 1
    return manifest.last


def decide(
    manifest: Manifest,
    topic: str,
    last: int,
    facts: Facts,
    *,
    resume: bool = False,
    accept_loss: int | None = None,
    salvage: Salvage | None = None,
) -> RestorePlan:
    """The plan, with every check, whether it passed or not.

    `accept_loss`: the number that the operator accepts: records that completions rest on, or what a salvage counts.
    """
    plan = RestorePlan(manifest.opened.archive_id, topic, last, salvage=salvage)
    add = _adder(plan)
    add("archive", not facts.findings, "; ".join(facts.findings) or "whole: every line, file and digest holds")
    first_due = 0 if salvage is None else BEGIN
    add("range", first_due <= last <= manifest.last, f"restores offsets 0 to {last} of 0 to {manifest.last}")
    if facts.head is None:
        add("head", True, "not compared: no head of this archive is recorded, or nobody was asked")
    else:
        complete = facts.head.lines <= manifest.head.lines and manifest.head_of(facts.head.lines) == facts.head
        add("head", complete, f"recorded are {facts.head.lines} lines up to offset {facts.head.last}")
    _check_target(plan, manifest, facts, resume, add)
    if salvage is not None:
        plan.checks += _salvage_checks(manifest, last, facts.published, salvage, accept_loss)
    elif facts.published is not None:
        missing = max(0, facts.published - last)
        detail = f"completions are published up to offset {facts.published}"
        if missing:
            detail += (
                f"; records {last + 1} to {facts.published} that they rest on would be missing. No replica serves such"
                f" a topic: make a salvage (notary log salvage). To look at it only: --accept-loss {missing}"
            )
        add("database", not missing or accept_loss == missing, detail)
    return plan


def _salvage_checks(
    manifest: Manifest, last: int, published: int | None, salvage: Salvage, accept_loss: int | None
) -> list[Check]:
    header, loss = salvage.header, salvage.header.accepted_loss
    is_ours = header.archive_id == manifest.opened.archive_id and salvage.base == manifest.position
    unchanged = published in (None, header.published)
    return [
        Check(
            "salvage",
            is_ours and last == manifest.last,
            f"it is of offsets {salvage.first} to {salvage.last}; the archive ends at {manifest.last}",
        ),
        Check(
            "database",
            unchanged,
            f"completions are published up to offset {published}; when the salvage was made, {header.published}",
        ),
        Check(
            "loss",
            accept_loss == loss,
            f"{header.states_unknown} transactions whose states nobody knows; to accept that: --accept-loss {loss}",
        ),
    ]


def _adder(plan: RestorePlan) -> Callable[[str, bool, str], None]:
    def add(name: str, passed: bool, detail: str) -> None:
        plan.checks.append(Check(name, passed, detail))

    return add


def _check_target(
    plan: RestorePlan, manifest: Manifest, facts: Facts, resume: bool, add: Callable[[str, bool, str], None]
) -> None:
    view = facts.target
    if view is None:
        add("target", True, f"the log {plan.topic} does not exist; it will be created")
        return
    if view.topic_id == manifest.topic_id:
        add("target", False, f"the log {plan.topic} is the archived log itself")
    elif facts.broken_contract:
        add("target", False, facts.broken_contract)
    elif view.end == 0:
        add("target", True, f"the log {plan.topic} exists and never had a record")
    elif not resume:
        add("target", False, f"the log {plan.topic} had {view.end} records; only --resume goes on after its own")
    elif view.first or view.end > plan.end:
        add("target", False, f"the log {plan.topic} has offsets {view.first} to {view.end - 1}, no part of the restore")
    else:
        plan.first = view.end
        add("target", facts.same_prefix is True, f"its {view.end} records are compared with the archive's, one by one")
