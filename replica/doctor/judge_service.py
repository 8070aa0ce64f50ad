"""Judges what serves: the request log, the replicas, HAProxy and the endpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from replica.doctor.facts import Facts
from replica.doctor.verdict import Checks, Verdict, ok, problem, unknown, unless_development, warning

CHECKS = Checks()
SNAPSHOT_AGE_MAX = 100_000  # transactions: a quarter of an hour at a hundred a second


# ---- the request log ----


@CHECKS.check("log-servers")
def _log_servers(facts: Facts) -> Verdict:
    """The request log can be reached, and lives on servers enough."""
    words = facts.log_words
    if "log-secrets" in facts.files.problems:
        return unknown(f"a file for the {words.servers} is missing")
    if facts.log.problem and not facts.log.missing:
        return problem(facts.log.problem, words.reach)
    text = f"{facts.log.servers} {words.server if facts.log.servers == 1 else words.servers}"
    if facts.log.servers < words.servers_least:
        return unless_development(facts, text, words.copies)
    return ok(text)


@CHECKS.check("log-spare")
def _log_spare(facts: Facts) -> Verdict:
    """One more of the log's servers may fail."""
    log = facts.log
    if log.problem:
        return unknown("the log was not reached")
    silent = f"{', '.join(log.silent)} does not answer" if log.silent else ""
    fix = "start or replace the log node: runbooks/log-node-loss.md"
    if log.spare is None:
        return ok("left to the log's own monitoring")
    if log.spare < 1:
        return unless_development(facts, silent or "every one of its members is needed", fix)
    if silent:
        return warning(silent, fix)
    return ok(f"{log.spare} more may fail")


@CHECKS.check("log-contract")
def _log_contract(facts: Facts) -> Verdict:
    """The request log exists with the settings that safety rests on."""
    words = facts.log_words
    if facts.log.missing and facts.database.bound_topic_id is not None:
        fix = f"do not create an empty one, which would forget what was spent: {words.restore}"
        return problem(f"the {words.log} that the database belongs to is gone", fix)
    if facts.log.missing:
        return problem(facts.log.problem or f"there is no {words.log}", words.create)
    if facts.log.problem:
        return unknown(f"the {words.servers} were not reached")
    if facts.log.violations:
        return problem("; ".join(facts.log.violations), words.repair)
    return ok("kept")


@CHECKS.check("log-deletion")
def _log_deletion(facts: Facts) -> Verdict:
    """No command deletes the request log, whoever has the right."""
    words = facts.log_words
    if facts.log.problem:
        return unknown(f"the {words.servers} were not reached")
    if facts.log.deletable is None:
        return unknown(f"the {words.servers} do not show their settings to this principal")
    if facts.log.deletable:
        return warning("one command of somebody who has the right deletes the notary's memory", words.protect)
    return ok(f"no command deletes the {words.log}")


@CHECKS.check("topic-creation")
def _log_creation(facts: Facts) -> Verdict:
    """No topic appears because somebody asks for it: it would have none of the settings that keep records."""
    words = facts.log_words
    if facts.log.problem:
        return unknown(f"the {words.servers} were not reached")
    if facts.log.appears is None:
        return unknown(f"the {words.servers} do not show their settings to this principal")
    if facts.log.appears:
        return warning(
            f"the {words.servers} create a {words.log} that any client asks for, with settings that lose records",
            "set auto.create.topics.enable=false on all brokers: docs/reference-deployment.md",
        )
    return ok(f"no question creates a {words.log}")


@CHECKS.check("log-identity")
def _log_identity(facts: Facts) -> Verdict:
    """The request log is the one that the database belongs to."""
    words, bound, found = facts.log_words, facts.database.bound_topic_id, facts.log.topic_id
    if bound is None or found is None:
        return unknown(f"the database is not bound to a {words.log} yet, or one of the two was not reached")
    if bound != found:
        fix = f"do not serve: find out which of the two is the wrong one, {words.page}"
        return problem(f"the database belongs to {words.log} id {bound}, the {words.log}'s is {found}", fix)
    return ok(found)


