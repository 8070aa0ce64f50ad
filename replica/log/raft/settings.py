"""Settings of a log node: a file of their own."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from ha.raft.settings import RaftSettings, RaftSettingsError
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.loopback import is_loopback
from replica.notary.secret_files import check_readable, check_secret
from replica.notary.untrusted import parse_toml

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
Address = Annotated[str, StringConstraints(pattern=r"^([^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$", max_length=261)]
_BATCH_ENTRIES_MIN = 100  # an idle log's average is one large entry; a joiner would then get the log one by one
_MODEL = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LogNodeTls(BaseModel):
    """Mutual TLS between nodes, and with clients. The files are read again on SIGHUP."""

    model_config = _MODEL

    ca_file: Path = Field(description="PEM of the authorities that sign the nodes' and clients' certificates.")
    certificate_file: Path = Field(
        description="PEM of this node's certificate, whose common name or a DNS name is `name`."
    )
    key_file: Path = Field(description="PEM of its private key, mode 0600.")

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For connections that come in, and for those that go out. Raises ConfigError."""
        check_secret(self.key_file)
        for path in (self.ca_file, self.certificate_file):
            check_readable(path)
        try:
            return self._context(ssl.PROTOCOL_TLS_SERVER), self._context(ssl.PROTOCOL_TLS_CLIENT)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the log node's certificates cannot be used: {error}") from None

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the name that counts is the node's: see links.py
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate_file, self.key_file)
        context.load_verify_locations(self.ca_file)
        return context


class GroupSettings(BaseModel):
    """What all nodes of a log, and its clients, have in common."""

    model_config = _MODEL

    group: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of the log, the same on all its nodes.")
    identity: Literal["disk", "process"] = Field(
        "disk",
        description=(
            "`disk`: a log node comes back with its log. `process`: each start is a new node, to be added as a member."
        ),
    )
    tls: LogNodeTls | None = Field(None, description="Mutual TLS; without, on loopback addresses only.")
    message_timeout_ms: int = Field(
        50, ge=1, le=60_000, description="How often a log node that leads is heard; at most a sixth of the next."
    )
    election_timeout_ms: int = Field(
        600, ge=6, le=600_000, description="A leader that was not heard for half of it up to all of it is replaced."
    )


class LogNodeSettings(GroupSettings):
    """One node of the replicated log."""

    name: Name = Field(description="This node's name. Its id is the name and something that stands for its disk.")
    listen: Address = Field(description="Address for nodes and clients, `host:port`.")
    peers: dict[Name, Address] = Field(
        default_factory=dict, max_length=32, description="The other nodes' names and addresses, members or not."
    )
    data_dir: Path = Field(description="Folder of the log, on a disk of its own if there is one.")
    segment_bytes: int = Field(64 * 2**20, ge=2**16, le=2**30, description="Size of a file of the log.")
    entry_max_bytes: int = Field(2**20, ge=1_024, le=2**24, description="Largest entry.")
    frame_max_bytes: int = Field(8 * 2**20, ge=2**16, le=2**28, description="Largest frame on a connection.")
    append_limit_bytes: int = Field(512 * 2**10, ge=1_024, le=2**24, description="About so much goes into a message.")
    unacknowledged_max: int = Field(16_000, ge=1, le=1_000_000, description="Entries sent to a node before it answers.")
    link_max_bytes: int = Field(
        32 * 2**20, ge=2**16, le=2**32, description="Unsent bytes to one peer or client; further messages are dropped."
    )
    recent_max_bytes: int = Field(8 * 2**20, ge=2**16, le=2**32, description="Newest entries kept in memory.")
    waiting_max_bytes: int = Field(
        32 * 2**20, ge=2**16, le=2**32, description="Entries of clients that are not committed yet; more are refused."
    )
    connections_max: int = Field(256, ge=1, le=65_536, description="Connections from nodes and clients.")
    hello_max_s: float = Field(2.0, gt=0, le=60, description="Longest wait for a connection and its first frame.")
    silence_max_s: float = Field(
        10.0, ge=1, le=900, description="A connection whose other side acknowledges nothing for so long is made anew."
    )
    core_silence_ms: int = Field(
        2_500,
        ge=0,
        le=600_000,
        description="A leader whose replica asks nothing for so long nominates another node; 0: never.",
    )
    change_max_s: float = Field(60.0, gt=0, le=86_400, description="Longest wait until new members have caught up.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name in self.peers:
            raise ValueError("`peers` are the other nodes; this one is among them")
        if 2 * self.entry_max_bytes > min(self.segment_bytes, self.frame_max_bytes):
            raise ValueError("segment_bytes and frame_max_bytes must be at least twice entry_max_bytes")
        hosts = [address.rpartition(":")[0] for address in (self.listen, *self.peers.values())]
        if self.tls is None and not all(map(is_loopback, hosts)):
            raise ValueError("addresses beyond this machine need tls")
        return self

    def raft(self) -> RaftSettings:
        """The core's settings. Raises RaftSettingsError where the timeouts do not fit."""
        return RaftSettings(
            message_timeout_ms=self.message_timeout_ms,
            election_timeout_ms=self.election_timeout_ms,
            tick_ms=min(10, self.message_timeout_ms),
            append_limit_bytes=self.append_limit_bytes,
            batch_entries_min=_BATCH_ENTRIES_MIN,
            unacknowledged_max=self.unacknowledged_max,
            probes=True,
            durable=True,
            sticky_voters=True,
            strangers_wait=True,
            joiners_catch_up=True,
            ordered_links=True,
            ids_once=True,
            core_silence_ms=self.core_silence_ms,
        )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def load_settings(path: Path) -> LogNodeSettings:
    """The settings in a TOML file; relative paths count from its folder. Raises ConfigError naming what is wrong."""
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        settings = LogNodeSettings(**values)
        settings.raft()
    except ValidationError as error:
        problems = error.errors()
        text = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in problems)
        exposed = any("need tls" in problem["msg"] for problem in problems)
        raise ConfigError(f"{path}: {text}", Code.PLAINTEXT_EXPOSED if exposed else None) from None
    except (TypeError, RaftSettingsError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return _with_absolute_paths(settings, path.resolve().parent)


def _with_absolute_paths(settings: LogNodeSettings, base: Path) -> LogNodeSettings:
    def absolute(path: Path) -> Path:
        return Path(os.path.normpath(base / path))

    tls = settings.tls
    if tls is not None:
        tls = tls.model_copy(update={name: absolute(path) for name, path in tls if isinstance(path, Path)})
    return settings.model_copy(update={"data_dir": absolute(settings.data_dir), "tls": tls})
