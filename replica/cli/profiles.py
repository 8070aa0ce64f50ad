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
    RAFT = "raft"  # the log on nodes of our own; lock and store on Postgres: no broker, no Java
    EMBEDDED = "embedded"  # the same log, a lease over it, and ledgers of the replicas' own: no database either

    @property
    def log(self) -> LogKind:
        """What the request log is kept in."""
        match self:
            case Profile.REFERENCE:
                return "kafka"
            case Profile.POSTGRES:
                return "postgres"
            case _:
                return "raft"


_HELP = (
    "reference: the log on Kafka. postgres: in the database itself. raft: on nodes of our own beside the replicas. "
    "embedded: the same without any database."
)

ProfileOption = Annotated[Profile, typer.Option("--profile", help=_HELP)]
KnownProfileOption = Annotated[
    Profile | None, typer.Option("--profile", help=f"{_HELP} Left out: as the cluster was made.")
]
RaisedOption = Annotated[
    bool,
    typer.Option(
        "--raised/--not-raised",
        help="Begin a new ledger with the newest record format and rules, or with the first ones.",
    ),
]
