"""Fixtures of the tests of the request log on Postgres."""

from __future__ import annotations

import pytest

from replica.log.postgres.install import install
from tests.integration.conftest import MakeDatabase
from tests.integration.log_postgres.world import PARTITION_RECORDS


@pytest.fixture
async def dsn(make_database: MakeDatabase) -> str:
    """A new database with an empty log; its owner's."""
    made = await make_database()
    await install(made, partition_records=PARTITION_RECORDS)
    return made
