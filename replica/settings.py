"""Settings of the core: bounds and waits of admission, applying, publishing and activation."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, field_validator, model_validator

from replica.notary.requests import DEDUPLICATION_LIMIT_S

ADMIN_SOCKET = "admin.sock"  # in a replica's folder


class AdminSettings(BaseModel):
    """Where operators watch and steer a replica: a Unix socket, in its own folder, for its account and root only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    group: str | None = Field(
        None, min_length=1, max_length=64, description="Group of accounts that may watch and steer as well."
    )
    folder: Path | None = Field(
        None, description="Existing folder of the sockets, `NAME.sock`, which that group may enter; with `group` only."
    )

    @model_validator(mode="after")
    def _group_has_a_folder(self) -> Self:
        if (self.group is None) != (self.folder is None):
            raise ValueError("group and folder go together: a replica's own folder is closed to other accounts")
        return self


class Pkcs11Settings(BaseModel):
    """The notary's signing key on a PKCS#11 token, such as a hardware security module, instead of in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    module: Path = Field(description="The vendor's PKCS#11 library, a .so file.")
    token_label: str = Field(min_length=1, max_length=32, description="Label of the token.")
    key_label: str = Field(min_length=1, max_length=255, description="Label of the key pair on it, Ed25519 or P-256.")
    pin_file: Path = Field(description="File with the user's PIN alone, mode 0600.")


class KmsSettings(BaseModel):
    """The notary's signing key in a service that speaks AWS KMS' protocol. No secret stands here: the credentials are
    where AWS' tools look for them, such as `AWS_ACCESS_KEY_ID` and `AWS_SHARED_CREDENTIALS_FILE` in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    key_id: str = Field(
        min_length=1,
        max_length=2_048,
        description="Id, ARN or alias (`alias/NAME`) of the key: ECC_NIST_P256, SIGN_VERIFY.",
    )
    region: str = Field(pattern="^[a-z0-9-]{1,64}$", description="Region of the service; it is part of each request.")
    endpoint: HttpUrl | None = Field(None, description="URL of the service, if it is not the region's own.")
    ca_file: Path | None = Field(None, description="PEM of the authorities that its certificate is checked against.")
    timeout_s: float = Field(
        0.5,
        gt=0,
        le=30,
        description="Longest wait for a connection, and for an answer, before one more try; `core.sign_max_s` "
        "bounds all of it.",
    )