@CHECKS.check("log-database")
def _log_database(facts: Facts) -> Verdict:
    """A request log in a database is on the server of lock and store."""
    found, identity = facts.log.database, facts.database.identity
    if facts.log.topic_id is None or identity is None:
        return unknown(f"the {facts.log_words.log} or the lock's server was not reached")
    if found is None:
        return ok(f"the {facts.log_words.log} is in no database")
    if found != str(identity):
        fix = "do not serve: both connections must lead to one primary; fence any other, runbooks/database-failover.md"
        return problem(f"the log is on {found}, lock and store are on {identity}", fix)
    return ok(found)


@CHECKS.check("log-snapshots")
def _log_snapshots(facts: Facts) -> Verdict:
    """No snapshot that somebody keeps open in the log's database is old."""
    log = facts.log
    if log.topic_id is None:
        return unknown(f"the {facts.log_words.log} was not reached")
    if log.database is None:
        return ok(f"the {facts.log_words.log} is in no database")
    if log.oldest_snapshot is None:
        return unknown("the log's owner is not shown what others have open: GRANT pg_read_all_stats TO it")
    if log.oldest_snapshot > SNAPSHOT_AGE_MAX:
        fix = "find who holds it, and end it: runbooks/postgres-log.md"
        return warning(f"vacuum removes nothing younger than a snapshot {log.oldest_snapshot:,} transactions old", fix)
    return ok(f"the oldest is {log.oldest_snapshot:,} transactions old")


@CHECKS.check("log-whole")
def _log_whole(facts: Facts) -> Verdict:
    """The log begins at its first record, and reaches at least to what was published from it."""
    words, log, published = facts.log_words, facts.log, facts.database.published_offset
    if log.topic_id is None:
        return unknown(f"the {words.log} was not reached")
    if log.first_offset > 0:
        return problem(f"the log begins at offset {log.first_offset}", f"records were deleted: {words.restore}")
    if published >= log.end_offset:
        fix = f"do not serve: the log was truncated, {words.page}"
        return problem(f"offset {published} was published, and the log ends at {log.end_offset}", fix)
    return ok(f"{log.end_offset} records")


# ---- replicas and load balancer ----


@CHECKS.check("active")
def _active(facts: Facts) -> Verdict:
    """Exactly one replica leads."""
    active = [replica.name for replica in facts.replicas if replica.active]
    if not any(replica.answers for replica in facts.replicas):
        return problem("no replica answers", "start them: systemctl start notary@NAME, or notary watch")
    if not active:
        return problem("no replica is active", "see its log, and: notary history; runbooks/failover.md")
    if len(active) > 1:  # seen one after the other, so a hand-over can look like this
        return warning(f"{' and '.join(active)} said so, one after the other", "look again: a hand-over was under way")
    return ok(active[0])


@CHECKS.check("serving")
def _serving(facts: Facts) -> Verdict:
    """The replicas that are to serve do: the active, or all of them."""
    serving = ", ".join(replica.name for replica in facts.replicas if replica.serves)
    idle = "; ".join(f"{one.name} does not: {one.not_serving}" for one in facts.replicas if one.not_serving)
    if idle:
        fix = "find out why, by its reason: runbooks/workers.md"
        return warning(idle, fix) if serving else problem(idle, fix)
    return ok(serving) if serving else unknown("none does, as none is active")


@CHECKS.check("passives")
def _passives(facts: Facts) -> Verdict:
    """Another replica could take over, and every one that is configured runs."""
    silent = [replica.name for replica in facts.replicas if not replica.answers]
    able = [replica.name for replica in facts.replicas if replica.ready and not replica.active]
    if not any(replica.may_lead and not replica.active for replica in facts.replicas):
        return problem("no other replica may hold the lock", "let another one: replicas.may_lead, docs/settings.md")
    if not able:
        return problem("no passive could take over", "start another replica: runbooks/replica-replacement.md")
    if silent:
        return warning(f"{', '.join(silent)} does not answer", "start it: runbooks/replica-replacement.md")
    return ok(f"{', '.join(able)} could take over")


