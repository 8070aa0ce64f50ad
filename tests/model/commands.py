"""Commands decided in the log, in miniature: acceptances, periods, indexes that lag or lead.

Fencing is not modelled again: protocol.py shows that a record counts only with the activation in force. Here a
fail-over simply drops what was in flight. But a deposed active may go on answering from its index, until it notices.
This model covers everything else:

- a record is judged by the newest acceptance of its command *below its own offset*, by the log's time, within the
  period that it asks for; a notarised verdict adds an acceptance, a deduplicated one adds none;
- or above the log offset that it names; the time is that of the log: the highest stamp so far, so a record that comes
  late, or from a slow clock, is not judged by its own stamp;
- the active answers from its own index what was accepted before with the same transaction, without logging it; what was
  accepted with another one is refused by the log only;
- completions are judged again when they are published, on the index as it is then.

`Rules` has one switch per rule; its defaults are ours. `violations` compares with a specification written apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

REPLICAS = ("A", "B")


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    DEDUPLICATED = "deduplicated"
    REUSED = "the command belongs to another transaction"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules a design keeps. The defaults are ours."""

    indexes_acceptances: bool = True
    by_log_time: bool = True  # else a period is judged by the reader's clock
    filters_first: bool = True  # else the newest acceptance is taken, and dropped when it is not below the record
    expires: bool = True  # else an acceptance older than the period counts as well
    deduplicated_adds_none: bool = True
    repeats_add_one: bool = True  # a transaction that another command had notarised is accepted for this one as well
    looks_up_by_log_time: bool = True  # the active judges what it finds by the later of its clock and the log's time
    first_offset: bool = True  # a deduplicated success names where the transaction was first notarised
    refuses_by_log: bool = True  # else the active refuses from its index as well what another transaction holds
    takes_newest: bool = True  # else the first acceptance of a command decides for ever
    above_after: bool = True  # else the acceptance at the very offset that a record names counts as well
    highest_stamp: bool = True  # else a record is judged by its own stamp
    own_period: bool = True  # else the period of the accepted one counts, not that of the one that is judged


OURS = Rules()


class Submission(NamedTuple):
    """What a client sends. `period`: for how long before it an acceptance of the same command counts; `after`: above
    which log offset."""

    name: str
    command: str
    tx: str
    period: int
    after: int = -1


class Record(NamedTuple):
    """In the log: a request with its stamp, or a barrier."""

    submission: Submission | None = None
    stamp: int = 0


class Acceptance(NamedTuple):
    """What the index keeps of one: the key is the command with the offset."""

    command: str
    tx: str
    judged: int
    offset: int
    period: int = 0  # what the accepted one had asked for; no rule of ours looks at it


class Completion(NamedTuple):
    """The outcome of a submission, by the record at `offset`; `first`: where its transaction was first notarised."""

    submission: Submission
    verdict: Verdict
    first: int | None = None


class Index(NamedTuple):
    """What a replica made of the log."""

    position: int = 0
    highest: int = 0
    notarised: frozenset[tuple[str, int]] = frozenset()
    acceptances: frozenset[Acceptance] = frozenset()


class Database(NamedTuple):
    published: int = 0
    completions: tuple[Completion, ...] = ()


