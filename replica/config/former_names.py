"""Tables that earlier releases had under another name. Files and variables with a former name are still read.

A former name is read for one release after the one that renamed it: `[kafka]` until 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replica.notary.errors import ConfigError

FORMER_TABLES = {"kafka": ("log", "kafka")}
"""By the name that a table had at the top of the file: where it is today."""


def in_todays_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a file with each table under the name that it has today.

    Raises ConfigError when a table is given under both names, which could contradict one another.
    """
    found = dict(values)
    for former, (outer, inner) in FORMER_TABLES.items():
        if former not in found:
            continue
        table, around = found.pop(former), found.get(outer, {})
        if inner in around:
            raise ConfigError(f"[{former}] is the former name of [{outer}.{inner}]: give one of them")
        found[outer] = {**around, inner: table}
    return found


def variable_today(name: str, prefix: str) -> str:
    """The name that an environment variable has today, in the letters that it is given in."""
    for former, path in FORMER_TABLES.items():
        start, after = f"{prefix}{former}", name[len(prefix) + len(former) :]
        if name.lower().startswith(start.lower()) and (not after or after.startswith("__")):
            today = prefix + "__".join(path)
            return (today.upper() if name.isupper() else today.lower()) + after
    return name
