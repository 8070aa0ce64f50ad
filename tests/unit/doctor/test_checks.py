"""The doctor's judgement: a healthy participant has no finding, and each broken one is found by name, with its fix."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ha.lock.interface import DatabaseIdentity, LockOwner, ServerLease
from replica.doctor.checks import check_names, descriptions, examine, refused_configuration
from replica.doctor.facts import (
    ArchiverFacts,
    AroundFacts,
    BalancerFacts,
    ClockFacts,
    DatabaseFacts,
    Facts,
    FileFacts,
    KeepalivedFacts,
    LogFacts,
    MachineFacts,
    PostgresFacts,
    ReplicaFacts,
)
from replica.doctor.verdict import Finding, Severity
from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.kafka.settings import KafkaSettings
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.words import LogWords
from replica.notary.formats import Formats, known
from replica.store.neighbours import Ledger, NamedSession, Neighbours
from tests.next_version.release import NEXT, PRESENT

_RUNBOOK = re.compile(r"runbooks/[a-z-]+\.md")
NOW = datetime(2026, 6, 1, tzinfo=UTC)
GIB = 1 << 30
POSTGRES = PostgresFacts(
    version_num=150_004,
    in_recovery=False,
    settings={
        "synchronous_commit": "on", "synchronous_standby_names": "s1", "fsync": "on", "full_page_writes": "on",
        "max_connections": "100", "superuser_reserved_connections": "3", "autovacuum": "on",
        "server_encoding": "UTF8",
    },
    connections=20, standbys_connected=1, encrypted=True, local=False, user="notary", superuser=False,
    missing_rights=(), excess_rights=(),
)  # fmt: skip
LEASE = ServerLease(3.0, True, "idle_session_timeout")
UNREAD = ServerLease(60.0, False, "IDLE_TIME 60 s; MAX_IDLE_TIME not verified")
OWNER = LockOwner(17, "r1", "notary", "10.0.0.1")
NAMED = tuple(NamedSession(10 + n, f"r{n}", "notary", "10.0.0.1", 1) for n in (1, 2, 3))
NEIGHBOURS = Neighbours(NAMED, (Ledger("public", "notary_owner", True),))
DATABASE = DatabaseFacts(
    bound_topic_id="t", published_offset=9, postgres=POSTGRES, lease=LEASE,
    identity=DatabaseIdentity("postgres", "7301", 3), lock_owner=OWNER, neighbours=NEIGHBOURS, formats=known().newest,
    trail_entries=5, contradicted_by=(),
)  # fmt: skip
LOG = LogFacts(topic_id="t", end_offset=10, servers=3)
REPLICAS = tuple(
    ReplicaFacts(
        name=name,
        answers=True,
        active=name == "r1",
        serves=name == "r1",
        ready=True,
        version="1.0",
        front_ends=2,
        epoch=7,
        granted_by="postgres:7301:3",
        clock=ClockFacts(ahead_s=-3.0, within_s=0.002),  # all alike: it is this machine's that is wrong
    )
    for name in ("r1", "r2", "r3")
)
HEALTHY = Facts(
    now=NOW,
    version="1.0",
    log_words=KafkaSettings.words,
    development=False,
    clock_skew_max_s=1.0,
    lock_sessions=6,
    files=FileFacts(certificates={"kafka.security.ca_file": NOW + timedelta(days=300)}),
    machine=MachineFacts(
        data_dir="/var/lib/notary",
        free_bytes=50 * GIB,
        size_bytes=100 * GIB,
        open_files_max=65_536,
        clock_synchronised=True,
    ),
    database=DATABASE,
    log=LOG,
    replicas=REPLICAS,
    balancer=BalancerFacts(answers=True, up=("r1",)),
    around=AroundFacts(
        keepalived=KeepalivedFacts(program=True, path="keepalived.conf", as_rendered=True),
        archiver=ArchiverFacts(address="archive:1", here=False, age_s=30.0, lag_records=5.0),
        exporters={"haproxy-1:1": True, "haproxy-2:1": True},
    ),
)


def test_replicas_that_share_no_database_have_no_finding_about_one() -> None:
    """Goal: profile embedded is healthy. Method: no fact of a database; every check of one, and all others."""
    facts = replace(
        HEALTHY,
        log_words=RaftLogSettings.words,
        database=DatabaseFacts(
            embedded=True, bound_topic_id="t", published_offset=9, formats=Formats(), trail_entries=0
        ),
    )
    found = {one.check: one for one in examine(facts)}
    assert [one for one in found.values() if one.severity in (Severity.PROBLEM, Severity.WARNING)] == []
    assert "share no database" in found["database-session"].text
    assert "share no database" in found["database-rights"].text
    assert found["log-identity"].text == "t"
    another = replace(facts, database=replace(facts.database, bound_topic_id="other"))
    assert [one.check for one in examine(another) if one.severity is Severity.PROBLEM] == ["log-identity"]


def keepalived(as_rendered: bool | None) -> Facts:
    return around(keepalived=KeepalivedFacts(program=True, path="keepalived.conf", as_rendered=as_rendered))


def archiver(age_s: float | None, lag_records: float | None = 0.0) -> Facts:
    return around(archiver=ArchiverFacts(address="archive:1", here=False, age_s=age_s, lag_records=lag_records))


def around(**changes: Any) -> Facts:
    return replace(HEALTHY, around=replace(HEALTHY.around, **changes))


def files(**changes: Any) -> Facts:
    return replace(HEALTHY, files=replace(HEALTHY.files, **changes))


def missing(check: str, **more: Any) -> Facts:
    """A file that this check is about is missing."""
    return files(problems={check: "the file cannot be read"}, **more)


def lacking(*digests: str) -> Facts:
    """A database that demands salvages, and a replica here that has another one."""
    facts = database(salvages=digests)
    return replace(facts, files=replace(facts.files, salvages={"r1": frozenset({"cd" * 32})}))


def machine(**changes: Any) -> Facts:
    return replace(HEALTHY, machine=replace(HEALTHY.machine, **changes))


def database(**changes: Any) -> Facts:
    return replace(HEALTHY, database=replace(DATABASE, **changes))


def neighbours(sessions: tuple[NamedSession, ...], *ledgers: Ledger) -> Facts:
    return database(neighbours=Neighbours(sessions, (*NEIGHBOURS.ledgers, *ledgers)))


def postgres(**changes: Any) -> Facts:
    return database(postgres=replace(POSTGRES, **changes))


def setting(name: str, value: str) -> Facts:
    return postgres(settings={**POSTGRES.settings, name: value})


def log(**changes: Any) -> Facts:
    return replace(HEALTHY, log=replace(LOG, **changes))


def formats(written: Formats | None, rules: int) -> Facts:
    """These formats are written next, and these rules are in force."""
    return replace(database(formats=written), replicas=tuple(replace(one, rules_in_force=rules) for one in REPLICAS))


NEW_WITHOUT_LOG = replace(
    HEALTHY,
    log=replace(LOG, problem="no topic", missing=True, topic_id=None),
    database=replace(HEALTHY.database, bound_topic_id=None),
)


def replicas(*changes: dict[str, Any]) -> Facts:
    """The first replicas, changed; the others as they were."""
    changed = [replace(one, **change) for one, change in zip(REPLICAS, changes, strict=False)]
    return replace(HEALTHY, replicas=(*changed, *REPLICAS[len(changed) :]))


def balancer(**changes: Any) -> Facts:
    return replace(HEALTHY, balancer=replace(HEALTHY.balancer, **changes))


PASSIVE = {"active": False, "serves": False}
SILENT = {"answers": False, "active": False, "serves": False, "ready": False}
DIGESTS = {"index_digests": {"4096": "aa", "8192": "bb"}}
OTHER_DIGESTS = {"index_digests": {"4096": "aa", "8192": "cc", "12288": "dd"}}
BROKEN: list[tuple[str, Severity, Facts, str]] = [
    ("notary-key", Severity.PROBLEM, missing("notary-key"), "chmod 600"),
    ("notary-key", Severity.PROBLEM, missing("notary-key", notary_key_in="token"), "its PIN"),
    ("notary-key", Severity.PROBLEM, missing("notary-key", notary_key_in="service"), "kms.key_id"),
    (
        "notary-key",
        Severity.PROBLEM,
        missing("notary-key", notary_key_in="service", notary_key_refused=True),
        "kms:Sign",
    ),
    ("notary-key", Severity.PROBLEM, files(notary_key_ended=NOW), "key-rotation"),
    ("operator-keys", Severity.PROBLEM, missing("operator-keys"), "operators.keys_file"),
    ("database-password", Severity.PROBLEM, missing("database-password"), "chmod 600"),
    ("database-password", Severity.PROBLEM, files(password_in_conninfo=True), "password_file"),
    ("log-secrets", Severity.PROBLEM, missing("log-secrets"), "[log]"),
    ("api-certificates", Severity.PROBLEM, missing("api-certificates"), "SIGHUP"),
    ("token-keys", Severity.PROBLEM, missing("token-keys"), "api.tokens"),
    ("token-keys", Severity.WARNING, files(open_listeners=("r1", "the endpoint")), "set [api.tokens]"),
    ("tracing", Severity.PROBLEM, missing("tracing"), "tracing.ca_file"),
    ("salvages", Severity.PROBLEM, missing("salvages"), "notary index salvage"),
    ("salvages", Severity.PROBLEM, lacking("ab" * 32), "cannot lead"),
    ("certificates", Severity.PROBLEM, files(certificates={"a": NOW, "b": NOW + timedelta(9)}), "one by one"),
    ("certificates", Severity.WARNING, files(certificates={"a": NOW + timedelta(days=29)}), "one by one"),
    ("certificates", Severity.WARNING, files(certificates={"api.tls.key": NOW + timedelta(days=29)}), "SIGHUP"),
    ("data-folder", Severity.PROBLEM, machine(data_dir_problem="cannot be written"), "owns"),
    ("data-folder", Severity.WARNING, machine(memory_backed=True), "on a disk"),
    ("data-folder", Severity.WARNING, machine(data_dir_open_to_others=True), "chmod 700"),
    ("disk", Severity.PROBLEM, machine(free_bytes=GIB - 1), "disk-full"),
    ("disk", Severity.WARNING, machine(free_bytes=9 * GIB), "disk-full"),
    ("open-files", Severity.WARNING, machine(open_files_max=1_024), "LimitNOFILE=8192"),
    ("open-files", Severity.WARNING, machine(open_files_max=10_000, clients_files=20_128), "LimitNOFILE=20128"),
    ("clock-synchronised", Severity.WARNING, machine(clock_synchronised=False), "chrony"),
    ("database-session", Severity.PROBLEM, database(session_problem=("HA_SCOPE_MISMATCH", "x")), "database.scope"),
    ("database-session", Severity.PROBLEM, database(session_problem=("HA_POOLER_DETECTED", "x")), "pooler"),
    ("database-session", Severity.PROBLEM, database(session_problem=("HA_LOCK_UNAVAILABLE", "x")), "is the server up"),
    ("database-session", Severity.PROBLEM, database(session_problem=("HA_NO_SERVER_LEASE", "x")), "IDLE_TIME"),
    ("database-session", Severity.PROBLEM, database(session_problem=("HA_DATABASE_NOT_PREPARED", "x")), "store roles"),
    ("database-lease", Severity.WARNING, database(lease=UNREAD), "V$PARAMETER"),
    ("clock-database", Severity.PROBLEM, database(clock_skew_s=-1.1), "set the clock right"),
    ("clock-database", Severity.WARNING, database(clock_skew_s=0.6), "set the clock right"),
    ("database-lineage", Severity.PROBLEM, database(identity=DatabaseIdentity("postgres", "7301", 2)), "fence"),
    ("database-lineage", Severity.WARNING, database(identity=DatabaseIdentity("postgres", "7302", 9)), "dump"),
    ("lock-holder", Severity.PROBLEM, database(lock_owner=LockOwner(17, "report", "mon")), "pg_terminate_backend"),
    ("lock-holder", Severity.PROBLEM, database(lock_owner=LockOwner(17, "r1", "mon")), "CONNECT"),
    ("replica-names", Severity.PROBLEM, neighbours((*NAMED, NamedSession(20, "r2", "x", "", 1))), "name of its own"),
    ("replica-names", Severity.WARNING, neighbours((*NAMED, NamedSession(20, "r2", "x", "", None, False))), "CONNECT"),
    ("contradicted-marks", Severity.WARNING, database(contradicted_by=("r2", "r9")), "delete the row"),
    ("contradicted-marks", Severity.WARNING, database(contradicted_by=("r2",)), "starts again"),
    ("one-ledger", Severity.PROBLEM, neighbours(NAMED, Ledger("second", "x", False, True)), "search_path"),
    ("one-ledger", Severity.WARNING, neighbours(NAMED, Ledger("second", "x", False)), "database of its own"),
    ("schema", Severity.PROBLEM, database(schema_problem="no tables"), "notary store migrate"),
    ("database-encoding", Severity.PROBLEM, setting("server_encoding", "LATIN1"), "ENCODING 'UTF8'"),
    ("database-encoding", Severity.PROBLEM, setting("server_encoding", "SQL_ASCII"), "database-restore"),
    ("database-version", Severity.PROBLEM, postgres(version_num=130_000), "upgrade"),
    ("database-primary", Severity.PROBLEM, postgres(in_recovery=True), "target_session_attrs"),
    ("synchronous-commit", Severity.PROBLEM, setting("synchronous_commit", "off"), "synchronous_commit = on"),
    ("synchronous-commit", Severity.PROBLEM, setting("synchronous_commit", "local"), "synchronous_commit = on"),
    ("synchronous-standby", Severity.PROBLEM, setting("synchronous_standby_names", ""), "synchronous_standby_names"),
    ("synchronous-standby", Severity.PROBLEM, postgres(standbys_connected=0), "database-failover"),
    ("database-durability", Severity.PROBLEM, setting("fsync", "off"), "fsync"),
    ("database-connections", Severity.WARNING, postgres(connections=87), "max_connections"),
    ("autovacuum", Severity.PROBLEM, setting("autovacuum", "off"), "autovacuum = on"),
    ("database-rights", Severity.PROBLEM, postgres(missing_rights=("pause fail-over",)), "notary store roles"),
    ("database-rights", Severity.WARNING, postgres(excess_rights=("delete completions",)), "notary_writer"),
    ("database-rights", Severity.WARNING, postgres(superuser=True), "notary_writer"),
    ("database-encryption", Severity.WARNING, postgres(encrypted=False), "sslmode=verify-full"),
    ("log-servers", Severity.PROBLEM, log(problem="no answer", topic_id=None), "bootstrap_servers"),
    ("log-servers", Severity.PROBLEM, log(servers=1), "three brokers"),
    ("log-spare", Severity.WARNING, log(spare=1, silent=("r3.ab",)), "log-node-loss.md"),
    ("log-spare", Severity.PROBLEM, log(spare=0, silent=("r3.ab",)), "log-node-loss.md"),
    ("log-contract", Severity.PROBLEM, NEW_WITHOUT_LOG, "notary topic create"),
    ("log-contract", Severity.PROBLEM, log(problem="no topic", missing=True, topic_id=None), "would forget"),
    ("log-deletion", Severity.WARNING, log(deletable=True), "delete.topic.enable=false"),
    ("topic-creation", Severity.WARNING, log(appears=True), "auto.create.topics.enable=false"),
    ("log-contract", Severity.PROBLEM, log(violations=("retention.ms is 7",)), "topic.md"),
    ("log-identity", Severity.PROBLEM, log(topic_id="other"), "do not serve"),
    ("log-database", Severity.PROBLEM, log(database="postgres:7301:2"), "do not serve"),
    ("log-snapshots", Severity.WARNING, log(database="postgres:7301:3", oldest_snapshot=100_001), "postgres-log.md"),
    ("log-whole", Severity.PROBLEM, log(first_offset=5), "restore"),
    ("log-whole", Severity.PROBLEM, log(end_offset=9), "truncated"),
    ("active", Severity.PROBLEM, replicas(SILENT, SILENT, SILENT), "start them"),
    ("active", Severity.PROBLEM, replicas(PASSIVE), "failover"),
    ("active", Severity.WARNING, replicas({}, {"active": True}), "look again"),
    ("serving", Severity.PROBLEM, replicas({"serves": False, "not_serving": "the log does not answer"}), "workers"),
    ("serving", Severity.WARNING, replicas({}, {"not_serving": "the log does not answer"}), "workers"),
    ("haproxy", Severity.WARNING, replicas({}, {"serves": True}), "haproxy-loss"),
    ("passives", Severity.PROBLEM, replicas({}, {"ready": False}, SILENT), "start another"),
    ("passives", Severity.WARNING, replicas({}, SILENT), "start it"),
    ("passives", Severity.PROBLEM, replicas({}, {"may_lead": False}, {"may_lead": False}), "replicas.may_lead"),
    ("index-digests", Severity.PROBLEM, replicas(DIGESTS, DIGESTS, OTHER_DIGESTS), "notary index diff"),
    ("formats", Severity.WARNING, formats(NEXT, PRESENT.rules), "notary switchover"),
    ("marks", Severity.WARNING, replicas({}, {"marks_problems": ("SEEN_FILE_DAMAGED: both",)}), "docs/errors.md"),
    ("site", Severity.PROBLEM, replicas({"site": "in_term"}, {"site": "taken_over"}), "notary site status"),
    ("site", Severity.PROBLEM, replicas({"site": "in_term"}, {}), "restart them with their site configured"),
    ("site", Severity.PROBLEM, replace(HEALTHY, has_site=True), "restart them with their site configured"),
    ("clock-replicas", Severity.PROBLEM, replicas({"clock": ClockFacts(ahead_s=-1.9, within_s=0.05)}), "clock of r1"),
    ("clock-replicas", Severity.WARNING, replicas({"clock": ClockFacts(ahead_s=-3.6, within_s=0.05)}), "clock of r1"),
    ("versions", Severity.WARNING, replicas({"version": "1.1"}), "rolling upgrade"),
    ("front-ends", Severity.PROBLEM, replicas({"front_ends": 0}), "front_end_ended"),
    ("front-ends", Severity.PROBLEM, replicas({"front_ends": 0, "front_ends_silent": 2}), "started anew"),
    ("operators-trail", Severity.PROBLEM, database(trail_problem="entry 7 is missing"), "exports"),
    ("failover-paused", Severity.WARNING, database(paused_because="new disks"), "notary resume"),
    ("haproxy-configuration", Severity.PROBLEM, balancer(refused="unknown keyword"), "notary haproxy check"),
    ("haproxy", Severity.PROBLEM, balancer(up=("r2",)), "haproxy-loss"),
    ("endpoint", Severity.PROBLEM, balancer(endpoint_problem="connection refused"), "haproxy-loss"),
    ("keepalived", Severity.PROBLEM, keepalived(as_rendered=False), "notary haproxy render --keepalived"),
    ("keepalived", Severity.PROBLEM, keepalived(as_rendered=None), "notary haproxy render --keepalived"),
    ("monitoring", Severity.WARNING, around(exporters={}), "settings.md"),
    ("monitoring", Severity.WARNING, around(exporters={"haproxy-1:1": True, "haproxy-2:1": False}), "haproxy-loss.md"),
    ("archive", Severity.PROBLEM, archiver(None), "notary-archive"),
    ("archive", Severity.PROBLEM, archiver(3_601.0), "archive.md"),
    ("archive", Severity.PROBLEM, archiver(30.0, 1_000_001.0), "archive.md"),
    ("archive", Severity.PROBLEM, archiver(3_601.0, None), "archive.md"),
]


def test_a_healthy_participant_has_no_finding() -> None:
    """Goal: no false alarm. Method: facts of a healthy one; every check is ok."""
    assert [found for found in examine(HEALTHY) if found.severity is not Severity.OK] == []


@pytest.mark.parametrize(
    ("check", "severity", "facts", "fix"), BROKEN, ids=[f"{number}-{row[0]}" for number, row in enumerate(BROKEN)]
)
def test_what_is_broken_is_found_by_name_with_its_fix(check: str, severity: Severity, facts: Facts, fix: str) -> None:
    """Goal: each documented check finds what it is for. Method: one thing broken at a time in a healthy participant."""
    found = {finding.check: finding for finding in examine(facts)}
    assert found[check].severity is severity, found[check]
    assert any(part in found[check].fix for part in fix.split("|")), found[check].fix


def test_formats_are_well_where_the_log_has_them() -> None:
    """Goal: no false alarm after a restore of the database. Method: the next rules in force, today's in it."""
    (found,) = [one for one in examine(formats(PRESENT, NEXT.rules)) if one.check == "formats"]
    assert found.severity is Severity.OK


