"""A whole participant on loopback: database, request log, replicas and balancer, supervised by this process.

Everything is kept in one folder and found again at the next start; only ports may change. For development, tests and
the demo: one broker and one database server keep nothing when their disk is lost, and all disks here may be one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp

from haproxy.render import ReplicaAddress
from ledger_api.client.signing import Party
from replica.acting.healths import fetch_health
from replica.acting.parties import PartyActs, keys_in_log
from replica.acting.party_file import read_party_file
from replica.active.signer import load_signer
from replica.config.load import load_config
from replica.config.model import WITHOUT_DATABASE, Config
from replica.health import ReplicaHealth
from replica.local.forwarder import Forwarder
from replica.local.haproxy import SOCKET_PATH_MAX, STATS_SOCKET, HaproxyServer
from replica.local.kept import Say
from replica.local.log_nodes import LogNodeProcess, log_is_created, make_log_nodes, ports_in, values_of
from replica.local.machine import THIS_MACHINE, Machine
from replica.local.memory_log import MemoryLogProcess
from replica.local.participant import DATABASE, OWNER, READER, REPLICAS_FOLDER, ROLE, ParticipantFiles, merged
from replica.local.ports import PortReservation
from replica.local.process import ServerFailed, until
from replica.local.replica import ReplicaProcess
from replica.local.run_file import ReplicaRun, RunFile, this_process
from replica.log.beginning import begin_log
from replica.log.interface import LogMissing
from replica.log.kafka.settings import KafkaSettings
from replica.log.open import open_log, open_log_admin
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.settings import LogSettings
from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.requests import PUBLIC_KEY_BYTES
from replica.notary.socket_paths import check_socket_path
from replica.settings import ADMIN_SOCKET
from replica.store.sqlite.kind import SQLITE

if TYPE_CHECKING:  # slow to import, with the clients of servers that an embedded participant has none of
    from replica.local.kafka import KafkaCluster
    from replica.local.postgres import PostgresServer

LogKind = Literal["kafka", "postgres", "raft", "memory"]
STANDBY_NAME = "standby"  # the standby's name at the primary
LOG_FOLDER = "kafka"
POSTGRES_FOLDER = "postgres"
STANDBY_FOLDER = "standby"
LOCK_NAME = "cluster.lock"  # held while a supervisor runs; also marks a folder as a cluster's
API_WORKERS = 2
ACTIVE_MAX_S = 60.0
# The row of the ledger's end changes with each publication: vacuum checks it more often than once a minute.
# A restarted primary gets its standby back sooner than after five seconds. Until then no commit ends.
POSTGRES_SETTINGS = {"autovacuum_naptime": "5s", "wal_retrieve_retry_interval": "200ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The parts of a local cluster. `further`: any other settings, nested as in the configuration file.

    `log`: the kind of the request log; None: as the cluster was made, on Kafka where it is new. On Postgres it is in
    the database; in memory it ends with the cluster, whose folder must be new. With three brokers and a database
    standby the cluster equals the reference deployment, except for the machines.
    """

    folder: Path
    replicas: int = 3
    standby: Literal["following", "disconnected"] | None = None  # None: as the cluster has it; a new one follows
    api_workers: int | None = None  # None: as the cluster has them; a new one 2
    parties: int = 5
    log: LogKind | None = None
    embedded: bool | None = None  # no database: lease, and ledgers of the replicas' own; None: as it was made
    proxy_ports: bool = True  # HAProxy names its clients to the front ends, which releases before 0.2 do not know
    haproxy: bool | None = None  # in front of the replicas; None: where they share a database, else a forwarder
    brokers: int = 1
    database_standby: bool = False
    topics_deletable: bool = False
    endpoint_port: int | None = None  # of a new cluster, if it is free; else any
    further: Mapping[str, Any] = field(default_factory=dict)
    machines: Mapping[str, Machine] = field(
        default_factory=dict
    )  # of r1.., k1.. (brokers), db1, db2, lb; else this one


