"""Settings of the request log: of which kind it is, and each kind's own.

Each kind has its own answers. `close_max_s` and `append_queue_max` are bounds that other modules rely on. `label` and
`address` are for people, and `words` for programs that report. `for_development`, `one_machine_only` and
`plaintext_connections` say where the kind may be used, `all_may_serve` whether with `serving = "all"`.
`survives_power_loss`: a record that was read back is still there after every server lost power at once. `check_files`
tries what a replica reads at its start. `elsewhere` names another log of the kind, to restore to; `keeps_times`: a
restored record has its old time.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.kafka.settings import KafkaSettings
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.raft.log_settings import RaftLogSettings

LogSettings = KafkaSettings | PostgresLogSettings | RaftLogSettings | MemoryLogSettings


class LogChoice(BaseModel):
    """The request log. The table of its kind says where it is; tables of other kinds are passed over."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["kafka", "postgres", "raft", "memory"] = Field(
        "kafka",
        description="What keeps the request log: a topic; the database itself; log nodes of our own; or, for "
        "tests, memory.",
    )
    kafka: KafkaSettings | None = Field(
        None,
        description="The request log on Kafka: where it is, and how long its client waits. No setting changes a "
        "verdict.",
    )
    postgres: PostgresLogSettings | None = Field(
        None,
        description="The request log on Postgres: where it is, and how long its client waits. No setting changes a "
        "verdict.",
    )
    raft: RaftLogSettings | None = Field(
        None,
        description="The request log on nodes of our own (docs/raft.md): where they are, and how long they may take. "
        "No setting changes a verdict.",
    )
    memory: MemoryLogSettings | None = Field(
        None,
        description="The request log in the memory of one process, for tests: all of it goes with that process.",
    )

    @classmethod
    def of(cls, settings: LogSettings) -> Self:
        """The choice with these settings."""
        return cls.model_validate({"kind": settings.kind, settings.kind: settings})

    @property
    def settings(self) -> LogSettings:
        """The settings of the chosen kind."""
        chosen: LogSettings = getattr(self, self.kind)
        return chosen

    def beside(self, replica: str) -> LogSettings:
        """The settings of the chosen kind as one replica uses them."""
        settings = self.settings
        return settings.beside(replica) if isinstance(settings, RaftLogSettings) else settings

    @model_validator(mode="after")
    def _has_its_table(self) -> Self:
        if getattr(self, self.kind) is None:
            raise ValueError(f"log.kind = {self.kind} needs the table [log.{self.kind}]")
        return self


def dump_settings(settings: LogSettings) -> str:
    """The settings as text, for another process. It names files of secrets, and contains no secret."""
    return LogChoice.of(settings).model_dump_json(exclude_none=True)


def load_settings(text: str) -> LogSettings:
    """The settings in a text of `dump_settings`."""
    return LogChoice.model_validate_json(text).settings
