"""Settings of the ledger API's front ends, and the document that the core hands to each one it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from replica.link.settings import LinkSettings
from replica.notary.signatures import NOTARY_KEY_PATTERN
from replica.telemetry.settings import TracingSettings

RATE_MIN_PER_S = 0.001
OTHER_FILES = 128  # a front end's open files beside its clients': listeners, link, reader, logs, traces, keys
SCAN_ROWS_PER_S = 50_000.0
SCAN_ROWS_MIN_PER_S = 1_000.0
_ALGORITHM = "([RPE]S(256|384|512)|EdDSA|Ed25519)"  # all asymmetric


class TlsSettings(BaseModel):
    """TLS of the API. Without, it speaks plain HTTP, and only on a loopback address."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    certificate_file: Path = Field(description="PEM of the server's certificate, then intermediate ones.")
    key_file: Path = Field(
        description="PEM of its private key, mode 0600. Files are read again on SIGHUP, and when they have changed."
    )
    client_ca_file: Path | None = Field(
        None,
        description="PEM of the authorities that sign clients' certificates: then every client needs one.",
    )
    version_min: Literal["1.2", "1.3"] = Field("1.2", description="Oldest version of TLS that is spoken.")
    handshake_max_s: float = Field(5.0, gt=0, le=60, description="Longest wait for a client's handshake.")


