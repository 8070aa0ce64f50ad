"""Draws a plan from a seed: settings, replicas, what clients do, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from tests.simulation.plan import (
    DRAWN_APART,
    STEPS,
    Damage,
    Fault,
    FaultKind,
    Hostile,
    Operation,
    Plan,
    ReplicaPlan,
    Transaction,
)

_AT_A_STEP = (
    FaultKind.CRASH,
    FaultKind.CRASH_HOST,
    FaultKind.CRASH_TORN,
    FaultKind.STALL,
    FaultKind.TERMINATE,
    FaultKind.SWITCHOVER,
    FaultKind.SESSION_KILLED,
    FaultKind.DISK_ERROR,
    FaultKind.DATABASE_CUT,
    FaultKind.DATABASE_FAIL_OVER,
    FaultKind.DATABASE_SPLIT,
    FaultKind.LOG_CUT,
    FaultKind.LOG_CLOGGED,
    FaultKind.ISLAND,
    FaultKind.LINK_CUT,
)


_HOSTILE_SHARE = 0.25  # of the seeds
_PERIODS_S = (-1.0, 1e9, 1e13, 9_223_372_036_854_775_807.0, 1e303)
_ASYNCHRONOUS_EVERY = 4  # of so many commands one is submitted asynchronously
_VIEWS_SHARE = 0.125
_STRANGERS_SHARE = 0.1
_PRUNING_SHARE = 0.1
_PLAIN_SHARE = 0.3  # of the plans: nobody asks for periods, and no command comes in storms
_WORDS = (FaultKind.PAUSED, FaultKind.BOUND_SAID)
_LEASED_SHARE = 0.25
_WATCHED_SHARE = 0.5  # of those with a lease
_WORDED_SHARE = 0.5  # of those with a lease
_BLIND_SHARE = 0.25
_RESTORE_SHARE = 0.08
_TAIL_SHARE = 0.06
_KEPT_S = (0.3, 1.0, 3.0)
_EVER_S = ReplicaPlan("").deduplication_max_s
_WHOLE = {  # what the log loses must still be in an index and in the database, or it cannot be salvaged
    FaultKind.CRASH_TORN: FaultKind.CRASH_HOST,
    FaultKind.DATABASE_FAIL_OVER: FaultKind.DATABASE_RESTART,
    FaultKind.DATABASE_SPLIT: FaultKind.DATABASE_RESTART,
}
_DEPOSE = (FaultKind.ISLAND,)  # the active is replaced, and does not notice for a while


@dataclass(frozen=True, slots=True)
class Size:
    """How much happens in a run."""

    clients_max: int = 5
    operations_max: int = 14  # per client
    faults_max: int = 8
    duration_s: float = 6.0


def draw(seed: int, size: Size | None = None) -> Plan:
    """The plan of a seed. A later version of this function may draw another plan: keep plans, not seeds."""
    size = size or Size()
    random = Random(f"{seed}/plan")
    replicas = _replicas(random)
    transactions = _transactions(random, size)
    duration_s = size.duration_s * random.uniform(0.6, 1.4)
    clients = _clients(random, size, len(transactions), duration_s)
    faults = _faults(random, size, replicas, duration_s)
    views = _views(Random(f"{seed}/views"), replicas, duration_s)
    pruning = _pruning(Random(f"{seed}/pruning"), replicas, clients, duration_s)
    restore = _restore(Random(f"{seed}/restore"), len(transactions), duration_s)
    tail = _tail(Random(f"{seed}/tail"), duration_s) if not restore.faults else _Apart()
    commands = _commands(Random(f"{seed}/commands"), pruning.replicas, clients, len(transactions), duration_s)
    if tail.faults:
        faults = tuple([replace(one, kind=_WHOLE.get(one.kind, one.kind)) for one in faults])
    return Plan(
        seed=seed,
        duration_s=round(duration_s, 3),
        replicas=commands.replicas,
        election=_election(random),
        core=_core(random),
        transactions=transactions,
        clients=(
            *clients,
            *[_suspicious(random, fault, len(transactions)) for fault in faults if fault.kind in _DEPOSE],
            *pruning.clients,
            *restore.clients,
            *commands.clients,
        ),
        faults=tuple(
            sorted(
                (*faults, *views, *pruning.faults, *restore.faults, *tail.faults, *commands.faults),
                key=lambda fault: fault.at_s,
            )
        ),
        hostile=(
            *_hostile(Random(f"{seed}/hostile"), duration_s),  # random streams of their own
            *_strangers(Random(f"{seed}/strangers"), duration_s),
        ),
        blind=Random(f"{seed}/blind").random() < _BLIND_SHARE,
    )


def draw_profile(seed: int, size: Size | None = None) -> Plan:
    """The plan of a seed, in a quarter of the seeds under a lease, as the profile without a database has it: half of
    those with operators' words in the log."""
    plan = draw(seed, size)
    if Random(f"{seed}/profile").random() >= _LEASED_SHARE:
        return plan
    return worded(leased(plan)) if Random(f"{seed}/worded").random() < _WORDED_SHARE else leased(plan)


