"""The protocol in miniature: two replicas, one lock, one log, one contested state; every interleaving can be looked at.

`Design` has one switch per rule of docs/architecture.md that a tempting design leaves out; its defaults are ours.
`successors` yields each thing that can happen next, `violations` lists what is wrong with a state.

A `Scenario` bounds what can go wrong. The lock may be lost without its holder noticing. A process may restart. The
database may fail over and forget everything. A record in flight lands at any time (also long after its sender was
deposed), in any order, perhaps twice. No event is certain: a purged record is one that never lands.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, StrEnum
from typing import NamedTuple

from tests.model.reading import (
    Activation,
    AnswersOn,
    Design,
    Fencing,
    Index,
    Record,
    Scenario,
    Submission,
    Verdict,
    apply,
    judge,
    read_all,
)

REPLICAS = ("A", "B")


class Phase(Enum):
    PASSIVE = "passive"
    GRABBED = "grabbed"
    LOADED = "loaded"
    BARRIER_SENT = "barrier sent"
    CAUGHT_UP = "caught up"
    ACTIVE = "active"


class Replica(NamedTuple):
    """`checked`: the submission about to be sent after a look at the lock. `memory`: what it decided by itself."""

    phase: Phase = Phase.PASSIVE
    terms: int = 0
    epoch: int = 0
    sent: int = 0
    view: Index = Index()
    waiting: frozenset[tuple[int, Submission, Verdict | None]] = frozenset()
    memory: str | None = None
    checked: Submission | None = None


class Database(NamedTuple):
    epoch: int = 0
    published: int = 0
    completions: tuple[tuple[Submission, Verdict], ...] = ()


class State(NamedTuple):
    replicas: tuple[Replica, ...] = (Replica(), Replica())
    holder: str | None = None
    database: Database = Database()
    log: tuple[Record, ...] = ()
    flight: frozenset[Record] = frozenset()
    fenced_by: Activation | None = None
    submitted: frozenset[Submission] = frozenset()
    answers: frozenset[tuple[Submission, Verdict]] = frozenset()
    losses: int = 0
    restarts: int = 0
    failovers: int = 0
    repeats: int = 0
    names: tuple[str, ...] = REPLICAS


Step = tuple[str, State]

# ------------------------------------------------------------------------------------------------ what can happen


def successors(state: State, design: Design, scenario: Scenario) -> Iterator[Step]:
    """Everything that can happen next, each with a name for the story.

    Steps whose results look the same are one step: what a passive replica has read matters only when it gets the lock,
    and records that concern no replica are skipped together. A goes first, because the replicas are alike.
    """
    yield from _misfortunes(state, design, scenario)
    yield from _landings(state, design, scenario)
    for name in state.names:
        replica = _replica(state, name)
        yield from _activation(state, name, design, scenario)
        if design.barriers and replica.phase in {Phase.BARRIER_SENT, Phase.ACTIVE}:
            yield from _reading(state, name, design, scenario)
        if scenario.publishes and state.holder == name and replica.phase in {Phase.CAUGHT_UP, Phase.ACTIVE}:
            yield from _publishing(state, name, design)
        if replica.phase is Phase.ACTIVE:
            yield from _serving(state, name, design, scenario)
        if replica.phase is not Phase.PASSIVE and state.holder != name:
            yield f"{name} hears that it lost the lock, and steps down", _step_down(state, name, scenario)


def _replica(state: State, name: str) -> Replica:
    return state.replicas[state.names.index(name)]


def _with(state: State, name: str, replica: Replica) -> State:
    at = state.names.index(name)
    return state._replace(replicas=(*state.replicas[:at], replica, *state.replicas[at + 1 :]))


def _step_down(state: State, name: str, scenario: Scenario) -> State:
    """Waiting requests are answered "unknown"; what is in flight stays in flight. The index outlives it."""
    replica = _replica(state, name)
    index = replica.view if replica.terms < scenario.terms else Index()  # nobody will look at it again
    holder = None if state.holder == name else state.holder
    return _with(state, name, Replica(terms=replica.terms, view=index))._replace(holder=holder)


def _misfortunes(state: State, design: Design, scenario: Scenario) -> Iterator[Step]:
    if state.holder is not None and state.losses < scenario.losses:
        yield "the lock is lost, nobody is told", state._replace(holder=None, losses=state.losses + 1)
    if state.failovers < scenario.failovers:
        lost = state._replace(database=Database(), holder=None, failovers=state.failovers + 1)
        yield "the database fails over and forgets all", lost
    if state.restarts < scenario.restarts:
        for name in state.names:
            restarted = _step_down(state, name, scenario)._replace(restarts=state.restarts + 1)
            replica = _replica(restarted, name)
            if not design.saves_barrier:
                replica = replica._replace(view=replica.view._replace(forgot_barrier=True))
            yield f"{name} restarts", _with(restarted, name, replica)


def _landings(state: State, design: Design, scenario: Scenario) -> Iterator[Step]:
    for record in state.flight:
        if design.fencing is not Fencing.NONE and record.activation != state.fenced_by:
            continue  # the broker refuses it
        landed = _acknowledged(state._replace(log=(*state.log, record)), record, design)
        yield f"{_title(record)} lands", landed._replace(flight=state.flight - {record})
        if state.repeats < scenario.repeats:
            yield f"{_title(record)} lands, and is in flight again", landed._replace(repeats=state.repeats + 1)


def _title(record: Record) -> str:
    what = "barrier" if record.submission is None else f"request {record.submission.name}"
    return f"{what} of {record.activation.replica}{record.activation.term} (epoch {record.epoch})"


def _acknowledged(state: State, record: Record, design: Design) -> State:
    """The delivery report of a record; a replica that still waits for it may take it for a verdict."""
    name = record.activation.replica
    replica = _replica(state, name)
    if design.answers_on is not AnswersOn.ACK or replica.terms != record.activation.term:
        return state
    return _answer(state, name, record.number)


def _answer(state: State, name: str, number: int, verdict: Verdict | None = None) -> State:
    """Answer who waits for this number, with `verdict`, or else with what was decided before."""
    replica = _replica(state, name)
    hits = frozenset(wait for wait in replica.waiting if wait[0] == number)
    state = _with(state, name, replica._replace(waiting=replica.waiting - hits))
    for _, submission, decided in hits:
        final = verdict or decided
        assert final is not None, "only designs that decide in memory answer before they have read"
        state = state._replace(answers=state.answers | {(submission, final)})
    return state


def _activation(state: State, name: str, design: Design, scenario: Scenario) -> Iterator[Step]:
    """Lock and epoch (one session, so one step), then whatever the design puts before serving."""
    replica = _replica(state, name)
    activation = Activation(name, replica.terms)
    ready = replica.phase is Phase.PASSIVE and replica.terms < scenario.terms and state.holder is None
    match replica.phase:
        case Phase.PASSIVE if ready and (name != "B" or _replica(state, "A").terms):
            for index in _further(replica.view, state.log, design):
                epoch = max(state.database.epoch, index.epoch) + 1
                grabbed = replica._replace(phase=Phase.GRABBED, terms=replica.terms + 1, epoch=epoch, view=index)
                won = _with(state, name, grabbed)._replace(holder=name)
                title = f"{name}, which has read {index.position} records, gets the lock and epoch {epoch}"
                yield title, won._replace(database=state.database._replace(epoch=epoch))
        case Phase.GRABBED if design.barriers:
            sent = _with(state, name, replica._replace(phase=Phase.BARRIER_SENT))
            barrier = Record(activation, replica.epoch, 0)
            yield f"{name} sends its barrier", sent._replace(flight=state.flight | {barrier})
        case Phase.GRABBED if design.fencing is Fencing.BEFORE_LOADING and state.fenced_by != activation:
            yield f"{name} fences", state._replace(fenced_by=activation)
        case Phase.GRABBED:
            index = read_all(state.log, design)[0]
            done = design.fencing is not Fencing.AFTER_LOADING
            loaded = replica._replace(view=index, phase=Phase.ACTIVE if done else Phase.LOADED)
            yield f"{name} loads the index to the end", _with(state, name, loaded)
        case Phase.LOADED:
            fenced = _with(state, name, replica._replace(phase=Phase.ACTIVE))
            yield f"{name} fences", fenced._replace(fenced_by=activation)


def _further(index: Index, log: tuple[Record, ...], design: Design) -> Iterator[Index]:
    """The index now, and as it is after each further record. What a passive has read shows only when it activates."""
    yield index
    for record in log[index.position :]:
        index, _ = apply(index, record, design)
        yield index


def _reading(state: State, name: str, design: Design, scenario: Scenario) -> Iterator[Step]:
    """Read on to the next record that concerns this replica: its own, or a barrier that comes into force."""
    replica = _replica(state, name)
    index = replica.view
    for record in state.log[index.position :]:
        in_force = index.in_force, index.epoch
        index, completion = apply(index, record, design)
        mine = record.activation == Activation(name, replica.terms)
        if not design.activation_ids:
            mine = record.epoch == replica.epoch
        deposed = (index.in_force, index.epoch) != in_force and replica.phase is not Phase.BARRIER_SENT
        read = _with(state, name, replica._replace(view=index))
        title = f"{name} reads {_title(record)}"
        if deposed or (mine and record.number == 0 and replica.phase is Phase.BARRIER_SENT):
            yield title, _read_barrier(read, name, design, scenario)
            return
        if mine and completion:
            answers = design.answers_on is AnswersOn.READ_BACK
            yield title, _answer(read, name, record.number, completion[1]) if answers else read
            return


def _read_barrier(state: State, name: str, design: Design, scenario: Scenario) -> State:
    """One's own barrier is in force: caught up. It is void, or another one is in force: step down."""
    replica = _replica(state, name)
    own = replica.view.in_force == Activation(name, replica.terms)
    if not design.activation_ids:
        own = replica.view.epoch == replica.epoch
    if not own:
        return _step_down(state, name, scenario)
    return _with(state, name, replica._replace(phase=Phase.CAUGHT_UP if scenario.publishes else Phase.ACTIVE))


