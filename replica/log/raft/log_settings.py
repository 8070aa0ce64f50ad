"""Settings of a replica's access to the log on log nodes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from replica.log.raft.settings import Address, LogNodeTls, Name

Seconds = Annotated[float, Field(gt=0, le=60)]


class RaftLogSettings(BaseModel):
    """Where the log's nodes are, and how long they may take. No setting changes a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    group: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of the log.")
    node: Name = Field(description="The log node beside this replica: it reads from that node's disk.")
    nodes: dict[Name, Address] = Field(min_length=1, max_length=33, description="All nodes' names and addresses.")
    tls: LogNodeTls | None = Field(None, description="What the replica shows to log nodes, and whom it trusts.")
    members_min: int = Field(
        3,
        ge=1,
        le=33,
        description="Fewer members of the log are refused; with fewer than 3, one lost disk is a lost log.",
    )
    connect_max_s: Seconds = Field(2.0, description="Longest wait for a connection to a node.")
    answer_max_s: Seconds = Field(3.0, description="A node that owes an answer for so long is left.")
    append_max_s: Seconds = Field(10.0, description="Records that are not committed after so long are given up.")
    append_queue_max: int = Field(
        50_000, ge=1, le=10_000_000, description="Records not yet answered; past it, appends fail."
    )
    append_batch_max: int = Field(5_000, ge=1, le=20_000, description="Records that one call appends.")
    append_batch_max_mib: int = Field(2, ge=1, le=64, description="The same, in MiB.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.node not in self.nodes:
            raise ValueError("`node` must be one of `nodes`")
        return self
