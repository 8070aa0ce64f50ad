"""Settings of the request log on Postgres."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

CLOSE_MAX_S = 1.0  # a connection that needs longer to end does so by itself

Seconds = Annotated[float, Field(gt=0, le=60)]


class PostgresLogSettings(BaseModel):
    """Where the request log is, and how long its client waits. No setting changes a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    conninfo: str = Field(min_length=1, repr=False, description="libpq connection string of the log's database.")
    standbys_flushed: int = Field(
        1, ge=1, le=8, description="Physical standbys that must have a record on disk before anybody reads it."
    )
    single_server: bool = Field(
        False,
        description="For development only: accept a server without a standby. Whatever was acknowledged is lost with "
        "that server's disk.",
    )
    connect_timeout_s: Seconds = Field(5.0, ge=1, description="Longest wait for a connection.")
    answer_max_s: Seconds = Field(
        3.0, ge=0.1, description="A server that owes an answer for so long is taken for dead, its connection closed."
    )
    lease_s: Seconds = Field(
        15.0, ge=1, description="The lock session's: what the server ends a dead connection after."
    )
    poll_every_s: float = Field(
        0.05, gt=0, le=5, description="How often a reader asks without being told that there is something to read."
    )
    append_queue_max: int = Field(
        50_000, ge=1, le=10_000_000, description="Records not yet answered; past it, appends fail."
    )
    append_queue_max_mib: int = Field(64, ge=2, le=2_048, description="The same, in MiB.")
    append_batch_max: int = Field(2_000, ge=1, le=100_000, description="Records that one statement appends.")
    append_batch_max_mib: int = Field(1, ge=1, le=64, description="The same, in MiB.")
    read_ahead_mib: int = Field(8, ge=1, le=1_024, description="Records fetched ahead of the reader.")

    @property
    def standbys(self) -> int:
        """Standbys that count: none on a single server, whose own disk then does."""
        return 0 if self.single_server else self.standbys_flushed