class State(NamedTuple):
    indexes: tuple[Index, Index] = (Index(), Index())
    active: str | None = None
    deposed: str | None = None  # was active, and has not noticed yet that it is no more
    serving: bool = False
    clock: int = 0
    log: tuple[Record, ...] = ()
    flight: frozenset[Record] = frozenset()
    database: Database = Database()
    sent: int = 0  # submissions of the scenario that clients have sent
    wrong: str | None = None  # an answer that was given without the log, and that the log contradicts
    failovers: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What clients do, and how often each misfortune may strike."""

    submissions: tuple[Submission, ...]
    failovers: int = 1
    unnoticed: bool = False  # a deposed active goes on answering from its index
    clock_max: int = 2
    lag: int = 0  # how far the clock of B lags
    many_writers: bool = False  # a retry may be logged while the first one is on its way, as nobody knows all of them


Step = tuple[str, State]


# ------------------------------------------------------------------------------------------------ how a log is read


def judge(index: Index, record: Record, offset: int, judged: int, clock: int, rules: Rules) -> Completion:
    """The verdict on the request at `offset`, by an index that may have read further than that."""
    submission = record.submission
    assert submission is not None
    firsts = [at for tx, at in index.notarised if tx == submission.tx and at < offset]
    first = min(firsts, default=None)
    found = _newest(index, submission.command, offset, rules)
    now = judged if rules.by_log_time else clock
    if found is not None and _counts(found, submission, now, rules):
        if found.tx != submission.tx:
            return Completion(submission, Verdict.REUSED)
        return Completion(submission, Verdict.DEDUPLICATED, first if rules.first_offset else found.offset)
    return Completion(submission, Verdict.ACCEPTED, offset if first is None else first)


def _counts(found: Acceptance, submission: Submission, now: int, rules: Rules) -> bool:
    """Whether an acceptance lies within what a submission asks for."""
    if found.offset < submission.after or (found.offset == submission.after and rules.above_after):
        return False
    return not rules.expires or now - found.judged <= (submission.period if rules.own_period else found.period)


def _newest(index: Index, command: str, offset: int, rules: Rules) -> Acceptance | None:
    """The newest acceptance of a command below `offset`."""
    known = [one for one in index.acceptances if one.command == command]
    if not rules.takes_newest:
        return min((one for one in known if one.offset < offset), key=lambda one: one.offset, default=None)
    if rules.filters_first:
        return max((one for one in known if one.offset < offset), key=lambda one: one.offset, default=None)
    newest = max(known, key=lambda one: one.offset, default=None)
    return newest if newest is not None and newest.offset < offset else None


def apply(index: Index, record: Record, clock: int, rules: Rules) -> tuple[Index, list[Completion]]:
    """Read the record at the index's position."""
    offset = index.position
    index = index._replace(position=offset + 1)
    if record.submission is None:
        return index, []
    judged = max(index.highest, record.stamp) if rules.highest_stamp else record.stamp
    completion = judge(index, record, offset, judged, clock, rules)
    index = index._replace(highest=judged)
    accepted = completion.verdict is Verdict.ACCEPTED
    is_first = accepted and completion.first == offset
    if is_first:
        index = index._replace(notarised=index.notarised | {(record.submission.tx, offset)})
    adds = is_first or (accepted and rules.repeats_add_one)
    adds = adds or (completion.verdict is Verdict.DEDUPLICATED and not rules.deduplicated_adds_none)
    if adds and rules.indexes_acceptances:
        command, tx, period = record.submission[1:4]
        acceptance = Acceptance(command, tx, judged, offset, period)
        index = index._replace(acceptances=index.acceptances | {acceptance})
    return index, [completion]


def read_all(log: tuple[Record, ...], rules: Rules = OURS, clock: int = 0) -> tuple[Index, list[Completion]]:
    """What a reader makes of the whole log from its start."""
    index, completions = Index(), list[Completion]()
    for record in log:
        index, new = apply(index, record, clock, rules)
        completions += new
    return index, completions


# ------------------------------------------------------------------------------------------------ what can happen


def successors(state: State, rules: Rules, scenario: Scenario) -> Iterator[Step]:
    """Everything that can happen next, each with a name for the story."""
    if state.clock < scenario.clock_max:
        yield "time passes", state._replace(clock=state.clock + 1)
    for record in sorted(state.flight, key=lambda record: record.submission or ()):
        landed = state._replace(log=(*state.log, record), flight=state.flight - {record})
        assert record.submission is not None
        yield f"{record.submission.name} lands", landed
    for name in REPLICAS:
        yield from _reading(state, name, rules)
        if state.active is None and name != state.deposed and _index(state, name).position == len(state.log):
            yield f"{name} activates", state._replace(log=(*state.log, Record()), active=name)
        if state.active == name:
            yield from _publishing(state, name, rules)
            yield from _serving(state, name, rules, scenario)
    yield from _deposing(state, rules, scenario)


