"""Whether a worker serves: the first reason why it may not, from what its parts know. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Unfit(StrEnum):
    """Why a worker does not serve; fit for a metric's label."""

    LOG_SILENT = "log_silent"
    MARKS = "marks"
    LAGGING = "lagging"
    PAUSED = "paused"
    NO_ACTIVATION = "no_activation"
    NO_NUMBERS = "no_numbers"
    CLOCK = "clock"
    STALLED = "stalled"
    SIGNER = "signer"


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's parts know at a moment.

    `marks_hold`: the log was found to have every mark that was known at the start (docs/architecture.md).
    `may_number`: it has numbers for the activation in force. `why_not_stamp`: see clock_agreement.py.
    `oldest_unread_s`: how long our oldest record was not read back; 0: there is none."""

    reaches_log: bool
    marks_hold: bool
    lag_records: int
    is_paused: bool
    is_writable: bool
    may_number: bool
    why_not_stamp: str | None
    oldest_unread_s: float
    is_signed: bool


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a worker that serves."""

    lag_records_max: int
    unread_max_s: float


def why_not_serve(facts: WorkerFacts, limits: Limits) -> tuple[Unfit, str] | None:
    """The first reason why a worker may not take submissions, with a sentence; None if it may."""
    lagging, stalled = facts.lag_records > limits.lag_records_max, facts.oldest_unread_s >= limits.unread_max_s
    reasons = (
        (not facts.reaches_log, Unfit.LOG_SILENT, "the log does not answer"),
        (not facts.marks_hold, Unfit.MARKS, "the log was not compared with the marks of replicas and database yet"),
        (lagging, Unfit.LAGGING, f"{facts.lag_records} records of the log are not applied yet"),
        (facts.is_paused, Unfit.PAUSED, "operators have paused service: notary resume --service"),
        (not facts.is_writable, Unfit.NO_ACTIVATION, "no activation that all may write under is in force"),
        (not facts.may_number, Unfit.NO_NUMBERS, "no sequence numbers for the activation in force were drawn yet"),
        (facts.why_not_stamp is not None, Unfit.CLOCK, facts.why_not_stamp or ""),
        (stalled, Unfit.STALLED, f"our oldest record was not read back for {facts.oldest_unread_s:g} s"),
        (not facts.is_signed, Unfit.SIGNER, "the notary's key cannot be used"),
    )
    return next(((unfit, why) for holds, unfit, why in reasons if holds), None)