class OperatorsSettings(BaseModel):
    """What operators' acts leave behind: the operators' trail (docs/trail.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    key_file: Path | None = Field(
        None,
        description=(
            "The operator's own signing key, PKCS#8 PEM, mode 0600; `~` is the caller's home. Else "
            "the notary's key signs."
        ),
    )
    keys_file: Path | None = Field(
        None, description="The operators' public keys, a TOML file (docs/trail.md); the same on every machine."
    )
    reason_required: bool = Field(False, description="Whether commands that act need `--reason`.")
    trail_required: bool = Field(
        False,
        description="Whether every act is refused that cannot be written to the trail, and not only what a replica "
        "carries out. Else it is done, with a warning.",
    )
    four_eyes: tuple[Literal["prune", "restore-adopt", "site-take", "switchover"], ...] = Field(
        (), description="Acts that a second operator must confirm; both sign with keys of their own."
    )
    confirm_within_s: float = Field(
        86_400.0, ge=60, le=604_800, description="How long a proposal may be confirmed, by the operators' clocks."
    )
    trail_look_s: float = Field(
        30.0,
        ge=1,
        le=3_600,
        description="How often each replica looks whether the trail is whole.",
    )

    @field_validator("key_file")
    @classmethod
    def _is_of_who_runs_it(cls, file: Path | None) -> Path | None:
        return None if file is None else file.expanduser()

    @model_validator(mode="after")
    def _four_eyes_have_keys(self) -> Self:
        if self.four_eyes and self.keys_file is None:
            raise ValueError(
                "four_eyes needs operators.keys_file: who proposes and who confirms is known by their keys"
            )
        return self


class CoreSettings(BaseModel):
    """How one replica's core works. No setting changes a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    standby: Literal["following", "disconnected"] = Field(
        "following",
        description="What a passive does: keep its index warm from the log, or stay away from it.",
    )
    in_flight_max: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="Submissions until they are answered; past it, 503 OVERLOADED.",
    )
    states_in_flight_max: int = Field(
        400_000,
        ge=10_000,
        le=100_000_000,
        description="States of those submissions together: inputs and references, or 36 bytes of a record each.",
    )
    pipeline_max: int = Field(
        5_000,
        ge=1,
        le=1_000_000,
        description="Of those, submissions that have left the fair queue.",
    )
    pipeline_states_max: int = Field(
        200_000, ge=10_000, le=100_000_000, description="States of those submissions together."
    )
    pipeline_max_s: float = Field(
        0.0,
        ge=0,
        le=3_600,
        description="How long a submission may be in there, by the throughput of late; 0: any time, under a lease "
        "an eighth of what a sign of life may take.",
    )
    user_queue_max: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Submissions that one user has in the fair queue, shared among the replicas that serve; past it, "
        "429 USER_OVERLOADED.",
    )
    user_states_max: int = Field(
        200_000, ge=10_000, le=100_000_000, description="States that one user has in the fair queue, likewise."
    )
    interim_from_s: float = Field(
        5.0, gt=0, le=3_600, description="Who waits for an answer gets the estimate when it is longer than this."
    )
    admit_batch_max: int = Field(
        1_000,
        ge=1,
        le=5_000,
        description="Submissions recorded in one database round trip; keeps each statement short.",
    )
    admit_linger_s: float = Field(
        0.003,
        ge=0,
        le=0.1,
        description="How long submissions gather before they are recorded, once `admit_linger_from` are in flight.",
    )
    admit_linger_from: int = Field(
        64,
        ge=1,
        le=1_000_000,
        description="Submissions in flight from which larger batches are worth waiting for. Below it nothing waits.",
    )
    read_batch_max: int = Field(
        1_000, ge=1, le=5_000, description="Records judged and applied at a time; keeps the heartbeat from waiting."
    )
    read_batch_states_max: int = Field(
        20_000, ge=10_000, le=1_000_000, description="States judged at a time: records above it go into the next batch."
    )
    publish_batch_max: int = Field(2_000, ge=1, le=5_000, description="Completions published in one transaction.")
    publish_backlog_max: int = Field(
        100_000,
        ge=10_000,
        le=1_000_000,
        description="Completions that may wait for the database; submissions above that are refused as OVERLOADED.",
    )
    exposed_max_records: int = Field(
        20_000,
        ge=100,
        le=1_000_000,
        description=(
            "Where the log does not survive a power cut: answered records that are neither published "
            "nor on two replicas' disks; beyond, or after a second, OVERLOADED."
        ),
    )
    publish_linger_s: float = Field(
        0.02, ge=0, le=1, description="How long completions gather before they are published; answers do not wait."
    )
    standby_read_pause_s: float = Field(
        0.1,
        ge=0,
        le=1,
        description="How long a passive lets records gather between two reads, until it is granted the lock: "
        "larger runs cost less.",
    )
    read_wait_s: float = Field(
        0.5,
        gt=0,
        le=5,
        description="Longest wait for the next record before looking around; at most `log_stall_max_s`.",
    )
    log_stall_max_s: float = Field(
        2.0, gt=0, le=3_600, description="An active that cannot read its own record back for this long steps down."
    )
    log_check_every_s: float = Field(
        30.0,
        gt=0,
        le=3_600,
        description="How often a running replica asks whether the log still keeps its contract; a breach is reported.",
    )
    log_retry_s: float = Field(0.25, gt=0, le=60, description="Pause before the log is tried again after it failed.")
    sign_max_s: float = Field(
        1.0, gt=0, le=30, description="Longest wait for a signature of a token or KMS; past it the replica steps down."
    )
    drain_answers_s: float = Field(
        0.2,
        ge=0,
        le=60,
        description="How long a step-down waits for records on their way, before it purges and answers unknown.",
    )
    retry_after_s: float = Field(
        0.1, gt=0, le=60, description="How long refused clients are asked to wait while no replica is active."
    )
    deduplication_max_s: float = Field(
        7 * 86_400.0,
        gt=0,
        le=DEDUPLICATION_LIMIT_S,
        description="Longest deduplication period, and that of submissions that ask for none.",
    )
    scrub_records_per_s: float = Field(
        100.0,
        ge=0,
        le=100_000,
        description=("Least rate at which the whole log is read again to compare index and ledger; 0: not at all."),
    )
    scrub_within_s: float = Field(
        7 * 86_400.0,
        ge=60,
        le=366 * 86_400,
        description="The log is read again within this time while the replica has room; later is an alert.",
    )
    scrub_every_s: float = Field(
        86_400.0,
        gt=0,
        le=366 * 86_400,
        description="How often that begins again, if it has come to the end.",
    )

    @model_validator(mode="after")
    def _looks_before_it_gives_up(self) -> Self:
        if self.read_wait_s > self.log_stall_max_s:
            raise ValueError(
                "core.read_wait_s is above core.log_stall_max_s: the log would count as silent between two looks at it"
            )
        return self
