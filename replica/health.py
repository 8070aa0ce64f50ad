"""The health document of a replica: the one that it writes, and the part of it that people and tools read.

There are two types, because releases may differ: a replica writes all fields, while a reader takes the fields that it
needs from the document of an older or a newer release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

import msgspec

from ha.lock.interface import ServerLease
from replica.notary.formats import Known
from replica.notary.marks import NOTHING_TOLD, MarksTold

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # what any reader passes on, or divides


class ScrubProgress(TypedDict):
    """Progress of the present pass that compares the index with the log: records, seconds, and records a second."""

    records: int
    of_records: int
    age_s: float
    within_s: float
    rate_per_s: float
    wanted_per_s: float
    complete_walks: int


class HealthDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All that /health shows, in its order. Offsets are -1 when nothing is applied; None: not while it is passive."""

    replica: str
    version: str
    active: bool
    ready: bool
    # What the election says of itself: `ha.election.states.ElectionStatus`.
    role: str
    leading: bool
    lock_session: int
    lock_session_open: bool
    lock_answer_age_s: float | None
    lock_owner: str | None
    lock_lease: Mapping[str, object] | None
    clock_skew_s: float
    hold_down_s: float
    # And the rest of the replica.
    failover_paused: bool
    service_paused: bool
    epoch: int
    applied_offset: int
    lag_records: int
    granted_by: str
    reaches_log: bool
    log_hazards: Sequence[str]
    front_ends: int
    scrub: ScrubProgress
    index_digests: Mapping[str, str]
    ledger_end: int | None
    in_flight: int
    formats_known: Known
    activation_steps_s: Mapping[str, float]
    rules_in_force: int  # by the newest barrier it has read; 0: none
    answers: Sequence[
        int
    ] = ()  # submissions answered since the start, by LATENCY_BOUNDS_S; the last is what took longer
    clock_us: int | None = None  # its wall clock when it wrote this
    serving: str = "one"  # "all": `active` is whether it serves, and `role` whether it holds the lock
    not_serving: str | None = None  # why its worker does not serve; None: it does, or there is none
    not_serving_detail: str = ""  # the same in words
    may_lead: bool = True  # whether it may hold the lock, as configured
    site: str | None = None  # whether its site has the term: ha/site/core.py, Standing; None: no site is configured
    site_detail: str = ""  # why it has not
    front_ends_silent: int = 0  # connected, and not heard for `link.front_end_silent_s`: not among `front_ends`
    marks: MarksTold = NOTHING_TOLD
    exposed_records: int = 0  # applied, and a power cut could take them without a trace
    marks_problems: Sequence[str] = ()  # what a person should look at, each with its code

    def as_json_object(self) -> dict[str, object]:
        """Plain values, in the same order."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain


class Scrubbed(msgspec.Struct, frozen=True):
    """Progress of a replica's present pass that compares its index with the log: records, and seconds."""

    records: _Int64
    of_records: _Int64
    age_s: float
    within_s: float

    def __str__(self) -> str:
        share = f"{100 * self.records // self.of_records if self.of_records else 100} %"
        return f"{share}, late" if self.age_s > self.within_s else share


class ReplicaHealth(msgspec.Struct, frozen=True):
    """The document as far as people and tools need it; what an older release does not write has a default."""

    replica: str
    version: str
    role: str
    active: bool
    ready: bool
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    applied_offset: _Int64
    lag_records: _Int64
    reaches_log: bool
    front_ends: _Int64
    lock_owner: str | None
    hold_down_s: float
    ledger_end: _Int64 | None
    activation_steps_s: dict[str, float]
    lock_answer_age_s: float | None = None  # since the newest answer on its lock session was asked for: the heartbeat
    failover_paused: bool = False
    service_paused: bool = False  # as the barrier in force says
    index_digests: dict[str, str] = {}  # of all entries, by the number of records that made them
    scrub: Scrubbed | None = None  # None: a release that does not report it
    formats_known: Known = Known()  # what its release can read
    granted_by: str = ""  # what granted the epoch in force: a database, or the log
    lock_lease: ServerLease | None = None  # what ends its lock session when it is silent; None while it has none
    rules_in_force: _Int64 = 0  # by the newest barrier it has read; 0: none, or a release that does not report it
    clock_us: _Int64 | None = None  # its wall clock when it wrote this; None: a release that does not show it
    serving: str = "one"  # "all": `active` is whether it serves, whoever holds the lock
    not_serving: str | None = None  # why its worker does not serve; None: it does, or there is none
    not_serving_detail: str = ""
    may_lead: bool = True  # whether it may hold the lock
    marks: MarksTold | None = None  # None: an older release
    exposed_records: _Int64 = 0
    marks_problems: tuple[str, ...] = ()
    site: str | None = None  # None: no site is configured, or an older release
    site_detail: str = ""
    front_ends_silent: _Int64 = 0  # connected, and not heard: they do not answer, and are started anew

    @property
    def leads(self) -> bool:
        """Whether it holds the lock and has become active; with `serving = "one"` that is what `active` says."""
        return self.role == "active" if self.serving == "all" else self.active


_decoder = msgspec.json.Decoder(ReplicaHealth)


def read_health(body: bytes) -> ReplicaHealth:
    """The health in a replica's answer. Raises what `replica.notary.untrusted.UNREADABLE` names."""
    return _decoder.decode(body)