def leased(plan: Plan) -> Plan:
    """The same plan for a cluster whose leadership is a lease over the log. Every replica follows the log: one that
    stays away from it could not count a silence. Its pauses are short beside the longest wait for an answer, as the
    configuration demands. Beside half of them stand log nodes, which see processes end."""
    replicas = tuple([replace(replica, standby="following") for replica in plan.replicas])
    pause_s = min(plan.core["standby_read_pause_s"], plan.election["answer_max_s"] / 10)
    core = plan.core | {"standby_read_pause_s": pause_s}
    watched = Random(f"{plan.seed}/watched").random() < _WATCHED_SHARE
    return replace(plan, lease=True, watched=watched, replicas=replicas, core=core)


def worded(plan: Plan) -> Plan:
    """The same plan with people who pause fail-over, resume it, and let completions go: now and then two at a time."""
    random, said = Random(f"{plan.seed}/words"), list(plan.faults)
    for _ in range(random.randint(1, 4)):
        kind, at_s = random.choice(_WORDS), random.uniform(0.05, 0.9) * plan.duration_s
        for _ in range(random.choice((1, 1, 2))):
            lasts_s = random.choice((0.05, 0.5, 3.0)) * random.uniform(0.5, 1.0)
            said.append(
                Fault(
                    kind,
                    round(at_s + random.uniform(0.0, 0.02), 4),
                    target=random.choice(plan.replicas).name,
                    duration_s=round(lasts_s, 3) if kind is FaultKind.PAUSED else 0.0,
                    amount=random.choice((1, 3, 10)) if kind is FaultKind.BOUND_SAID else 0.0,
                )
            )
    return replace(plan, worded=True, faults=tuple(sorted(said, key=lambda fault: fault.at_s)))


def _hostile(random: Random, duration_s: float) -> tuple[Hostile, ...]:
    if random.random() >= _HOSTILE_SHARE:
        return ()
    return tuple(
        Hostile(round(random.uniform(0.0, duration_s), 3), random.choice(_PERIODS_S))
        for _ in range(random.randint(1, 6))
    )


def _strangers(random: Random, duration_s: float) -> list[Hostile]:
    """What an intruder may send, including input that no front end can recognise as invalid."""
    if random.random() >= _STRANGERS_SHARE:
        return []
    return [
        Hostile(round(random.uniform(0.0, duration_s), 3), damage=random.choice([*Damage][1:]))
        for _ in range(random.randint(1, 6))
    ]


@dataclass(frozen=True, slots=True)
class _Apart:
    """What a rare event adds to a plan."""

    faults: tuple[Fault, ...] = ()
    clients: tuple[tuple[Operation, ...], ...] = ()
    replicas: tuple[ReplicaPlan, ...] = ()


def _commands(
    random: Random,
    replicas: tuple[ReplicaPlan, ...],
    clients: tuple[tuple[Operation, ...], ...],
    transactions: int,
    duration_s: float,
) -> _Apart:
    """What clients do with periods and repeated commands, and tables of an index that lose different ends."""
    if random.random() < _PLAIN_SHARE:
        return _Apart(replicas=replicas)
    faults: list[Fault] = []
    if random.random() < 0.4 and all(one.deduplication_max_s == _EVER_S for one in replicas):
        kept_s = [random.choice(_KEPT_S)] * len(replicas)
        if random.random() < 0.3:
            kept_s = [random.choice(_KEPT_S) for _ in replicas]
        replicas = tuple(replace(one, deduplication_max_s=s) for one, s in zip(replicas, kept_s, strict=True))
    for _ in range(random.choice((0, 0, 1, 2))):
        faults.append(
            Fault(
                FaultKind.CRASH_TORN,
                round(random.uniform(0.1, 0.9) * duration_s, 4),
                random.choice(("", random.choice(replicas).name)),
                random.choice(("", "passive", "active.logged", "active.publishing")),
                random.randrange(4),
                amount=random.choice((1, 2, 3, 20)),
            )
        )
    earlier = [one for client in clients for one in client if not one.look_up] or [Operation((0,), 0)]
    added = [_late(random, earlier, duration_s) for _ in range(random.randint(0, 2))]
    for number in range(random.choice((0, 1, 1, 2))):
        added += _storm(random, 300_000 + 1_000 * number, transactions, duration_s)
    return _Apart(tuple(faults), tuple(added), replicas)


