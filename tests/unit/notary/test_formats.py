"""When what is written to the log may be raised, and what an activation makes of it."""

from __future__ import annotations

import pytest

from replica.notary.errors import FormatUnknown
from replica.notary.formats import Formats, Known, known, of_barrier, to_write, why_not_raise
from replica.notary.records import BarrierRecord

ONE, TWO, THREE, FOUR = Formats(1, 1), Formats(2, 2), Formats(2, 3), Formats(2, 4)
OLD, NEW = Known(), Known((1, 2), (1, 2, 3))


def barrier(formats: Formats) -> BarrierRecord:
    return BarrierRecord(1, b"a" * 16, "r1", "postgres:1:1", formats.records, formats.rules)


def test_a_release_that_knows_more_writes_the_older_until_it_is_raised() -> None:
    """Goal: a new release changes nothing by itself. Method: an empty and a running log, before and after a raise."""
    assert known() == NEW
    assert (of_barrier(None), of_barrier(barrier(TWO))) == (ONE, TWO)
    assert to_write(ONE, ONE) == ONE
    assert to_write(TWO, ONE) == TWO
    assert to_write(ONE, TWO) == TWO  # a database from an older backup takes nothing back


def test_an_older_release_does_not_write_what_it_does_not_know() -> None:
    """Goal: fail closed. Method: raised in the database, and in force in the log."""
    for raised, in_log in ((FOUR, ONE), (ONE, FOUR)):
        with pytest.raises(FormatUnknown, match="rules version 4"):
            to_write(raised, in_log)


@pytest.mark.parametrize(
    ("wanted", "present", "replicas", "why"),
    [
        (TWO, ONE, {"r1": NEW, "r2": NEW}, None),
        (TWO, ONE, {"r1": NEW, "r2": OLD}, "r2 could not read it any more"),
        (TWO, ONE, {"r1": NEW, "r2": None}, "it is not known what r2 can read"),
        (ONE, TWO, {"r1": NEW}, "nothing goes back"),
        (THREE, TWO, {"r1": NEW}, None),
        (THREE, TWO, {"r1": NEW, "r2": Known((1, 2), (1, 2))}, "r2 could not read it any more"),
        (FOUR, ONE, {"r1": NEW}, "this release does not know"),
        (Formats(1, 3), ONE, {"r1": NEW}, "do not go together"),
        (Formats(3, 1), ONE, {"r1": NEW}, "this release does not know"),
        (Formats(2, 1), ONE, {"r1": NEW}, "do not go together"),
        (Formats(1, 2), ONE, {"r1": NEW}, "do not go together"),
    ],
)
def test_a_raise_is_refused_while_anybody_could_not_read_it(
    wanted: Formats, present: Formats, replicas: dict[str, Known | None], why: str | None
) -> None:
    """Goal: no replica is shut out. Method: one older, one silent, back again, what nobody knows."""
    refusal = why_not_raise(wanted, present, replicas)
    assert (refusal is None) == (why is None)
    assert why is None or why in str(refusal)


@pytest.mark.parametrize(("wanted", "refused"), [(TWO, True), (ONE, False)])
@pytest.mark.parametrize("lag", [1, None])
def test_a_raise_waits_for_the_acceptances_of_every_index(wanted: Formats, refused: bool, lag: int | None) -> None:
    """Goal: no replica is stopped by a raise. Method: one index that lacks some, or keeps none; then all are there."""
    replicas: dict[str, Known | None] = {"r1": NEW, "r2": NEW}
    refusal = why_not_raise(wanted, ONE, replicas, {"r1": 0, "r2": lag})
    assert (refusal is not None) == refused
    assert refusal is None or refusal.startswith("r2 does not know all accepted commands")
    assert why_not_raise(wanted, ONE, replicas, {"r1": 0, "r2": 0}) is None


@pytest.mark.parametrize(("wanted", "refused"), [(THREE, True), (TWO, False)])
@pytest.mark.parametrize("lag", [1, None])
def test_a_raise_waits_for_the_registrations_of_every_index(wanted: Formats, refused: bool, lag: int | None) -> None:
    """Goal: no replica is stopped by a raise to rules 3. Method: one index that lacks some, or keeps none; then all are
    there."""
    replicas: dict[str, Known | None] = {"r1": NEW, "r2": NEW}
    refusal = why_not_raise(wanted, ONE, replicas, {"r1": 0, "r2": 0}, {"r1": 0, "r2": lag})
    assert (refusal is not None) == refused
    assert refusal is None or refusal.startswith("r2 does not know all registered keys")
    assert why_not_raise(wanted, ONE, replicas, {"r1": 0, "r2": 0}, {"r1": 0, "r2": 0}) is None