class TokenSettings(BaseModel):
    """Which tokens (JSON Web Tokens) are valid. Without these settings, no caller needs one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    keys_file: Path | None = Field(
        None, description="JWKS, or a public key or certificate in PEM. Read again on SIGHUP, and when it has changed."
    )
    jwks_url: str | None = Field(
        None, pattern="^https://", description="Where the issuer publishes its keys, instead of `keys_file`."
    )
    jwks_refresh_s: float = Field(300.0, ge=10, le=86_400, description="How often they are fetched again.")
    audience: str | None = Field(None, min_length=1, description="What a token's `aud` must name.")
    scope: str | None = Field(None, min_length=1, description="What a token's `scope` must have among its words.")
    issuer: str | None = Field(None, min_length=1, description="What a token's `iss` must be.")
    algorithms: str = Field(
        "RS256,PS256,ES256,ES384,EdDSA",
        pattern=f"^{_ALGORITHM}(,{_ALGORITHM})*$",
        description="Signatures that are accepted, comma-separated.",
    )
    rights_claim: str = Field("notary", min_length=1, description="The claim that grants rights.")
    revoked_file: Path | None = Field(
        None,
        description=(
            "Ids (`jti`) of revoked tokens, one a line; read again likewise. With it, a token without an id is refused."
        ),
    )
    leeway_s: float = Field(5.0, ge=0, le=120, description="How far the issuer's clock may be off.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.keys_file is None) == (self.jwks_url is None):
            raise ValueError("either keys_file or jwks_url says where the keys are")
        if self.audience is None and self.scope is None:
            raise ValueError("audience or scope must be set: a token for another service would be accepted")
        return self


class ApiSettings(BaseModel):
    """What a front end takes, and how long it waits. Every bound holds for each front-end process by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(8080, ge=0, le=65_535, description="Port that the API listens on; all front ends share it.")
    body_max_bytes: int = Field(8 * 2**20, ge=2**20, le=2**28, description="Largest body of one call.")
    bodies_max_bytes: int = Field(256 * 2**20, ge=2**20, le=2**40, description="Bodies under way together.")
    answers_max_bytes: int = Field(
        128 * 2**20,
        ge=2**20,
        le=2**40,
        description="Answers to submissions, pages, and what streams are given at a time, under way together.",
    )
    batch_max: int = Field(1_000, ge=1, le=10_000, description="Submissions in one call.")
    in_flight_max: int = Field(
        8_192,
        ge=1,
        le=1_000_000,
        description="Submissions under way, and look-ups as many; no caller has more than half.",
    )
    connections_max: int = Field(
        4_096,
        ge=1,
        le=1_000_000,
        description=(
            "Client connections; no source has more than half. Past it, whoever has most loses its oldest idle one."
        ),
    )
    first_request_max_s: float = Field(
        5.0, gt=0, le=3_600, description="A connection without a first request is closed after so long."
    )
    header_max_bytes: int = Field(8_192, ge=1_024, le=65_536, description="Largest request line, and header field.")
    rate_per_s: float = Field(
        2_000.0,
        ge=0,
        le=1e9,
        description="Submissions and reads a second of one user, or of one connection without; 0: any.",
    )
    rate_burst: int = Field(
        10_000, ge=1, le=1_000_000_000, description="So many at once; where all serve, shared among them."
    )
    headers_max: int = Field(64, ge=16, le=1_024, description="Header fields of one request.")
    idle_max_s: float = Field(
        75.0, gt=0, le=86_400, description="A connection without a whole request head is closed then."
    )
    body_read_max_s: float = Field(10.0, gt=0, le=3_600, description="Longest wait for a request's body.")
    drain_max_s: float = Field(
        2.0, gt=0, le=3_600, description="Longest wait for answers under way when a front end stops."
    )
    streams_max: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Streams of completions that are open, and of submissions as many; no caller has more than half.",
    )
    stream_window: int = Field(
        4_000, ge=1, le=100_000, description="Submissions of one stream without an answer; more end it."
    )
    stream_window_bytes: int = Field(
        8 * 2**20, ge=2**16, le=2**28, description="Their bytes; while they have more, no further frame is read."
    )
    checkpoint_s: float = Field(
        10.0, gt=0, le=3_600, description="Longest silence of a stream: then it has a checkpoint."
    )
    stream_read_max_s: float = Field(
        10.0, gt=0, le=3_600, description="A stream whose reader takes nothing for so long is ended."
    )
    page_max: int = Field(1_000, ge=1, le=10_000, description="Completions or updates in one page.")
    page_max_bytes: int = Field(
        4 * 2**20, ge=2**16, le=2**28, description="Bytes of the rows of one page; its first is in it whatever it has."
    )
    scan_rows_per_s: float = Field(
        SCAN_ROWS_PER_S,
        ge=0,
        le=1e9,
        description=(
            "Completions that are looked through a second for one user or source; twice as many at once. 0: any."
        ),
    )
    scan_max: int = Field(20_000, ge=1_000, le=1_000_000, description="Offsets that one page looks through.")
    report_interval_s: float = Field(
        0.2,
        gt=0,
        le=0.5,
        description="How often the counts are sent to the core, which shows that the front end works.",
    )
    problem_logs_per_s: int = Field(10, ge=0, le=10_000, description="Refused calls that are logged.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    tls: TlsSettings | None = Field(None, description="TLS of the API.")
    tokens: TokenSettings | None = Field(
        None,
        description="Which tokens are valid. An API beyond loopback needs this table, or in its place "
        '`tokens = "none"` under `[api]`: then everybody who reaches it reads the whole ledger.',
    )

    @field_validator("tokens", mode="before")
    @classmethod
    def _none_in_words(cls, given: object) -> object:
        """TOML has no null. Who wrote "none" set it, as `model_fields_set` says."""
        return None if given == "none" else given

    @model_validator(mode="after")
    def _a_largest_request_fits(self) -> Self:
        if self.bodies_max_bytes < self.body_max_bytes:
            raise ValueError("bodies_max_bytes is at least body_max_bytes")
        if self.in_flight_max < self.batch_max:
            raise ValueError("in_flight_max is at least batch_max: a larger batch could never be taken")
        if self.rate_burst < self.batch_max:
            raise ValueError("rate_burst is at least batch_max: a larger batch could never be taken")
        if 0 < self.scan_rows_per_s < SCAN_ROWS_MIN_PER_S:
            raise ValueError(f"scan_rows_per_s is 0, or at least {SCAN_ROWS_MIN_PER_S:g}")
        if 0 < self.rate_per_s < RATE_MIN_PER_S:
            raise ValueError(f"rate_per_s is 0, or at least {RATE_MIN_PER_S}: no caller waits longer for its share")
        return self


class ListedReplica(BaseModel):
    """Where applications reach one replica."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Name of the replica.")
    url: str = Field(description="URL of its API, as applications reach it.")


class Listing(BaseModel):
    """What `GET /v1/endpoints` lists: the replicas' own addresses, or one that leads to all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: tuple[ListedReplica, ...] = Field((), description="Where applications reach the replicas.")
    balanced: str | None = Field(None, description="URL of the balanced endpoint, which is then the only one.")


UNLISTED = Listing()


class ProxySettings(BaseModel):
    """Where HAProxy names its clients to a front end."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    port: int = Field(ge=0, le=65_535, description="Port that all front ends of the replica share.")
    sources: tuple[str, ...] = Field(min_length=1, description="Addresses or networks that may connect.")
    handshake_max_s: float = Field(5.0, gt=0, le=60, description="Longest wait for a client's TLS handshake.")


class FrontEndDocument(BaseModel):
    """What the core writes to a front end's standard input: the token must not show in arguments or environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, description="Name of this front end in logs and metrics.")
    replica: str = Field(min_length=1, description="Name of the replica.")
    core_pid: int = Field(gt=0, le=2**31 - 1, description="Process id of the core.")
    link_path: Path = Field(description="Unix socket of the core.")
    generation: str = Field(min_length=16, description="Random token of this core's life.")
    link: LinkSettings = Field(description="The link's settings, the core's own.")
    api: ApiSettings = Field(description="The API's settings.")
    proxy: ProxySettings | None = Field(None, description="Where HAProxy connects with its clients' addresses.")
    tracing: TracingSettings = Field(TracingSettings(), description="Where traces go; the core's own.")
    database: str = Field(min_length=1, repr=False, description="Where completions are read; with the password.")
    hosts: tuple[str, ...] = Field((), description="Names, beside loopback ones, by which browsers may ask for it.")
    notary_key: str = Field(pattern=NOTARY_KEY_PATTERN, description="The notary's public key.")
    notary_keys: tuple[dict[str, str], ...] = Field(
        (), description="All keys that its receipts may name, as in the API."
    )
    version: str = Field(description="Release of the notary.")
    listing: Listing = Field(UNLISTED, description="Where applications reach this notary.")
    log_nodes: bool = Field(
        False, description="The request log is on log nodes of this participant (`log.kind = raft`)."
    )
