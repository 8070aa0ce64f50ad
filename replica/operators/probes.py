"""The probes of the replica's health listener: live, ready, active, and the details of /health."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ha.election.driver import Election
from ha.health import LoopPulse, Probes
from ha.settings import ElectionSettings
from ha.site.guard import SiteGuard
from replica.following.scrub import Scrubber
from replica.health import HealthDocument
from replica.link.unix_server import LinkServer
from replica.notary.formats import known
from replica.notary.granters import grants_as
from replica.operators.status_page import submission_latency
from replica.participant import Participant, SessionT
from replica.store.bulletin import Bulletin


def make_probes(
    *,
    name: str,
    version: str,
    election_settings: ElectionSettings,
    participant: Participant[SessionT],
    election: Election[SessionT],
    link: LinkServer,
    pulse: LoopPulse,
    bulletin: Bulletin,
    scrubber: Scrubber,
    wall_us: Callable[[], int],
    site: SiteGuard | None = None,
) -> Probes:
    """The probes of the replica of that name, which runs that release."""

    def is_active() -> bool:
        return participant.standing().active and bool(link.front_ends)

    def leads_or_could() -> bool:
        """Whether it holds the lock and works, or could take it: with `serving = "all"` others serve as well."""
        readiness = participant.readiness()
        warm = readiness.reaches_log and readiness.lag_records < election_settings.catch_up_records_per_s
        leads = is_active() and election.is_leading()
        return leads or (
            participant.may_lead
            and participant.in_term()
            and election.is_candidate()
            and warm
            and bool(link.front_ends)
        )

    def answers() -> bool:
        """Whether it gets requests: during a pause of service as well, so that applications are told so."""
        return is_active() or (participant.serving.all_serve and participant.is_paused and bool(link.front_ends))

    def is_ready() -> bool:
        return answers() or leads_or_could()

    def detail() -> Mapping[str, object]:
        follower, activation = participant.follower, participant.activation
        unfit = participant.serving.unfit
        position = follower.position
        out_of_term = None if site is None else site.why_not()
        return HealthDocument(
            replica=name,
            version=version,
            active=is_active(),
            ready=leads_or_could(),
            **election.status(),
            failover_paused=bulletin.is_failover_paused,
            service_paused=participant.is_paused,
            epoch=participant.epoch,
            applied_offset=follower.applied_offset,
            lag_records=follower.lag_records,
            granted_by="" if position is None or position.barrier is None else grants_as(position.barrier.granter),
            reaches_log=participant.reaches_log(),
            log_hazards=follower.hazards,
            front_ends=len(link.front_ends),
            scrub=scrubber.progress(),
            index_digests={str(at): digest.hex() for at, digest in scrubber.digests().items()},
            ledger_end=None if activation is None else activation.publisher.ledger_end,
            in_flight=participant.in_flight,
            formats_known=known(),
            activation_steps_s={} if activation is None else activation.steps_s,
            rules_in_force=follower.rules_in_force,
            marks=participant.marks.told(),
            exposed_records=participant.count_exposed(),
            marks_problems=participant.marks.problems(),
            answers=submission_latency(link.api_counts()),
            clock_us=wall_us(),
            may_lead=participant.may_lead,
            serving="all" if participant.serving.all_serve else "one",
            not_serving=None if unfit is None else unfit[0].value,
            not_serving_detail="" if unfit is None else unfit[1],
            site=None if site is None else site.standing().value,
            site_detail="" if out_of_term is None else out_of_term.detail,
            front_ends_silent=len(link.silent_front_ends),
        ).as_json_object()

    return Probes(
        is_live=lambda: pulse.age_s() < election_settings.lease_s,
        is_ready=is_ready,
        is_active=answers,
        detail=detail,
    )
