"""The doctor's judgement, pure: facts in, findings out. Every check has a name, each finding says how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from replica.doctor.facts import Facts, PostgresFacts

DISK_LEAST_BYTES = 1 << 30
DISK_LEAST_SHARE = 0.1
OPEN_FILES_LEAST = 4_096  # RocksDB keeps its files open, front ends their clients
CERTIFICATE_WARNING = timedelta(days=30)
CONNECTIONS_SPARE = 5
POSTGRES_OLDEST = 140_000
BROKERS_LEAST = 3


class Severity(StrEnum):
    """What a finding asks for."""

    OK = "ok"
    WARNING = "warning"  # serves, but not as safely or as comfortably as it should
    PROBLEM = "problem"  # must be mended: it does not serve, or may lose what it promised
    UNKNOWN = "unknown"  # could not be looked at; another finding says why


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `fix` is empty when all is well."""

    check: str
    severity: Severity
    text: str
    fix: str = ""


Verdict = tuple[Severity, str, str]
Judge = Callable[[Facts], Verdict]
_CHECKS: dict[str, Judge] = {}


def examine(facts: Facts) -> list[Finding]:
    """One finding for each check, in the order in which they are documented."""
    return [Finding(name, *judge(facts)) for name, judge in _CHECKS.items()]


def check_names() -> list[str]:
    """Every check, in order."""
    return list(_CHECKS)


def descriptions() -> Iterator[tuple[str, str]]:
    """Name of each check, and what it is about."""
    for name, judge in _CHECKS.items():
        yield name, (judge.__doc__ or "").strip()


def _check(name: str) -> Callable[[Judge], Judge]:
    def register(judge: Judge) -> Judge:
        _CHECKS[name] = judge
        return judge

    return register


def _ok(text: str) -> Verdict:
    return Severity.OK, text, ""


def _problem(text: str, fix: str) -> Verdict:
    return Severity.PROBLEM, text, fix


def _warning(text: str, fix: str) -> Verdict:
    return Severity.WARNING, text, fix


def _unknown(text: str) -> Verdict:
    return Severity.UNKNOWN, text, ""


def _unless_development(facts: Facts, text: str, fix: str) -> Verdict:
    """A problem, but only a warning where one broker says that nothing must be kept."""
    return _warning(text, fix) if facts.development else _problem(text, fix)


# ---- files ----


@_check("notary-key")
def _notary_key(facts: Facts) -> Verdict:
    """The notary's signing key is there, is Ed25519, signs, and nobody else can read it."""
    if facts.files.notary_key:
        fix = "chmod 600 the file, or see [pkcs11]; a new notary makes one: notary keys create"
        return _problem(facts.files.notary_key, fix)
    return _ok("it signs, and nobody else can read it")


@_check("parties")
def _parties(facts: Facts) -> Verdict:
    """The registry of parties can be read and is not empty."""
    files = facts.files
    if files.registry:
        return _problem(files.registry, "correct the file; replicas keep the old one until it is right")
    if not files.registered_pairs:
        return _warning("no party is registered: every request is refused", "add parties to api.registry_path, SIGHUP")
    return _ok(f"{files.registered_pairs} keys registered")


@_check("database-password")
def _database_password(facts: Facts) -> Verdict:
    """The database role's password is a file that nobody else can read, not a part of the configuration."""
    if facts.files.database_password:
        return _problem(facts.files.database_password, "chmod 600 the file that database.password_file names")
    if facts.files.password_in_conninfo:
        return _problem("database.conninfo holds a password", "move it to a file and name that in password_file")
    return _ok("none in the configuration")


@_check("kafka-secrets")
def _kafka_secrets(facts: Facts) -> Verdict:
    """Key and password for the brokers are files that nobody else can read."""
    if facts.files.kafka_secrets:
        return _problem(facts.files.kafka_secrets, "correct the file under kafka.security; secrets have mode 0600")
    return _ok("as they must be")


