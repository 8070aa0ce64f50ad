"""What operators see of the query that writes the tables, on the port of the job's other metrics."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest

pytest.importorskip("pyspark")
from pipeline.metrics import FollowerMetrics, serve_metrics
from pipeline.tables.query import Batch
from pipeline.tables.query_metrics import QueryMetrics


def test_batches_and_sparks_own_figures_are_served() -> None:
    """Goal: rate, phases and the driver's time are there. Method: two batches, and what Spark said of the second."""
    metrics = QueryMetrics()
    metrics.wrote(Batch(offset=99, records=100, driver_s=0.002, took_s=1.0))
    metrics.wrote(Batch(offset=149, records=50, driver_s=0.001, took_s=0.5))
    metrics.progressed(10.0, 80.5, {"addBatch": 1_500, "triggerExecution": 1_600})
    server = serve_metrics(FollowerMetrics("tables", lambda: 150, lambda: 1.0), "127.0.0.1", 0, (), (metrics,))
    try:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
    finally:
        server.shutdown()
        server.server_close()
    found = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
    assert found["notary_tables_batches_total"] == 2 and found["notary_tables_records_total"] == 150
    assert found["notary_tables_driver_seconds_total"] == pytest.approx(0.003)
    assert found['notary_tables_rate_records{kind="input"}'] == 10.0
    assert found['notary_tables_rate_records{kind="processed"}'] == 80.5
    assert found['notary_tables_batch_seconds{phase="addBatch"}'] == 1.5
    assert "notary_tables_age_seconds" in found