def _storm(random: Random, command: int, transactions: int, duration_s: float) -> list[tuple[Operation, ...]]:
    """Many send one command at about the same time, again and again, some of them for another transaction."""
    at_s, number = random.uniform(0.1, 0.9) * duration_s, random.randrange(transactions)
    period_s = random.choice((None, None, 0.0, 0.2, 1.0))
    storm: list[tuple[Operation, ...]] = []
    for _ in range(random.randint(3, 6)):
        is_other = random.random() < 0.15
        first = Operation(
            (random.randrange(transactions) if is_other else number,),
            command,
            new_submission_id=True,
            think_s=round(at_s + random.choice((0.0, 0.005, 0.3)) * random.random(), 4),
            answer_max_s=random.choice((0.2, 1.0)),
            attempts_max=random.choice((1, 2, 6)),
            asynchronous=random.random() < 0.3,
            deduplication_s=period_s if random.random() < 0.8 else random.choice((0.05, 0.9)),
        )
        again = replace(first, think_s=round(random.choice((0.0, 0.01, 0.6)) * random.random(), 4))
        storm.append((first, *[again] * random.choice((0, 1, 3))))
    return storm


def _pruning(
    random: Random, replicas: tuple[ReplicaPlan, ...], clients: tuple[tuple[Operation, ...], ...], duration_s: float
) -> _Apart:
    """Operators prune under load, with settings that differ from replica to replica. Clients repeat commands that
    were accepted long ago, and ask for periods up to the bound and beyond it."""
    if random.random() >= _PRUNING_SHARE:
        return _Apart(replicas=replicas)
    faults = [
        Fault(
            FaultKind.PRUNED,
            round(random.uniform(0.2, 0.9) * duration_s, 4),
            step=random.choice(("", "active.idle", "active.admitting", "active.publishing")),
            amount=random.choice((0, 0, 0, 1, 5, 20)),
        )
        for _ in range(random.randint(1, 4))
    ]
    earlier = [one for client in clients for one in client if not one.look_up] or [Operation((0,), 0)]
    late = tuple(_late(random, earlier, duration_s) for _ in range(random.randint(1, 3)))
    return _Apart(
        tuple(faults), late, tuple(replace(one, deduplication_max_s=random.choice(_KEPT_S)) for one in replicas)
    )


def _late(random: Random, earlier: list[Operation], duration_s: float) -> tuple[Operation, ...]:
    """A client that repeats others' commands, now and then with another transaction."""
    operations = []
    for at in range(random.randint(4, 14)):
        one = random.choice(earlier)
        numbers = one.transactions if random.random() < 0.7 else random.choice(earlier).transactions[:1]
        by_offset = random.random() < 0.5
        operations.append(
            Operation(
                numbers,
                one.command,
                new_submission_id=True,
                think_s=round(random.choice((0.01, 0.1)) * duration_s * random.random() + 0.5 * (at == 0), 4),
                answer_max_s=1.0,
                attempts_max=random.choice((0, 1, 3)),
                deduplication_s=None if by_offset else random.choice((0.2, 0.9, 2.9, 30.0)),
                deduplication_after=random.choice((0, 1, 4, 12, 30)) if by_offset else None,
            )
        )
    return tuple(operations)