def test_a_clock_is_not_blamed_for_a_slow_answer() -> None:
    """Goal: no false alarm on a busy machine. Method: an answer that took seconds, whose clock may be right."""
    slow = replicas({"clock": ClockFacts(ahead_s=-4.2, within_s=1.1)})
    (found,) = [one for one in examine(slow) if one.check == "clock-replicas"]
    assert found.severity is Severity.OK


def test_what_another_machine_has_is_not_missed_here() -> None:
    """Goal: a replica's machine is not blamed for lacking what HAProxy's or the archive's has. Method: neither is here;
    neither is configured."""
    elsewhere = around(
        keepalived=KeepalivedFacts(program=False, path="keepalived.conf", as_rendered=None),
        archiver=ArchiverFacts(address="127.0.0.1:1", here=True, age_s=None),
    )
    found = {one.check: one.severity for one in examine(elsewhere)}
    assert (found["keepalived"], found["archive"]) == (Severity.UNKNOWN, Severity.UNKNOWN)
    found = {one.check: one.severity for one in examine(around(keepalived=None, archiver=None))}
    assert (found["keepalived"], found["archive"]) == (Severity.OK, Severity.UNKNOWN)


def test_the_whole_difference_of_two_clocks_is_told() -> None:
    """Goal: half of it may be within the limit while the whole is not. Method: two replicas 1.4 s apart, where 1 s is
    allowed; three, of which the middle one is between the others."""
    two = replace(HEALTHY, replicas=(replace(REPLICAS[0], clock=ClockFacts(ahead_s=-1.6, within_s=0.002)), REPLICAS[1]))
    three = replicas(
        {"clock": ClockFacts(ahead_s=-1.5, within_s=0.002)}, {"clock": ClockFacts(ahead_s=-2.2, within_s=0.002)}
    )
    for facts, apart, whose in ((two, "1.400 s", "r1 or r2"), (three, "1.500 s", "r3")):
        (found,) = [one for one in examine(facts) if one.check == "clock-replicas"]
        assert found.severity is Severity.PROBLEM
        assert apart in found.text
        assert f"clock of {whose} right" in found.fix


