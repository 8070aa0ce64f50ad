"""A plan: everything that defines a simulated run, drawn from a seed. It is plain data, to be shrunk and kept.

Times are virtual seconds since the start. The randomness that is left to the run itself (latencies, which message a
bad network strikes) comes from generators that are seeded with the plan's seed.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

START_US = 1_700_000_000_000_000  # wall clock at virtual time 0


class FaultKind(StrEnum):
    """What can be planned to go wrong. Some strike once; weather may strike each message while it lasts."""

    CRASH = "crash"  # SIGKILL; the server notices
    CRASH_HOST = "crash_host"  # the machine is gone; no server notices
    CRASH_TORN = "crash_torn"  # the same, and the newest batches of its index are lost
    STALL = "stall"  # SIGSTOP, SIGCONT
    TERMINATE = "terminate"  # SIGTERM
    SWITCHOVER = "switchover"
    DISK_ERROR = "disk_error"  # the index can be neither read nor written
    SESSION_KILLED = "session_killed"
    DATABASE_RESTART = "database_restart"
    DATABASE_FAIL_OVER = "database_fail_over"  # to a standby that missed the last commits
    DATABASE_SPLIT = "database_split"  # the same, and the old primary stays up for sessions that are connected to it
    DATABASE_CUT = "database_cut"  # a replica cannot reach the database
    DATABASE_WEATHER = "database_weather"  # statements and answers late, lost, cut off
    LOG_CUT = "log_cut"  # a replica cannot reach the log
    LOG_CLOGGED = (
        "log_clogged"  # what a replica sends to the log arrives when it is over, perhaps in a later activation
    )
    ISLAND = "island"  # a replica's session ends, and it can reach neither database nor log; clients still reach it
    LOG_WEATHER = "log_weather"  # appends late, repeated, reordered, lost
    READS_LATE = "reads_late"
    CLOCK_JUMP = "clock_jump"
    LINK_CUT = "link_cut"  # a front end loses its core
    CLIENT_WEATHER = "client_weather"  # replies late or lost, requests to the wrong replica
    POISON = "poison"  # bytes in the topic that are no record
    LEADER_CUT = "leader_cut"  # the partition's leader is cut off from its peers, and still answers
    READER_SILENT = "reader_silent"  # a replica's reader returns nothing any more, and reports no error
    PRUNED = "pruned"  # an operator moves the bound of what completions are kept: as far as it may go, or to `amount`
    DATABASE_RESTORED = "database_restored"  # from a backup that is taken now, and brought back after `duration_s`
    TAIL_LOST = "tail_lost"  # the topic loses its newest `amount` records, and is restored with a salvage of them
    SERVICE_PAUSED = "service_paused"  # an operator pauses service, and resumes it after `duration_s`
    PAUSED = "paused"  # people pause fail-over by a word in the log, and resume it after `duration_s`
    BOUND_SAID = "bound_said"  # people let `amount` more completions go, by a word in the log
    POWER_CUT = "power_cut"  # of all brokers and of a share (`amount`) of the replicas, for `duration_s`
    DISK_CLONED = "disk_cloned"  # a replica gets a seen file of elsewhere: 0 of another notary, 1 of a peer
    POSITION_DAMAGED = "position_damaged"  # a replica's index names another record than the log has
    PEERS_APART = "peers_apart"  # no replica hears of another for `duration_s`
    PUBLICATION_HELD = "publication_held"  # the table of completions is locked for `duration_s`


DRAWN_APART = (
    FaultKind.LEADER_CUT,
    FaultKind.READER_SILENT,
    FaultKind.PRUNED,
    FaultKind.DATABASE_RESTORED,
    FaultKind.TAIL_LOST,
    FaultKind.PAUSED,
    FaultKind.SERVICE_PAUSED,
    FaultKind.BOUND_SAID,
    FaultKind.POWER_CUT,
    FaultKind.DISK_CLONED,
    FaultKind.POSITION_DAMAGED,
    FaultKind.PEERS_APART,
    FaultKind.PUBLICATION_HELD,
)
"""Drawn from random streams of their own, so that adding them did not change the plans of other seeds."""

OF_SUITES = (
    FaultKind.SERVICE_PAUSED,
    FaultKind.POWER_CUT,
    FaultKind.DISK_CLONED,
    FaultKind.POSITION_DAMAGED,
    FaultKind.PEERS_APART,
    FaultKind.PUBLICATION_HELD,
)
"""Drawn for the plans of test_workers.py and test_power.py, and for no other."""

OF_A_DATABASE = (
    *[FaultKind.SESSION_KILLED, FaultKind.DATABASE_RESTART, FaultKind.DATABASE_FAIL_OVER, FaultKind.DATABASE_SPLIT],
    *[FaultKind.DATABASE_CUT, FaultKind.DATABASE_WEATHER, FaultKind.DATABASE_RESTORED, FaultKind.PUBLICATION_HELD],
    *[FaultKind.PRUNED, FaultKind.SERVICE_PAUSED, FaultKind.TAIL_LOST],
)
"""Have no target where replicas share no database: bounds and pauses are words in the log there, and a salvage needs a
database (replica/cli/restore.py)."""


STEPS = (
    "passive",
    "activating.identity",
    "activating.epoch",
    "activating.open_log",
    "activating.verify_lock",
    "activating.barrier",
    "activating.publish_backlog",
    "active.idle",
    "active.admitting",
    "active.logged",
    "active.publishing",
    "stepping_down.drain",
    "stepping_down.release",
)
"""The steps at which a fault may strike a replica, besides "down" and "starting"."""


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One planned fault. Without a target it strikes the replica that holds the lock.

    With a `step` it waits, from `at_s` on, until the target (any replica, if none is named) is at that step, and then
    for `skip` more turns of its tasks.
    """

    kind: FaultKind
    at_s: float
    target: str = ""
    step: str = ""
    skip: int = 0
    duration_s: float = 0.0
    amount: float = 0.0


class Transaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may be submitted. Two with the same id and other content are a reuse of the id. States are numbers."""

    id: int
    inputs: tuple[int, ...] = ()
    references: tuple[int, ...] = ()
    from_s: float | None = None
    until_s: float | None = None


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client does next: submits transactions in one call, or looks the first one up.

    `command`: number of the first transaction's command, the next one has the next. `attempts_max` 0: until the answer
    is final. `asynchronous`: the first attempt is answered as soon as it is recorded, later ones ask what became of it.
    """

    transactions: tuple[int, ...]
    command: int
    look_up: bool = False
    new_submission_id: bool = False  # with each attempt
    verify: bool = False  # look the first one up once it is answered, at every replica that is up
    think_s: float = 0.0
    answer_max_s: float = 1.0
    attempts_max: int = 0
    asynchronous: bool = False
    deduplication_s: float | None = None  # how long an acceptance of the same command counts, or above which offset
    deduplication_after: int | None = None


class ReplicaPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica and its machine."""

    name: str
    standby: str = "following"
    clock_rate: float = 1.0
    restart_s: float = 0.3
    deduplication_max_s: float = 7 * 86_400.0  # operators may change it, one replica after the other
    may_lead: bool = True
    clock_apart_s: float = 0.0  # by which its wall clock is ahead of the database's, all the time


class Damage(StrEnum):
    """Input that no front end lets through, and what strangers send on the lock's channel."""

    PERIOD = "period"  # a deduplication period that no notary can honour
    REQUEST_CUT = "request_cut"  # too short to name a transaction
    REQUEST_UNREADABLE = "request_unreadable"  # it names a transaction, but no reader accepts the rest as a request
    RECORD_TOO_LARGE = "record_too_large"
    NOTE_NESTED = "note_nested"
    NOTE_FORGED = "note_forged"


class Hostile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stranger sends to the leading replica, or to all on the lock's channel. Periods are in seconds."""

    at_s: float
    deduplication_s: float = 0.0
    damage: Damage = Damage.PERIOD


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run. Faults strike until `duration_s`; then all is healed and the notary must recover."""

    seed: int
    duration_s: float
    replicas: tuple[ReplicaPlan, ...]
    election: dict[str, float]
    core: dict[str, float | int]
    transactions: tuple[Transaction, ...]
    clients: tuple[tuple[Operation, ...], ...]
    faults: tuple[Fault, ...]
    hostile: tuple[Hostile, ...] = ()
    lease: bool = False  # leadership is a lease over the log, and replicas share no database
    watched: bool = False  # servers of the log see at once when a replica's process ends, as log nodes do
    worded: bool = False  # operators' words are in the log, and replicas follow them
    blind: bool = False  # an active looks nothing up: the log alone decides, as beside other writers
    all_serve: bool = False  # each replica has a worker, whoever holds the lock
    on_postgres: bool = False  # the log is on Postgres
    durability: str = "synced"  # of the log; "replicated": a power cut may take its newest records
    registers: bool = False  # an officer raises the rules, and changes the clients' key

    @property
    def operations_count(self) -> int:
        """Submissions and look-ups that are planned; each may take several attempts."""
        return sum(len(operation.transactions) for client in self.clients for operation in client)


def encode_plan(plan: Plan) -> bytes:
    """A plan as JSON, to be kept."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def decode_plan(raw: bytes) -> Plan:
    """A plan that was kept."""
    return msgspec.json.decode(raw, type=Plan)
