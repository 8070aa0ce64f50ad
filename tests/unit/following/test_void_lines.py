"""Lines about void records."""

from __future__ import annotations

from structlog.testing import capture_logs

from replica.following.void_lines import VoidLines
from replica.notary.reading import Void, VoidReason


def test_void_records_are_said_at_once_and_then_once_a_second() -> None:
    """Goal: a flood of void records is no flood of lines, and none is left out. Method: a hundred runs in a second."""
    lines = VoidLines()
    with capture_logs() as said:
        for at in range(100):
            lines.take([Void(at, VoidReason.REPEAT), Void(1_000 + at, VoidReason.UNDECODABLE)], at / 100)
        lines.take([], 0.999)
        assert len(said) == 1
        lines.take([], 1.0)
        lines.take([], 9.0)
    assert [(one["first_offset"], one["last_offset"]) for one in said] == [(0, 1_000), (1, 1_099)]
    assert said[1]["reasons"] == {"repeat": 99, "undecodable": 99}