def _deposing(state: State, rules: Rules, scenario: Scenario) -> Iterator[Step]:
    """The active dies, or is deposed and goes on answering from its index; what it logs is void by then."""
    if state.active is not None and state.failovers < scenario.failovers:
        lost = state._replace(active=None, serving=False, flight=frozenset(), failovers=state.failovers + 1)
        yield f"{state.active} dies", lost
        if scenario.unnoticed and state.serving:
            yield f"{state.active} is deposed, and does not notice", lost._replace(deposed=state.active)
    if state.deposed is None:
        return
    yield f"{state.deposed} notices", state._replace(deposed=None)
    if state.sent < len(scenario.submissions):
        submission, index = scenario.submissions[state.sent], _index(state, state.deposed)
        found = _answerable(index, submission, state.clock, rules)
        if found is not None:
            taken = state._replace(sent=state.sent + 1)
            yield (
                f"{state.deposed} answers {submission.name}, deposed",
                _answered(taken, submission, found, state.clock),
            )


def _index(state: State, name: str) -> Index:
    return state.indexes[REPLICAS.index(name)]


def _reading(state: State, name: str, rules: Rules) -> Iterator[Step]:
    """Read on by one record."""
    index = _index(state, name)
    if index.position == len(state.log) or name == state.deposed:
        return
    read, _ = apply(index, state.log[index.position], state.clock, rules)
    first, second = state.indexes
    yield f"{name} reads on", state._replace(indexes=(read, second) if name == "A" else (first, read))


def _publishing(state: State, name: str, rules: Rules) -> Iterator[Step]:
    """Publish what the log decides up to the index, judged again on the index as it is now; then serve."""
    index = _index(state, name)
    if state.database.published < index.position:
        yield f"{name} publishes", state._replace(database=_published(state, index, rules))
    elif not state.serving and index.position == len(state.log):
        yield f"{name} serves", state._replace(serving=True)


def _published(state: State, newer: Index, rules: Rules) -> Database:
    database = state.database
    before = read_all(state.log[: database.published], rules, state.clock)[0]
    completions = list[Completion]()
    for offset in range(database.published, newer.position):
        record = state.log[offset]
        before, _ = apply(before, record, state.clock, rules)
        if record.submission is not None:
            completions.append(judge(newer, record, offset, before.highest, state.clock, rules))
    return Database(newer.position, (*database.completions, *completions))


def _serving(state: State, name: str, rules: Rules, scenario: Scenario) -> Iterator[Step]:
    """Take the next submission: answer it from what is known, or log it."""
    if not state.serving or state.sent == len(scenario.submissions):
        return
    submission = scenario.submissions[state.sent]
    taken = state._replace(sent=state.sent + 1)
    index = _index(state, name)
    on_its_way = any(record.submission.command == submission.command for record in _unread(state, index))
    clock = _clock(state, name, scenario)
    found = _answerable(index, submission, clock, rules)
    if found is not None:
        yield f"{name} answers {submission.name} from its index", _answered(taken, submission, found, clock)
    elif on_its_way and not scenario.many_writers:
        yield f"{name} finds {submission.name} in flight", taken
    else:
        sent = taken._replace(flight=taken.flight | {Record(submission, clock)})
        yield f"{name} sends {submission.name}", sent


def _answerable(index: Index, submission: Submission, clock: int, rules: Rules) -> Acceptance | None:
    """The acceptance by which an active answers without the log; None: the log decides."""
    now = max(clock, index.highest) if rules.looks_up_by_log_time else clock
    found = _newest(index, submission.command, index.position, rules)
    if found is None or not _counts(found, submission, now, rules):
        return None
    return found if found.tx == submission.tx or not rules.refuses_by_log else None


class _Request(NamedTuple):
    submission: Submission


def _unread(state: State, index: Index) -> list[_Request]:
    records = (*state.flight, *state.log[index.position :])
    return [_Request(record.submission) for record in records if record.submission is not None]


def _clock(state: State, name: str, scenario: Scenario) -> int:
    return max(0, state.clock - scenario.lag) if name == "B" else state.clock