@_check("certificates")
def _certificates(facts: Facts) -> Verdict:
    """No certificate that the configuration names has expired, or is about to."""
    soonest = min(facts.files.certificates.items(), key=lambda item: item[1], default=None)
    if soonest is None:
        return _ok("none configured")
    setting, expires = soonest
    text = f"{setting} expires {expires:%Y-%m-%d}"
    if expires <= facts.now:
        return _problem(f"{setting} expired {expires:%Y-%m-%d}", "replace the file, restart replicas one by one")
    if expires - facts.now < CERTIFICATE_WARNING:
        return _warning(text, "replace the file in time, restart replicas one by one")
    return _ok(text)


# ---- this machine ----


@_check("data-folder")
def _data_folder(facts: Facts) -> Verdict:
    """The data folder can be written, outlives a boot, and is closed to other users."""
    machine = facts.machine
    if machine.data_dir_problem:
        return _problem(machine.data_dir_problem, f"make {machine.data_dir} a folder that the replicas' account owns")
    if machine.memory_backed:
        return _warning(f"{machine.data_dir} is in memory", "put data_dir on a disk: else a boot reads the whole log")
    if machine.data_dir_open_to_others:
        return _warning(f"{machine.data_dir} is open to other users", f"chmod 700 {machine.data_dir}")
    return _ok(machine.data_dir)


@_check("disk")
def _disk(facts: Facts) -> Verdict:
    """There is room for the index to grow."""
    machine = facts.machine
    share = machine.free_bytes / machine.size_bytes
    text = f"{machine.free_bytes / (1 << 30):.1f} GiB free, {share:.0%}"
    if machine.free_bytes < DISK_LEAST_BYTES:
        return _problem(text, "make room now: a replica that cannot write its index ends; runbooks/disk-full.md")
    if share < DISK_LEAST_SHARE:
        return _warning(text, "make room: runbooks/disk-full.md")
    return _ok(text)


@_check("open-files")
def _open_files(facts: Facts) -> Verdict:
    """A process may open enough files for the index and its clients."""
    limit = facts.machine.open_files_max
    if limit < OPEN_FILES_LEAST:
        return _warning(f"a process may open {limit} files", f"LimitNOFILE={OPEN_FILES_LEAST} or more in its unit")
    return _ok(f"{limit} for a process")


@_check("clock-synchronised")
def _clock_synchronised(facts: Facts) -> Verdict:
    """The kernel says that something keeps its clock right."""
    known = facts.machine.clock_synchronised
    if known is None:
        return _unknown("the kernel does not say")
    if not known:
        return _warning("nothing synchronises this machine's clock", "run chrony or systemd-timesyncd")
    return _ok("the kernel says so")


# ---- the shared database ----

_SESSION_FIXES = {
    "HA_SCOPE_MISMATCH": "set database.scope to the name that the server reports, in every replica",
    "HA_POOLER_DETECTED": "connect to the database itself: a pooler shares the lock's session",
    "HA_SYNCHRONOUS_COMMIT_OFF": "ALTER ROLE ... SET synchronous_commit = on",
    "HA_SESSION_SETTING_IGNORED": "connect directly to Postgres 14 or newer",
    "HA_READ_ONLY_SERVER": "name every host in conninfo, on Postgres with target_session_attrs=read-write",
    "HA_DATABASE_NOT_PREPARED": "notary store migrate, and run what notary store roles prints: runbooks/oracle.md",
    "HA_NO_SERVER_LEASE": "set IDLE_TIME in the user's profile: runbooks/oracle.md",
}


@_check("database-session")
def _database_session(facts: Facts) -> Verdict:
    """A replica's lock session can be opened: reached, right name, no pooler, durable commits, timeouts in force."""
    problem = facts.database.session_problem
    if problem is None:
        return _ok("scope, pooler, durability and timeouts are as the lock needs them")
    code, text = problem
    return _problem(text, _SESSION_FIXES.get(code, "check address, credentials and pg_hba.conf; is the server up?"))


@_check("database-lease")
def _database_lease(facts: Facts) -> Verdict:
    """The server frees the lock of a frozen replica, and it is known when."""
    lease = facts.database.lease
    if facts.database.session_problem is not None or lease is None:
        return _unknown("no lock session")
    if not lease.verified or lease.frees_after_s is None:
        return _warning(lease.detail, "give the right to read V$PARAMETER: notary store roles, runbooks/oracle.md")
    return _ok(f"after {lease.frees_after_s:g} s of silence: {lease.detail}")


