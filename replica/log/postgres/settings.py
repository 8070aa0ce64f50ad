"""Settings of the request log on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from replica.log.words import LogWords
from replica.notary.errors import ConfigError
from replica.notary.libpq import hosts_in_clear, is_local, parse_conninfo
from replica.notary.secret_files import read_secret

CLOSE_MAX_S = 1.0  # a connection that needs longer to end does so by itself
MIB = 1 << 20

Seconds = Annotated[float, Field(gt=0, le=60)]


class PostgresLogSettings(BaseModel):
    """Where the request log is, and how long its client waits. No setting changes a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str] = "postgres"
    close_max_s: ClassVar[float] = CLOSE_MAX_S
    keeps_times: ClassVar[bool] = True
    one_machine_only: ClassVar[bool] = False
    all_may_serve: ClassVar[bool] = True
    survives_power_loss: ClassVar[bool] = True
    words: ClassVar[LogWords] = LogWords(
        log="log",
        server="database server",
        servers="database servers",
        reach="check what [log.postgres] says (conninfo, password_file), and that the server runs",
        copies="a synchronous standby: without one, a lost disk takes acknowledged requests with it",
        create="notary log create, if this notary is new",
        repair="correct the server's settings: runbooks/postgres-log.md",
        protect="replicas log in as a role that does not own the log: notary log roles, SECURITY.md",
        restore="restore the log from the archive, runbooks/postgres-log.md",
        page="runbooks/postgres-log.md",
        servers_least=2,
        database_sessions=4,  # the follower's, the scrub's, the writer's, and one for questions
    )

    conninfo: str = Field(
        min_length=1,
        repr=False,
        description="libpq connection string of the log's database, usually that of `[database]`; never through a "
        "pooler.",
    )
    password_file: Path | None = Field(None, repr=False, description="File with the password of that user; mode 0600.")
    standbys_flushed: int = Field(
        1, ge=1, le=8, description="Physical standbys that must have a record on disk before anybody reads it."
    )
    single_server: bool = Field(
        False,
        description="For development only: accept a server without a standby, whose disk is the only copy.",
    )
    connect_timeout_s: Seconds = Field(5.0, ge=1, description="Longest wait for a connection.")
    answer_max_s: Seconds = Field(
        3.0, ge=0.1, description="A server that owes an answer for so long is taken for dead, its connection closed."
    )
    lease_s: Seconds = Field(
        3.0, ge=1, description="The server ends a dead connection, and a transaction that hangs, after this."
    )
    poll_every_s: float = Field(
        0.05, gt=0, le=5, description="How often a reader asks without a notice that there is something to read."
    )
    append_queue_max: int = Field(
        50_000, ge=1, le=10_000_000, description="Records not yet answered; past it, appends fail."
    )
    append_queue_max_mib: int = Field(64, ge=2, le=2_048, description="The same, in MiB.")
    append_linger_s: float = Field(
        0.002,
        ge=0,
        le=0.1,
        description="How long an append waits for more records where some wait already. One alone does not wait.",
    )
    append_batch_max: int = Field(2_000, ge=1, le=100_000, description="Records that one statement appends.")
    append_batch_max_mib: int = Field(1, ge=1, le=64, description="The same, in MiB.")
    read_ahead_mib: int = Field(8, ge=1, le=1_024, description="Records fetched ahead of the reader.")

    @field_validator("conninfo")
    @classmethod
    def _is_understood(cls, conninfo: str) -> str:
        try:
            parse_conninfo(conninfo)
        except ConfigError as error:
            raise ValueError(error.detail) from None
        return conninfo

    @property
    def label(self) -> str:
        """What people call the log."""
        return f"notary_log in {self.address}"

    @property
    def address(self) -> str:
        """Where clients connect to it: database and servers, without user and password."""
        given = parse_conninfo(self.conninfo)
        hosts = given.get("host", given.get("hostaddr", "")).split(",")
        ports = given.get("port", "").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        servers = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
        return f"{given.get('dbname', '')}@{','.join(servers)}"

    @property
    def for_development(self) -> bool:
        """Whether the loss of one disk is accepted."""
        return self.single_server

    @property
    def standbys(self) -> int:
        """Standbys that count: none on a single server, whose own disk then does."""
        return 0 if self.single_server else self.standbys_flushed

    def login(self) -> str:
        """The connection string with the password in its file, if one is named. Never log it. Raises ConfigError."""
        from psycopg.conninfo import make_conninfo

        file = self.password_file
        return self.conninfo if file is None else make_conninfo(self.conninfo, password=read_secret(file))

    def plaintext_connections(self) -> Iterator[str]:
        """The connections that would be unprotected beyond this machine, with the setting that protects each."""
        if not all(map(is_local, hosts_in_clear(self.conninfo))):
            yield "a log beyond this machine: log.postgres.conninfo needs sslmode=verify-full (and sslrootcert)"

    def check_files(self) -> None:
        """Raise ConfigError unless a replica can use every file that is named."""
        self.login()

    def elsewhere(self, topic: str | None, servers: str | None) -> Self:
        """The same in another database, with the login of its connection string.

        Raises ConfigError for a topic, and ValidationError.
        """
        if topic is not None:
            raise ConfigError(f"log.kind is {self.kind}: such a log has no topic; another database is another log")
        if servers is None:
            return self
        return self.model_validate(self.model_dump() | {"conninfo": servers, "password_file": None})
