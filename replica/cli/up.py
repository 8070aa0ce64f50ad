"""`notary up`: a whole participant on this machine, in the foreground."""

from __future__ import annotations

import asyncio
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import DATA_FOLDER, never_wait_for_readers, out, run, say
from replica.cli.profiles import KnownProfileOption, Profile, profile_of

if TYPE_CHECKING:
    from replica.local.cluster import ClusterSettings, LocalCluster


REPLICAS = 3
ENDPOINT_PORT = 8080  # of the examples in docs/api.md


class Standby(Enum):
    """What passives do."""

    FOLLOWING = "following"
    DISCONNECTED = "disconnected"


class Serving(Enum):
    """Who serves."""

    ONE = "one"
    ALL = "all"


NameArgument = Annotated[str, typer.Argument(help="Name of the cluster: everything it keeps is in data/NAME.")]
ReplicasOption = Annotated[
    int | None,
    typer.Option("--replicas", min=1, max=9, help="Replicas to run. Left out: as many as the last time; at first 3."),
]
StandbyOption = Annotated[
    Standby | None,
    typer.Option(
        "--standby", help="Whether passives follow the log or stay away. Left out: as it is set; at first they follow."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--api-workers", min=1, max=16, help="Front ends of each replica. Left out: as it is set; at first 2."
    ),
]
ServingOption = Annotated[
    Serving | None,
    typer.Option("--serving", help="Whether one replica serves or all do. Left out: as it is set; at first one."),
]
PartiesOption = Annotated[int, typer.Option("--parties", min=1, max=100, help="Parties to make keys for.")]


def run_cluster(
    name: NameArgument = "local",
    *,
    replicas: ReplicasOption = None,
    standby: StandbyOption = None,
    api_workers: WorkersOption = None,
    serving: ServingOption = None,
    parties: PartiesOption = 5,
    profile: KnownProfileOption = None,
) -> None:
    """Bring up a whole participant here, all on loopback, and keep it running until Ctrl-C.

    A new cluster is of profile embedded: replicas and log nodes, nothing else. A replica that ends is started
    again, and so is whatever it needs. What the cluster keeps, its profile, settings and keys among it, is found
    again at the next start.
    """
    from replica.local.cluster import ClusterSettings, replicas_made

    folder = DATA_FOLDER / name
    made = replicas_made(folder)
    if made is None and profile is None:
        profile = Profile.EMBEDDED
    settings = ClusterSettings(
        folder=folder,
        replicas=replicas or made or REPLICAS,
        standby=None if standby is None else standby.value,
        api_workers=api_workers,
        further={} if serving is None else {"serving": serving.value},
        parties=parties,
        endpoint_port=ENDPOINT_PORT,
        log=None if profile is None else profile.log,
        embedded=None if profile is None else profile is Profile.EMBEDDED,
    )
    try:
        run(_serve(settings))
    except KeyboardInterrupt:
        say("notary", "stopped")


async def _serve(settings: ClusterSettings) -> None:
    from replica.local.cluster import LocalCluster
    from replica.local.watch import watch_roles

    async with LocalCluster(settings, say) as cluster:
        show_where(cluster)
        never_wait_for_readers()
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_roles(cluster, say))
            group.create_task(cluster.balancer.keep(say))


def show_where(cluster: LocalCluster, *more: str) -> None:
    """Print where the running cluster is, and how to use it. `more`: further lines."""
    here = Path.cwd()
    config = cluster.config_path
    shown = config.relative_to(here) if config.is_relative_to(here) else config
    profile = profile_of(cluster.log_kind, embedded=cluster.embedded)
    out.print()
    if profile is not None:
        out.print(f"  [bold]{profile.value}[/]  is the profile, which this cluster keeps")
    out.print(f"  [bold]{cluster.endpoint}[/]  is the endpoint; curl {cluster.endpoint}/v1/notary")
    out.print(f"  {shown}  is the configuration; in another terminal: notary try, notary status, notary status-page")
    out.print(f"  {shown.parent}/parties/  has the keys of {len(cluster.parties)} registered parties")
    for folder, what in ({} if profile is None else profile.kept()).items():
        out.print(f"  {shown.parent}/{folder}/  {what}")
    for line in more:
        out.print(f"  {line}")
    out.print("  Ctrl-C stops everything\n")