def _publishing(state: State, name: str, design: Design) -> Iterator[Step]:
    """Completions and published position in one transaction on the lock's own session: only the holder can."""
    replica, database = _replica(state, name), state.database
    if database.published < replica.view.position:
        yield f"{name} publishes", state._replace(database=_published(state, replica, design))
    elif replica.phase is Phase.CAUGHT_UP:
        yield f"{name} serves", _with(state, name, replica._replace(phase=Phase.ACTIVE))


def _published(state: State, replica: Replica, design: Design) -> Database:
    """Judge again what lies between the published position and the index, on the index as it is now."""
    database, index = state.database, read_all(state.log[: state.database.published], design)[0]
    new = list[tuple[Submission, Verdict]]()
    for offset in range(database.published, replica.view.position):
        index, completion = apply(index, state.log[offset], design)
        if completion is not None:
            new.append((completion[0], judge(replica.view, completion[0], offset, design)))
    return database._replace(published=replica.view.position, completions=(*database.completions, *new))


def _serving(state: State, name: str, design: Design, scenario: Scenario) -> Iterator[Step]:
    replica = _replica(state, name)
    if replica.checked is not None:
        yield f"{name} sends {replica.checked.name}", _send(state, name, replica.checked, design)
        return
    if len(state.submitted) == len(scenario.submissions):
        return
    submission = scenario.submissions[len(state.submitted)]
    submitted = state._replace(submitted=state.submitted | {submission})
    if design.checks_lock_before_send:
        if state.holder == name:
            checked = _with(submitted, name, replica._replace(checked=submission))
            yield f"{name} takes {submission.name} and finds that it has the lock", checked
    else:
        yield f"{name} takes and sends {submission.name}", _send(submitted, name, submission, design)