@CHECKS.check("index-digests")
def _index_digests(facts: Facts) -> Verdict:
    """Replicas that read the same records have the same index: digests are compared where two of them have walked."""
    found: dict[str, dict[str, list[str]]] = {}
    for replica in facts.replicas:
        for records, digest in replica.index_digests.items():
            found.setdefault(records, {}).setdefault(digest, []).append(replica.name)
    differing = [int(records) for records, digests in found.items() if len(digests) > 1]
    if differing:
        sides = " and ".join("/".join(names) for names in found[str(min(differing))].values())
        fix = "find out whose index is wrong: notary index diff, runbooks/index-mismatch.md"
        return problem(f"after {min(differing)} records {sides} have different indexes", fix)
    common = [int(records) for records, digests in found.items() if len(next(iter(digests.values()))) > 1]
    if not common:
        return ok("not compared yet: the log is short, or nobody has read it again")
    return ok(f"the same after {max(common)} records")


@CHECKS.check("formats")
def _formats(facts: Facts) -> Verdict:
    """What operators have raised is in force."""
    in_force = max([one.rules_in_force for one in facts.replicas], default=0)
    written = facts.database.formats
    if written is None:
        return unknown("the database does not report the formats")
    if in_force >= written.rules:
        return ok(f"rules version {in_force}")
    if in_force:
        return warning(f"{written} is raised, and not in force yet", "notary switchover")
    return ok(f"the first activation writes {written}")


@CHECKS.check("marks")
def _marks(facts: Facts) -> Verdict:
    """Every replica keeps its mark of the log on its disk, and no peer tells one of another log."""
    found = [f"{one.name}: {problem}" for one in facts.replicas for problem in one.marks_problems]
    if found:
        return warning("; ".join(found), "look its code up in docs/errors.md")
    return ok("kept") if any(one.answers for one in facts.replicas) else unknown("no replica answers")


@CHECKS.check("site")
def _site(facts: Facts) -> Verdict:
    """Where another site may take over, this one has the term: no replica serves without it."""
    answering = [one for one in facts.replicas if one.answers]
    if not answering:
        return unknown("no replica answers")
    if not facts.has_site and all(one.site is None for one in answering):
        return ok("no other site may take over")
    if without := [
        f"{one.name}: {one.site_detail or one.site}" for one in answering if one.site not in {None, "in_term"}
    ]:
        return problem("; ".join(without), "notary site status; see runbooks/site-term.md")
    if unfenced := [one.name for one in answering if one.site is None]:
        return problem(f"{', '.join(unfenced)} would serve without the term", "restart them with their site configured")
    return ok("each replica has renewed its term")


@CHECKS.check("clock-replicas")
def _clock_replicas(facts: Facts) -> Verdict:
    """The replicas' clocks agree: the active stamps requests by its own, and a stamp stays in the log."""
    clocks = {replica.name: replica.clock for replica in facts.replicas if replica.clock is not None}
    if len(clocks) < 2:
        return unknown("fewer than two replicas show their clocks")
    in_order = sorted(clocks, key=lambda name: clocks[name].ahead_s)
    last, first = in_order[0], in_order[-1]
    apart_s, limit_s = clocks[first].ahead_s - clocks[last].ahead_s, facts.clock_skew_max_s
    within_s = clocks[first].within_s + clocks[last].within_s
    text = f"{first} is {apart_s:.3f} s ahead of {last}, to within {within_s:.3f} s"
    wrong = _worst_clock({name: clock.ahead_s for name, clock in clocks.items()})
    if apart_s - within_s > limit_s:
        return problem(text, f"above clock_skew_max_s = {limit_s:g}: set the clock of {wrong} right before it leads")
    if apart_s - within_s > limit_s / 2:
        return warning(text, f"set the clock of {wrong} right, and keep it right: run chrony or systemd-timesyncd")
    return ok(text)


