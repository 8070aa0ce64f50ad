"""The SQL of a dialect, stored in folders of this package: named statements, and migrations with their versions.

sql/<dialect>/<name>.sql and migrations/<dialect>/<number>_<name>.sql. Each dialect has its own version numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files

import msgspec

from replica.notary.errors import SalvageMissing, StoreMismatch
from replica.notary.salvage import bound_topic_id, salvages_named

LOCK_WAIT_S = 30  # for another migration to end


class Migration(msgspec.Struct, frozen=True, order=True):
    """One file of a dialect's migrations. `usable_from`: the oldest version a release must know to use the schema."""

    version: int
    name: str
    usable_from: int
    text: bytes


@cache
def read_statement(dialect: str, name: str) -> str:
    """The text of one of the SQL files; the server's activity and statistics views show the name."""
    lines = files("replica.store").joinpath(f"sql/{dialect}/{name}.sql").read_text().splitlines()
    return "\n".join([f"/* notary.{name} */", *(line for line in lines if not line.startswith("--"))])


@cache
def read_migrations(dialect: str) -> tuple[Migration, ...]:
    """Every migration of this release, oldest first."""
    folder = files("replica.store").joinpath(f"migrations/{dialect}")
    return tuple(
        sorted(_migration(item.name, item.read_bytes()) for item in folder.iterdir() if item.name.endswith(".sql"))
    )


def check_version(version: int, usable_from: int, ours: int) -> None:
    """Raises StoreMismatch unless a release that knows version `ours` can write to a schema of this version."""
    if version < ours or usable_from > ours:
        raise StoreMismatch(
            f"the database's schema is version {version}, usable from {usable_from}; this release knows {ours}:"
            " run `notary store migrate`, or a newer release"
        )


def check_bound(bound: str, topic_id: str, salvages: Collection[str]) -> None:
    """Raises StoreMismatch unless the database belongs to this topic, and SalvageMissing unless the index has every
    salvage (digests in hexadecimal) that the database names."""
    if bound_topic_id(bound) != topic_id:
        raise StoreMismatch(f"the database belongs to topic id {bound}, the log's is {topic_id}")
    for digest in salvages_named(bound):
        if digest not in salvages:
            raise SalvageMissing(f"the index lacks what was lost before the log was restored: salvage {digest}")


def check_not_newer(version: int, usable_from: int, ours: int) -> None:
    """Raises StoreMismatch when a release that knows version `ours` must leave a schema of this version alone."""
    if usable_from > ours:
        raise StoreMismatch(
            f"the database's schema is version {version}, for releases that know version {usable_from} or newer;"
            f" this one knows {ours}"
        )


def _migration(name: str, text: bytes) -> Migration:
    usable_from = re.match(rb"-- usable from version (\d+)\n", text)
    if usable_from is None:
        raise ValueError(f"{name} does not say which releases can use the schema")
    return Migration(int(name[:4]), name, int(usable_from[1]), text)
