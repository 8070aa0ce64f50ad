"""Judges the shared database, as the replicas' own role sees it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ha.postgres_session import ENCODING
from replica.active.lineage import Descent, descent
from replica.doctor.facts import Facts, PostgresFacts
from replica.doctor.verdict import Judge, SharedChecks, Verdict, ok, problem, unknown, unless_development, warning
from replica.store.neighbours import taken_twice

CONNECTIONS_SPARE = 5
POSTGRES_OLDEST = 140_000
CHECKS = SharedChecks()

_SESSION_FIXES = {
    "HA_SCOPE_MISMATCH": "set database.scope to the name that the server reports, in every replica",
    "HA_POOLER_DETECTED": "connect to the database itself: a pooler shares the lock's session",
    "HA_SYNCHRONOUS_COMMIT_OFF": "ALTER ROLE ... SET synchronous_commit = on",
    "HA_FSYNC_OFF": "set fsync and full_page_writes to on in postgresql.conf, and reload it",
    "HA_SESSION_SETTING_IGNORED": "connect directly to Postgres 14 or newer",
    "HA_READ_ONLY_SERVER": "name every host in conninfo, on Postgres with target_session_attrs=read-write",
    "HA_DATABASE_NOT_PREPARED": "notary store migrate, and run what notary store roles prints: runbooks/oracle.md",
    "CONFIG_INVALID": "correct what [database] says",
    "HA_NO_SERVER_LEASE": "set IDLE_TIME in the user's profile: runbooks/oracle.md",
}


@CHECKS.check("database-session")
def _database_session(facts: Facts) -> Verdict:
    """A replica's lock session can be opened: reached, right name, no pooler, durable commits, timeouts in force."""
    met = facts.database.session_problem
    if "database-password" in facts.files.problems:
        return unknown("there is no password to log in with")
    if met is None:
        return ok("scope, pooler, durability and timeouts are as the lock needs them")
    code, text = met
    return problem(text, _SESSION_FIXES.get(code, "check address, credentials and pg_hba.conf; is the server up?"))


@CHECKS.check("database-lease")
def _database_lease(facts: Facts) -> Verdict:
    """The server frees the lock of a frozen replica, and it is known when."""
    lease = facts.database.lease
    if facts.database.session_problem is not None or lease is None:
        return unknown("no lock session")
    if not lease.verified or lease.frees_after_s is None:
        return warning(lease.detail, "give the right to read V$PARAMETER: notary store roles, runbooks/oracle.md")
    return ok(f"after {lease.frees_after_s:g} s of silence: {lease.detail}")


@CHECKS.check("clock-database")
def _clock_database(facts: Facts) -> Verdict:
    """This machine's clock agrees with the database's."""
    if facts.database.session_problem is not None:
        return unknown("no lock session")
    skew_s, limit_s = facts.database.clock_skew_s, facts.clock_skew_max_s
    text = f"differs by {skew_s:+.3f} s"
    if abs(skew_s) > limit_s:
        return problem(text, f"above clock_skew_max_s = {limit_s:g} no replica here may lead: set the clock right")
    if abs(skew_s) > limit_s / 2:
        return warning(text, "set the clock right before it is too far off to lead")
    return ok(text)


@CHECKS.check("database-lineage")
def _database_lineage(facts: Facts) -> Verdict:
    """The database goes on from the one that granted the epoch in force: no primary that was succeeded."""
    named = [
        (replica.epoch, replica.granted_by) for replica in facts.replicas if replica.answers and replica.granted_by
    ]
    identity = facts.database.identity
    if identity is None or not named:
        return unknown("no lock session, or no replica names a barrier")
    epoch, in_force = max(named)
    match descent(identity, in_force):
        case Descent.SUPERSEDED:
            fix = "fence this primary: another one was promoted. runbooks/database-failover.md"
            return problem(f"this database is {identity}; epoch {epoch} was granted by {in_force}", fix)
        case Descent.ANOTHER:
            fix = "expected once after a dump was restored; else look for two participants on one log"
            return warning(f"this database is {identity}; epoch {epoch} was granted by {in_force}", fix)
        case _:
            return ok(str(identity))