class LocalCluster:
    """Use it as `async with LocalCluster(settings, say) as cluster`; see `start` for when that returns."""

    config: Config
    parties: list[Party]
    ledger_id: bytes
    notary_key: bytes
    embedded: bool
    postgres: PostgresServer  # where the replicas share a database
    postgres_standby: PostgresServer | None
    kafka: KafkaCluster  # where the log is on Kafka
    memory_log: MemoryLogProcess  # where it is in memory
    haproxy: HaproxyServer  # unless a forwarder has the endpoint
    balancer: HaproxyServer | Forwarder  # whichever has the endpoint
    topic_id: str
    log_kind: LogKind

    def __init__(self, settings: ClusterSettings, say: Say = lambda part, text: None) -> None:
        self.settings = settings
        self.folder = settings.folder.absolute()
        self.replicas: dict[str, ReplicaProcess] = {}
        self.log_nodes: dict[str, LogNodeProcess] = {}  # where the log is on nodes of our own, each beside a replica
        self._say = say
        self._files = ParticipantFiles(self.folder)
        self._stack = AsyncExitStack()
        self._ports = PortReservation()
        self._http: aiohttp.ClientSession | None = None

    # ---- where everything is ----

    @property
    def config_path(self) -> Path:
        """The configuration that the replicas run with."""
        return self._files.config_path

    @property
    def endpoint(self) -> str:
        """The URL that applications are given."""
        return self.config.endpoint_url

    @property
    def conninfo(self) -> str:
        """Connection string of the participant's role, password included."""
        return self.config.conninfo()

    @property
    def topic(self) -> str:
        """Name of the request log's topic."""
        return self.config.log.settings.label

    @property
    def kafka_settings(self) -> KafkaSettings:
        """Where the request log's topic is. Raises ServerFailed where the log is of another kind."""
        settings = self.config.log.settings
        if not isinstance(settings, KafkaSettings):
            raise ServerFailed(f"log.kind is {settings.kind}: this cluster has no topic")
        return settings

    def free_port(self) -> int:
        """A port for one more server beside this cluster, kept for it until `stop`."""
        return self._ports.take()

    # ---- life ----

    async def start(self) -> None:
        """Start everything; returns once one replica serves through HAProxy and the others could take over.

        Raises NotaryError. What was started is left to `stop`, also when this fails or is cancelled.
        """
        for number in range(1, self.settings.replicas + 1):
            check_socket_path(self.folder / REPLICAS_FOLDER / f"r{number}" / ADMIN_SOCKET)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # Postgres may run as an account of its own
        self._stack.callback(_lock(self.folder / LOCK_NAME))
        self._stack.callback(self._ports.close)
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession())
        before = self._files.settings()
        self.log_kind, self.embedded = self._kind_of_log(before), self._is_embedded(before)
        if self._with_haproxy:
            check_socket_path(self.folder / "haproxy" / STATS_SOCKET, SOCKET_PATH_MAX)
        await self._start_servers(before)
        values = self._values(before)
        if self._files.has_key_file(values):
            self._files.notary_key()
        self._files.write_config(values, None if self.embedded else (ROLE, READER))
        self.config = load_config(self.config_path)
        self.notary_key = (await asyncio.to_thread(self.config.notary_signer)).public_key
        self.topic_id = await self._timed("request log", self.topic, self.prepare_log())
        self.parties = self._files.parties(self.settings.parties, self.ledger_id)
        await self._start_replicas()
        self._write_run_file()
        self._stack.callback(RunFile.remove, self.folder)
        await self.wait_for_active()
        await self.register_parties()
        await self.wait_until_ready(list(self.replicas))

    async def prepare_log(self) -> str:
        """Have the log there before the replicas start; returns the topic's id. A recovery restores it here."""
        if self.log_kind == "postgres":
            from replica.local.database import make_log

            await make_log(self.postgres, self._files)
        if self.log_kind == "raft":
            self._make_log_nodes()
            for node in self.log_nodes.values():
                node.start()
        settings = self.config.log.settings
        if isinstance(settings, KafkaSettings):
            await self._repair_topic(settings)
        admin = open_log_admin(settings)
        try:
            topic_id = await admin.create()
        finally:
            await admin.close()
        if isinstance(settings, RaftLogSettings):
            log_is_created(settings)
        await self._begin_log(settings)
        return topic_id

    async def _begin_log(self, settings: LogSettings) -> None:
        """Write the genesis of a new log. Its officers are the people in operators.keys_file."""
        keys = {bytes.fromhex(one.public_key) for one in self.config.operator_keys()}
        officers = {key for key in keys if len(key) == PUBLIC_KEY_BYTES}
        log = open_log(settings)
        try:
            await log.check()
            self.ledger_id = (await begin_log(log, officers)).ledger_id
        finally:
            await log.close()

    async def register_parties(self) -> None:
        """Register the keys of the party file that the log does not have, where an officer's key is here."""
        page = await keys_in_log(self.config, of_active=True)
        key_file = self.config.operators.key_file
        if key_file is None or load_signer(key_file).public_key.hex() not in page.officers:
            self._say("parties", "not registered: no officer's key is configured")
            return
        acts = PartyActs(self.config, "the parties of a local cluster", partial(self._say, "parties"))
        done = await acts.register_missing(read_party_file(self._files.party_file))
        self._say("parties", done.outcome)

    async def _repair_topic(self, settings: KafkaSettings) -> None:
        """Adapt a topic that an earlier release, or other settings, made; a new cluster has none yet."""
        from replica.log.kafka.topic import repair_topic

        with suppress(LogMissing):
            for topic, changes in (await repair_topic(settings)).items():
                self._say("request log", f"{topic}: set {', '.join(f'{name}={to}' for name, to in changes.items())}")

    def _make_log_nodes(self) -> None:
        """They read the configuration, so it must be there."""
        settings = self.config.log.settings
        assert isinstance(settings, RaftLogSettings)
        machines = {name: self._machine(name) for name in settings.addresses}
        self.log_nodes = make_log_nodes(settings, self.config_path, machines, self._say)
        self._stack.push_async_callback(self._stop_log_nodes)

    async def stop(self) -> None:
        """Stop everything in reverse order. May be repeated."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- who is what ----

    async def healths(self) -> dict[str, ReplicaHealth | None]:
        """The health of each replica; None for one that does not answer."""
        if self._http is None:
            raise ServerFailed("the cluster was not started")
        found = await asyncio.gather(*(fetch_health(self._http, one.address) for one in self.replicas.values()))
        return dict(zip(self.replicas, found, strict=True))

    async def active(self) -> ReplicaProcess | None:
        """The replica that says it is active, if one does."""
        for name, health in (await self.healths()).items():
            if health is not None and health.leads:
                return self.replicas[name]
        return None

    async def passives(self) -> list[ReplicaProcess]:
        """The replicas that answer and are not active."""
        found = await self.healths()
        return [self.replicas[name] for name, health in found.items() if health is not None and not health.leads]

    async def wait_for_active(self, other_than: str | None = None, timeout_s: float = ACTIVE_MAX_S) -> ReplicaProcess:
        """Wait for an active replica with another name, to which HAProxy sends applications.

        Raises ServerFailed.
        """
        found: ReplicaProcess | None = None

        async def serves() -> bool:
            nonlocal found
            found = await self.active()
            if found is None or found.name == other_than:
                return False
            return (await self.balancer.servers())[found.name].up

        try:
            async with asyncio.timeout(timeout_s):
                await until(serves)
        except TimeoutError:
            sessions = "" if self.embedded else f"\n{await self.postgres.sessions()}"
            text = f"no replica became active within {timeout_s:g} s{sessions}\n{self._log_tails()}"
            raise ServerFailed(text) from None
        if found is None:
            raise ServerFailed("no replica is active")
        return found

    async def wait_until_ready(self, names: Sequence[str], timeout_s: float = ACTIVE_MAX_S) -> None:
        """Return once each of these replicas is active, or follows and could take over. Raises ServerFailed."""

        async def all_ready() -> bool:
            found = await self.healths()
            return all((health := found[name]) is not None and health.ready for name in names)

        try:
            async with asyncio.timeout(timeout_s):
                await until(all_ready)
        except TimeoutError:
            raise ServerFailed(f"not ready within {timeout_s:g} s: {names}\n{self._log_tails()}") from None

    def _log_tails(self) -> str:
        return "\n".join(f"--- {one.log_path}:\n{one.log_tail()}" for one in self.replicas.values())

    def owner_dsn(self) -> str:
        """Connection string of the tables' owner, password included."""
        from replica.local.database import owner_dsn

        return owner_dsn(self.postgres, self._files)

    def kill(self, name: str) -> None:
        """SIGKILL for a replica, and for the log node beside it if there is one, as if the machine died."""
        self.replicas[name].kill_group()
        if name in self.log_nodes:
            self.log_nodes[name].kill_group()

    async def place_to_restore_to(self, name: str) -> tuple[str, ...]:
        """The options of `notary restore` that name a log which does not exist yet, beside this cluster's own."""
        if self.log_kind != "postgres":
            return ("--to-topic", f"{self.topic}-{name}")
        from psycopg.conninfo import make_conninfo

        await self.postgres.ensure_database(name, OWNER)
        file = self._files.pgpass(OWNER)
        host, port = self.postgres.machine.address, self.postgres.port
        return ("--to-servers", make_conninfo(host=host, port=port, dbname=name, user=OWNER, passfile=str(file)))

    # ---- starting ----

    async def _start_servers(self, before: Mapping[str, Any]) -> None:
        """Database and request log at the same time: the log takes longest."""
        if not self.embedded:
            self.postgres = self._database_server(POSTGRES_FOLDER, "db1")
            self.postgres_standby = (
                self._database_server(STANDBY_FOLDER, "db2") if self.settings.database_standby else None
            )
        log_starts = self._prepare_log_servers()
        if not self.embedded:
            self._stack.push_async_callback(self._stopped, "Postgres", self.postgres.stop)
        try:
            async with asyncio.TaskGroup() as group:
                if not self.embedded:
                    group.create_task(self._start_database())
                if log_starts is not None:
                    group.create_task(log_starts)
        except* NotaryError as errors:
            raise errors.exceptions[0] from None

    def _kind_of_log(self, before: Mapping[str, Any]) -> LogKind:
        """The kind of the request log. Raises ServerFailed where the cluster was made with another one."""
        asked = self.settings.log
        made: LogKind | None = before.get("log", {}).get("kind", "kafka") if before else None
        if asked is not None and made not in (None, asked):
            raise ServerFailed(
                f"the cluster in {self.folder} has log.kind = {made}, not {asked}: give it another name",
                Code.NOT_POSSIBLE_NOW,
            )
        return asked or made or "kafka"

    def _is_embedded(self, before: Mapping[str, Any]) -> bool:
        """Whether no database is shared. Raises ServerFailed where the cluster was made otherwise."""
        asked = self.settings.embedded
        made = before["database"]["conninfo"] == SQLITE if before else None
        if asked is not None and made not in (None, asked):
            text = "without" if made else "with"
            raise ServerFailed(
                f"the cluster in {self.folder} was made {text} a database: give it another name", Code.NOT_POSSIBLE_NOW
            )
        return bool(made if asked is None else asked)

    def _prepare_log_servers(self) -> Coroutine[Any, Any, None] | None:
        """Make the log's own servers; returns the coroutine that starts them, or None."""
        match self.log_kind:
            case "kafka":
                return self._prepare_brokers()
            case "memory":
                return self._prepare_memory_log()
            case "postgres" | "raft":  # in the database; log nodes start once they have their configuration
                return None

    def _prepare_brokers(self) -> Coroutine[Any, Any, None]:
        """Make the brokers; returns the coroutine that starts them."""
        from replica.local.kafka import KafkaCluster

        ports = [self._ports.take() for _ in range(2 * self.settings.brokers)]
        machines = [self._machine(f"k{node}") for node in range(1, self.settings.brokers + 1)]
        self.kafka = KafkaCluster(self.folder / LOG_FOLDER, ports, machines=machines)
        self.kafka.allow_deletion(self.settings.topics_deletable)
        self._stack.push_async_callback(self._stopped, "Kafka", self.kafka.stop)
        if self.settings.brokers == 1:
            self._say("Kafka", "starts with ONE broker: for development only, its disk is the only copy of the log")
        return self._timed("Kafka", f"broker, {self.kafka.bootstrap_servers}", self.kafka.start())

    def _prepare_memory_log(self) -> Coroutine[Any, Any, None]:
        """Make the log's process; returns the coroutine that starts it."""
        self.memory_log = MemoryLogProcess(self.folder)
        self._stack.push_async_callback(self._stopped, "request log", self.memory_log.stop)
        self._say("request log", "starts IN MEMORY: for tests only, it ends with this cluster")
        return self._timed("request log", "process", self.memory_log.start())

    async def _start_database(self) -> None:
        await self._timed(
            "Postgres", f"server, {self.postgres.machine.address}:{self.postgres.port}", self.postgres.start()
        )
        if self.postgres_standby is not None:
            await self._start_database_standby(self.postgres_standby)
        from replica.local.database import make_database

        await make_database(self.postgres, self._files, self._say)

    async def _start_database_standby(self, standby: PostgresServer) -> None:
        self._stack.push_async_callback(self._stopped, "standby", standby.stop)
        start = standby.start_standby_of(self.postgres, STANDBY_NAME)
        await self._timed("Postgres", f"synchronous standby, {standby.machine.address}:{standby.port}", start)
        await self.postgres.require_standby(STANDBY_NAME)

    async def _start_replicas(self) -> None:
        self._stack.push_async_callback(self._stop_replicas)
        self.config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for address in self.config.replicas:
            folder = self.config.replica_dir(address.name)
            machine = self._machine(address.name)
            replica = ReplicaProcess(address, self.config_path, folder, self._say, machine=machine)
            self.replicas[address.name] = replica
            replica.start()
        self._say(
            "replicas", f"{', '.join(self.replicas)} started, each a core and {self.config.api_workers} front ends"
        )
        what = "HAProxy" if self._with_haproxy else "forwarder"
        self.balancer = self._make_haproxy() if self._with_haproxy else self._make_forwarder()
        self._stack.push_async_callback(self._stopped, what, self.balancer.stop)
        await self._timed(what, f"endpoint {self.endpoint}", self.balancer.start())

    @property
    def _with_haproxy(self) -> bool:
        return not self.embedded if self.settings.haproxy is None else self.settings.haproxy

    def _make_haproxy(self) -> HaproxyServer:
        self.haproxy = HaproxyServer(self.folder / "haproxy", self.config.haproxy_settings(), self._machine("lb"))
        return self.haproxy

    def _make_forwarder(self) -> Forwarder:
        self._say("forwarder", "takes HAProxy's place: for development only")
        return Forwarder(self.config.endpoint, self.config.replicas)

    def _values(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration's values that are chosen at this start."""
        socket_folder = self.folder / "haproxy"
        values = {
            "api_workers": self.settings.api_workers or before.get("api_workers", API_WORKERS),
            "endpoint": {
                "host": self._machine("lb").address,
                "port": self._port(before.get("endpoint", {}).get("port", self.settings.endpoint_port)),
            },
            "replicas": [self._address(number, before) for number in range(1, self.settings.replicas + 1)],
            "log": self._log_values(before),
            "core": {"standby": self.settings.standby or before.get("core", {}).get("standby", "following")},
            "haproxy": {
                "stats_socket": str(socket_folder / STATS_SOCKET),
                "state_file": str(socket_folder / "server.state"),
                "threads": 1,  # the machine is shared with all the rest
            },
        }
        return merged(merged(values, self._database_values(before)), self.settings.further)

    def _database_values(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tables that say where lock and completions are. Without a database they are chosen once: what operators
        change or leave out later stays so."""
        if self.embedded:
            return {} if before else WITHOUT_DATABASE
        return {"database": {"conninfo": self._database_conninfo(), "scope": DATABASE}}

    def _log_values(self, before: Mapping[str, Any]) -> dict[str, Any]:
        match self.log_kind:
            case "kafka":
                servers, single = self.kafka.bootstrap_servers, self.settings.brokers == 1
                return {"kafka": {"bootstrap_servers": servers, "single_broker": single}}
            case "memory":
                return self.memory_log.settings()
            case "postgres":
                values = {
                    "conninfo": self._database_conninfo(),
                    "password_file": self._files.password_file(ROLE),
                    "single_server": self.postgres_standby is None,
                }
                return {"kind": "postgres", "postgres": values}
            case "raft":
                known = ports_in(before.get("log", {}))
                # A node that was made stays: with fewer replicas than before, the log still needs most of its copies.
                names = sorted({*known, *(f"r{number}" for number in range(1, self.settings.replicas + 1))})
                return values_of(
                    {name: f"{self._machine(name).address}:{self._port(known.get(name))}" for name in names}
                )

    def log_pids(self) -> tuple[int, ...]:
        """Process ids of the log's own servers."""
        match self.log_kind:
            case "kafka":
                return tuple(broker.process.pid for broker in self.kafka.brokers)
            case "memory":
                return (self.memory_log.process.pid,)
            case "raft":
                return tuple(node.pid for node in self.log_nodes.values())
            case "postgres":
                return ()

    def _database_conninfo(self) -> str:
        from replica.local.database import conninfo_of

        servers = [server for server in (self.postgres, self.postgres_standby) if server is not None]
        return conninfo_of(servers)

    def _address(self, number: int, before: Mapping[str, Any]) -> dict[str, Any]:
        known = before.get("replicas", [])
        old = known[number - 1] if number <= len(known) else {}
        wanted = ["api_port", "health_port"]
        if self.settings.proxy_ports and not self.settings.machines:  # another machine's address is not loopback's
            wanted.append("proxy_port")
        ports = {name: self._port(old.get(name)) for name in wanted}
        name = f"r{number}"
        host = self._machine(name).address
        api_url = self._api_url(host, ports["api_port"], before) if self.embedded else None
        if old.get("api_port") == ports["api_port"]:  # an operator may have set another one
            api_url = old.get("api_url", api_url)
        return ReplicaAddress(name=name, host=host, api_url=api_url, **ports).model_dump(exclude_none=True)

    def _api_url(self, host: str, port: int, before: Mapping[str, Any]) -> str:
        """Where applications reach a replica themselves: no balancer is needed without HAProxy."""
        has_tls = any("tls" in settings.get("api", {}) for settings in (self.settings.further, before))
        return f"{'https' if has_tls else 'http'}://{host}:{port}"

    def _machine(self, part: str) -> Machine:
        return self.settings.machines.get(part, THIS_MACHINE)

    def _database_server(self, folder: str, part: str) -> PostgresServer:
        from replica.local.postgres import PostgresServer

        return PostgresServer(self.folder / folder, self._ports.take(), POSTGRES_SETTINGS, self._machine(part))

    def _port(self, wanted: object) -> int:
        """The port of the last start, or what the settings name, if it is free: so the endpoint stays what it was."""
        if isinstance(wanted, int) and self._ports.take_exactly(wanted):
            return wanted
        return self._ports.take()

    async def _timed(self, part: str, what: str, work: Awaitable[Any]) -> Any:
        began_s = monotonic()
        result = await work
        self._say(part, f"{what}: ready after {monotonic() - began_s:.1f} s")
        return result

    async def _stop_replicas(self) -> None:
        """Stop all replicas at the same time, so that none takes over for a moment."""
        await asyncio.gather(*(self._stopped(name, replica.stop) for name, replica in self.replicas.items()))

    async def _stop_log_nodes(self) -> None:
        """In any order, at the same time: whoever leads hands over."""
        await asyncio.gather(*(self._stopped(node.name, node.stop) for node in self.log_nodes.values()))

    async def _stopped(self, part: str, stop: Callable[[], Awaitable[None]]) -> None:
        await stop()
        self._say(part, "stopped")

    def _write_run_file(self) -> None:
        RunFile(
            supervisor=this_process(),
            endpoint=self.endpoint,
            config_path=self.config_path,
            replicas=tuple(
                ReplicaRun(
                    name=one.name, pid=one.pid, api_port=one.address.api_port, health_port=one.address.health_port
                )
                for one in self.replicas.values()
            ),
            postgres_port=None if self.embedded else self.postgres.port,
            postgres_pid=None if self.embedded else self.postgres.process.pid,
            log_address=self.config.log.settings.address,
            log_pids=self.log_pids(),
            haproxy_pid=self.balancer.process.pid if isinstance(self.balancer, HaproxyServer) else None,
            haproxy_stats_socket=Path(self.config.haproxy_settings().stats_socket),
        ).write(self.folder)
        for part in (*self.replicas.values(), *self.log_nodes.values()):
            part.on_start = self._write_run_file


def replicas_made(folder: Path) -> int | None:
    """How many replicas the cluster in a folder was last started with; None where there is none yet."""
    return len(ParticipantFiles(folder).settings().get("replicas", [])) or None


async def remove_cluster(folder: Path) -> bool:
    """Delete everything that a cluster keeps in a folder; False if there is no such folder.

    Raises ServerFailed, and deletes nothing, when its cluster runs, or when the folder is not a cluster's.
    """
    if not _is_cluster(folder):
        return False
    release = _lock(folder / LOCK_NAME)
    try:
        if (folder / POSTGRES_FOLDER).exists():
            from replica.local.postgres import PostgresServer

            server = PostgresServer(folder / POSTGRES_FOLDER, 1)  # its data may be elsewhere; the port is not used
            await server.remove()
        shutil.rmtree(folder)
    finally:
        release()
    return True


def _is_cluster(folder: Path) -> bool:
    if folder.exists() and not (folder / LOCK_NAME).exists():
        raise ServerFailed(
            f"{folder} was not made by `notary up` or `notary demo`: move it away", Code.NOT_POSSIBLE_NOW
        )
    return folder.exists()


def _lock(path: Path) -> Callable[[], None]:
    """Lock the folder for this supervisor. Returns the release of the lock. Raises ServerFailed if another one runs."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ServerFailed(
            f"a cluster runs in {path.parent} already; `notary status` shows it", Code.NOT_POSSIBLE_NOW
        ) from None
    return lambda: os.close(handle)
