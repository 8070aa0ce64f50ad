"""The configuration of a participant: one model, composed of each part's own settings.

One TOML file serves all replicas of a participant; each replica gets its name at the start. Environment variables
override the file (`NOTARY_ELECTION__LEASE_S=5`). Secrets are files, named here, never values.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ha.settings import ElectionSettings
from ha.site.settings import SiteSettings
from ha.watch.settings import WatchSettings
from haproxy.render import Endpoint, HaproxySettings, Host, Name, ReplicaAddress, Url
from ledger_api.server.settings import ApiSettings, ListedReplica, Listing
from replica.active.signer import Signer, open_signer
from replica.config.client import ClientSettings
from replica.database import Database, EmbeddedLedgers, Login, participant_database
from replica.link.settings import LinkSettings
from replica.log.settings import LogChoice
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.keys import NotaryKey, known_keys, read_keys
from replica.notary.loopback import is_loopback
from replica.notary.operators import OperatorKey, read_operators
from replica.notary.places import Remote, place_of
from replica.notary.secret_files import read_secret
from replica.settings import ADMIN_SOCKET, AdminSettings, CoreSettings, KmsSettings, OperatorsSettings, Pkcs11Settings
from replica.store.open import kind_of, parse_conninfo, with_password
from replica.store.sqlite.kind import SQLITE
from replica.store.sqlite.tables import FILE
from replica.store.trail import Signatory
from replica.telemetry.settings import TracingSettings

ENVIRONMENT_PREFIX = "NOTARY_"
LEDGER = f"ledger/{FILE}"  # in a replica's folder


class DatabaseSettings(BaseModel):
    """Where completions are: the participant's shared database, or a ledger of each replica's own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    conninfo: str = Field(
        description=(
            "libpq connection string without a password, or oracle://USER@CONNECT_STRING; never "
            "through a pooler. Or `sqlite:`, with election.kind = lease and log.kind = raft: each "
            "replica derives a ledger from the log."
        )
    )
    password_file: Path | None = Field(None, description="File with the password of that user; mode 0600.")
    reader_user: str | None = Field(
        None,
        description="What front ends log in as to read completions, a member of notary_reader; else as replicas do.",
    )
    reader_password_file: Path | None = Field(None, description="File with the password of the reader; mode 0600.")
    scope: str = Field(
        "",
        description="The lock id is made of it: the database's name as Postgres reports it, Oracle's user in capitals. "
        "Needed with both; left out with `sqlite:`.",
    )

    @field_validator("conninfo")
    @classmethod
    def _is_understood(cls, conninfo: str) -> str:
        try:
            parse_conninfo(conninfo)
        except ConfigError as error:
            raise ValueError(error.detail) from None
        if kind_of(conninfo).NAME == "sqlite" and conninfo != SQLITE:
            raise ValueError("a ledger is of one replica, in a folder of its own: write `sqlite:` without a path")
        return conninfo

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if not self.is_embedded:
            if not self.scope:
                raise ValueError("a shared database needs `scope`: its name, or on Oracle the user in capitals")
            return self
        without = ("password_file", "reader_user", "reader_password_file", "scope")
        if given := [name for name in without if getattr(self, name)]:
            raise ValueError(f"with `sqlite:` there is no database to log in to: leave out {', '.join(given)}")
        return self

    @property
    def is_embedded(self) -> bool:
        """Whether each replica derives a ledger of its own, and no database is shared."""
        return self.conninfo == SQLITE


WITHOUT_DATABASE: Mapping[str, Mapping[str, Any]] = {
    "database": {"conninfo": SQLITE},
    "election": {
        "kind": "lease",
        "lease_s": 0.9,
        "heartbeat_s": 0.15,
        "margin_s": 0.1,
        "answer_max_s": 0.65,
        "statement_max_s": 0.4,
        "drain_max_s": 0.65,
    },
    "core": {"standby_read_pause_s": 0.05, "drain_answers_s": 0.15},
}
"""Of a profile without any database. No network lies between a replica and its log node, and no database's client has
to be given up, so the lease is shorter than a database's: only a holder that is frozen or cut off waits for its end."""


def _place(given: object) -> object:
    return place_of(given) if isinstance(given, str) else given


def _tables_place(given: object) -> object:
    place = _place(given)
    if isinstance(place, Remote) and place.startswith("hdfs:"):
        raise ConfigError(f"{place}: tables are kept in a folder, in S3 or in Azure", Code.PLACE_UNKNOWN)
    return place


