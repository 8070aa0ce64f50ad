"""The profiles beside one another, each as `notary up` runs it: start, memory, throughput, outages: `--only profiles`.

Keys are `profile_<profile>_<figure>`; `profile_batch_ratio` and `profile_stream_ratio` are of the embedded profile over
the reference one. Nothing here is a part of this process but the load: each trial is a command of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic

from haproxy.render import Endpoint
from ledger_api.client import NotaryClient, Party, success_of
from replica.cli.profiles import Profile
from replica.local.cluster import remove_cluster
from replica.local.participant import PARTIES, party_name
from replica.notary.requests import state_ref
from tests.bench.conditions import add_machine
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.profile_outages import Faults, measure_profile_outages
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.stream import measure_rate
from tests.bench.usage import cpu_s, memory_mib, with_descendants
from tests.closing import ended

PROFILES = (Profile.REFERENCE, Profile.POSTGRES, Profile.EMBEDDED)
PACKAGES = ("confluent-kafka", "rocksdict", "psycopg", "aiohttp", "uvloop", "msgspec", "pynacl")
REPLICAS = (3, 1)  # that a start is measured with
UP_MAX_S = 180.0
NAME = "local"
_ENDPOINT = re.compile(r"http://([\d.]+):(\d+)\s+is the endpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A running `notary up`."""

    pid: int
    endpoint: Endpoint
    parties: list[Party]

    @property
    def url(self) -> str:
        """Where applications are sent."""
        return f"http://{self.endpoint.host}:{self.endpoint.port}"

    async def notarise_one(self) -> None:
        """Submit one request. Raises what the client raises: nothing was notarised."""
        async with NotaryClient(self.url) as client:
            states = [state_ref(os.urandom(32), 0)]
            success_of(await client.submit(self.parties[0].sign(os.urandom(32), states)))

    def cpu_s(self) -> float:
        """Processor time of all that so far: what a start takes on an idle machine, whatever else runs on this one."""
        return cpu_s(with_descendants({"all": [self.pid]}))["all"]

    def memory_mib(self) -> float:
        """Proportional set size of everything that the command started, and of itself."""
        return memory_mib(with_descendants({"all": [self.pid]}))["all"]


@asynccontextmanager
async def running(profile: Profile, replicas: int, front_ends: int) -> AsyncIterator[Trial]:
    """`notary up` in an empty folder, once it says where its endpoint is."""
    home = Path(mkdtemp(prefix="profile-"))
    home.chmod(0o755)  # Postgres may run as an account of its own
    argv = ["up", NAME, "--profile", profile.value, "--replicas", str(replicas), "--api-workers", str(front_ends)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "replica.cli", *argv), cwd=home, env=_environment(), stdout=PIPE
    )
    try:
        endpoint = await _endpoint(process)
        folder = home / "data" / NAME / PARTIES
        async with NotaryClient(f"http://{endpoint.host}:{endpoint.port}") as client:
            ledger_id = (await client.describe()).ledger_id
        keys = {party_name(number): folder / f"bank-{number}.key" for number in range(1, 6)}
        parties = [Party.from_file(name, ledger_id, key) for name, key in keys.items()]
        yield Trial(pid=process.pid, endpoint=endpoint, parties=parties)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    finally:
        await ended(process)
        await remove_cluster(home / "data" / NAME)
        shutil.rmtree(home, ignore_errors=True)


async def measure_profiles(folder: Path, sizes: Sizes, report: Report) -> None:
    """All of them, one after the other. Raises Violation, and what a failed trial raises."""
    add_machine(report, PACKAGES)
    report.line("each profile", "as `notary up` runs it here: one broker, one database without a standby; all on this")
    report.line("", "machine, with the load; HAProxy in front, of the embedded profile a forwarder")
    for profile in PROFILES:
        await _measure_starts(profile, sizes, report)
        await _measure_load(profile, folder, sizes, report)
    for name, ratio in ratios(report.figures).items():
        report.add(f"profile_{name}_ratio", round(ratio, 3), f"{name}, embedded over reference", f"{ratio:.2f}")
    faults = Faults(kills=sizes.kills, kills_with_node=sizes.kills, freezes=2 * sizes.freezes)
    for profile in PROFILES:
        await measure_profile_outages(folder / profile.value, profile, faults, report)


def ratios(figures: Mapping[str, object]) -> dict[str, float]:
    """Throughput of the embedded profile over the reference profile's. Raises KeyError for what was not measured."""
    return {
        name: float(str(figures[f"profile_embedded_{name}_tps"])) / float(str(figures[f"profile_reference_{name}_tps"]))
        for name in ("batch", "stream")
    }


async def _measure_starts(profile: Profile, sizes: Sizes, report: Report) -> None:
    """From the command in an empty folder to the first notarised request, and the memory of all of it then."""
    report.section(f"Profile {profile.value}: `notary up` in an empty folder, one front end each")
    for replicas in REPLICAS:
        took_s, busy_s, used_mib = list[float](), list[float](), list[float]()
        for _ in range(sizes.starts):
            began_s = monotonic()
            async with running(profile, replicas, front_ends=1) as trial:
                await trial.notarise_one()
                took_s.append(monotonic() - began_s)
                busy_s.append(trial.cpu_s())
                used_mib.append(await asyncio.to_thread(trial.memory_mib))
        of = "1_replica" if replicas == 1 else f"{replicas}_replicas"
        name = f"profile_{profile.value}_{of}"
        report.add_runs(f"{name}_first_s", took_s, f"{replicas} replicas, first notarised request after", "s")
        report.add_runs(f"{name}_first_cpu_s", busy_s, f"{replicas} replicas, processor time until then", "s")
        report.add_runs(f"{name}_memory_mib", used_mib, f"{replicas} replicas, memory (PSS) then", "MiB")


async def _measure_load(profile: Profile, folder: Path, sizes: Sizes, report: Report) -> None:
    """Throughput through the one endpoint, with three replicas, and memory after it."""
    name = f"profile_{profile.value}"
    async with running(profile, 3, front_ends=1) as trial:
        load = LoadGenerator(folder / "bodies", trial.parties)
        warm = await load.warm_up(trial.endpoint, BATCH)
        results = await load.measure(trial.endpoint, BATCH, sizes.runs, sizes.run_s, warm)
        rates = [result.per_second * BATCH.per_body for result in results]
        report.add_runs(f"{name}_batch_tps", rates, "batches, 3 replicas, one front end each", "submissions/s")
        rates = await measure_rate(trial.endpoint, trial.parties, sizes)
        report.add_runs(f"{name}_stream_tps", rates, "streams", "submissions/s")
        used_mib = await asyncio.to_thread(trial.memory_mib)
        report.add(f"{name}_memory_loaded_mib", used_mib, "memory (PSS) after this load", f"{used_mib:.0f} MiB")
    shutil.rmtree(folder / "bodies", ignore_errors=True)


def _environment() -> dict[str, str]:
    """This clone on the path: the folder of the trial is elsewhere."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


async def _endpoint(process: asyncio.subprocess.Process) -> Endpoint:
    """What it prints once it serves. Raises RuntimeError, with what it printed, if it ends before."""
    assert process.stdout is not None
    printed = ""
    async with asyncio.timeout(UP_MAX_S):
        async for line in process.stdout:
            printed += line.decode()
            if found := _ENDPOINT.search(printed):
                return Endpoint(host=found[1], port=int(found[2]))
    raise RuntimeError(f"notary up ended: {printed}")