def test_every_check_is_broken_somewhere_above_and_says_what_it_is_about() -> None:
    """Goal: no check that was never seen to find anything. Method: names of the table against the register."""
    assert {"configuration", *(row[0] for row in BROKEN)} == set(check_names())
    assert len(check_names()) >= 15
    assert all(text for _, text in descriptions())


def test_what_could_not_be_looked_at_is_no_problem_of_its_own() -> None:
    """Goal: one cause, one finding. Method: database and brokers that do not answer."""
    silent = DatabaseFacts(session_problem=("HA_LOCK_UNAVAILABLE", "refused"), reach_problem="refused")
    facts = replace(HEALTHY, database=silent, log=LogFacts(problem="no answer"))
    problems = {found.check for found in examine(facts) if found.severity is Severity.PROBLEM}
    assert problems == {"database-session", "log-servers"}


def test_a_missing_secret_is_one_finding_and_not_a_server_that_is_down() -> None:
    """Goal: as above, for what is needed to log in. Method: no password; the look at both servers shows it as well."""
    secrets = dict.fromkeys(("database-password", "log-secrets"), "the file cannot be read")
    unreached = DatabaseFacts(session_problem=("CONFIG_INVALID", "no file"), reach_problem="no file")
    facts = replace(files(problems=secrets), database=unreached, log=LogFacts(problem="no file"))
    assert [found.check for found in examine(facts) if found.severity is Severity.PROBLEM] == list(secrets)