class ArchiveSettings(BaseModel):
    """The archive of the request log, which the pipeline writes. A replica reads how far a local one goes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    folder: Annotated[Path | InstanceOf[Remote], BeforeValidator(_place)] = Field(
        Path("archive"),
        description=(
            "Folder, on another disk than the log's, shared by all workers; or `s3a://BUCKET/PREFIX` "
            "or `hdfs://NAMENODE:PORT/PREFIX`, with credentials from the environment."
        ),
    )
    key_file: Path = Field(
        Path("archive.key"),
        description="Key that signs the archive's manifest, PKCS#8 PEM, mode 0600; made by the first run. Not the "
        "notary's own.",
    )
    segment_records: int = Field(50_000, ge=100, le=1_000_000, description="Most records in one file.")
    interval_s: float = Field(
        30.0, ge=1, le=86_400, description="How often `notary archive run --follow` looks for new records."
    )
    metrics: Endpoint | None = Field(
        None, description="Where Prometheus finds /metrics of `notary archive run --follow`; off by default."
    )


class LogCopySettings(BaseModel):
    """The copy of the request log at a second site, which `notary log copy` writes; replicas do not use it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    to: Path | None = Field(
        None,
        description=(
            "Configuration file of the second site, whose log gets the records; on Postgres as that log's owner."
        ),
    )
    interval_s: float = Field(
        2.0, ge=0.1, le=86_400, description="How often `notary log copy --follow` looks for new records."
    )
    metrics: Endpoint | None = Field(
        None, description="Where Prometheus finds /metrics of `notary log copy --follow`; off by default."
    )


class CatalogueSettings(BaseModel):
    """A catalogue in which `notary tables run` registers the tables, so that readers find them by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["hive"] = Field("hive", description="What the catalogue is: a Hive metastore.")
    host: Host = Field(description="Host of the metastore.")
    port: int = Field(9083, ge=1, le=65_535, description="Its TCP port, of the Thrift interface.")
    schema_name: str = Field(
        "notary",
        pattern="^[a-z0-9_]{1,128}$",
        description="Schema (Hive: database) of the tables, made if there is none; each notary needs one of its own.",
    )
    ca_file: Path | None = Field(
        None, description="PEM of the authorities that sign its certificate: with them, TLS is spoken."
    )
    look_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="How often `notary tables run --follow` looks whether the tables are registered still.",
    )


class TablesSettings(BaseModel):
    """The log as tables in the format of Delta Lake, which `notary tables run` appends to; replicas do not use it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    folder: Annotated[Path | InstanceOf[Remote], BeforeValidator(_tables_place)] = Field(
        Path("tables"),
        description="Folder of the tables, one folder inside for each; or `s3a://BUCKET/PREFIX`, with credentials "
        "from the environment.",
    )
    interval_s: float = Field(
        5.0, ge=1, le=86_400, description="How often `notary tables run --follow` appends: one commit for each table."
    )
    metrics: Endpoint | None = Field(
        None, description="Where Prometheus finds /metrics of `notary tables run --follow`; off by default."
    )
    catalogue: CatalogueSettings | None = None


