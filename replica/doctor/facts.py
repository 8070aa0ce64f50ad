"""The facts that the doctor judges, as plain values: look_*.py gathers them, checks.py judges. They hold no secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ha.lock.interface import DatabaseIdentity, LockOwner, ServerLease
from replica.log.words import LogWords
from replica.notary.formats import Formats
from replica.store.neighbours import Neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The files that the configuration names. Problems are sentences, each keyed by the name of its check."""

    problems: Mapping[str, str] = field(default_factory=dict)
    notary_key_in: Literal["file", "token", "service"] = "file"
    notary_key_refused: bool = False  # by the service, for the credentials that this command has
    notary_key_ended: datetime | None = None  # the key that signs, by the list of the notary's keys
    certificates: Mapping[str, datetime] = field(default_factory=dict)  # setting: when the first of the file expires
    password_in_conninfo: bool = False
    open_listeners: tuple[str, ...] = ()  # of the API, that other machines reach without a token
    salvages: Mapping[str, frozenset[str]] = field(default_factory=dict)  # digests, by the replicas of this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """This machine, and the data folder on it."""

    data_dir: str
    data_dir_problem: str | None = None  # why nothing can be kept there
    data_dir_open_to_others: bool = False
    free_bytes: int = 0
    size_bytes: int = 1
    memory_backed: bool = False  # tmpfs: gone with the next boot
    open_files_max: int = 0  # of one process, by the hard limit
    clients_files: int = 0  # that a front end needs for `api.connections_max`
    clock_synchronised: bool | None = None  # None: the kernel does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFacts:
    """The server's settings and state, as the replicas' own role sees them."""

    version_num: int
    in_recovery: bool
    settings: Mapping[str, str]  # pg_settings: name, value
    connections: int
    standbys_connected: int | None  # synchronous ones; None: the role may not see
    encrypted: bool
    local: bool  # by a Unix socket or loopback
    user: str
    superuser: bool
    missing_rights: tuple[str, ...]
    excess_rights: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """The shared database, as the replicas use it. `session_problem`: code and text of a lock session's failure.

    `embedded`: the replicas share none. Then this says what a ledger of this machine has, if there is one.
    """

    embedded: bool = False
    session_problem: tuple[str, str] | None = None
    clock_skew_s: float = 0.0
    lease: ServerLease | None = None  # as the lock session found it
    schema_problem: str | None = None
    bound_topic_id: str | None = None
    published_offset: int = -1
    salvages: tuple[str, ...] = ()  # digests of those that the database demands
    paused_because: str | None = None
    is_service_paused: bool = False  # and not fail-over
    formats: Formats | None = None  # that the next activation writes; None: not asked
    trail_problem: str | None = None  # what is wrong with the operators' trail
    trail_entries: int | None = None  # None: it was not read
    postgres: PostgresFacts | None = None  # None: not reached, or no Postgres
    reach_problem: str | None = None
    identity: DatabaseIdentity | None = None
    lock_owner: LockOwner | None = None
    neighbours: Neighbours | None = None  # None: not asked, or no Postgres
    contradicted_by: tuple[str, ...] | None = None  # replicas that left a contradicted mark; None: not read


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The request log. Without `topic_id` there is no log, or no answer: `problem` says which."""

    problem: str | None = None
    missing: bool = False
    topic_id: str | None = None
    violations: tuple[str, ...] = ()
    first_offset: int = 0
    end_offset: int = 0
    servers: int = 0  # that keep a copy
    deletable: bool | None = False  # whether one command of an authorised user deletes it; None: not known
    appears: bool | None = False  # whether its servers create a log that a client only asks for; None: not known
    database: str | None = None  # the database server that it is on, as a barrier names it; None: on none
    oldest_snapshot: int | None = None  # open there, its age in transactions; None: in no database, or not known
    spare: int | None = None  # how many more of the log's servers may fail; None: not known
    silent: tuple[str, ...] = ()  # servers that do not answer, where the log knows


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """A replica's wall clock, as its answer showed it."""

    ahead_s: float  # of this machine's
    within_s: float  # so far off that may be: half the time of question and answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One replica, by its health port; `answers` False: everything else is unknown."""

    name: str
    answers: bool
    active: bool = False  # it leads
    serves: bool = False  # it answers requests: the active does, with `serving = "all"` others as well
    not_serving: str = ""  # why it does not, where it should as all do
    ready: bool = False
    may_lead: bool = True
    version: str = ""
    front_ends: int = 0
    front_ends_silent: int = 0  # connected to it, and not heard
    epoch: int = 0
    granted_by: str = ""  # the database that granted the epoch in force, as it has read its barrier
    index_digests: Mapping[str, str] = field(default_factory=dict)  # by the number of records that they cover
    site: str | None = None  # whether its site has the term; None: no site is configured, or an older release
    site_detail: str = ""  # why it has not
    marks_problems: tuple[str, ...] = ()  # of its seen file and of what its peers tell, each with its code
    rules_in_force: int = 0  # by the newest barrier it has read; 0: none, or an older release
    clock: ClockFacts | None = None  # None: an older release


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerFacts:
    """HAProxy. `refused`: its objection to the rendered configuration; `up`: replicas it sends clients to."""

    unchecked: str | None = None  # why HAProxy did not look at its configuration
    refused: str | None = None
    answers: bool = False  # its runtime interface, on this machine
    up: tuple[str, ...] = ()
    endpoint_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepalivedFacts:
    """keepalived's file on this machine, beside what is rendered for the two nodes."""

    program: bool  # keepalived is installed here: this is one of the two machines
    path: str
    as_rendered: bool | None  # as for one of the nodes; None: there is no such file, or it cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverFacts:
    """The archiver, by its metrics. `address`: where they are asked for; `here`: on this machine, as they name none."""

    address: str
    here: bool
    age_s: float | None  # since it had all of the log, or since it started; None: it does not answer
    lag_records: float | None = None  # None: not archived yet, or the log does not answer it


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundFacts:
    """What stands around the replicas. None: it is not configured."""

    keepalived: KeepalivedFacts | None = None
    archiver: ArchiverFacts | None = None
    exporters: Mapping[str, bool] = field(default_factory=dict)  # HAProxy's, by address: whether each answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything, as of one moment."""

    now: datetime
    version: str
    log_words: LogWords  # what the configured kind of log is called
    development: bool  # the log is for development: what is only unsafe there is a warning
    clock_skew_max_s: float
    lock_sessions: int  # that all replicas together hold, with what else they connect for
    files: FileFacts
    machine: MachineFacts
    database: DatabaseFacts
    log: LogFacts
    replicas: tuple[ReplicaFacts, ...]
    balancer: BalancerFacts
    around: AroundFacts
    has_site: bool = False  # another site may take over, as this configuration says
