"""The command `notary demo`."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replica.cli.common import DATA_FOLDER, out, run, say
from replica.cli.profiles import Profile, ProfileOption
from replica.cli.up import show_where
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK
from replica.notary.own_process import module_argv
from replica.notary.tasks import cancelled

if TYPE_CHECKING:
    from replica.cli.demo.report import DemoReport
    from replica.cli.demo.requests import RequestFile
    from replica.local.cluster import ClusterSettings, LocalCluster, LogKind

FOLDER = DATA_FOLDER / "demo"
HISTORY_NAME = "history.jsonl"
PUBLISHED_MAX_S = 30.0

ExitOption = Annotated[bool, typer.Option("--exit", help="End after the report instead of serving until Ctrl-C.")]
RequestsOption = Annotated[
    Path | None,
    typer.Option("--requests", envvar="NOTARY_REQUESTS", help="Requests to notarise: .jsonl, or compressed by gzip."),
]
JsonFileOption = Annotated[Path | None, typer.Option("--json", help="Write the report to this file.", dir_okay=False)]


MemoryOption = Annotated[
    bool,
    typer.Option("--memory-log", help="Keep the request log in memory: no broker, no Java; it ends with the demo."),
]


def run_demo(
    *,
    leave: ExitOption = False,
    requests: RequestsOption = None,
    json_file: JsonFileOption = None,
    memory_log: MemoryOption = False,
    profile: ProfileOption = Profile.REFERENCE,
) -> None:
    """See it all: notarise real requests, spend them twice, kill the active replica, and have every answer checked.

    Brings up a cluster of three replicas in data/demo, anew each time, and keeps it running afterwards. Exit code 0
    when nothing was lost and nothing was wrong, else 1.
    """
    from replica.cli.demo.requests import find_requests
    from replica.local.cluster import ClusterSettings

    found = find_requests(requests)  # reports a mistake in the file before anything is started
    say("requests", f"{len(found.requests):,} from {found.origin}" + _left_out(found))
    clean: list[bool] = []
    try:
        kind: LogKind = "memory" if memory_log else profile.log
        embedded = profile is Profile.EMBEDDED
        settings = ClusterSettings(folder=FOLDER, log=kind, embedded=embedded)
        run(_demo(found, leave, json_file, settings, clean))
    except KeyboardInterrupt:
        if not clean:
            raise
        say("notary", "stopped")
    raise typer.Exit(EXIT_OK if all(clean) else EXIT_FAILED)


async def _demo(
    requests: RequestFile, leave: bool, json_file: Path | None, settings: ClusterSettings, clean: list[bool]
) -> None:
    from replica.local.cluster import LocalCluster, remove_cluster
    from replica.local.watch import watch_roles

    if await remove_cluster(FOLDER):
        say("demo", f"the cluster of the last demo, {FOLDER}, was removed")
    async with LocalCluster(settings, say) as cluster:
        watching = asyncio.create_task(watch_roles(cluster, say))
        try:
            report = await _play(cluster, requests)
            _show(report, json_file)
            clean.append(report.clean)
            if not leave:
                show_where(cluster, *_more_to_do(cluster, requests))
                await watching
        finally:
            await cancelled(watching)


def _show(report: DemoReport, json_file: Path | None) -> None:
    out.print()
    report.print(out)
    if json_file is not None:
        json_file.write_text(json.dumps(report.document(), indent=2) + "\n")


def _more_to_do(cluster: LocalCluster, requests: RequestFile) -> tuple[str, ...]:
    first = requests.requests[0].tx_id.hex()
    return (
        f"curl {cluster.endpoint}/v1/transactions/{first}  looks the first request up",
        f"notary check {FOLDER / HISTORY_NAME}  checks every answer again",
    )


async def _play(cluster: LocalCluster, requests: RequestFile) -> DemoReport:
    """All phases, one after the other, and the check."""
    from replica.checker.history import HistoryWriter
    from replica.cli.demo.kill import kill_the_active
    from replica.cli.demo.phases import Phases
    from replica.cli.demo.report import DemoReport
    from replica.local.recording import RecordingClient
    from replica.notary.secret_files import open_not_for_others

    path = cluster.folder / HISTORY_NAME
    with open_not_for_others(path, "wb") as stream:
        async with RecordingClient(cluster.endpoint, HistoryWriter(stream), "demo") as client:
            phases = Phases(client, cluster.parties, requests.requests)
            done = [await phases.notarise(say), await phases.resubmit(say)]
            done += [await phases.double_spend(say), await phases.reuse_ids(say)]
            killed = await kill_the_active(cluster, client, cluster.parties, say)
            done.append(await phases.look_up(say))
            await cluster.wait_until_ready([killed.killed])  # it is back as a passive
    await _wait_until_published(cluster)
    say("check", "another process rereads the request log from its start and checks every answer ever given")
    check = await _check(cluster, path)
    return DemoReport(version("replicated-notary"), requests, tuple(done), killed, check)


async def _wait_until_published(cluster: LocalCluster) -> None:
    """Wait for the completions, which follow the answers a moment later: the check must see all of them."""
    from replica.local.process import ServerFailed, until

    ledgers = cluster.config.ledgers()

    async def published() -> bool:
        active = await cluster.active()
        health = None if active is None else (await cluster.healths())[active.name]
        status = await ledgers.status()
        return health is not None and status.published_offset >= health.applied_offset

    try:
        async with asyncio.timeout(PUBLISHED_MAX_S):
            await until(published)
    except TimeoutError:
        raise ServerFailed(f"completions are not published {PUBLISHED_MAX_S:g} s after the last answer") from None


async def _check(cluster: LocalCluster, history: Path) -> dict[str, Any]:
    """The report of `notary check`, run in a process of its own."""
    from replica.local.process import ServerFailed

    argv = module_argv("replica.cli", "check", str(history), "--config", str(cluster.config_path), "--json")
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise ServerFailed(f"notary check ended with code {process.returncode} and no report") from None
    return found


def _left_out(found: RequestFile) -> str:
    return f"; {found.left_out:,} left out that repeat an id or an input" if found.left_out else ""