@_check("clock-database")
def _clock_database(facts: Facts) -> Verdict:
    """This machine's clock agrees with the database's."""
    if facts.database.session_problem is not None:
        return _unknown("no lock session")
    skew_s, limit_s = facts.database.clock_skew_s, facts.clock_skew_max_s
    text = f"differs by {skew_s:+.3f} s"
    if abs(skew_s) > limit_s:
        return _problem(text, f"above clock_skew_max_s = {limit_s:g} no replica here may lead: set the clock right")
    if abs(skew_s) > limit_s / 2:
        return _warning(text, "set the clock right before it is too far off to lead")
    return _ok(text)


@_check("schema")
def _schema(facts: Facts) -> Verdict:
    """The tables are there, in a version that this release can use."""
    if facts.database.schema_problem:
        return _problem(facts.database.schema_problem, "notary store migrate, as the owner of the tables")
    if facts.database.reach_problem:
        return _unknown("the database was not reached")
    return _ok("of this release")


def _on_postgres(judge: Callable[[Facts, PostgresFacts], Verdict]) -> Judge:
    def judged(facts: Facts) -> Verdict:
        if facts.database.postgres is None:
            return _unknown(facts.database.reach_problem or "not a Postgres database")
        return judge(facts, facts.database.postgres)

    judged.__doc__ = judge.__doc__
    return judged