def _answered(state: State, submission: Submission, found: Acceptance, clock: int) -> State:
    """An answer without the log: note what is wrong with it, by the log's own acceptances.

    A success names an acceptance that is in the log: that stays true. A refusal must be what the log would answer now.
    """
    accepting = [one for one in _accepting(state.log) if one.command == submission.command]
    if found.tx == submission.tx:
        is_true = any(one.tx == found.tx for one in accepting)
        return (
            state if is_true else state._replace(wrong=f"{submission.name} was told a success that is not in the log")
        )
    by_log = max(accepting, key=lambda one: one.offset, default=None)
    now = max(clock, max((one.stamp for one in state.log), default=0))
    if by_log is None or by_log.tx == submission.tx:
        return state._replace(wrong=f"{submission.name} was refused by an acceptance that is not the log's newest")
    if now - by_log.judged > submission.period:
        return state._replace(wrong=f"{submission.name} was refused although the period is over")
    return state


# --------------------------------------------------------------------------------------------- what must not happen


class Violation(StrEnum):
    ACCEPTED_TWICE = "a command has two accepting completions within the period of the second"
    REFUSED_FREE = "a command was refused or deduplicated, and no acceptance lies within its period"
    OTHER_COMPLETION = "the completions are not those of the log"
    INDEX_DIVERGED = "an index is not what the log makes of it"
    WRONG_ANSWER = "an answer that was not logged is not borne out by the log"
    OTHER_OFFSET = "a deduplicated success names another place than the first success"


def violations(state: State, rules: Rules) -> Iterator[Violation]:
    """What is wrong with a state; nothing, one hopes."""
    if state.wrong is not None:
        yield Violation.WRONG_ANSWER
    _, truth = read_all(state.log, rules, state.clock)
    if state.database.completions != tuple(truth[: len(state.database.completions)]):
        yield Violation.OTHER_COMPLETION
    yield from _accepted_within(state.log, rules, state.clock)
    yield from _against_the_specification(state.log, rules, state.clock)
    if any(seen != read_all(state.log[: seen.position], rules, state.clock)[0] for seen in state.indexes):
        yield Violation.INDEX_DIVERGED


def _accepting(log: tuple[Record, ...]) -> list[Acceptance]:
    """The specification: which records accept a command, from scratch, with no index and no offsets to filter by."""
    accepting, highest = list[Acceptance](), 0
    for offset, record in enumerate(log):
        if record.submission is None:
            continue
        highest = max(highest, record.stamp)
        command, tx, period, after = record.submission[1:]
        before = next((one for one in reversed(accepting) if one.command == command), None)
        within = before is not None and highest - before.judged <= period and before.offset > after
        if not within:
            accepting.append(Acceptance(command, tx, highest, offset))
    return accepting


def _accepted_within(log: tuple[Record, ...], rules: Rules, clock: int) -> Iterator[Violation]:
    """Whatever judged it: two accepting completions of a command, and the second one's period reaches the first."""
    accepted, highest = dict[str, tuple[int, int]](), 0
    completions = iter(read_all(log, rules, clock)[1])
    for offset, record in enumerate(log):
        if record.submission is None:
            continue
        highest = max(highest, record.stamp)
        if next(completions).verdict is Verdict.ACCEPTED:
            command, _, period, after = record.submission[1:]
            judged, at = accepted.get(command, (0, -1))
            if at >= 0 and highest - judged <= period and at > after:
                yield Violation.ACCEPTED_TWICE
            accepted[command] = highest, offset


def _against_the_specification(log: tuple[Record, ...], rules: Rules, clock: int) -> Iterator[Violation]:
    requests = [(offset, record) for offset, record in enumerate(log) if record.submission is not None]
    verdicts = read_all(log, rules, clock)[1]
    expected = {one.offset for one in _accepting(log)}
    firsts = dict[str, int]()
    for (offset, _), completion in zip(requests, verdicts, strict=True):
        accepted = completion.verdict is Verdict.ACCEPTED
        if accepted:
            firsts.setdefault(completion.submission.tx, offset)
        if accepted and offset not in expected:
            yield Violation.ACCEPTED_TWICE
        if not accepted and offset in expected:
            yield Violation.REFUSED_FREE
        if completion.verdict is Verdict.DEDUPLICATED and completion.first != firsts.get(completion.submission.tx):
            yield Violation.OTHER_OFFSET
