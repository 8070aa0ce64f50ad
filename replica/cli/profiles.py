"""The supported profiles: which servers a participant is made of."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from replica.local.cluster import LogKind


class Profile(Enum):
    """A supported set of servers."""

    REFERENCE = "reference"  # the log on Kafka; lock and store on Postgres
    POSTGRES = "postgres"  # one Postgres is lock, log and store: no broker, no Java

    @property
    def log(self) -> LogKind:
        """What the request log is kept in."""
        return "postgres" if self is Profile.POSTGRES else "kafka"


_HELP = "reference: the log on Kafka. postgres: one Postgres is lock, log and store."

ProfileOption = Annotated[Profile, typer.Option("--profile", help=_HELP)]
KnownProfileOption = Annotated[
    Profile | None, typer.Option("--profile", help=f"{_HELP} Left out: as the cluster was made.")
]