@_check("database-version")
@_on_postgres
def _database_version(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """Postgres is 14 or newer: older ones cannot end a silent session."""
    major = postgres.version_num // 10_000
    if postgres.version_num < POSTGRES_OLDEST:
        return _problem(f"Postgres {major}", "upgrade to Postgres 14 or newer")
    return _ok(f"Postgres {major}")


@_check("database-primary")
@_on_postgres
def _database_primary(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The connection string leads to the primary."""
    if postgres.in_recovery:
        return _problem("the server is a standby", "add target_session_attrs=read-write and all hosts to conninfo")
    return _ok("takes writes")


@_check("synchronous-commit")
@_on_postgres
def _synchronous_commit(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """A commit waits for the standby: neither off nor local."""
    mode = postgres.settings.get("synchronous_commit", "?")
    if mode in ("off", "local"):
        return _problem(f"synchronous_commit = {mode}", "ALTER ROLE ... SET synchronous_commit = on")
    return _ok(mode)


@_check("synchronous-standby")
@_on_postgres
def _synchronous_standby(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """A second machine has every commit before it counts."""
    names = postgres.settings.get("synchronous_standby_names", "")
    if not names:
        fix = "set synchronous_standby_names on the server: else a lost primary takes acknowledged answers with it"
        return _unless_development(facts, "no synchronous standby is configured", fix)
    if postgres.standbys_connected == 0:
        return _problem(
            f"synchronous_standby_names = {names}, and none is connected: commits wait (wait_event SyncRep)",
            "bring the standby back, or take it out of synchronous_standby_names: runbooks/database-failover.md",
        )
    return _ok(names)


@_check("database-durability")
@_on_postgres
def _database_durability(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The server writes to disk what it says it has written."""
    off = [name for name in ("fsync", "full_page_writes") if postgres.settings.get(name) == "off"]
    if off:
        return _problem(f"{' and '.join(off)} off", f"set {' and '.join(off)} to on in postgresql.conf")
    return _ok("fsync and full_page_writes are on")


@_check("database-connections")
@_on_postgres
def _database_connections(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """A passive that must reconnect in an incident finds a free connection."""
    limit = int(postgres.settings.get("max_connections", "0"))
    spare = limit - int(postgres.settings.get("superuser_reserved_connections", "0")) - postgres.connections
    text = f"{postgres.connections} of {limit} in use"
    if spare < facts.lock_sessions + CONNECTIONS_SPARE:
        return _warning(text, f"raise max_connections: the replicas need up to {facts.lock_sessions} of their own")
    return _ok(text)


@_check("autovacuum")
@_on_postgres
def _autovacuum(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The table of commands in flight turns over all the time and must be vacuumed."""
    if postgres.settings.get("autovacuum") == "off":
        return _problem("autovacuum = off", "set autovacuum = on: else `admission` grows without end")
    return _ok("on")


@_check("database-rights")
@_on_postgres
def _database_rights(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The replicas' role may do what it must, and no more."""
    if facts.database.schema_problem:
        return _unknown("no usable schema")
    if postgres.missing_rights:
        fix = "notary store roles, run by the owner; then GRANT notary_writer TO the replicas' role"
        return _problem(f"{postgres.user} lacks: {', '.join(postgres.missing_rights)}", fix)
    if postgres.superuser or postgres.excess_rights:
        more = "is a superuser" if postgres.superuser else f"may {', '.join(postgres.excess_rights)}"
        fix = "log in as a member of notary_writer only: what was published is then safe from a stolen password"
        return _warning(f"{postgres.user} {more}", fix)
    return _ok(f"{postgres.user} has those of notary_writer")


@_check("database-encryption")
@_on_postgres
def _database_encryption(facts: Facts, postgres: PostgresFacts) -> Verdict:
    """The connection to another machine is encrypted."""
    if postgres.encrypted:
        return _ok("TLS")
    if postgres.local:
        return _ok("not encrypted, but it stays on this machine")
    return _warning("the connection is not encrypted", "add sslmode=verify-full and sslrootcert to conninfo")


# ---- the request log ----


@_check("brokers")
def _brokers(facts: Facts) -> Verdict:
    """The request log can be reached, and lives on brokers enough."""
    if facts.log.problem and not facts.log.missing:
        return _problem(facts.log.problem, "check kafka.bootstrap_servers, kafka.security, and that the brokers run")
    if facts.log.brokers < BROKERS_LEAST:
        text = f"{facts.log.brokers} broker{'' if facts.log.brokers == 1 else 's'}"
        fix = "three brokers, two in sync: with fewer, a lost disk takes acknowledged requests with it"
        return _unless_development(facts, text, fix)
    return _ok(f"{facts.log.brokers} brokers")


@_check("topic-contract")
def _topic_contract(facts: Facts) -> Verdict:
    """The topic exists with the settings that safety rests on."""
    if facts.log.missing:
        return _problem(facts.log.problem or "there is no topic", "notary topic create, if this notary is new")
    if facts.log.problem:
        return _unknown("the brokers were not reached")
    if facts.log.violations:
        fix = "correct the topic's settings: runbooks/topic.md"
        return _problem("; ".join(facts.log.violations), fix)
    return _ok("kept")


@_check("topic-identity")
def _topic_identity(facts: Facts) -> Verdict:
    """The topic is the one that the database belongs to."""
    bound, found = facts.database.bound_topic_id, facts.log.topic_id
    if bound is None or found is None:
        return _unknown("the database is not bound to a topic yet, or one of the two was not reached")
    if bound != found:
        fix = "do not serve: find out which of the two is the wrong one, runbooks/topic.md"
        return _problem(f"the database belongs to topic id {bound}, the topic's is {found}", fix)
    return _ok(found)


@_check("topic-whole")
def _topic_whole(facts: Facts) -> Verdict:
    """The log begins at its first record, and reaches at least to what was published from it."""
    log, published = facts.log, facts.database.published_offset
    if log.topic_id is None:
        return _unknown("the topic was not reached")
    if log.first_offset > 0:
        fix = "records were deleted: restore the topic from the archive, runbooks/topic.md"
        return _problem(f"the log begins at offset {log.first_offset}", fix)
    if published >= log.end_offset:
        fix = "do not serve: the log was truncated, runbooks/topic.md"
        return _problem(f"offset {published} was published, and the log ends at {log.end_offset}", fix)
    return _ok(f"{log.end_offset} records")


# ---- replicas and load balancer ----


@_check("active")
def _active(facts: Facts) -> Verdict:
    """Exactly one replica serves."""
    active = [replica.name for replica in facts.replicas if replica.active]
    if not any(replica.answers for replica in facts.replicas):
        return _problem("no replica answers", "start them: systemctl start notary@NAME, or notary watch")
    if not active:
        return _problem("no replica is active", "see its log, and: notary history; runbooks/failover.md")
    if len(active) > 1:  # seen one after the other, so a hand-over can look like this
        return _warning(f"{' and '.join(active)} said so, one after the other", "look again: a hand-over was under way")
    return _ok(active[0])


@_check("passives")
def _passives(facts: Facts) -> Verdict:
    """Another replica could take over, and every one that is configured runs."""
    silent = [replica.name for replica in facts.replicas if not replica.answers]
    able = [replica.name for replica in facts.replicas if replica.ready and not replica.active]
    if not able:
        return _problem("no passive could take over", "start another replica: runbooks/replica-replacement.md")
    if silent:
        return _warning(f"{', '.join(silent)} does not answer", "start it: runbooks/replica-replacement.md")
    return _ok(f"{', '.join(able)} could take over")


@_check("index-digests")
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
        return _problem(f"after {min(differing)} records {sides} have different indexes", fix)
    common = [int(records) for records, digests in found.items() if len(next(iter(digests.values()))) > 1]
    if not common:
        return _ok("not compared yet: the log is short, or nobody has read it again")
    return _ok(f"the same after {max(common)} records")


@_check("versions")
def _versions(facts: Facts) -> Verdict:
    """All replicas run one release."""
    found = sorted({replica.version for replica in facts.replicas if replica.answers})
    if len(found) > 1:
        return _warning(f"they run {' and '.join(found)}", "end the rolling upgrade")
    return _ok(found[0]) if found else _unknown("no replica answers")


@_check("front-ends")
def _front_ends(facts: Facts) -> Verdict:
    """Every replica that runs has front ends to serve with."""
    without = [replica.name for replica in facts.replicas if replica.answers and not replica.front_ends]
    if without:
        fix = "see its log for front_end_ended and front_end_misconfigured; is its API port taken?"
        return _problem(f"{', '.join(without)} has no front end", fix)
    return _ok("each replica that answers has some")


@_check("steering")
def _steering(facts: Facts) -> Verdict:
    """Every replica can be told to hand over."""
    without = [replica.name for replica in facts.replicas if not replica.has_admin_port]
    if without:
        return _warning(f"{', '.join(without)} has no admin_port", "give it one: notary switchover needs it")
    return _ok("each replica has an admin_port")


@_check("failover-paused")
def _failover_paused(facts: Facts) -> Verdict:
    """Nobody left fail-over paused."""
    if facts.database.paused_because is not None:
        return _warning(f"paused: {facts.database.paused_because}", "when the work is done: notary resume")
    if facts.database.reach_problem:
        return _unknown("the database was not reached")
    return _ok("fail-over is on")


@_check("haproxy-configuration")
def _haproxy_configuration(facts: Facts) -> Verdict:
    """HAProxy accepts the configuration that is rendered for it."""
    if not facts.balancer.installed:
        return _unknown("HAProxy is not installed here")
    if facts.balancer.refused:
        return _problem(facts.balancer.refused, "correct [haproxy] in the configuration, then: notary haproxy check")
    return _ok("accepted")


@_check("haproxy")
def _haproxy(facts: Facts) -> Verdict:
    """HAProxy sends applications to the active replica."""
    if not facts.balancer.answers:
        return _unknown("no HAProxy answers on its socket here")
    active = {replica.name for replica in facts.replicas if replica.active}
    if active and not active & set(facts.balancer.up):
        up = ", ".join(facts.balancer.up) or "none"
        fix = "does it run with what `notary haproxy render` prints? runbooks/haproxy-loss.md"
        return _problem(f"it sends clients to {up}, active is {', '.join(active)}", fix)
    return _ok(f"up: {', '.join(facts.balancer.up) or 'none'}")


@_check("endpoint")
def _endpoint(facts: Facts) -> Verdict:
    """Applications reach the notary where they were told to."""
    if facts.balancer.endpoint_problem:
        return _problem(facts.balancer.endpoint_problem, "start HAProxy, check endpoint.host: runbooks/haproxy-loss.md")
    return _ok("answers")
