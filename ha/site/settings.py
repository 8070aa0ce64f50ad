"""Settings of a participant whose replicas stand at two sites, one of which serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

SiteName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]


class SiteSettings(BaseModel):
    """This site, where another one may go on with a copy of its log. No replica serves without the site's term, which a
    witness keeps (docs/decisions/0025-site-fail-over.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: SiteName = Field(description="Name of this site; each site has another.")
    witness: str = Field(
        description=(
            "libpq connection string without a password of a Postgres database for this alone, which "
            "both sites reach and neither takes down."
        ),
    )
    witness_password_file: Path | None = Field(None, description="File with the password of that user; mode 0600.")
    lease_s: float = Field(
        30.0,
        ge=1.0,
        le=86_400.0,
        description=(
            "How long the term lasts without a renewal: longer forgives the witness longer; the other "
            "site waits as long. From the next `notary site take` on."
        ),
    )

    @field_validator("witness")
    @classmethod
    def _is_postgres_without_a_password(cls, witness: str) -> str:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            given = conninfo_to_dict(witness)
        except ProgrammingError as error:
            raise ValueError(f"it is no connection string of libpq: {str(error).strip()}") from None
        if "password" in given:
            raise ValueError("a password stands in a file: witness_password_file")
        return witness