def _worst_clock(ahead_s: Mapping[str, float]) -> str:
    """Whose clock is to be set: that farthest from the median. Of two, nobody can tell which is wrong."""
    if len(ahead_s) == 2:
        return " or ".join(sorted(ahead_s))
    middle_s = median(ahead_s.values())
    return max(ahead_s, key=lambda name: abs(ahead_s[name] - middle_s))


@CHECKS.check("versions")
def _versions(facts: Facts) -> Verdict:
    """All replicas run one release."""
    found = sorted({replica.version for replica in facts.replicas if replica.answers})
    if len(found) > 1:
        return warning(f"they run {' and '.join(found)}", "end the rolling upgrade")
    return ok(found[0]) if found else unknown("no replica answers")


@CHECKS.check("front-ends")
def _front_ends(facts: Facts) -> Verdict:
    """Every replica that runs has front ends to serve with, and they answer."""
    silent = [replica for replica in facts.replicas if replica.front_ends_silent]
    if silent:
        fix = "they are started anew by themselves; if it goes on, look for what slows the machine: haproxy-loss.md"
        found = ", ".join(f"{one.front_ends_silent} of {one.name}" for one in silent)
        return problem(f"front ends are connected to their core and do not answer: {found}", fix)
    without = [replica.name for replica in facts.replicas if replica.answers and not replica.front_ends]
    if without:
        fix = "see its log for front_end_ended and front_end_misconfigured; is its API port taken?"
        return problem(f"{', '.join(without)} has no front end", fix)
    return ok("each replica that answers has some")


@CHECKS.check("failover-paused")
def _failover_paused(facts: Facts) -> Verdict:
    """Nobody left fail-over or service paused."""
    if facts.database.is_service_paused:
        return warning(f"service: {facts.database.paused_because}", "when the work is done: notary resume --service")
    if facts.database.paused_because is not None:
        return warning(f"paused: {facts.database.paused_because}", "when the work is done: notary resume")
    if facts.database.reach_problem:
        return unknown("the database was not reached")
    return ok("fail-over is on")


@CHECKS.check("operators-trail")
def _operators_trail(facts: Facts) -> Verdict:
    """The newest entries of the operators' trail follow on one another, and known people signed them."""
    found = facts.database
    if found.trail_problem is not None:
        return problem(found.trail_problem, "keep the trail and its exports as they are: runbooks/operators-trail.md")
    if found.trail_entries is None:
        return unknown("it was not read")
    return ok(f"{found.trail_entries} entries")


@CHECKS.check("haproxy-configuration")
def _haproxy_configuration(facts: Facts) -> Verdict:
    """HAProxy accepts the configuration that is rendered for it."""
    if facts.balancer.unchecked:
        return unknown(facts.balancer.unchecked)
    if facts.balancer.refused:
        return problem(facts.balancer.refused, "correct [haproxy] in the configuration, then: notary haproxy check")
    return ok("accepted")


@CHECKS.check("haproxy")
def _haproxy(facts: Facts) -> Verdict:
    """HAProxy sends applications to every replica that serves."""
    if not facts.balancer.answers:
        return unknown("no HAProxy answers on its socket here")
    serving = [replica.name for replica in facts.replicas if replica.serves]
    left_out = [name for name in serving if name not in facts.balancer.up]
    if left_out:
        up = ", ".join(facts.balancer.up) or "none"
        fix = "does it run with what `notary haproxy render` prints? runbooks/haproxy-loss.md"
        level = problem if left_out == serving else warning
        return level(f"it sends clients to {up}; these serve: {', '.join(serving)}", fix)
    return ok(f"up: {', '.join(facts.balancer.up) or 'none'}")


@CHECKS.check("endpoint")
def _endpoint(facts: Facts) -> Verdict:
    """Applications reach the notary at its endpoint."""
    if facts.balancer.endpoint_problem:
        if any(replica.front_ends_silent for replica in facts.replicas):
            return problem(facts.balancer.endpoint_problem, "front ends do not answer: see front-ends above")
        return problem(facts.balancer.endpoint_problem, "start HAProxy, check endpoint.host: runbooks/haproxy-loss.md")
    return ok("answers")