def _restore(random: Random, transactions: int, duration_s: float) -> _Apart:
    """A backup that is taken while a command is in flight, much that is decided after, and the backup restored."""
    if random.random() >= _RESTORE_SHARE:
        return _Apart()
    at_s = random.uniform(0.1, 0.4) * duration_s
    fault = Fault(
        FaultKind.DATABASE_RESTORED,
        round(at_s, 4),
        step=random.choice(("active.admitting", "active.logged", "active.logged", "")),
        duration_s=round(random.uniform(0.3, 0.8) * (duration_s - at_s), 3),
        amount=random.choice((0, 1)),
    )
    load = [
        tuple(
            Operation(
                tuple(random.randrange(transactions) for _ in range(random.choice((6, 12, 25)))),
                200_000 + 10_000 * number + 100 * at,
                think_s=round(0.2 * duration_s * random.random(), 4),
                answer_max_s=3.0,
                attempts_max=3,
            )
            for at in range(random.randint(3, 6))
        )
        for number in range(random.randint(1, 2))
    ]
    return _Apart((fault,), tuple(load))


def _tail(random: Random, duration_s: float) -> _Apart:
    """The topic loses its tail, perhaps a second time before any replica has read past the first lost range."""
    if random.random() >= _TAIL_SHARE:
        return _Apart()
    at_s = random.uniform(0.2, 0.8) * duration_s
    return _Apart(
        tuple(
            Fault(
                FaultKind.TAIL_LOST,
                round(at_s + number * random.choice((0.2, 2.0)), 4),
                step=random.choice(("", "active.logged", "active.publishing")),
                amount=random.choice((1, 3, 8, 25)),
            )
            for number in range(random.choice((1, 1, 2)))
        )
    )


def _replicas(random: Random) -> tuple[ReplicaPlan, ...]:
    disconnected = random.random() < 0.15
    return tuple(
        ReplicaPlan(
            f"R{number}",
            "disconnected" if disconnected else "following",
            round(random.choice((1.0, 1.0, random.uniform(0.98, 1.02))), 4),
            round(random.uniform(0.1, 1.0), 3),
        )
        for number in range(1, random.choice((2, 3, 3)) + 1)
    )


def _election(random: Random) -> dict[str, float]:
    lease_s = random.choice((1.0, 1.5, 2.0))
    margin_s = 0.2 * lease_s
    return {
        "lease_s": lease_s,
        "margin_s": margin_s,
        "heartbeat_s": lease_s * random.choice((0.1, 0.2)),
        "tick_s": margin_s * random.choice((0.3, 0.5)),
        "answer_max_s": lease_s * random.choice((0.3, 0.5)),
        "statement_max_s": 0.2 * lease_s,
        "connect_max_s": 0.5,
        "reconnect_max_s": 0.5,
        "retry_s": random.choice((0.1, 0.2)),
        "retry_jitter": random.choice((0.0, 0.5)),
        "grace_s": random.choice((0.0, 0.0, 0.3, 1.0)),
        "hold_down_s": random.choice((0.0, 0.5, 1.5)),
        "lag_wait_max_s": random.choice((0.0, 0.3)),
        "catch_up_records_per_s": random.choice((50.0, 5_000.0)),
        "drain_max_s": 0.6 * lease_s,
        "activation_max_s": random.choice((3.0, 20.0)),
        "switchover_wait_s": random.choice((1.0, 2.0)),
    }


def _core(random: Random) -> dict[str, float | int]:
    return {
        "in_flight_max": random.choice((3, 50, 20_000)),
        "admit_batch_max": random.choice((1, 3, 500)),
        "admit_linger_s": random.choice((0.0, 0.003, 0.02)),
        "admit_linger_from": random.choice((1, 3, 64)),
        "read_batch_max": random.choice((1, 3, 500)),
        "standby_read_pause_s": random.choice((0.0, 0.05, 0.3)),
        "publish_batch_max": random.choice((1, 4, 1_000)),
        "publish_linger_s": random.choice((0.0, 0.02, 0.3)),
        "read_wait_s": random.choice((0.2, 0.5)),
        "log_stall_max_s": random.choice((0.5, 1.5, 3.0)),
        "log_retry_s": random.choice((0.05, 0.25)),
        "drain_answers_s": random.choice((0.0, 0.05, 0.2)),
        "retry_after_s": random.choice((0.05, 0.2)),
    }


