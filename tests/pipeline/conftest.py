"""One Spark session for the whole run: it takes seconds to start. Real servers are those of tests/integration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.session import spark_session
from tests.integration.conftest import (  # noqa: F401
    kafka_broker,
    make_database,
    make_topic,
    ports,
    postgres_server,
    servers_folder,
    topic,
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and few partitions: tests have few rows. A task that fails is tried again."""
    session = spark_session("tests", "local[2,4]", shuffle_partitions=2, delta=True)
    yield session
    session.stop()
