"""The present faults of each replica's connections, and a count of which fault struck which replica at which step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Weather:
    """One replica's. Shares are probabilities per message."""

    database_cut: bool = False
    database_share: float = 0.0
    log_cut: bool = False
    log_clogged_until_s: float = 0.0
    log_share: float = 0.0
    reads_late_s: float = 0.0
    disk_broken: bool = False


@dataclass(frozen=True, slots=True)
class LeaderCut:
    """The partition's leader was cut off from its peers: what it shows ends at `end`. Until `elected_s` none leads."""

    end: int
    since_s: float
    elected_s: float


class Skies:
    """The weather of all replicas, and the randomness that decides which of them it strikes."""

    def __init__(self, random: Random, step_of: Callable[[str], str], views: Random) -> None:
        self.random = random
        self.client_share = 0.0
        self.leader_cut: LeaderCut | None = None
        self.views = views  # a random stream of its own: which connection finds the new leader
        self.landed_by_s = 0.0  # until then records are on their way to the log
        self.strikes: Counter[tuple[str, str]] = Counter()
        self._step_of = step_of
        self._of: dict[str, Weather] = {}

    def of(self, name: str) -> Weather:
        """The weather of one replica."""
        return self._of.setdefault(name, Weather())

    def clear(self) -> None:
        """End all weather."""
        self._of.clear()
        self.leader_cut = None
        self.client_share = 0.0

    def note_landing(self, at_s: float) -> None:
        """A record is on its way."""
        self.landed_by_s = max(self.landed_by_s, at_s)

    def strikes_with(self, share: float) -> bool:
        """Draw whether a fault strikes. Nothing is drawn in fine weather, so runs without weather do not change."""
        return share > 0.0 and self.random.random() < share

    def fate(
        self,
        name: str,
        ways: Sequence[str],
        share: float = 0.0,
        draw: Callable[[Random, Sequence[str]], str] = Random.choice,
    ) -> str:
        """What becomes of one message or write of a replica: one of the ways, which is counted; empty: nothing."""
        if not self.strikes_with(share):
            return ""
        what = draw(self.random, ways)
        self.struck(what, name)
        return what

    def machine_lost(self, name: str) -> None:
        """A machine goes in the moment after a write of its index. Only an enumeration has that fate: enumerated.py."""
        raise NotImplementedError

    def struck(self, what: str, name: str) -> None:
        """Count a misfortune, at the step that the replica is at."""
        self.strikes[what, self._step_of(name)] += 1
