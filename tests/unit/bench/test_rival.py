"""The ratios of ours to the alternative."""

from __future__ import annotations

from tests.bench.rival import RATIOS, Rated, ratios


def test_each_ratio_has_ours_on_top() -> None:
    """Goal: rates compare with the load of the same kind, streams with batches; processor time is that of all parts."""
    ours = {
        "single_tps_4_inputs": 6_000.0,
        "batch_tps_4_inputs": 15_000.0,
        "stream_tps_4_inputs": 18_000.0,
        "stream_cpu_us_per_submission": {"active core": 40.0, "passive core": 20.0, "Postgres": 12.0},
    }
    found = ratios(ours, Rated(tps=4_000.0, cpu_us=300.0), Rated(tps=10_000.0, cpu_us=90.0))
    assert found == {
        "postgres_single_ratio": 1.5,
        "postgres_batch_ratio": 1.5,
        "stream_vs_postgres_batch": 1.8,
        "stream_cpu_ratio": 0.8,
    }
    assert set(RATIOS) == set(found)
