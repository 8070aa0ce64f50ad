"""Settings of the link. Both sides have the same: the core passes its own on to its front ends."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LINK_SOCKET = "link.sock"  # in a replica's folder
_WORDS_MISSED_MAX = 3  # a single late keep-alive must not refuse requests


class LinkSettings(BaseModel):
    """Bounds and times of the link between front ends and core."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    frame_max_bytes: int = Field(16 * 2**20, ge=4 * 2**20, le=2**30, description="Largest frame.")
    tickets_max: int = Field(
        20_000, ge=1, le=1_000_000, description="Questions of one front end under way at the core."
    )
    front_ends_max: int = Field(64, ge=1, le=1_024, description="Front ends connected at a time.")
    buffer_max_bytes: int = Field(
        64 * 2**20, ge=2**20, le=2**40, description="Sent by one front end and not yet taken by the core."
    )
    keep_alive_s: float = Field(0.2, gt=0, le=10, description="The core repeats its word at least this often.")
    standing_max_age_s: float = Field(
        3.0,
        gt=0,
        le=60,
        description="A core silent for so long counts as passive: longer than a stall that is forgiven.",
    )
    front_end_silent_s: float = Field(
        3.0, ge=1, le=60, description="A front end silent for so long does not count: longer than a stall, likewise."
    )
    front_end_hung_s: float = Field(
        5.0,
        ge=1,
        le=300,
        description="A front end silent for so long is started anew; where none counts, at once.",
    )
    answer_max_s: float = Field(15.0, gt=0, le=3_600, description="An answer that takes longer counts as unknown.")
    hello_max_s: float = Field(2.0, gt=0, le=60, description="Longest wait for the other side's hello.")

    @model_validator(mode="after")
    def _some_words_may_be_late(self) -> Self:
        if self.standing_max_age_s < _WORDS_MISSED_MAX * self.keep_alive_s:
            raise ValueError(f"standing_max_age_s is at least {_WORDS_MISSED_MAX} times keep_alive_s")
        if self.front_end_hung_s < self.front_end_silent_s:
            raise ValueError("front_end_hung_s is at least front_end_silent_s")
        return self
