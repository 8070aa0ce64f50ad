"""The steps of an installation, as docs/install.md has them, and the doctor's checks that show each one done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from replica.doctor.verdict import Finding, Severity

WORSE_THAN_OK = frozenset({Severity.WARNING, Severity.PROBLEM})


@dataclass(frozen=True, slots=True)
class Step:
    """A heading of docs/install.md; what it is done with; the doctor's checks of it, none where nothing can be seen.

    `missing_at`: severities of a finding that mean that the step is not done.
    """

    name: str
    how: str
    checks: tuple[str, ...] = ()
    missing_at: frozenset[Severity] = frozenset({Severity.PROBLEM})


STEPS = (
    Step("Roles and database", "psql: CREATE ROLE, CREATE DATABASE", ("database-session", "database-password")),
    Step(
        "Certificates", "a certificate for the endpoint's and the machines' names", ("api-certificates", "certificates")
    ),
    Step("Configuration", "notary init, or the short file of the page", ("configuration",)),
    Step("Keys and parties", "notary keys create; operators.toml, parties.toml", ("notary-key", "operator-keys")),
    Step("Tables and grants", "notary store migrate; notary store roles", ("schema", "database-rights")),
    Step("Topic", "notary topic create, or notary log create", ("log-servers", "log-contract", "log-identity")),
    Step("Replicas", "systemctl enable --now notary@NAME", ("active", "passives")),
    Step("HAProxy", "notary haproxy render", ("haproxy-configuration", "endpoint")),
    Step("keepalived", "notary haproxy render --keepalived primary", ("keepalived",)),
    Step("Prometheus", "monitoring/prometheus.yml, monitoring/alerts.yml", ("monitoring",), WORSE_THAN_OK),
    Step("Archive", "systemctl enable --now notary-archive", ("archive",)),
    Step("See that it works", "notary status, notary doctor, notary try"),
)


@dataclass(frozen=True, slots=True)
class Progress:
    """One step now. `done`: None where nothing can be seen from here. `text`: what is missing, and what to do."""

    step: Step
    done: bool | None
    text: str = ""


def progress(findings: Mapping[str, Finding]) -> Iterator[Progress]:
    """How far an installation is, by the doctor's findings; most steps are done in spite of a warning."""
    for step in STEPS:
        found = [findings[name] for name in step.checks if name in findings]
        missing = [one for one in found if one.severity in step.missing_at]
        unseen = any(one.severity is Severity.UNKNOWN for one in found)
        if missing:
            yield Progress(step, False, "; ".join(f"{one.text}: {one.fix}" for one in missing))
        else:
            yield Progress(step, None if unseen or not found else True)
