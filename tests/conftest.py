"""Notes the tests that saw a promise broken: `scripts/test.sh` repeats failed tests once, but never these.

`--log-kind` chooses where the log of a cluster is. A test that is marked `only_kafka` is left out elsewhere, one that
is `not_on` a kind there, and the run prints why. A quick test of the core phase has a bound of processor time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from time import process_time

import hypothesis
import pytest
import structlog

from tests.log_kind import KINDS, pytest_collection_modifyitems, pytest_report_collectionfinish
from tests.lossy_disk import KINDS as DISKS
from tests.promises import breaks_a_promise, note_never_repeated

__all__ = ["pytest_collection_modifyitems", "pytest_report_collectionfinish"]

CORE_S_MAX = 5.0
"""Processor time that a quick test of the core phase may take, with its children's, on a core that counts to a million
in `MILLION_S`: neither what waits for a busy machine nor what a slow one adds is the test's."""
MILLION_S = 0.01
CORE = {"unit", "model", "golden", "raft"}
TESTS = Path(__file__).parent

# Spark's own variable: of a test's JVM nearly all is start-up, for which the second compiler and its threads are a loss
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.pop("COLUMNS", None)  # a process of xdist's has it, and commands would take it for the width of a terminal
os.umask(os.umask(0o022) | 0o022)  # files of tests say whom to trust, which a group that may write them must not
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
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a quick test of the core phase that computes for too long."""
    began_s = _processor_s()
    yield
    took_s = _processor_s() - began_s
    if took_s > CORE_S_MAX and _is_quick_in_core(item) and took_s > (allowed_s := CORE_S_MAX * _slowness()):
        pytest.fail(f"{took_s:.1f} s of processor time, {allowed_s:.1f} are allowed: make it smaller, or `thorough`")


def _is_quick_in_core(item: pytest.Item) -> bool:
    left_out = item.get_closest_marker("thorough") or item.get_closest_marker("slow")
    return not left_out and item.path.relative_to(TESTS).parts[0] in CORE


def _slowness() -> float:
    """How many times longer this machine computes than the one that the bound is for; at least 1."""
    best_s = math.inf
    for _ in range(3):
        began_s = process_time()
        for _ in range(1_000_000):
            pass
        best_s = min(best_s, process_time() - began_s)
    return max(1.0, best_s / MILLION_S)


def _processor_s() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a test whose set-up, body or teardown met a broken promise to the list."""
    report = yield
    if call.excinfo is not None and breaks_a_promise(call.excinfo.value):
        note_never_repeated(item.nodeid)
    return report