def test_a_refused_configuration_is_a_finding_and_nothing_else_was_looked_at() -> None:
    """Goal: programs get their report in any case. Method: one finding with the problem and a fix, others unknown."""
    first, *others = refused_configuration("kafka.topic: not a name")
    assert (first.check, first.severity, first.text) == ("configuration", Severity.PROBLEM, "kafka.topic: not a name")
    assert first.fix
    assert [found.check for found in (first, *others)] == check_names()
    assert {found.severity for found in others} == {Severity.UNKNOWN}


def test_a_development_set_up_is_warned_of_not_refused() -> None:
    """Goal: `notary up` is no heap of problems. Method: one broker, no standby, and declared so."""
    facts = replace(setting("synchronous_standby_names", ""), development=True, log=replace(LOG, servers=1))
    found: list[Finding] = [one for one in examine(facts) if one.severity is not Severity.OK]
    assert [(one.check, one.severity) for one in found] == [
        ("synchronous-standby", Severity.WARNING),
        ("log-servers", Severity.WARNING),
    ]


@pytest.mark.parametrize("words", [MemoryLogSettings.words, RaftLogSettings.words])
def test_a_finding_uses_the_words_of_the_log_that_is_configured(words: LogWords) -> None:
    """Goal: nobody looks for a broker that is not there. Method: all that can be wrong, with logs of other kinds."""
    about_the_log = [replace(facts, log_words=words) for name, _, facts, _ in BROKEN if name.startswith("log-")]
    about_the_log += [
        replace(HEALTHY, log_words=words),
        replace(HEALTHY, log_words=words, log=LogFacts(problem="away")),
    ]
    found = [one for facts in about_the_log for one in examine(facts) if one.check.startswith("log-")]
    texts = [f"{one.text} {one.fix}" for one in found]
    assert [text for text in texts if re.search(r"\b(broker|topic|delete\.topic)", text.replace("no topic", ""))] == []
    assert any(words.servers in text for text in texts)
    assert any(words.log in text for text in texts)


def test_the_documentation_lists_every_check() -> None:
    """Goal: what the doctor looks at is written down. Method: the table of docs/operations.md against the register."""
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", page[page.index("| check | what |") :], re.MULTILINE)
    assert rows == list(descriptions())


def test_every_runbook_that_a_fix_names_exists() -> None:
    """Goal: no dead end at three in the morning. Method: the names in all fixes against the folder."""
    root = Path(__file__).parents[3]
    named = {name for _, _, facts, _ in BROKEN for found in examine(facts) for name in _RUNBOOK.findall(found.fix)}
    assert named
    assert [name for name in sorted(named) if not (root / name).is_file()] == []
