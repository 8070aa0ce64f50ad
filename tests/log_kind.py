"""The pytest plugin that leaves out what does not apply to the log's kind (`--log-kind`), and prints why."""

from __future__ import annotations

from typing import Any, cast

import pytest

from replica.local.cluster import LogKind

EMBEDDED = "embedded"  # the log on nodes of our own, and no database
KINDS = ["kafka", "postgres", "raft", EMBEDDED]
_LEFT_OUT = pytest.StashKey[list[str]]()


def log_of(config: pytest.Config) -> LogKind:
    """Where the log of a run's clusters is."""
    kind = config.getoption("--log-kind")
    return "raft" if kind == EMBEDDED else cast("LogKind", kind)


def is_embedded(config: pytest.Config) -> bool:
    """Whether a run's clusters have no database."""
    return bool(config.getoption("--log-kind") == EMBEDDED)


def serving_of(config: pytest.Config) -> dict[str, Any]:
    """The setting of a run's fault scenarios that says who serves; none where that is the default."""
    serving = config.getoption("--serving")
    return {} if serving == "one" else {"serving": serving}


def profile_of(config: pytest.Config) -> str:
    """The name of what a run's fault scenarios are played on."""
    kind = str(config.getoption("--log-kind"))
    return f"{kind}-workers" if serving_of(config) else kind


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked `only_kafka(why)` where the log is elsewhere, `only_embedded(why)` where there is a
    database, `not_on(profile, why)` on that profile, `only_one_serves(why)` where every replica serves, and
    `only_all_serve(why)` where one does.

    What is not on `raft` is not on `embedded` either; `kafka-workers` is Kafka where every replica serves. It is not
    skipped, which would be a failure.
    """
    reasons = [(item, why) for item in items if (why := _reason(item, config)) is not None]
    config.stash[_LEFT_OUT] = [f"does not apply: {item.nodeid}: {why}" for item, why in reasons]
    left_out = [item for item, _ in reasons]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """One line for each."""
    return config.stash.get(_LEFT_OUT, [])


def _reason(item: pytest.Item, config: pytest.Config) -> str | None:
    kind, other = config.getoption("--log-kind"), "only_one_serves" if serving_of(config) else "only_all_serve"
    if (marker := item.get_closest_marker(other)) is not None:
        return str(marker.args[0])
    if kind != "kafka" and (marker := item.get_closest_marker("only_kafka")) is not None:
        return str(marker.args[0])
    if kind != EMBEDDED and (marker := item.get_closest_marker("only_embedded")) is not None:
        return str(marker.args[0])
    profiles = {kind, profile_of(config), *(("raft",) if kind == EMBEDDED else ())}
    return next(
        (str(why) for name, why in (marker.args for marker in item.iter_markers("not_on")) if name in profiles), None
    )
