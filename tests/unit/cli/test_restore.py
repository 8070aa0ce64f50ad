"""Up to which record a log is restored, from what an operator writes."""

from __future__ import annotations

import pytest

from pipeline.archive.restore_plan import Until
from replica.cli.restore import _until
from replica.notary.errors import ConfigError

MOMENT_MS = 1_795_255_200_007  # 2026-11-21T10:00:00.007Z


@pytest.mark.parametrize(
    ("offset", "text", "until"),
    [
        (None, None, Until()),
        (0, None, Until(offset=0)),
        (None, "2026-11-21T10:00:00.007Z", Until(time_ms=MOMENT_MS)),
        (None, "2026-11-21T12:00:00.007+02:00", Until(time_ms=MOMENT_MS)),
        (None, "2026-11-21T10:00:00.007999Z", Until(time_ms=MOMENT_MS)),  # nothing that came a millisecond later
    ],
)
def test_a_point_is_taken_as_it_was_written(offset: int | None, text: str | None, until: Until) -> None:
    """Goal: a restore ends where the operator said. Method: offsets, and moments of several zones to a millisecond."""
    assert _until(offset, text) == until


@pytest.mark.parametrize(
    ("offset", "text", "why"),
    [
        (5, "2026-11-21T10:00:00Z", "exclude one another"),
        (None, "yesterday", "no moment: 'yesterday'"),
        (None, "2026-11-21T10:00:00", "needs a zone"),
    ],
)
def test_a_point_that_could_be_another_one_is_refused(offset: int | None, text: str, why: str) -> None:
    """Goal: nobody restores to an hour that they did not mean. Method: both, none, and a time without a zone."""
    with pytest.raises(ConfigError, match=why):
        _until(offset, text)
