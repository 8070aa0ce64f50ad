"""Settings of the request log on log nodes: a replica's access to it, and the node beside each replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ha.raft.settings import RaftSettings, RaftSettingsError
from replica.log.raft.settings import GroupSettings, LogNodeSettings, Name
from replica.log.words import LogWords
from replica.notary.errors import ConfigError
from replica.notary.loopback import is_loopback

CLOSE_MAX_S = 0.2  # closing waits for nothing beyond this process
SAFE_MEMBERS = 3  # fewer, and one lost disk is a lost log

_NODE = r"[a-z][a-z0-9-]{0,62}=([^\s:\[\],=]+|\[[0-9a-fA-F:.]+\]):\d{1,5}"
Seconds = Annotated[float, Field(gt=0, le=60)]


class RaftLogSettings(GroupSettings):
    """The request log on nodes of our own: where they are, and how long they may take. No setting changes a verdict."""

    kind: ClassVar[str] = "raft"
    close_max_s: ClassVar[float] = CLOSE_MAX_S
    keeps_times: ClassVar[bool] = False  # they are those of the appends, which the nodes sign
    one_machine_only: ClassVar[bool] = False
    all_may_serve: ClassVar[bool] = True
    survives_power_loss: ClassVar[bool] = True
    words: ClassVar[LogWords] = LogWords(
        log="log",
        server="log node",
        servers="log nodes",
        reach="check what [log.raft] says (nodes, tls), and that the log nodes run: runbooks/log-node-loss.md",
        copies="three log nodes: with fewer, a lost disk takes acknowledged requests with it",
        create="notary log-node --new-group on one node, if this notary is new: docs/raft.md",
        repair="add the log nodes that are missing: runbooks/log-node-loss.md",
        protect="end no log node that is still needed: docs/raft.md",
        restore="its nodes have the copies; if all are lost, restore the archive to new nodes: docs/raft.md",
        page="docs/raft.md",
    )

    nodes: str = Field(
        pattern=rf"^{_NODE}(,{_NODE}){{0,32}}$",
        description="All log nodes, `name=host:port`, comma-separated. A replica reads from the node of its own name.",
    )
    node: Name | None = Field(
        None, description="Read from this node instead. Tools ask the first one that answers, unless it is given."
    )
    data_dir: Path = Field(
        Path("log"), description="Folder of the log nodes' logs, one folder per node; on a disk of its own if possible."
    )
    members_min: int = Field(
        SAFE_MEMBERS,
        ge=1,
        le=33,
        description="Fewer members of the log are refused; with fewer than 3, one lost disk is a lost log.",
    )
    connect_max_s: Seconds = Field(2.0, description="Longest wait for a connection to a node.")
    answer_max_s: Seconds = Field(3.0, description="A node that owes an answer for so long is left.")
    append_max_s: Seconds = Field(10.0, description="Records that are not committed after so long are given up.")
    append_queue_max: int = Field(
        50_000, ge=1, le=10_000_000, description="Records not yet answered; past it, appends fail."
    )
    append_batch_max: int = Field(5_000, ge=1, le=20_000, description="Records that one call appends.")
    append_batch_max_mib: int = Field(2, ge=1, le=64, description="The same, in MiB.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [entry.partition("=")[0] for entry in self.nodes.split(",")]
        if len(set(names)) < len(names):
            raise ValueError("`nodes` names a node twice")
        if self.node is not None and self.node not in names:
            raise ValueError("`node` must be one of `nodes`")
        try:
            self.timeouts()
        except RaftSettingsError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def addresses(self) -> dict[str, str]:
        """Each node's address by its name."""
        return dict(entry.split("=", 1) for entry in self.nodes.split(","))

    @property
    def label(self) -> str:
        """The log's name for people."""
        return f"{self.group} on {len(self.addresses)} log nodes"

    @property
    def address(self) -> str:
        """Where clients connect to it."""
        return ",".join(self.addresses.values())

    @property
    def for_development(self) -> bool:
        """Whether the loss of one disk is accepted."""
        return self.members_min < SAFE_MEMBERS

    def timeouts(self) -> RaftSettings:
        """How soon the nodes replace a leader. Raises RaftSettingsError where the timeouts do not fit."""
        return RaftSettings(message_timeout_ms=self.message_timeout_ms, election_timeout_ms=self.election_timeout_ms)

    def plaintext_connections(self) -> Iterator[str]:
        """The connections that would be unprotected beyond this machine, with the setting that protects them."""
        hosts = [address.rpartition(":")[0] for address in self.addresses.values()]
        if self.tls is None and not all(map(is_loopback, hosts)):
            yield "log nodes beyond this machine: set log.raft.tls"

    def check_files(self) -> None:
        """Raise ConfigError unless a replica can use every file that is named."""
        if self.tls is not None:
            self.tls.contexts()

    def elsewhere(self, topic: str | None, servers: str | None) -> Self:
        """The same log on other nodes, `name=host:port,...`. Raises ConfigError for a topic, and ValidationError."""
        if topic is not None:
            raise ConfigError(f"log.kind is {self.kind}: such a log has no topic; other log nodes have another log")
        if servers is None:
            return self
        return self.model_validate(self.model_dump() | {"nodes": servers, "node": None})

    def beside(self, replica: str) -> Self:
        """The same as one replica uses it, which reads from the node of its name if there is one."""
        if self.node is not None or replica not in self.addresses:
            return self
        return self.model_copy(update={"node": replica})

    def node_settings(self, name: str) -> LogNodeSettings:
        """The settings of one of the nodes. Raises ConfigError."""
        if name not in self.addresses:
            raise ConfigError(f"no log node is called {name!r}; log.raft.nodes has {', '.join(self.addresses)}")
        return LogNodeSettings(
            **{field: getattr(self, field) for field in GroupSettings.model_fields},
            name=name,
            listen=self.addresses[name],
            peers={peer: address for peer, address in self.addresses.items() if peer != name},
            data_dir=self.data_dir / name,
        )
