"""HAProxy's and keepalived's configuration for one participant: settings in, text out. No I/O but reading templates.

Every figure of the template is a setting here. The two sums that a fail-over waits for are properties, so that the
printed time budget uses the numbers that are rendered.
"""

from __future__ import annotations

import ipaddress
import math
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from haproxy.nodes import BACKEND, WATCHED, Node

if TYPE_CHECKING:  # slow to import, and every replica reads these settings without rendering anything
    from jinja2 import Template

Port = Annotated[int, Field(ge=1, le=65_535)]
# Names, hosts and paths are written into the configuration as they are: nothing in them may end a word or a line.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


def _in_brackets(host: object) -> object:
    """An IPv6 address as URLs and HAProxy write it, with or without brackets before."""
    text = str(host).removeprefix("[").removesuffix("]")
    try:
        return f"[{text}]" if ipaddress.ip_address(text).version == 6 else host
    except ValueError:
        return host


Host = Annotated[
    str,
    BeforeValidator(_in_brackets),
    Field(pattern=r"^[A-Za-z0-9_.-]{1,253}$|^\[[0-9A-Fa-f:.]{2,45}\]$|^\*$"),
]
Url = Annotated[
    str, Field(pattern=r"^https?://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[1-9][0-9]{0,4})?$", max_length=300)
]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
LUA_FILE = "take_out.lua"
SOURCE_PERIOD_S = 10
MAINTENANCE_CONNECTIONS = 100  # beside the clients': statistics, and keepalived's look whether it answers


def _plain_path(text: str) -> str:
    if not PurePosixPath(text).is_absolute() or any(char.isspace() or char in "'\"\\#$" for char in text):
        raise ValueError("must be an absolute path without white space, quotes, backslash, '#' or '$'")
    return text


ConfigPath = Annotated[str, AfterValidator(_plain_path)]


class Endpoint(BaseModel):
    """An address that HAProxy listens on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: Host = Field("127.0.0.1", description="Address to listen on; '*' for every address.")
    port: Port = Field(description="TCP port to listen on.")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "[::1]"


class ReplicaAddress(BaseModel):
    """Where HAProxy finds one replica."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Name = Field(description="Name of the replica: its lock session, its folder and its logs carry it.")
    host: Host = Field(description="Address that the replica listens on, as HAProxy reaches it.")
    api_port: Port = Field(description="Port of the ledger API.")
    health_port: Port = Field(description="Port of the health checks and metrics.")
    proxy_port: Port | None = Field(
        None,
        description=(
            "Port of the API for HAProxy alone (PROXY protocol). Without it, all who come through "
            "HAProxy share one address's bounds."
        ),
    )
    api_url: Url | None = Field(
        None,
        description="URL at which applications reach this replica's API themselves, listed by GET /v1/endpoints; for "
        "all replicas, or none.",
    )
    may_lead: bool = Field(
        True,
        description="Whether it may hold the lock. With `serving = all` more replicas may serve than may lead.",
    )


def _network_address(text: str) -> str:
    ipaddress.ip_interface(text)
    return text


IpAddress = Annotated[str, AfterValidator(lambda text: str(ipaddress.ip_address(text)))]


Network = Annotated[str, AfterValidator(lambda text: str(ipaddress.ip_network(text, strict=False)))]


class KeepalivedSettings(BaseModel):
    """Two HAProxy nodes that share one virtual address by VRRP, so that losing one of them is no outage for long.

    The address moves within 3 times `advertise_interval_s` and a little when a machine dies, and within about twice
    `check_interval_s` when only its HAProxy does. Established connections are lost with the node: clients reconnect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    virtual_address: Annotated[str, AfterValidator(_network_address)] = Field(
        description="The address that applications are given, with its prefix: 10.0.0.10/24."
    )
    interface: Name = Field(description="Network interface that carries the virtual address, on both nodes.")
    primary_address: IpAddress = Field(description="Own address of the node that has the virtual address by default.")
    backup_address: IpAddress = Field(description="Own address of the other node.")
    router_id: int = Field(51, ge=1, le=255, description="VRRP router id; unique in the network segment.")
    advertise_interval_s: float = Field(
        0.3,
        ge=0.01,
        le=40.0,
        description="Between two signs of life; after three without one the other node takes over.",
    )
    check_interval_s: int = Field(1, ge=1, le=60, description="Between two checks of the node's own HAProxy; whole.")
    preempt: bool = Field(
        False, description="Whether the primary takes the address back when it returns; that cuts every connection."
    )
    preempt_delay_s: int = Field(30, ge=0, le=1_000, description="How long it waits before it does; whole.")

    config_file: ConfigPath = Field(
        "/etc/keepalived/keepalived.conf",
        description="Where the rendered file is installed; notary doctor compares it.",
    )

    @model_validator(mode="after")
    def _two_nodes(self) -> Self:
        if self.primary_address == self.backup_address:
            raise ValueError(f"the two nodes need an address each, both have {self.primary_address}")
        return self


class TakeOutSettings(BaseModel):
    """Where all replicas serve: when one that does not answer is taken out of service, while another one answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    check_interval_s: Seconds = Field(0.2, description="Between health checks of a replica that answers.")
    check_interval_changing_s: Seconds = Field(0.2, description="Between checks while its state is changing.")
    check_timeout_s: Seconds = Field(0.35, description="A health check without an answer by then has failed.")
    fall: int = Field(2, ge=1, le=10, description="Failed checks until it gets no new connection.")
    cut_after_s: Seconds = Field(
        0.3, description="Its connections are cut once another one was up for so long meanwhile; rounded up to looks."
    )
    look_s: Seconds = Field(0.05, description="Between two looks at the states of the replicas.")

    @property
    def looks(self) -> int:
        """Looks in a row until the connections are cut."""
        return math.ceil(self.cut_after_s / self.look_s)

    @property
    def cut_min_s(self) -> float:
        """A replica that is silent for less keeps its connections, in seconds."""
        return self.fall * self.check_timeout_s + (self.fall - 1) * self.check_interval_changing_s + self.cut_after_s

    @property
    def cut_max_s(self) -> float:
        """A replica that is silent for longer has lost them, in seconds: a good check and a look were just over."""
        return self.check_interval_s + self.cut_min_s + self.look_s