class Config(BaseSettings):
    """Everything a replica, and the tools around it, need to know."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    cluster: Name = Field(
        "notary",
        description="Name of this notary, for people and as Prometheus' label.",
    )
    data_dir: Path = Field(
        description="Folder of the replicas' own data: index, sockets, logs; one folder per replica."
    )
    notary_key_file: Path | None = Field(
        None,
        description="The notary's signing key, PKCS#8 PEM, mode 0600; one for all replicas. Or it is in `[pkcs11]` "
        "or `[kms]`.",
    )
    notary_keys_file: Path | None = Field(
        None,
        description="Public keys that receipts may name, old ones too; `notary keys rotate` writes it. Else one key.",
    )
    serving: Literal["one", "all"] = Field(
        "one",
        description="Who serves: the active replica alone; or all of them, each its own clients (docs/profiles.md).",
    )
    api_workers: int = Field(2, ge=1, le=64, description="Front-end processes of a replica.")
    endpoint: Endpoint = Field(description="The balanced endpoint that applications are given.")
    public_url: Url | None = Field(
        None,
        description="URL of the endpoint for applications: GET /v1/endpoints lists it alone. Either this or "
        "replicas.api_url.",
    )
    host_names: tuple[Host, ...] = Field(
        (),
        description=(
            "Further Host headers that API (without tokens or TLS) and health take; others are refused (WRONG_HOST)."
        ),
    )
    replicas: tuple[ReplicaAddress, ...] = Field(min_length=1, description="All replicas of the participant.")
    database: DatabaseSettings
    log: LogChoice
    api: ApiSettings = Field(default_factory=ApiSettings)  # no instance: what is set in it counts, not what it has
    election: ElectionSettings = ElectionSettings()
    core: CoreSettings = CoreSettings()
    admin: AdminSettings = AdminSettings()
    operators: OperatorsSettings = OperatorsSettings()
    tracing: TracingSettings = TracingSettings()
    watch: WatchSettings = WatchSettings()
    link: LinkSettings = LinkSettings()
    archive: ArchiveSettings = ArchiveSettings()
    tables: TablesSettings = TablesSettings()
    log_copy: LogCopySettings = LogCopySettings()
    site: SiteSettings | None = None
    client: ClientSettings = ClientSettings()
    pkcs11: Pkcs11Settings | None = Field(
        None, description="The notary's signing key on a PKCS#11 token, instead of `notary_key_file`."
    )
    kms: KmsSettings | None = Field(
        None, description="The notary's signing key in a key management service, instead of `notary_key_file`."
    )
    haproxy: dict[str, Any] = Field(
        default_factory=dict, description="Any setting of HAProxy but the endpoint and the replicas, which stand above."
    )

    @model_validator(mode="after")
    def _haproxy_is_valid(self) -> Self:
        """Check HAProxy's settings, and that front ends on other machines take its connections."""
        proxies = self.haproxy_settings().proxies
        beyond = [one.name for one in self.replicas if one.proxy_port is not None and not is_loopback(one.host)]
        if beyond and all(is_loopback(one.partition("/")[0]) for one in proxies):
            raise ValueError(
                f"replicas.proxy_port of {', '.join(beyond)}: say in haproxy.sources which addresses HAProxy connects"
                " from; connections from elsewhere are closed there"
            )
        return self

    @model_validator(mode="after")
    def _one_notary_key(self) -> Self:
        if [self.notary_key_file, self.pkcs11, self.kms].count(None) != 2:
            raise ValueError("either notary_key_file or [pkcs11] or [kms] says where the notary's key is")
        return self

    @model_validator(mode="after")
    def _replicas_are_apart(self) -> Self:
        """Check ports: a replica's front ends share one port, so the kernel would let two replicas share it, too."""
        if any(set(replica.name) == {"."} for replica in self.replicas):
            raise ValueError("a replica's name is the name of its folder, so it cannot be '.' or '..'")
        taken = {(self.endpoint.host, self.endpoint.port): "the endpoint"}
        for replica in self.replicas:
            for what in ("api_port", "proxy_port", "health_port"):
                port = getattr(replica, what)
                user = f"{what} of {replica.name}"
                if port is not None and (other := taken.setdefault((replica.host, port), user)) != user:
                    raise ValueError(f"{replica.host}:{port} is given twice: {other}, {user}")
        return self

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        """Check bounds that other parts rely on: otherwise a step-down ends the process, or load deposes the active."""
        log = self.log.settings
        hosts = [self.endpoint.host, *(replica.host for replica in self.replicas)]
        if log.one_machine_only and not all(map(is_loopback, hosts)):
            raise ValueError(
                f"log.kind = {log.kind} is for tests on one machine: endpoint and replicas need a loopback address"
            )
        if log.kind == "postgres" and kind_of(self.database.conninfo).NAME != "postgres":
            raise ValueError(
                "log.kind = postgres with another kind of database: one Postgres is lock, log and store, or the log is "
                "of another kind"
            )
        self._lease_fits()
        self._embedded_fits()
        self._all_may_serve()
        step_down_s = 3 * self.core.drain_answers_s + log.close_max_s
        if step_down_s > self.election.drain_max_s:
            raise ValueError(
                f"three times core.drain_answers_s and {log.close_max_s:g} s to close the log are {step_down_s:g} s,"
                f" more than election.drain_max_s = {self.election.drain_max_s:g}"
            )
        if self.core.in_flight_max > log.append_queue_max:
            raise ValueError(
                f"core.in_flight_max = {self.core.in_flight_max} submissions do not fit"
                f" log.{log.kind}.append_queue_max = {log.append_queue_max}"
            )
        return self

    def _all_may_serve(self) -> None:
        """Check what replicas that all serve rely on (docs/decisions/0021-workers.md)."""
        leaders = [replica.name for replica in self.replicas if replica.may_lead]
        if self.serving == "one":
            if len(leaders) < len(self.replicas):
                raise ValueError(
                    "replicas.may_lead = false needs serving = all: with one, who may not lead never serves"
                )
            return
        if not leaders:
            raise ValueError(
                "replicas.may_lead is false for all: nobody could hold the lock. Let two of them, at least"
            )
        if not self.log.settings.all_may_serve:
            raise ValueError(f"serving = all is not supported with log.kind = {self.log.kind}. Leave serving out")
        if not self.database.is_embedded:
            self._all_may_serve_beside_a_database()
        if self.core.standby != "following":
            raise ValueError("serving = all needs core.standby = following: every replica reads the log all the time")

    def _all_may_serve_beside_a_database(self) -> None:
        """Check that it was tried on real servers."""
        if kind_of(self.database.conninfo).NAME != "postgres":
            raise ValueError(
                "serving = all needs a database on Postgres, which gives each replica numbers of its own, or none"
            )
        if self.log.kind == "raft":
            raise ValueError(
                "serving = all with log.kind = raft is supported without a database only"
                " (database.conninfo = sqlite:). Leave serving out"
            )

    def _lease_fits(self) -> None:
        """Check what a lease relies on: every replica reads the log all the time, and soon enough to be answered."""
        if self.election.kind != "lease":
            return
        if self.core.standby != "following":
            raise ValueError("election.kind = lease needs core.standby = following: who does not read cannot wait")
        if not self.database.is_embedded:
            raise ValueError(
                "election.kind = lease is for replicas that share no database: this one has the lock. Leave"
                " election.kind out, or set database.conninfo = sqlite: with log.kind = raft"
            )
        pauses_s = 10 * self.core.standby_read_pause_s
        if pauses_s > self.election.answer_max_s:
            raise ValueError(
                f"election.kind = lease: ten times core.standby_read_pause_s are {pauses_s:g} s, more than"
                f" election.answer_max_s = {self.election.answer_max_s:g}; a claim would not be read back in time"
            )

    def _embedded_fits(self) -> None:
        """Check what replicas that share no database rely on."""
        if not self.database.is_embedded:
            return
        if self.election.kind != "lease":
            raise ValueError("database.conninfo = sqlite: has no lock: set election.kind = lease")
        if self.log.kind not in ("raft", "memory"):
            raise ValueError(
                f"database.conninfo = sqlite: is supported with log.kind = raft only, not with {self.log.kind}"
            )

    @model_validator(mode="after")
    def _listed_addresses_are_whole(self) -> Self:
        """Check what applications are told: a list that lacks a replica would hide it when it leads."""
        urls = [replica.api_url for replica in self.replicas if replica.api_url is not None]
        if not urls:
            return self
        if self.public_url is not None:
            raise ValueError("either public_url or replicas.api_url: where there is a balancer, it is the way in")
        if len(set(urls)) != len(self.replicas):
            raise ValueError("replicas.api_url is given for all replicas, one of its own each, or for none")
        if len({url.partition(":")[0] for url in urls}) != 1:
            raise ValueError("replicas.api_url: all of them http, or all of them https")
        return self

    @property
    def listing(self) -> Listing:
        """What GET /v1/endpoints lists."""
        replicas = [
            ListedReplica(name=replica.name, url=replica.api_url) for replica in self.replicas if replica.api_url
        ]
        return Listing(replicas=tuple(replicas), balanced=self.public_url)

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Names and addresses by which this machine and its endpoint are asked for."""
        urls = (self.public_url, *(replica.api_url for replica in self.replicas))
        named = [urlsplit(url).hostname or "" for url in urls if url is not None]
        hosts = (self.endpoint.host, *(replica.host for replica in self.replicas), *named, *self.host_names)
        return tuple(dict.fromkeys((*hosts, gethostname())))

    @property
    def endpoint_url(self) -> str:
        """The balanced endpoint as a URL, for people and commands."""
        if self.public_url is not None:
            return self.public_url
        host = self.haproxy_settings().reached_at
        return f"{'http' if self.api.tls is None else 'https'}://{host}:{self.endpoint.port}"

    def replica(self, name: str) -> ReplicaAddress:
        """The replica of that name. Raises ConfigError."""
        for replica in self.replicas:
            if replica.name == name:
                return replica
        known = [replica.name for replica in self.replicas]
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"no replica is called {name!r}; configured are {', '.join(known)}{hint}")

    def candidate(self, name: str) -> ReplicaAddress:
        """The replica of that name, which may hold the lock. Raises ConfigError."""
        found = self.replica(name)
        if not found.may_lead:
            able = ", ".join(replica.name for replica in self.replicas if replica.may_lead)
            raise ConfigError(f"{name} may not hold the lock (replicas.may_lead = false); name one that may: {able}")
        return found

    def admin_socket(self, name: str) -> Path:
        """The admin listener of one replica, on its own machine. Raises ConfigError."""
        folder, found = self.admin.folder, self.replica(name).name
        return self.replica_dir(found) / ADMIN_SOCKET if folder is None else folder / f"{found}.sock"

    def replica_dir(self, name: str) -> Path:
        """The folder of one replica's own data."""
        return self.data_dir / name

    def haproxy_settings(self) -> HaproxySettings:
        """The settings that HAProxy's configuration is rendered from."""
        if self.serving == "all":
            defaults: dict[str, Any] = {"balance": "leastconn", "take_out": {}}
        else:  # while the lease lasts nobody else takes over, and a cut helps nobody
            defaults = {"check_timeout_s": self.election.lease_s / 3}
        return HaproxySettings(bind=self.endpoint, replicas=self.replicas, **(defaults | self.haproxy))

    def conninfo(self) -> str:
        """The connection string with its password. Never log it. Raises ConfigError."""
        database = self.database
        if database.password_file is None:
            return database.conninfo
        return with_password(database.conninfo, read_secret(database.password_file))

    def site_witness(self) -> str:
        """The connection string of the term's witness, with its password. Never log it. Raises ConfigError."""
        if self.site is None:
            raise ConfigError("the configuration has no [site]: replicas serve without a term")
        file = self.site.witness_password_file
        return self.site.witness if file is None else with_password(self.site.witness, read_secret(file))

    def notary_signer(self) -> Signer:
        """The notary's signing key. Raises ConfigError, and SignerUnavailable when token or service do not answer."""
        where = self.notary_key_file or self.pkcs11 or self.kms
        assert where is not None, "the model takes exactly one"
        return open_signer(where)

    def notary_keys(self) -> list[NotaryKey]:
        """The keys that its receipts may name. Raises ConfigError, and SignerUnavailable."""
        return known_keys(self.notary_keys_file, self.notary_signer().public_key)

    def operator_keys(self) -> list[OperatorKey]:
        """The operators' public keys; none where no file is configured. Raises ConfigError."""
        return [] if self.operators.keys_file is None else read_operators(self.operators.keys_file)

    def signatories(self) -> dict[str, Signatory]:
        """Whose keys may sign in the operators' trail. Raises ConfigError, and SignerUnavailable.

        Without notary_keys_file it looks at the notary's own key, which an operator's account may be unable to read.
        """
        found = {one.public_key: Signatory(one.name, one.until) for one in self.operator_keys()}
        if self.notary_keys_file is not None:
            found |= {key.public_key: Signatory(None) for key in read_keys(self.notary_keys_file)}
        else:
            found[self.notary_signer().public_key.hex()] = Signatory(None)
        return found

    def ledgers(self, replica: str | None = None) -> Database | EmbeddedLedgers:
        """Where completions are. `replica`: as that one uses it; else as tools find it here. Raises ConfigError."""
        if not self.database.is_embedded:
            return self.shared_database()
        names = [one.name for one in self.replicas] if replica is None else [replica]
        log = self.log.settings if replica is None else self.log.beside(replica)
        return EmbeddedLedgers([self.replica_dir(name) / LEDGER for name in names], log, names)

    def shared_database(self) -> Database:
        """The database that the replicas share. Raises ConfigError, also where they share none."""
        return participant_database(self.conninfo(), self.database.scope, reader=self._reader())

    def _reader(self) -> Login | None:
        """The role that front ends log in as; None: the replicas' role."""
        database = self.database
        if database.reader_user is None:
            return None
        file = database.reader_password_file
        return Login(database.reader_user, "" if file is None else read_secret(file))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment goes before the file's values, which come in as arguments."""
        return env_settings, init_settings
