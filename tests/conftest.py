"""Notes the tests that saw a promise broken: `scripts/test.sh` repeats failed tests once, but never these.

`--log-kind` chooses where the log of a cluster is. A test that is marked `only_kafka` is left out elsewhere, one that
is `not_on` a kind there, and the run prints why.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import hypothesis
import pytest
import structlog

from tests.log_kind import KINDS, pytest_collection_modifyitems, pytest_report_collectionfinish
from tests.lossy_disk import KINDS as DISKS
from tests.promises import breaks_a_promise, note_never_repeated

__all__ = ["pytest_collection_modifyitems", "pytest_report_collectionfinish"]

hypothesis.settings.register_profile("any machine", deadline=None)  # how long an example takes is no property
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--log-kind`: the clusters of integration tests, runbooks and fault scenarios have their request log there.

    `embedded`: on log nodes, and without any database.
    """
    parser.addoption("--log-kind", choices=KINDS, default="kafka")
    parser.addoption("--disks", choices=DISKS, default="ext4", help="that lose power: see tests/lossy_disk.py")
    parser.addoption("--serving", choices=["one", "all"], default="one", help="who serves in fault scenarios")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs makes the log quiet; the tests after it, of any folder, read log lines."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a test whose set-up, body or teardown met a broken promise to the list."""
    report = yield
    if call.excinfo is not None and breaks_a_promise(call.excinfo.value):
        note_never_repeated(item.nodeid)
    return report