@CHECKS.check("contradicted-marks")
def _contradicted_marks(facts: Facts) -> Verdict:
    """No replica, above all none that is gone for good, left word that the log contradicts its mark."""
    left = facts.database.contradicted_by
    if left is None:
        return unknown("the database was not read")
    here = {replica.name for replica in facts.replicas}
    if gone := [name for name in left if name not in here]:
        fix = "find out whether records are missing, then delete the row: runbooks/power-lost.md"
        return warning(f"{', '.join(gone)} left one and is not configured: the alarm stays until it is deleted", fix)
    if left:
        fix = "runbooks/power-lost.md; the row goes when that replica starts again and the log bears the mark out"
        return warning(f"{', '.join(left)} ended because the log contradicts its mark", fix)
    return ok("none is left")


@CHECKS.check("lock-holder")
def _lock_holder(facts: Facts) -> Verdict:
    """The lock is free, or held by a replica: any login that may connect could take it."""
    owner, postgres = facts.database.lock_owner, facts.database.postgres
    if facts.database.session_problem is not None:
        return unknown("no lock session")
    if owner is None:
        return ok("free")
    other_login = postgres is not None and owner.user not in ("", postgres.user)
    if owner.is_foreign([replica.name for replica in facts.replicas]) or other_login:
        fix = "end that session (pg_terminate_backend), and revoke its login's CONNECT: runbooks/failover.md"
        return problem(f"held by {owner}, which is none of the replicas: none of them can lead", fix)
    return ok(owner.name)


@CHECKS.check("replica-names")
def _replica_names(facts: Facts) -> Verdict:
    """No two replicas go by one name, each would take the other's lock for its own; and no stranger borrows one."""
    neighbours = facts.database.neighbours
    if neighbours is None:
        return unknown("the database's sessions were not seen")
    twice = taken_twice(neighbours.replicas)
    if twice:
        texts = [f"{name}: {' and '.join(map(str, sessions))}" for name, sessions in twice.items()]
        return problem("; ".join(texts), "give each replica a name of its own in [[replicas]], or stop one of them")
    if neighbours.strangers:
        texts = [f"{session} goes by {session.name}" for session in neighbours.strangers]
        fix = "it may not write, and stops no replica; end it, and revoke its login's CONNECT: runbooks/failover.md"
        return warning("; ".join(texts), fix)
    return ok("each name is used once")


@CHECKS.check("one-ledger")
def _one_ledger(facts: Facts) -> Verdict:
    """The search path leads to one ledger, and no other schema has one: advisory locks are kept per database."""
    neighbours = facts.database.neighbours
    if neighbours is None:
        return unknown("the database's schemas were not seen")
    if neighbours.rivals:
        fix = "drop that schema, or ALTER ROLE ... SET search_path to the ledger's alone; no replica starts like this"
        return problem(f"the search path leads to a ledger in {', '.join(map(str, neighbours.rivals))}, too", fix)
    if neighbours.copies:
        fix = "replicas of that ledger would share the lock: move it to a database of its own, or drop the schema"
        return warning(f"another ledger, or a copy, is in schema {', '.join(map(str, neighbours.copies))}", fix)
    return ok("no other ledger")


@CHECKS.check("schema")
def _schema(facts: Facts) -> Verdict:
    """The tables are there, in a version that this release can use."""
    if facts.database.schema_problem:
        return problem(facts.database.schema_problem, "notary store migrate, as the owner of the tables")
    if facts.database.reach_problem:
        return unknown("the database was not reached")
    return ok("of this release")


def _on_postgres(judge: Callable[[Facts, PostgresFacts], Verdict]) -> Judge:
    def judged(facts: Facts) -> Verdict:
        if facts.database.postgres is None:
            return unknown(facts.database.reach_problem or "not a Postgres database")
        return judge(facts, facts.database.postgres)

    judged.__doc__ = judge.__doc__
    return judged