def _send(state: State, name: str, submission: Submission, design: Design) -> State:
    replica = _replica(state, name)
    number = replica.sent + 1
    record = Record(Activation(name, replica.terms), replica.epoch, number, submission)
    decided, memory = None, replica.memory
    if design.decides_in_memory:
        spent_by = memory or (None if replica.view.spent_at is None else replica.view.spent_at[1])
        decided = Verdict.OK if spent_by in {None, submission.tx} else Verdict.CONFLICT
        memory = spent_by or submission.tx
    waiting = replica.waiting | {(number, submission, decided)}
    replica = replica._replace(sent=number, waiting=waiting, memory=memory, checked=None)
    sent = _with(state, name, replica)._replace(flight=state.flight | {record})
    if design.answers_on is AnswersOn.SEND:
        return _answer(sent, name, number)
    return sent


# --------------------------------------------------------------------------------------------- what must not happen


class Violation(StrEnum):
    DOUBLE_SPEND = "two transactions were told that they consumed the state"
    ANSWER_NOT_IN_LOG = "an answer is not what the log says"
    COMPLETION_NOT_IN_LOG = "the completions are not those of the log"
    COMPLETED_TWICE = "a submission has two completions"
    INDEX_DIVERGED = "an index is not what the log makes of it"


def violations(state: State, design: Design) -> Iterator[Violation]:
    """The violations in a state; none if the design is right."""
    if len({submission.tx for submission, verdict in state.answers if verdict is Verdict.OK}) > 1:
        yield Violation.DOUBLE_SPEND
    _, truth = read_all(state.log, design)
    if not state.answers <= frozenset(truth):
        yield Violation.ANSWER_NOT_IN_LOG
    if state.database.completions != truth[: len(state.database.completions)]:
        yield Violation.COMPLETION_NOT_IN_LOG
    for completions in (state.database.completions, truth):
        completed = [submission for submission, _ in completions]
        if len(set(completed)) < len(completed):
            yield Violation.COMPLETED_TWICE
    if design.barriers:
        for replica in state.replicas:
            if replica.view != read_all(state.log[: replica.view.position], design)[0]:
                yield Violation.INDEX_DIVERGED
