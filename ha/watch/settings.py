"""Settings of `notary watch`."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ha.supervision import RestartPolicy


class WatchSettings(BaseModel):
    """How `notary watch` looks after the replicas of its machine. It never decides who leads: the election does."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    check_interval_s: float = Field(1.0, gt=0, le=60, description="Between two checks of a replica's /health/live.")
    check_timeout_s: float = Field(0.5, gt=0, le=10, description="A check without an answer by then has failed.")
    failures_max: int = Field(
        5, ge=1, le=1_000, description="Failed checks in a row after which a replica that was live is restarted."
    )
    start_max_s: float = Field(
        60.0, gt=0, le=86_400, description="A replica that is not live by then, after its start, is stopped."
    )
    stop_max_s: float = Field(
        15.0, gt=0, le=86_400, description="A replica that has not ended by then, after its stop, is killed."
    )
    restart_pause_s: float = Field(
        2.0,
        gt=0,
        le=86_400,
        description="Before a replica that ended is started again; doubles with each failure in a row.",
    )
    restart_pause_max_s: float = Field(60.0, gt=0, le=86_400, description="Longest such pause.")
    steady_after_s: float = Field(
        60.0, gt=0, le=86_400, description="A replica live for so long counts its failures from zero again."
    )
    start_command: str | None = Field(
        None,
        description="Starts a replica, `{name}`, instead of running it as a child, and ends: `systemctl start "
        "notary@{name}`. Goes with stop_command.",
    )
    stop_command: str | None = Field(None, description="Stops it in order, and returns when it has ended.")
    restart_command: str | None = Field(
        None, description="Restarts it when it fails its checks; without one it is stopped and started."
    )
    command_max_s: float = Field(
        30.0, gt=0, le=86_400, description="Longest run of one of these commands; then it is killed."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.start_command is None) != (self.stop_command is None):
            raise ValueError("start_command and stop_command belong together")
        if self.restart_command is not None and self.start_command is None:
            raise ValueError("restart_command needs start_command and stop_command")
        if self.check_timeout_s > self.check_interval_s:
            raise ValueError("check_timeout_s must not be longer than check_interval_s")
        if self.restart_pause_s > self.restart_pause_max_s:
            raise ValueError("restart_pause_s must not be longer than restart_pause_max_s")
        return self

    def restarts(self, person_code: int) -> RestartPolicy:
        """How a replica that ended is started again. `person_code`: its exit code where a person is needed first."""
        return RestartPolicy(
            person_code=person_code, pause_s=self.restart_pause_s, pause_max_s=self.restart_pause_max_s
        )
