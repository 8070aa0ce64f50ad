"""What a lease asks of the core's settings."""

from __future__ import annotations

import pytest

from ha.settings import ElectionSettings
from replica.config.model import WITHOUT_DATABASE
from replica.settings import CoreSettings
from replica.wiring import SIGNS_PER_CLAIM, core_settings


def test_under_a_lease_the_pipeline_is_bounded_in_time() -> None:
    """Goal: signs of life do not wait long behind submissions. Method: the settings that are written without a
    database, the same with a bound of the operator's own, and a lock in a database."""
    election = ElectionSettings(**WITHOUT_DATABASE["election"])
    bound_s = core_settings(CoreSettings(), election).pipeline_max_s
    assert bound_s == pytest.approx((election.lease_s - election.margin_s) / SIGNS_PER_CLAIM)
    assert core_settings(CoreSettings(pipeline_max_s=0.5), election).pipeline_max_s == 0.5
    assert core_settings(CoreSettings(), ElectionSettings()).pipeline_max_s == 0.0
