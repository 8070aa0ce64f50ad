"""Judges what stands around the replicas: keepalived, the archive, what Prometheus asks. Pure."""

from __future__ import annotations

from replica.doctor.facts import Facts
from replica.doctor.verdict import Checks, Verdict, ok, problem, unknown, warning

CHECKS = Checks()
ARCHIVE_AGE_MAX_S = 3_600.0  # as the alert NotaryArchiveOld
ARCHIVE_LAG_MAX_RECORDS = 1_000_000  # as the alert NotaryArchiveLags


@CHECKS.check("keepalived")
def _keepalived(facts: Facts) -> Verdict:
    """On a machine with keepalived, its file is the one that is rendered for a node."""
    found = facts.around.keepalived
    if found is None:
        return ok("no [haproxy.keepalived] is configured")
    if not found.program:
        return unknown("keepalived is not installed here: this is none of the HAProxy machines")
    if found.as_rendered:
        return ok(f"{found.path} is as rendered")
    fix = f"notary haproxy render --keepalived primary|backup -o {found.path}; systemctl restart keepalived"
    if found.as_rendered is None:
        return problem(f"there is no {found.path} that can be read", fix)
    return problem(f"{found.path} is not what is rendered for primary or backup", fix)


@CHECKS.check("monitoring")
def _monitoring(facts: Facts) -> Verdict:
    """What Prometheus asks beside the replicas answers: HAProxy's exporter on each of its machines."""
    exporters = facts.around.exporters
    if not exporters:
        return warning("[haproxy.exporter] is not set: Prometheus sees no HAProxy", "set it: docs/settings.md")
    silent = [address for address, answers in exporters.items() if not answers]
    if silent:
        fix = "start HAProxy with what `notary haproxy render` prints, or correct the address: runbooks/haproxy-loss.md"
        return warning(f"no metrics at {', '.join(silent)}", fix)
    return ok(f"metrics at {', '.join(exporters)}")


@CHECKS.check("archive")
def _archive(facts: Facts) -> Verdict:
    """The archiver runs, and the archive is not far behind the log."""
    found = facts.around.archiver
    if found is None:
        return unknown("no [archive.metrics] is configured: whether there is an archive is not seen from here")
    start = "systemctl enable --now notary-archive: runbooks/archive.md"
    if found.age_s is None and found.here:
        return unknown(f"no archiver answers at {found.address}; it may be on another machine")
    if found.age_s is None:
        return problem(f"no archiver answers at {found.address}", start)
    behind = f"{found.lag_records:,.0f} records behind the log" if found.lag_records is not None else "lag not known"
    if found.age_s > ARCHIVE_AGE_MAX_S or (found.lag_records or 0) > ARCHIVE_LAG_MAX_RECORDS:
        text = f"not brought up to date for {found.age_s:,.0f} s, {behind}"
        return problem(text, "see the archiver's log: runbooks/archive.md")
    return ok(f"up to date {found.age_s:,.0f} s ago, {behind}")
