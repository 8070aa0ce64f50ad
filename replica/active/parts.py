"""The replica's own parts, from which each activation is built and which outlive it, and the calls it reports to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ha.clock import Clock
from ha.ending import Ending
from replica.active.estimate import CompletionEstimate
from replica.active.failures import SubmissionFailures
from replica.active.places import Places
from replica.active.receipt_signer import ReceiptSigner
from replica.following.follower import Follower
from replica.following.mark_check import MarkCheck
from replica.following.salvaged import SalvagesFound
from replica.index.interface import Index
from replica.log.interface import RequestLog
from replica.notary.salvage import Salvages
from replica.settings import CoreSettings
from replica.telemetry.core_spans import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The same for every activation of a process."""

    name: str
    request_log: RequestLog
    index: Index
    follower: Follower
    receipt_signer: ReceiptSigner
    places: Places
    clock: Clock
    random_bytes: Callable[[int], bytes]
    settings: CoreSettings
    estimate: CompletionEstimate
    failures: SubmissionFailures
    salvages: Salvages
    salvages_found: SalvagesFound
    mark_check: MarkCheck
    trace: Trace
    why_exposed: Callable[[], str | None]  # why nothing may be answered: a power cut could take it without a trace
    announce: Callable[[], None]  # the replica's standing has changed
    step_down: Callable[[Ending], None]  # the activation must end
    fail: Callable[[Exception], None]  # the process must end
