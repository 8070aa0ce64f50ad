"""The pytest plugin that leaves out what does not apply to the log's kind (`--log-kind`), and prints why."""

from __future__ import annotations

import pytest

_LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked `only_kafka` where the log is elsewhere: it is not skipped, which would be a failure."""
    if config.getoption("--log-kind") == "kafka":
        return
    marked = [(item, marker) for item in items if (marker := item.get_closest_marker("only_kafka")) is not None]
    config.stash[_LEFT_OUT] = [f"does not apply: {item.nodeid}: {marker.args[0]}" for item, marker in marked]
    left_out = [item for item, _ in marked]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """One line for each."""
    return config.stash.get(_LEFT_OUT, [])
