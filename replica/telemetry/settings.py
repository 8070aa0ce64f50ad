"""Settings of traces. Core and front ends have the same: the core passes its own on."""

from __future__ import annotations

from pathlib import Path

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field


class TracingSettings(BaseModel):
    """Traces of a sample of the requests, for a collector of OpenTelemetry; needs the extra `tracing`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    endpoint: AnyHttpUrl | None = Field(
        None, description="The collector's URL for OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; else none."
    )
    sample_ratio: float = Field(
        0.001, gt=0, le=1, description="Share of the transactions that are traced; the same ones by every replica."
    )
    ca_file: Path | None = Field(None, description="PEM of the issuers that the collector's certificate may be of.")
