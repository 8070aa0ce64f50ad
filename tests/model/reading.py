"""The types of the model, and how its log is read. See protocol.py for its steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import NamedTuple


class AnswersOn(Enum):
    """What an active takes for the outcome of a submission."""

    SEND = "send"
    ACK = "ack"  # the broker has the record
    READ_BACK = "read back"  # the active has read and judged the record


class Fencing(Enum):
    """Broker transactions, whose newest producer shuts the older ones out; and whether the index is loaded before."""

    NONE = "none"
    AFTER_LOADING = "after loading"
    BEFORE_LOADING = "before loading"


@dataclass(frozen=True, slots=True)
class Design:
    """The rules a design keeps. The defaults are ours."""

    decides_in_memory: bool = False  # else the order of the log decides
    checks_lock_before_send: bool = False
    fencing: Fencing = Fencing.NONE
    barriers: bool = True  # an activation begins with a barrier, and a record counts only under its own
    answers_on: AnswersOn = AnswersOn.READ_BACK
    numbers_submissions: bool = True  # only the first counting record of a number has an effect
    activation_ids: bool = True  # else only epochs distinguish activations
    saves_barrier: bool = True  # the barrier in force is kept with the position, across a restart
    judges_by_offset: bool = True  # only what was recorded at a lower offset counts


OURS = Design()


class Verdict(StrEnum):
    OK = "ok"
    CONFLICT = "conflict"
    TOO_EARLY = "too early"


class Submission(NamedTuple):
    """A request of a client. All transactions consume the one state there is; `early`: before its time window."""

    name: str
    tx: str
    early: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """What clients do, and how often each misfortune may strike."""

    submissions: tuple[Submission, ...]  # clients send them in this order
    publishes: bool = False  # completions, which the database keeps
    terms: int = 2  # activations per replica
    losses: int = 0  # of the lock, without notice to its holder
    restarts: int = 0
    failovers: int = 0  # of the database, which forgets all
    repeats: int = 0  # of a record by the log's client


class Activation(NamedTuple):
    """Unlike its epoch, unique for ever."""

    replica: str
    term: int


class Record(NamedTuple):
    """In flight or in the log. A barrier has number 0, a request has a submission."""

    activation: Activation
    epoch: int
    number: int
    submission: Submission | None = None


class Index(NamedTuple):
    """What one reader made of the log up to `position`. `spent_at`: offset and transaction; offsets in `done`, too."""

    position: int = 0
    epoch: int = 0
    in_force: Activation | None = None
    forgot_barrier: bool = False  # a restart without the barrier in force: counts whatever comes until the next
    numbers: frozenset[int] = frozenset()
    spent_at: tuple[int, str] | None = None
    done: frozenset[tuple[str, int]] = frozenset()


def judge(index: Index, submission: Submission, offset: int, design: Design) -> Verdict:
    """Same id, then conflict, then time window. By offset: only what was recorded below `offset` counts."""
    limit = offset if design.judges_by_offset else index.position
    if any(tx == submission.tx and at < limit for tx, at in index.done):
        return Verdict.OK
    if index.spent_at is not None and index.spent_at[0] < limit:
        return Verdict.CONFLICT
    return Verdict.TOO_EARLY if submission.early else Verdict.OK


def counts(index: Index, record: Record, design: Design) -> bool:
    """Whether a request counts, by the void rule and by its number."""
    if not design.barriers or index.forgot_barrier:
        return True
    same = record.activation == index.in_force if design.activation_ids else record.epoch == index.epoch
    return same and not (design.numbers_submissions and record.number in index.numbers)


def apply(index: Index, record: Record, design: Design) -> tuple[Index, tuple[Submission, Verdict] | None]:
    """Read one record: the index after it, and the completion that it yields, if any."""
    offset = index.position
    index = index._replace(position=offset + 1)
    if record.number == 0:
        if record.epoch <= index.epoch:  # void, or a repeat of the one in force
            return index, None
        begun = index._replace(epoch=record.epoch, in_force=record.activation, numbers=frozenset())
        return begun._replace(forgot_barrier=False), None
    if record.submission is None or not counts(index, record, design):
        return index, None
    index = index._replace(numbers=index.numbers | {record.number})
    verdict = judge(index, record.submission, offset, design)
    if verdict is Verdict.OK and not any(tx == record.submission.tx for tx, _ in index.done):
        index = index._replace(spent_at=(offset, record.submission.tx))
        index = index._replace(done=index.done | {(record.submission.tx, offset)})
    return index, (record.submission, verdict)


@cache
def read_all(log: tuple[Record, ...], design: Design) -> tuple[Index, tuple[tuple[Submission, Verdict], ...]]:
    """The truth: what a reader with a perfect memory makes of a log."""
    if not log:
        return Index(), ()
    index, completions = read_all(log[:-1], design)
    index, new = apply(index, log[-1], design)
    return index, completions if new is None else (*completions, new)
