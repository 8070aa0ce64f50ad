"""When what is written to the log may be raised, and what an activation makes of it."""

from __future__ import annotations

import pytest

from replica.notary.errors import FormatUnknown
from replica.notary.formats import Formats, known, of_barrier, to_write, why_not_raise
from replica.notary.granters import Database
from replica.notary.records import BarrierRecord
from tests.next_version.release import NEXT, PRESENT, registered

OLD = known()


def barrier(formats: Formats) -> BarrierRecord:
    return BarrierRecord(1, b"a" * 16, "r1", Database("postgres", "1", 1), formats.records, formats.rules)


def test_a_release_that_knows_more_writes_the_older_until_it_is_raised() -> None:
    """Goal: a new release changes nothing by itself. Method: an empty and a running log, before and after a raise."""
    with registered():
        assert known().newest == NEXT
        assert (of_barrier(None), of_barrier(barrier(NEXT))) == (PRESENT, NEXT)
        assert to_write(PRESENT, PRESENT) == PRESENT
        assert to_write(NEXT, PRESENT) == NEXT
        assert to_write(PRESENT, NEXT) == NEXT  # a database from an older backup takes nothing back


def test_no_activation_writes_rules_that_let_everybody_sign() -> None:
    """Goal: fail closed. Method: a database and a log that say rules before those that judge keys."""
    before = Formats(PRESENT.records, PRESENT.rules - 1)
    with pytest.raises(FormatUnknown, match=f"rules version {before.rules}"):
        to_write(before, before)


def test_an_older_release_does_not_write_what_it_does_not_know() -> None:
    """Goal: fail closed. Method: raised in the database, and in force in the log."""
    for raised, in_log in ((NEXT, PRESENT), (PRESENT, NEXT)):
        with pytest.raises(FormatUnknown, match=f"rules version {NEXT.rules}"):
            to_write(raised, in_log)


@pytest.mark.parametrize(
    ("wanted", "present", "others", "why"),
    [
        (NEXT, PRESENT, {"r2": NEXT}, None),
        (NEXT, PRESENT, {"r2": PRESENT}, "r2 could not read it any more"),
        (NEXT, PRESENT, {"r2": None}, "it is not known what r2 can read"),
        (PRESENT, NEXT, {}, "nothing goes back"),
        (Formats(NEXT.records + 1, NEXT.rules + 1), PRESENT, {}, "this release does not know"),
        (Formats(NEXT.records, PRESENT.rules), PRESENT, {}, "do not go together"),
    ],
)
def test_a_raise_is_refused_while_anybody_could_not_read_it(
    wanted: Formats, present: Formats, others: dict[str, Formats | None], why: str | None
) -> None:
    """Goal: no replica is shut out. Method: one older, one silent, back again, what nobody knows."""
    with registered():
        releases = {PRESENT: OLD, NEXT: known(), None: None}
        replicas = {"r1": known()} | {name: releases[release] for name, release in others.items()}
        refusal = why_not_raise(wanted, present, replicas)
    assert (refusal is None) == (why is None)
    assert why is None or why in str(refusal)