class HaproxySettings(BaseModel):
    """One endpoint in front of all replicas of a participant.

    HAProxy brings availability, never safety: a replica that it wrongly believes active refuses by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    bind: Endpoint = Field(description="The endpoint that applications are given.")
    replicas: tuple[ReplicaAddress, ...] = Field(min_length=1, description="The replicas behind the endpoint.")
    stats_socket: ConfigPath = Field("/run/haproxy/admin.sock", description="Unix socket of the runtime interface.")
    state_file: ConfigPath = Field(
        "/run/haproxy/server.state",
        description="Where a reload finds which replica is up; `show servers state` is saved there before it.",
    )
    exporter: Endpoint | None = Field(
        None,
        description="Where Prometheus finds HAProxy's own metrics (/metrics) and people its statistics (/stats); "
        "no password, so never a public address. Off by default.",
    )
    keepalived: KeepalivedSettings | None = None
    take_out: TakeOutSettings | None = None
    threads: int | None = Field(
        None, ge=1, le=256, description="Threads of HAProxy; left to HAProxy, which takes one a processor."
    )
    look_up_names: bool = Field(
        False,
        description=(
            "Look the replicas' full names up all the time, for containers, whose addresses change. "
            "Else once, at the start."
        ),
    )
    worker_user: Name | None = Field(
        None, description="Account, and its group, of the workers when HAProxy is started by root."
    )

    balance: Literal["roundrobin", "leastconn"] = Field(
        "roundrobin",
        description='How connections are spread where more replicas serve. With `serving = "all"`: leastconn.',
    )
    check_interval_s: Seconds = Field(0.2, description="Between health checks of a replica that is up.")
    check_interval_changing_s: Seconds = Field(0.02, description="Between checks while its state is changing.")
    check_interval_down_s: Seconds = Field(0.05, description="Between checks of a replica that is down.")
    check_timeout_s: Seconds = Field(
        1.0,
        description=(
            "A check without an answer by then has failed. Where the active alone serves: a third of "
            "`election.lease_s`."
        ),
    )
    fall: int = Field(3, ge=1, le=10, description="Failed checks until a replica is down, and its connections are cut.")
    rise: int = Field(1, ge=1, le=10, description="Good checks until it is up.")
    connect_timeout_s: Seconds = Field(
        0.1, description="For a connection to a replica; also the pause before the next try, at most 1 s."
    )
    connect_retries: int = Field(4, ge=0, le=10, description="Further tries of a connection to a replica.")
    idle_timeout_s: Seconds = Field(
        300.0, description="A connection silent for so long is closed; above any long poll."
    )
    connections_max: int = Field(
        4_000,
        ge=1,
        le=1_000_000,
        description=(
            "Client connections at a time; further ones wait. No address (IPv6: /64) has more than it leaves free."
        ),
    )
    source_connects_per_s: float = Field(
        2_000.0,
        gt=0,
        le=1e6,
        description="New connections a second of one address, on average of 10 s; further ones are refused.",
    )
    first_byte_max_s: Seconds = Field(5.0, description="A client that sends no byte for so long at first is left.")
    closing_max_s: Seconds = Field(5.0, description="A client that does not close what the replica closed is left.")
    sources: tuple[Network, ...] = Field(
        ("127.0.0.0/8", "::1/128"),
        min_length=1,
        description=(
            "Where HAProxy connects to `replicas.proxy_port` from, besides the addresses of `[haproxy.keepalived]`."
        ),
    )
    old_worker_max_s: Seconds = Field(
        5.0,
        description="How long after a reload the old worker keeps its connections.",
    )

    @model_validator(mode="after")
    def _each_replica_once(self) -> Self:
        names = [replica.name for replica in self.replicas]
        if len(set(names)) != len(names):
            raise ValueError(f"each replica needs a name of its own: {', '.join(names)}")
        if self.idle_timeout_s <= self.check_interval_s:
            raise ValueError("idle_timeout_s must be longer than check_interval_s")
        return self

    @property
    def reached_at(self) -> str:
        """The endpoint's host in a URL: for a wildcard the address that two nodes share, else this machine's."""
        if self.bind.host != "*":
            return self.bind.host
        pair = self.keepalived
        return "127.0.0.1" if pair is None else str(_in_brackets(pair.virtual_address.partition("/")[0]))

    @model_validator(mode="after")
    def _keepalived_can_ask(self) -> Self:
        if self.keepalived is not None and self.exporter is None:
            raise ValueError("keepalived asks HAProxy on the exporter's address: set exporter as well")
        return self

    @property
    def stall_max_s(self) -> float:
        """Whoever is silent for less is not marked down, in seconds: a replica, or HAProxy itself."""
        return self.fall * self.check_timeout_s + (self.fall - 1) * self.check_interval_changing_s

    @property
    def proxies(self) -> tuple[str, ...]:
        """Where this participant's HAProxy may connect from."""
        pair = self.keepalived
        return self.sources if pair is None else (*self.sources, pair.primary_address, pair.backup_address)

    @property
    def source_connects_max(self) -> int:
        """New connections of one address within SOURCE_PERIOD_S."""
        return math.ceil(self.source_connects_per_s * SOURCE_PERIOD_S)

    @property
    def mark_down_max_s(self) -> float:
        """Longest time until a replica that falls silent gets no more connections, in seconds.

        Worst case: the last good check was just sent. Then `fall` checks must fall due and time out, one after another.
        Where all serve, another one answers meanwhile.
        """
        return self.check_interval_s + self.stall_max_s if self.take_out is None else self.take_out.cut_max_s

    @property
    def refused_max_s(self) -> float:
        """Longest time until one that ended, or says that it is not active, gets no more connections, in seconds."""
        return self.check_interval_s + (self.fall - 1) * self.check_interval_changing_s

    @property
    def mark_up_max_s(self) -> float:
        """Longest time until a replica that turned active gets connections, in seconds, its answer not counted."""
        return self.check_interval_down_s + (self.rise - 1) * self.check_interval_changing_s


