"""The formats that an activation writes: the record format, and the version of the rules that its barrier names.

A release that knows a newer format still writes the older one until an operator raises it (`notary format raise`). That
is refused while a replica does not know the new one. It is permanent, because the log must stay readable for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from replica.notary.errors import FormatUnknown
from replica.notary.records import RECORD_FORMATS, BarrierRecord, are_known
from replica.notary.rules import RULES


class Formats(msgspec.Struct, frozen=True):
    """A record format and a version of the rules. A new ledger begins with the default ones."""

    records: int = 2
    rules: int = 3

    def __str__(self) -> str:
        """The text form, for people."""
        return f"record format {self.records}, rules version {self.rules}"

    def raised(self, other: Formats) -> Formats:
        """The newer record format and the newer version of the rules, each chosen separately."""
        return Formats(max(self.records, other.records), max(self.rules, other.rules))


class Known(msgspec.Struct, frozen=True):
    """The formats that a release knows."""

    records: tuple[int, ...] = ()
    rules: tuple[int, ...] = ()

    @property
    def newest(self) -> Formats:
        """The newest of each."""
        return Formats(max(self.records), max(self.rules))

    def includes(self, formats: Formats) -> bool:
        """Whether both are known."""
        return formats.records in self.records and formats.rules in self.rules


def known() -> Known:
    """What this release knows."""
    return Known(tuple(sorted(RECORD_FORMATS)), tuple(sorted(RULES)))


def of_barrier(barrier: BarrierRecord | None) -> Formats:
    """What an activation writes; without one, what a new ledger begins with."""
    return Formats() if barrier is None else Formats(barrier.record_format, barrier.rules_version)


def to_write(raised: Formats, in_log: Formats) -> Formats:
    """The formats of the next activation: those that operators have raised, and never older than those in the log.

    Raises FormatUnknown when this release does not know them.
    """
    formats = raised.raised(in_log)
    if not known().includes(formats) or not are_known(formats.records, formats.rules):
        raise FormatUnknown(f"the next activation writes {formats}, which this release does not know")
    return formats


def why_not_raise(wanted: Formats, present: Formats, replicas: Mapping[str, Known | None]) -> str | None:
    """Why the formats may not be raised now; None if they may. `replicas`: the formats each knows; None: no answer."""
    if not known().includes(wanted):
        return f"this release does not know {wanted}; it knows up to {known().newest}"
    if not are_known(wanted.records, wanted.rules):
        return f"{wanted} do not go together: raise both"
    if wanted.raised(present) != wanted:
        return f"{present} is raised already, and nothing goes back"
    silent = [name for name, what in replicas.items() if what is None]
    if silent:
        return f"it is not known what {', '.join(silent)} can read: start it, or take it out of the configuration"
    older = [name for name, what in replicas.items() if what is not None and not what.includes(wanted)]
    if older:
        return f"{', '.join(older)} could not read it any more: bring it to this release first"
    return None
