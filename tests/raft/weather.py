"""What a simulated run is like, drawn from its seed: a few kinds of misfortune, so that rare ones come together."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Times in milliseconds of virtual time; `_every_ms` are means, 0: never. Shares are probabilities."""

    duration_ms: int
    members: int
    durable: bool
    pre_vote: bool
    sticky_voters: bool
    joiners_catch_up: bool
    batch_is_fixed: bool
    batch_entries: int
    unacknowledged_max: int
    probes: bool
    resends: bool
    fifo: bool  # each link keeps the order, but for what is late
    delay_max_ms: int
    late_share: float  # of messages, up to 300 ms
    loss_share: float
    duplicate_share: float
    client_every_ms: int
    sign_every_ms: int
    sync_max_ms: int
    housekeeping_every_ms: int  # a new leader's first signature, removals
    cut_every_ms: int
    cut_lasts_ms: int
    one_way_share: float
    crash_every_ms: int
    down_ms: int
    disk_full_every_ms: int
    lose_every_ms: int
    reconfigure_every_ms: int
    nominate_every_ms: int
    stall_every_ms: int  # a node that is not scheduled: it neither ticks nor receives
    rival_share: float  # when a node stands for election, another one does so too
    crash_voter_share: float  # a node dies when its vote is on its way
    cut_winner_share: float  # a leader is cut off just elected, from all or from all but one
    crash_writer_share: float  # a node dies when it has taken entries
    late_refusal_share: float  # of refusals, up to 300 ms
    ask_every_ms: int  # somebody asks where the log ends
    core_silence_ms: int  # a leader whose core is silent for so long nominates another
    core_silent_every_ms: int  # a core falls silent, mostly the leader's
    end_noticed_share: float  # of nodes that notice at once when another one dies
    end_feared_every_ms: int  # a node believes wrongly that its leader has ended
    stranger_every_ms: int  # a node of no configuration sends to somebody, in a view of its own


def draw(random: Random, seed: int) -> Weather:
    """Each kind of misfortune is absent in about half of the runs."""

    fifo = random.random() < 0.6

    def perhaps(value: T, nothing: T, share: float = 0.5) -> T:
        return value if random.random() < share else nothing

    durable = random.random() < 0.6
    probes = random.random() < 0.85  # without, a refusal brings all entries again, and a storm where messages are lost
    return Weather(
        duration_ms=random.choice((800, 1_500, 2_500)),
        members=random.choice((1, 2, 3, 3, 3, 4, 5, 5)),
        durable=durable,
        pre_vote=random.random() < 0.5,
        sticky_voters=random.random() < 0.2,
        joiners_catch_up=random.random() < 0.2,
        batch_is_fixed=random.random() < 0.7,
        batch_entries=random.choice((1, 1, 2, 5, 20) if fifo else (5, 10, 20)),
        unacknowledged_max=perhaps(random.choice((2, 10)), 0, 0.15),
        probes=probes,
        resends=Random(f"resends of {seed}").random() < 0.5,
        fifo=fifo,
        delay_max_ms=random.choice((2, 5, 15, 40) if probes else (1, 2)),
        late_share=perhaps(random.choice((0.01, 0.05, 0.2)), 0.0, 0.5 if probes else 0.0),
        loss_share=perhaps(random.choice((0.01, 0.1, 0.3)), 0.0, 0.4 if probes else 0.0),
        duplicate_share=perhaps(random.choice((0.02, 0.2)), 0.0, 0.4 if probes else 0.0),
        client_every_ms=random.choice((5, 10, 30)),
        sign_every_ms=random.choice((10, 40, 100, 250)),
        sync_max_ms=random.choice((1, 5, 20)),
        housekeeping_every_ms=random.choice((5, 20, 20, 100)),
        cut_every_ms=perhaps(random.choice((100, 200, 400)), 0, 0.85),
        cut_lasts_ms=random.choice((60, 150, 300)),
        one_way_share=perhaps(0.4, 0.0, 0.4),
        crash_every_ms=perhaps(random.choice((100, 300, 600)), 0, 0.6 if durable else 0.0),
        down_ms=random.choice((5, 50, 300)),
        disk_full_every_ms=perhaps(500, 0, 0.3 if durable else 0.0),
        lose_every_ms=perhaps(800, 0, 0.3),
        reconfigure_every_ms=perhaps(random.choice((80, 200, 500)), 0, 0.6),
        nominate_every_ms=perhaps(random.choice((100, 400)), 0, 0.35),
        stall_every_ms=perhaps(random.choice((150, 400)), 0, 0.35),
        rival_share=perhaps(random.choice((0.2, 0.8)), 0.0, 0.4),
        crash_voter_share=perhaps(random.choice((0.3, 0.9)), 0.0, 0.4 if durable else 0.0),
        cut_winner_share=perhaps(random.choice((0.3, 0.9)), 0.0, 0.4),
        crash_writer_share=perhaps(0.01, 0.0, 0.3 if durable else 0.0),
        late_refusal_share=perhaps(0.5, 0.0, 0.3),
        ask_every_ms=Random(f"asks of {seed}").choice((0, 0, 0, 10, 50)),  # apart: the other seeds stay as they were
        core_silence_ms=(core_silence_ms := Random(f"cores of {seed}").choice((0, 0, 0, 50, 150))),
        core_silent_every_ms=4 * core_silence_ms,
        end_noticed_share=(end_noticed_share := Random(f"ends of {seed}").choice((0.0, 0.0, 0.0, 0.5, 0.9))),
        end_feared_every_ms=300 if end_noticed_share else 0,
        stranger_every_ms=Random(f"strangers of {seed}").choice((0, 0, 0, 200)),
    )
