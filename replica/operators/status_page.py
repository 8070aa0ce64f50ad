"""The status page of this replica, wired to its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from ha.clock import Clock
from replica.database import Ledgers, Session
from replica.participant import Participant
from replica.status_page.routes import Epoch, StatusPage
from replica.status_page.samples import Reading
from replica.store.bulletin import PastActivation
from replica.telemetry.counts import LATENCY_BOUNDS_S, ApiCounts

EPOCHS_SHOWN = 30
_SUBMISSION_ROUTES = "/v1/submissions"


def make_status_page(
    participant: Participant[Session],
    database: Ledgers,
    *,
    version: str,
    cluster: str,
    endpoint: str,
    health_urls: Mapping[str, str],
    clock: Clock,
    detail: Callable[[], Mapping[str, object]],
    api_counts: Callable[[], ApiCounts],
) -> StatusPage:
    """`health_urls`: where each replica of the participant answers; this one's own is not asked."""

    def read() -> Reading:
        return Reading(
            at_s=clock.boottime_s(),
            wall_us=clock.wall_us(),
            outcomes=dict(participant.counters.outcomes),
            latency=submission_latency(api_counts()),
            active=participant.standing().active,
            epoch=participant.epoch,
            lag_records=participant.follower.lag_records,
            in_flight=participant.in_flight,
            estimate_s=participant.estimate_s,
        )

    async def history() -> Sequence[Epoch]:
        async with database.board(f"{participant.name}/page") as board:
            return [_epoch(activation) for activation in await board.history(EPOCHS_SHOWN)]

    return StatusPage(
        name=participant.name,
        version=version,
        cluster=cluster,
        endpoint=endpoint,
        peers={name: url for name, url in health_urls.items() if name != participant.name},
        clock=clock,
        read=read,
        detail=detail,
        history=history,
    )


def submission_latency(counts: ApiCounts) -> tuple[int, ...]:
    """Submissions answered, by how long they took, over all their routes."""
    total = [0] * (len(LATENCY_BOUNDS_S) + 1)
    for route, latency in counts.latency.items():
        if route.startswith(_SUBMISSION_ROUTES):
            total = [sum(pair) for pair in zip(total, latency.buckets, strict=True)]
    return tuple(total)


def _epoch(activation: PastActivation) -> Epoch:
    until = activation.ended_at or activation.found_over_at or activation.succeeded_at
    why = activation.end_reason or (f"found over by {activation.found_over_by}" if activation.found_over_by else None)
    since = activation.granted_at if activation.granted_at.timestamp() else None  # a log without a request has no time
    return Epoch(activation.epoch, activation.replica, _utc(since), _utc(until), why)


def _utc(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat() if at else None
