"""When what is written to the log may be raised, and what an activation makes of it."""

from __future__ import annotations

import pytest

from replica.notary.errors import FormatUnknown
from replica.notary.formats import Formats, Known, known, of_barrier, to_write, why_not_raise
from replica.notary.records import BarrierRecord
from tests.next_version.release import NEXT, PRESENT, registered

TWO, THREE, FOUR = Formats(2, 2), PRESENT, NEXT
OLD, NEW = Known((1, 2), (1, 2)), known()


def barrier(formats: Formats) -> BarrierRecord:
    return BarrierRecord(1, b"a" * 16, "r1", "postgres:1:1", formats.records, formats.rules)


def test_a_release_that_knows_more_writes_the_older_until_it_is_raised() -> None:
    """Goal: a new release changes nothing by itself. Method: an empty and a running log, before and after a raise."""
    with registered():
        assert known().newest == FOUR
        assert (of_barrier(None), of_barrier(barrier(FOUR))) == (THREE, FOUR)
        assert to_write(THREE, THREE) == THREE
        assert to_write(FOUR, THREE) == FOUR
        assert to_write(THREE, FOUR) == FOUR  # a database from an older backup takes nothing back


def test_no_activation_writes_rules_that_let_everybody_sign() -> None:
    """Goal: fail closed. Method: a database and a log that know rules 2 only."""
    assert to_write(TWO, TWO) == THREE


def test_an_older_release_does_not_write_what_it_does_not_know() -> None:
    """Goal: fail closed. Method: raised in the database, and in force in the log."""
    for raised, in_log in ((FOUR, TWO), (TWO, FOUR)):
        with pytest.raises(FormatUnknown, match="rules version 4"):
            to_write(raised, in_log)


@pytest.mark.parametrize(
    ("wanted", "present", "replicas", "why"),
    [
        (THREE, TWO, {"r1": NEW, "r2": NEW}, None),
        (THREE, TWO, {"r1": NEW, "r2": OLD}, "r2 could not read it any more"),
        (THREE, TWO, {"r1": NEW, "r2": None}, "it is not known what r2 can read"),
        (TWO, THREE, {"r1": NEW}, "nothing goes back"),
        (FOUR, TWO, {"r1": NEW}, "this release does not know"),
        (Formats(3, 2), TWO, {"r1": NEW}, "this release does not know"),
    ],
)
def test_a_raise_is_refused_while_anybody_could_not_read_it(
    wanted: Formats, present: Formats, replicas: dict[str, Known | None], why: str | None
) -> None:
    """Goal: no replica is shut out. Method: one older, one silent, back again, what nobody knows."""
    refusal = why_not_raise(wanted, present, replicas)
    assert (refusal is None) == (why is None)
    assert why is None or why in str(refusal)
