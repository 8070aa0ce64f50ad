"""`notary replica`: run one replica in the foreground, under a supervisor that restarts it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from replica.cli.common import CONFIG_NAME, ConfigOption, NameOption, load

if TYPE_CHECKING:
    from haproxy.render import ReplicaAddress
    from replica.config.model import Config
    from replica.wiring import ReplicaSettings


def replica_settings(config: Config, name: str) -> ReplicaSettings:
    """What the core of one replica is built from. Raises ConfigError when no replica has that name."""
    from replica.wiring import ReplicaSettings, front_end_argv

    address = config.replica(name)
    api = config.api.model_copy(update={"host": address.host, "port": address.api_port})
    return ReplicaSettings(
        name=name,
        version=version("replicated-notary"),
        folder=config.replica_dir(name),
        archive=config.archive.folder if isinstance(config.archive.folder, Path) else None,
        notary_signer=config.notary_signer,
        notary_keys_file=config.notary_keys_file,
        database=config.ledgers(name),
        ledgers_now=lambda: config.ledgers(name),
        health_host=address.host,
        health_port=address.health_port,
        api_workers=config.api_workers,
        front_end_argv=front_end_argv(),
        front_end_drain_max_s=api.drain_max_s,
        front_end_document=api.model_dump(mode="json"),
        proxy_document=_proxy_document(config, address),
        log=config.log.beside(name),
        election=config.election,
        core=config.core,
        link=config.link,
        admin=config.admin,
        operators=config.operators,
        signatories=config.signatories,
        tracing=config.tracing,
        admin_socket=config.admin_socket(name),
        peers=tuple(replica.name for replica in config.replicas),
        barred=frozenset(replica.name for replica in config.replicas if not replica.may_lead),
        serving=config.serving,
        cluster=config.cluster,
        endpoint=config.endpoint_url,
        host_names=config.known_hosts,
        listing=config.listing.model_dump(mode="json"),
        site=config.site,
        site_witness=config.site_witness,
        health_urls={replica.name: f"http://{replica.host}:{replica.health_port}" for replica in config.replicas},
    )


def _proxy_document(config: Config, address: ReplicaAddress) -> dict[str, object] | None:
    if address.proxy_port is None:
        return None
    tls = {} if config.api.tls is None else {"handshake_max_s": config.api.tls.handshake_max_s}
    return {"port": address.proxy_port, "sources": config.haproxy_settings().proxies, **tls}


def run(name: NameOption, config: ConfigOption = Path(CONFIG_NAME)) -> None:
    """Run one replica, core and front ends, until SIGTERM.

    Exit code 1: start it again. Exit code 2: a person is needed first.
    """
    from replica.process import run_replica

    raise typer.Exit(run_replica(replica_settings(load(config), name)))