def _transactions(random: Random, size: Size) -> tuple[Transaction, ...]:
    """Few states, so that many are contested."""
    count = random.randint(5, max(6, size.clients_max * size.operations_max // 2))
    states = max(4, int(count * random.choice((0.3, 1.0, 2.0))))
    made: list[Transaction] = []
    for number in range(count):
        id_ = random.choice(made).id if made and random.random() < 0.08 else number
        picked = random.sample(range(states), random.choice((0, 1, 1, 2, 3, 4)))
        cut = random.randint(0, len(picked)) if random.random() < 0.3 else len(picked)
        from_s = until_s = None
        if random.random() < 0.2:
            at_s = random.uniform(0.0, size.duration_s)
            from_s = at_s if random.random() < 0.5 else None
            until_s = at_s + random.uniform(0.1, 3.0) if from_s is None or random.random() < 0.5 else None
        made.append(Transaction(id_, tuple(picked[:cut]), tuple(picked[cut:]), from_s, until_s))
    return tuple(made)


def _clients(random: Random, size: Size, transactions: int, duration_s: float) -> tuple[tuple[Operation, ...], ...]:
    clients = random.randint(1, size.clients_max)
    commands: list[tuple[int, ...]] = []  # what was submitted under command number 100 * place
    made: list[tuple[Operation, ...]] = []
    look_ups = random.choice((0.05, 0.05, 0.3))
    for _ in range(clients):
        count = random.randint(1, size.operations_max)
        operations = []
        for _ in range(count):
            numbers = tuple(random.randrange(transactions) for _ in range(random.choice((1, 1, 1, 2, 5))))
            place = len(commands)
            if commands and random.random() < 0.15:  # a command once more, now and then with other content
                place = random.randrange(len(commands))
                numbers = numbers if random.random() < 0.15 else commands[place]
            else:
                commands.append(numbers)
            operations.append(
                Operation(
                    numbers[:1] if (look_up := random.random() < look_ups) else numbers,
                    100 * place,
                    look_up,
                    random.random() < 0.5,
                    random.random() < 0.25,
                    round(random.uniform(0.0, 2.0 * duration_s / (count + 1)) * random.choice((0.1, 0.7, 1.3)), 4),
                    random.choice((0.2, 1.0, 3.0)),
                    random.choice((0, 0, 0, 1, 3)),
                    place % _ASYNCHRONOUS_EVERY == 0 and not look_up,
                )
            )
        made.append(tuple(operations))
    return tuple(made)


def _suspicious(random: Random, fault: Fault, transactions: int) -> tuple[Operation, ...]:
    """A client that submits to any replica that is up. While the leader is in doubt, it looks each one up at all."""
    pauses_s = [fault.at_s, *[0.05] * random.choice((0, 0, 12))]
    return tuple(
        Operation((random.randrange(transactions),), 90_000 + at, False, True, True, pause_s, 0.2, 1)
        for at, pause_s in enumerate(pauses_s)
    )


def _faults(random: Random, size: Size, replicas: tuple[ReplicaPlan, ...], duration_s: float) -> tuple[Fault, ...]:
    """Few kinds in one run, each perhaps several times: rare combinations occur sooner than if all were mixed."""
    if random.random() < 0.05:
        return ()
    kinds = random.sample([kind for kind in FaultKind if kind not in DRAWN_APART], random.randint(1, 4))
    faults = [
        _fault(random, random.choice(kinds), replicas, duration_s) for _ in range(random.randint(0, size.faults_max))
    ]
    for _ in range(random.choice((0, 1, 1, 2))):
        faults += random.choice(_RECIPES)(random, random.uniform(0.1, 0.8) * duration_s)
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _views(random: Random, replicas: tuple[ReplicaPlan, ...], duration_s: float) -> list[Fault]:
    """In one run of eight, brokers show an old log, and a reader may hang on such a broker."""
    if random.random() >= _VIEWS_SHARE:
        return []
    at_s = random.uniform(0.1, 0.7) * duration_s
    faults = [Fault(FaultKind.LEADER_CUT, round(at_s, 4), duration_s=round(random.uniform(0.5, 5.0), 3))]
    if random.random() < 0.5:
        target = random.choice(("", random.choice(replicas).name))
        faults.append(Fault(FaultKind.READER_SILENT, round(at_s + random.uniform(-0.5, 2.0), 4), target))
    return faults


def _zombie(random: Random, at_s: float) -> list[Fault]:
    """An active is deposed while its records are held up; they arrive in a later activation."""
    cause = random.choice((FaultKind.SESSION_KILLED, FaultKind.STALL, FaultKind.CRASH, FaultKind.TERMINATE))
    step = random.choice(("active.idle", "active.admitting", "active.logged"))
    return [
        Fault(FaultKind.LOG_CLOGGED, at_s, duration_s=random.uniform(0.3, 3.0)),
        Fault(cause, at_s + random.uniform(0.0, 0.3), step=step, duration_s=random.uniform(1.0, 3.5)),
    ]


def _epoch_twice(random: Random, at_s: float) -> list[Fault]:
    """A barrier is held up, and the database forgets that it granted its epoch."""
    lasts_s = random.uniform(0.3, 2.0)
    return [
        Fault(random.choice((FaultKind.CRASH, FaultKind.SESSION_KILLED, FaultKind.TERMINATE)), at_s),
        Fault(FaultKind.LOG_CLOGGED, at_s, step="activating.open_log", duration_s=lasts_s),
        Fault(
            random.choice((FaultKind.DATABASE_FAIL_OVER, FaultKind.DATABASE_SPLIT, FaultKind.DATABASE_SPLIT)),
            at_s,
            step="activating.barrier",
            duration_s=random.uniform(0.5, 3.0),
            amount=random.choice((1, 1, 2, 5)),
        ),
    ]


def _torn_in_use(random: Random, at_s: float) -> list[Fault]:
    """A machine that followed loses the end of its index, in the middle of an activation."""
    kind, step = FaultKind.CRASH_TORN, random.choice(("passive", "active.logged", "active.publishing"))
    return [
        Fault(FaultKind.LOG_WEATHER, at_s, duration_s=4.0, amount=0.4),
        Fault(kind, at_s + 0.2, step=step, skip=random.randrange(8), amount=random.choice((1, 2, 3))),
        Fault(kind, at_s + 0.9, step=step, skip=random.randrange(8), amount=random.choice((1, 2, 3))),
    ]


def _interrupted(random: Random, at_s: float) -> list[Fault]:
    """One activation after the other is cut off, each at some step."""
    steps = [step for step in STEPS if step.startswith("activating")]
    causes = (FaultKind.CRASH, FaultKind.SESSION_KILLED, FaultKind.STALL, FaultKind.LOG_CUT, FaultKind.DATABASE_CUT)
    return [Fault(random.choice(causes[:2]), at_s)] + [
        Fault(
            random.choice(causes),
            at_s,
            step=random.choice(steps),
            skip=random.choice((0, 0, 1, 2, 4)),
            duration_s=random.uniform(0.2, 2.5),
        )
        for _ in range(random.randint(1, 3))
    ]


def _island(random: Random, at_s: float) -> list[Fault]:
    """An active is cut off from everything except its clients, and has not noticed that it was deposed."""
    return [Fault(FaultKind.ISLAND, at_s, duration_s=random.uniform(0.5, 3.0))]


def _frozen(random: Random, at_s: float) -> list[Fault]:
    """An active is stopped for longer than its lease, and continues."""
    step = random.choice(("active.idle", "active.admitting", "active.logged", "active.publishing"))
    return [Fault(FaultKind.STALL, at_s, step=step, skip=random.randrange(4), duration_s=random.uniform(1.0, 3.5))]


_RECIPES = (_zombie, _epoch_twice, _torn_in_use, _interrupted, _island, _frozen)


def _fault(random: Random, kind: FaultKind, replicas: tuple[ReplicaPlan, ...], duration_s: float) -> Fault:
    target = random.choice(("", "", random.choice(replicas).name))
    step, skip = "", 0
    if kind in _AT_A_STEP and random.random() < 0.7:
        step, skip = random.choice(STEPS), random.choice((0, 0, 1, 2, 3, 5, 8))
    amount = 0.0
    match kind:
        case FaultKind.CRASH_TORN | FaultKind.DATABASE_FAIL_OVER | FaultKind.DATABASE_SPLIT:
            amount = random.choice((0, 1, 2, 3, 20))
        case FaultKind.DATABASE_WEATHER | FaultKind.LOG_WEATHER | FaultKind.CLIENT_WEATHER:
            amount = random.choice((0.05, 0.2, 0.5))
        case FaultKind.READS_LATE:
            amount = random.choice((0.05, 0.3, 1.5))
        case FaultKind.CLOCK_JUMP:
            amount = random.choice((-3600.0, -2.0, -0.5, 0.5, 2.0, 3600.0))
    return Fault(
        kind,
        round(random.uniform(0.0, 0.9 * duration_s), 4),
        target,
        step,
        skip,
        round(random.choice((0.1, 0.6, 1.5, 3.5)) * random.uniform(0.5, 1.0), 3),
        amount,
    )