@CHECKS.check("database-version")
@_on_postgres
def _database_version(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """Postgres is 14 or newer: older ones cannot end a silent session."""
    major = postgres.version_num // 10_000
    if postgres.version_num < POSTGRES_OLDEST:
        return problem(f"Postgres {major}", "upgrade to Postgres 14 or newer")
    return ok(f"Postgres {major}")


@CHECKS.check("database-encoding")
@_on_postgres
def _database_encoding(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The database keeps Unicode: names come back as they were stored."""
    encoding = postgres.settings.get("server_encoding", "?")
    if encoding != ENCODING:
        fix = f"dump it, and restore it into a database made with ENCODING '{ENCODING}': runbooks/database-restore.md"
        return problem(f"the database's encoding is {encoding}", fix)
    return ok(encoding)


@CHECKS.check("database-primary")
@_on_postgres
def _database_primary(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The connection string leads to the primary."""
    if postgres.in_recovery:
        return problem("the server is a standby", "add target_session_attrs=read-write and all hosts to conninfo")
    return ok("takes writes")


@CHECKS.check("synchronous-commit")
@_on_postgres
def _synchronous_commit(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """A commit waits for the standby: neither off nor local."""
    mode = postgres.settings.get("synchronous_commit", "?")
    if mode in ("off", "local"):
        return problem(f"synchronous_commit = {mode}", "ALTER ROLE ... SET synchronous_commit = on")
    return ok(mode)


@CHECKS.check("synchronous-standby")
@_on_postgres
def _synchronous_standby(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """A second machine has every commit before it counts."""
    names = postgres.settings.get("synchronous_standby_names", "")
    if not names:
        fix = "set synchronous_standby_names on the server: else a lost primary takes acknowledged answers with it"
        return unless_development(facts, "no synchronous standby is configured", fix)
    if postgres.standbys_connected == 0:
        return problem(
            f"synchronous_standby_names = {names}, and none is connected: commits wait (wait_event SyncRep)",
            "bring the standby back, or take it out of synchronous_standby_names: runbooks/database-failover.md",
        )
    return ok(names)


@CHECKS.check("database-durability")
@_on_postgres
def _database_durability(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The server writes to disk what it says it has written."""
    off = [name for name in ("fsync", "full_page_writes") if postgres.settings.get(name) == "off"]
    if off:
        return problem(f"{' and '.join(off)} off", f"set {' and '.join(off)} to on in postgresql.conf")
    return ok("fsync and full_page_writes are on")


@CHECKS.check("database-connections")
@_on_postgres
def _database_connections(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """A passive that must reconnect in an incident finds a free connection."""
    limit = int(postgres.settings.get("max_connections", "0"))
    spare = limit - int(postgres.settings.get("superuser_reserved_connections", "0")) - postgres.connections
    text = f"{postgres.connections} of {limit} in use"
    if spare < facts.lock_sessions + CONNECTIONS_SPARE:
        return warning(text, f"raise max_connections: the replicas need up to {facts.lock_sessions} of their own")
    return ok(text)


@CHECKS.check("autovacuum")
@_on_postgres
def _autovacuum(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The row of the ledger's end changes with each publication, and must be vacuumed."""
    if postgres.settings.get("autovacuum") == "off":
        return problem("autovacuum = off", "set autovacuum = on: else `participant` grows without end")
    return ok("on")


@CHECKS.check("database-rights")
@_on_postgres
def _database_rights(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The replicas' role may do what it must, and no more."""
    if facts.database.schema_problem:
        return unknown("no usable schema")
    if postgres.missing_rights:
        fix = "notary store roles, run by the owner; then GRANT notary_writer TO the replicas' role"
        return problem(f"{postgres.user} lacks: {', '.join(postgres.missing_rights)}", fix)
    if postgres.superuser or postgres.excess_rights:
        more = "is a superuser" if postgres.superuser else f"may {', '.join(postgres.excess_rights)}"
        fix = "log in as a member of notary_writer only: what was published is then safe from a stolen password"
        return warning(f"{postgres.user} {more}", fix)
    return ok(f"{postgres.user} has those of notary_writer")


@CHECKS.check("database-encryption")
@_on_postgres
def _database_encryption(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The connection to another machine is encrypted."""
    if postgres.encrypted:
        return ok("TLS")
    if postgres.local:
        return ok("not encrypted, but it stays on this machine")
    return warning("the connection is not encrypted", "add sslmode=verify-full and sslrootcert to conninfo")
