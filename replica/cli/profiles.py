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

    def kept(self) -> dict[str, str]:
        """What a local cluster keeps: folders, and what is in them."""
        index = {"replicas": "has each replica's index of what is spent, which is made of the log, and its log lines"}
        database = {"postgres": "has the lock and completions, on ONE server"}
        nodes = {"log": "is the request log, with a copy for each log node"}
        match self:
            case Profile.REFERENCE:
                return {"kafka": "is the request log, on ONE broker"} | database | index
            case Profile.POSTGRES:
                return {"postgres": "has the request log, the lock and completions, on ONE server"} | index
            case Profile.RAFT:
                return nodes | database | index
            case Profile.EMBEDDED:
                return nodes | {"replicas": "has each replica's index and ledger, made of the log, and its log lines"}


def profile_of(log: LogKind, *, embedded: bool) -> Profile | None:
    """The profile of a cluster; None for one of no profile, as those of tests are."""
    if embedded:
        return Profile.EMBEDDED
    return next((profile for profile in Profile if profile.log == log), None)


_HELP = (
    "reference: the log on Kafka. postgres: in the database itself. raft: on nodes of our own beside the replicas. "
    "embedded: the same without any database."
)

ProfileOption = Annotated[Profile, typer.Option("--profile", help=_HELP)]
KnownProfileOption = Annotated[
    Profile | None,
    typer.Option("--profile", help=f"{_HELP} Left out: as the cluster was made; a new one is embedded."),
]
