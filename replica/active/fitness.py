"""Whether a worker serves: the first reason why it may not, from what its parts know, and when it acts on it. Pure.

A worker looks every `LOOK_S` at what its parts know. Spans are counted in looks, so that time in suspension does not
count.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

LOOK_S = 0.1
PATIENCE_LOOKS = 5  # it goes on serving while a reason against it is younger
REST_LOOKS = 10  # after it stopped serving


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
    `oldest_unread`: sequence number of our oldest record that was not read back; None: there is none.
    `has_failed`: the log takes no more from our writer."""

    reaches_log: bool
    marks_hold: bool
    lag_records: int
    is_paused: bool
    is_writable: bool
    may_number: bool
    why_not_stamp: str | None
    is_serving: bool
    oldest_unread: int | None
    has_failed: bool
    is_signed: bool


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a worker that serves."""

    lag_records_max: int
    unread_max_s: float


class Step(Enum):
    """What a worker does after a look."""

    WAIT = 0
    TRY_KEY = 1  # the notary's key, which could not be used
    BEGIN = 2
    GO_ON = 3
    END = 4


class Watch(msgspec.Struct, frozen=True):
    """What a worker remembers of its looks. `unfit`: why it may not serve, as of the newest; None: it may."""

    unfit: tuple[Unfit, str] | None = (Unfit.LOG_SILENT, "the worker has just started")
    unfit_looks: int = 0
    rest_looks: int = 0  # that are left before it may serve again
    oldest_unread: int | None = None
    unread_looks: int = 0  # in a row, at the same oldest record

    def looked(self, facts: WorkerFacts, limits: Limits) -> Watch:
        """After another look."""
        is_same = facts.oldest_unread is not None and facts.oldest_unread == self.oldest_unread
        unread_looks = self.unread_looks + 1 if is_same else 0
        unread_s = float("inf") if facts.has_failed else unread_looks * LOOK_S
        unfit = why_not_serve(facts, unread_s, limits)
        return Watch(
            unfit, self.unfit_looks + 1 if unfit else 0, max(0, self.rest_looks - 1), facts.oldest_unread, unread_looks
        )

    def rested(self) -> Watch:
        """After it stopped serving, or could not begin."""
        return msgspec.structs.replace(self, rest_looks=REST_LOOKS)

    def step(self, facts: WorkerFacts) -> Step:
        """What to do, by the newest look. A pause and a key that gives no signature end service at once."""
        if facts.is_serving:
            is_over = self.unfit_looks >= (1 if facts.is_paused else PATIENCE_LOOKS) or not facts.is_signed
            return Step.END if is_over else Step.GO_ON
        if self.rest_looks:
            return Step.WAIT
        if not facts.is_signed:
            return Step.TRY_KEY
        return Step.WAIT if self.unfit else Step.BEGIN


def why_not_serve(facts: WorkerFacts, unread_s: float, limits: Limits) -> tuple[Unfit, str] | None:
    """The first reason why a worker may not take submissions, with a sentence; None if it may. `unread_s`: how long our
    oldest record was not read back."""
    lagging, stalled = facts.lag_records > limits.lag_records_max, unread_s >= limits.unread_max_s
    reasons = (
        (not facts.reaches_log, Unfit.LOG_SILENT, "the log does not answer"),
        (not facts.marks_hold, Unfit.MARKS, "the log was not compared with the marks of replicas and database yet"),
        (lagging, Unfit.LAGGING, f"{facts.lag_records} records of the log are not applied yet"),
        (facts.is_paused, Unfit.PAUSED, "operators have paused service: notary resume --service"),
        (not facts.is_writable, Unfit.NO_ACTIVATION, "no activation that all may write under is in force"),
        (not facts.may_number, Unfit.NO_NUMBERS, "no sequence numbers for the activation in force were drawn yet"),
        (facts.why_not_stamp is not None, Unfit.CLOCK, facts.why_not_stamp or ""),
        (stalled, Unfit.STALLED, f"our oldest record was not read back for {unread_s:g} s"),
        (not facts.is_signed, Unfit.SIGNER, "the notary's key cannot be used"),
    )
    return next(((unfit, why) for holds, unfit, why in reasons if holds), None)