def render(settings: HaproxySettings) -> str:
    """The configuration file as text; `haproxy -c -f FILE` accepts it. The same settings give the same text.

    With `take_out` it loads a second file, LUA_FILE, from its own folder.
    """
    return _template("template.cfg.j2").render(
        settings=settings,
        lua_file=LUA_FILE,
        watched=WATCHED,
        source_period_s=SOURCE_PERIOD_S,
        maintenance_connections=MAINTENANCE_CONNECTIONS,
    )


def render_lua(settings: HaproxySettings) -> str | None:
    """What takes a replica out where all serve, in Lua; None where there is nothing to take out."""
    if settings.take_out is None:
        return None
    return _template("take_out.lua.j2").render(take_out=settings.take_out, backend=BACKEND, watched=WATCHED)


def write(settings: HaproxySettings, path: Path) -> None:
    """Write the configuration file, and beside it what it loads. Raises OSError."""
    if (lua := render_lua(settings)) is not None:
        path.with_name(LUA_FILE).write_text(lua)
    path.write_text(render(settings))


def render_keepalived(settings: HaproxySettings, node: Node) -> str:
    """One node's keepalived.conf as text; `keepalived --config-test -f FILE` accepts it.

    Raises ValueError when the settings describe no pair of nodes.
    """
    pair, exporter = settings.keepalived, settings.exporter
    if pair is None or exporter is None:
        raise ValueError("no [haproxy.keepalived] is configured: there is one HAProxy node")
    addresses = (pair.primary_address, pair.backup_address)
    own_address, peer_address = addresses if node is Node.PRIMARY else addresses[::-1]
    return _template("keepalived.conf.j2").render(
        pair=pair, exporter=exporter, node=node, own_address=own_address, peer_address=peer_address
    )


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, StrictUndefined

    # The output is not HTML, and the settings allow no character that has a meaning in it.
    environment = Environment(  # noqa: S701
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["milliseconds"] = _milliseconds
    environment.filters["ms"] = lambda seconds: f"{_milliseconds(seconds)}ms"
    return environment.from_string(files("haproxy").joinpath(name).read_text("utf-8"))


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1_000)
