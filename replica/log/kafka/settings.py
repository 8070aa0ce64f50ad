"""Settings of the request log on Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from replica.log.kafka.pointers import PARTITIONS_MAX, payload_topic
from replica.log.words import LogWords
from replica.notary.loopback import is_loopback
from replica.notary.secret_files import check_readable, check_secret, read_secret

TOPIC_NAME_MAX = 249  # Kafka's own limit
CLOSE_MAX_S = 1.0  # a client that needs longer to close does so in the background

Seconds = Annotated[float, Field(gt=0, le=60)]


class KafkaSecurity(BaseModel):
    """How the connection to the brokers is protected. Secrets stay in their files and are never part of a setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Encryption, and log-in by password, of the connections to the brokers."
    )
    ca_file: Path | None = Field(None, description="PEM of the authorities that sign the brokers' certificates.")
    certificate_file: Path | None = Field(None, description="PEM of the replica's own certificate, for mutual TLS.")
    key_file: Path | None = Field(None, description="PEM of the private key of that certificate, mode 0600.")
    sasl_mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="How the password is proved."
    )
    sasl_username: str | None = Field(None, description="User to log in as.")
    sasl_password_file: Path | None = Field(None, description="File with the password alone, mode 0600.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.protocol.startswith("SASL") and not (self.sasl_username and self.sasl_password_file):
            raise ValueError(f"{self.protocol} needs sasl_username and sasl_password_file")
        if self.protocol == "SASL_PLAINTEXT" and self.sasl_mechanism == "PLAIN":
            raise ValueError("PLAIN sends the password as it is: use it with SASL_SSL only")
        return self

    def client_config(self) -> dict[str, str]:
        """librdkafka's properties, the password among them: never log the result.

        Raises ConfigError when a file is missing or a secret one can be read by others.
        """
        config: dict[str, str] = {"security.protocol": self.protocol}
        if self.key_file is not None:
            check_secret(self.key_file)
        if self.protocol.endswith("SSL"):
            files = {
                "ssl.ca.location": self.ca_file,
                "ssl.certificate.location": self.certificate_file,
                "ssl.key.location": self.key_file,
            }
            for name, path in files.items():
                if path is not None:
                    check_readable(path)
                    config[name] = str(path)
        if self.protocol.startswith("SASL") and self.sasl_username and self.sasl_password_file:
            config |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.sasl_username,
                "sasl.password": read_secret(self.sasl_password_file).strip(),
            }
        return config


class KafkaSettings(BaseModel):
    """The request log on Kafka: where it is, and how long its client waits. No setting changes a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str] = "kafka"
    close_max_s: ClassVar[float] = CLOSE_MAX_S
    keeps_times: ClassVar[bool] = True
    one_machine_only: ClassVar[bool] = False
    all_may_serve: ClassVar[bool] = True
    words: ClassVar[LogWords] = LogWords(
        log="topic",
        server="broker",
        servers="brokers",
        reach="check what [log] says (bootstrap_servers, security), and that the brokers run",
        copies="three brokers, two in sync: with fewer, a lost disk takes acknowledged requests with it",
        create="notary topic create, if this notary is new",
        repair="notary topic repair: runbooks/topic.md",
        protect="delete.topic.enable=false on every broker and controller: docs/reference-deployment.md",
        restore="restore the topic from the archive, runbooks/topic.md",
        page="runbooks/topic.md",
    )

    bootstrap_servers: str = Field(
        pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$", description="Brokers to ask first, `host:port`, comma-separated."
    )
    topic: str = Field(
        "notary-requests", pattern=r"^[A-Za-z0-9._-]{1,249}$", description="Topic that is the request log."
    )
    single_broker: bool = Field(
        False,
        description="For development only: accept a topic on one broker, whose disk is the only copy.",
    )
    durability: Literal["synced", "replicated"] = Field(
        "synced",
        description=(
            "What an acknowledged record rests on: `synced`, the disks of the leader and another "
            "broker; `replicated`, their memory. `notary topic repair` adapts a topic."
        ),
    )
    connect_timeout_s: Seconds = Field(5.0, ge=1, description="Longest wait for a writer's connection to the brokers.")
    answer_max_s: Seconds = Field(
        3.0, ge=1, description="A broker that owes an answer for so long is taken for dead, and its connection closed."
    )
    append_timeout_s: Seconds = Field(
        5.0, description="The client gives a record up that no broker has acknowledged by then; retries are included."
    )
    append_linger_s: float = Field(
        0.0,
        ge=0,
        le=0.1,
        description="How long the client waits for more records before it sends. Costs latency; saves broker time.",
    )
    append_queue_max: int = Field(
        50_000, ge=1, le=10_000_000, description="Records not yet acknowledged; past it, appends fail."
    )
    append_queue_max_mib: int = Field(64, ge=1, le=2_048, description="The same, in MiB.")
    compression: Literal["none", "lz4", "zstd"] = Field("none", description="Of record batches, by the client.")
    payload_partitions: int = Field(
        0,
        ge=0,
        le=PARTITIONS_MAX,
        description="Requests above 4 kB go to so many partitions of `<topic>-payloads`, and a pointer to the "
        "log's topic; 0: all go whole. Readers need no setting.",
    )
    read_ahead_mib: int = Field(16, ge=2, le=1_024, description="Records fetched ahead of the reader.")
    security: KafkaSecurity = Field(KafkaSecurity(), description="How the connection to the brokers is protected.")

    @model_validator(mode="after")
    def _payload_topic_has_a_name(self) -> Self:
        name = payload_topic(self.topic)
        if self.payload_partitions and len(name) > TOPIC_NAME_MAX:
            raise ValueError(f"{name} has {len(name)} characters, and the name of a topic at most {TOPIC_NAME_MAX}")
        return self

    @property
    def label(self) -> str:
        """The log's name for people: the topic's name."""
        return self.topic

    @property
    def topics(self) -> Sequence[str]:
        """The topics that replicas write to: the log's, and that of payloads where some are to be written."""
        return [self.topic, payload_topic(self.topic)] if self.payload_partitions else [self.topic]

    @property
    def address(self) -> str:
        """Where clients connect to it."""
        return self.bootstrap_servers

    @property
    def for_development(self) -> bool:
        """Whether the loss of one disk is accepted."""
        return self.single_broker

    @property
    def survives_power_loss(self) -> bool:
        """Whether a record that was read back is still there after all servers lost power at once."""
        return self.durability == "synced"

    def plaintext_connections(self) -> Iterator[str]:
        """The connections that would be unprotected beyond this machine, with the setting that protects each."""
        hosts = [server.rpartition(":")[0] for server in self.bootstrap_servers.split(",")]
        protocol = self.security.protocol
        if not all(map(is_loopback, hosts)) and not protocol.endswith("SSL"):
            yield f"brokers beyond this machine with log.kafka.security.protocol = {protocol}: set SSL or SASL_SSL"

    def check_files(self) -> None:
        """Raise ConfigError unless a replica can use every file that is named."""
        self.security.client_config()

    def elsewhere(self, topic: str | None, servers: str | None) -> Self:
        """The same with another topic, or other brokers, where they are given. Raises ValidationError."""
        named = {"topic": topic, "bootstrap_servers": servers}
        given = {name: value for name, value in named.items() if value is not None}
        return self.model_validate(self.model_dump() | given)
