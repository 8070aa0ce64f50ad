"""How the commands of this machine reach the ledger API: files with token, certificate and trusted authorities."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class ClientSettings(BaseModel):
    """Commands that use the ledger API (`notary submit`, `completions`, `import`); replicas do not need it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    token_file: Path | None = Field(
        None, description="File with the token that they show, mode 0600; read again when it changes."
    )
    ca_file: Path | None = Field(
        None, description="PEM of the authorities that may sign the API's certificate; else the machine's own."
    )
    certificate_file: Path | None = Field(None, description="PEM of their certificate, for an API that asks for one.")
    key_file: Path | None = Field(None, description="PEM of its private key, mode 0600.")
