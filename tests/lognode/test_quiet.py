"""For how long a node's log had no record: what a waiting replica counts as a holder's silence."""

from __future__ import annotations

from ha.raft.messages import Entry, Kind
from replica.log.raft.quiet import Quiet


def entry(kind: Kind) -> Entry:
    return Entry(2, 7, kind, b"x")


def test_nothing_is_known_before_the_first_record() -> None:
    """Goal: a node that was started anew claims no silence. Method: ask before any entry, and after a signature."""
    quiet = Quiet()
    assert quiet.quiet_ms(100.0) is None
    quiet.appended([entry(Kind.SIGNATURE)], 100.0)
    assert quiet.quiet_ms(105.0) is None


def test_the_silence_is_counted_from_the_newest_record() -> None:
    """Goal: never more than has passed. Method: records, then a new leader's signature; figures are rounded down."""
    quiet = Quiet()
    quiet.appended([entry(Kind.RAW)], 100.0)
    quiet.appended([entry(Kind.SIGNATURE), entry(Kind.RAW)], 101.0)
    quiet.appended([entry(Kind.SIGNATURE)], 102.0)
    assert quiet.quiet_ms(102.4996) == 1_499
