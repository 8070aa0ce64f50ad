"""What every request log promises, on a real Postgres."""

from __future__ import annotations

import pytest

from tests.integration.log_postgres.world import PostgresUnderTest
from tests.unit.test_log_contract import LogContract

pytestmark = pytest.mark.postgres


class TestPostgresLog(LogContract):
    @pytest.fixture
    def topic_under_test(self, dsn: str) -> PostgresUnderTest:
        return PostgresUnderTest(dsn)
