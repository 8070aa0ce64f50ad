"""A whole notary whose key is in a real key management service: outage, fail-over, rotation. Real processes."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from ledger_api.client import NotaryClient, RetryPolicy
from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, NotNow
from replica.notary.keys import known_keys
from replica.notary.receipts import verify_receipt
from tests.ends import ends_by_design, guarded
from tests.integration.test_cluster import World
from tests.runbooks.stage import Stage
from tests.worlds.kms_server import ENVIRONMENT, KmsServer

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1_200)]

BACK_MAX_S = 180.0  # the machine may be busy
NEXT = "alias/notary-2"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="kms-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


async def said(cluster: LocalCluster, *words: str, config: bool = True) -> tuple[int, str]:
    """Exit code and what a person sees, in one line."""
    given = ("--config", str(cluster.config_path)) if config else ()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "replica.cli", *words, *given),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, " ".join(printed.decode().split())


async def receipt_of(world: World) -> Any:
    """The receipt of a fresh request, which verifies by the cluster's key."""
    answer = await world.notarise_one()
    assert isinstance(answer, Notarised)
    assert verify_receipt(answer.receipt, world.cluster.notary_key)
    return answer.receipt


async def test_a_notary_whose_key_is_in_a_service(kms: KmsServer, folder: Path) -> None:
    """Goal: `[kms]` is all that it takes, and an outage of the service ends by itself. Method: notarise, kill the
    active; stop the service: what applications and people see, and a replica that starts meanwhile; start it; notarise
    what was refused; rotate by the runbook; every answer against the log and the list of keys."""
    kms.create()
    service = kms.settings().model_dump(mode="json", exclude_none=True)
    further = {"api_workers": 1, "kms": service, "core": {"sign_max_s": 3.0}}
    settings = ClusterSettings(folder=folder, parties=1, log="postgres", further=further)
    history = folder.with_name("history.jsonl")
    with history.open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            Stage(cluster, folder / "stage") as stage,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "kms") as client,
        ):
            for replica in cluster.replicas.values():
                replica.restart_pause_s = 0.5
            world = World(cluster, client, history, stream)
            assert not (folder / "notary.key").exists()
            first = await receipt_of(world)
            await world.outage_of(lambda active: cluster.kill(active.name))
            await receipt_of(world)
            await cluster.wait_until_ready(list(cluster.replicas))
            await outage(world, kms)
            await world.check()
            await rotated(world, stage, kms, first)
    await remove_cluster(folder)


async def outage(world: World, kms: KmsServer) -> None:
    """Nothing is answered that is not signed, nothing ends but a start, and all comes back with the service."""
    cluster = world.cluster
    assert (await said(cluster, "keys", "show", "--kms"))[1] == cluster.notary_key.hex()
    kms.stop()
    asked = world.fresh()
    async with NotaryClient(cluster.endpoint, RetryPolicy(deadline_s=10.0)) as application:
        answer = await application.submit(asked)
    assert isinstance(answer, NotNow), answer
    assert answer.code in {"OUTCOME_UNKNOWN", "NOT_ACTIVE"}, answer
    code, text = await said(cluster, "keys", "show", "--kms")
    assert (code, "SIGNER_UNAVAILABLE: the key management service gave no answer" in text) == (1, True), text
    assert "Traceback" not in text
    code, text = await said(cluster, "status")
    assert code == 1, text
    code, text = await said(cluster, "doctor")
    assert (code, "gave no answer" in text, "kms.endpoint" in text) == (1, True, True), text
    code, text = await said(cluster, "init", str(cluster.folder), "--check", config=False)
    assert (code, "gave no answer" in text) == (1, True), text
    code, text = await said(cluster, "pause", "the service is down")
    assert (code, "TRAIL_UNAVAILABLE" in text) == (0, True), text  # done, though the notary's key cannot sign the trail
    assert (await said(cluster, "resume"))[0] == 0
    code, text = await said(cluster, "history")
    assert (code, "signer" in text) == (0, True), text
    one = (await cluster.passives())[0]
    with ends_by_design(one):  # a start without its key gives up, and its supervisor starts it again
        await one.stop()
        one.start()
        await asyncio.sleep(3.0)
        kms.start()
        began_s = monotonic()
        async with asyncio.timeout(BACK_MAX_S):
            answer = await world.client.submit(asked)
            assert isinstance(answer, Notarised)
            print(f"first success {monotonic() - began_s:.1f} s after the service was back")
            await cluster.wait_until_ready(list(cluster.replicas), BACK_MAX_S)
    world.notarised[answer.tx_id] = answer.log_offset
    assert verify_receipt(answer.receipt, cluster.notary_key)
    assert (await said(cluster, "doctor", "--json"))[1].count("gave no answer") == 0


async def rotated(world: World, stage: Stage, kms: KmsServer, first: Any) -> None:
    """By the runbook's own commands. What the old key signed verifies as before, also once the service has disabled
    it."""
    cluster, old_id = world.cluster, kms.asked("describe_key", KeyId="alias/notary-1")["KeyMetadata"]["KeyId"]
    kms.create(NEXT)
    variables = {"NEXT_KEY": NEXT, "REPLICAS": " ".join(cluster.replicas), **ENVIRONMENT}
    stopping = asyncio.Event()

    async def submit() -> None:
        while not stopping.is_set():
            await world.notarise_one()

    async with asyncio.TaskGroup() as group:
        group.create_task(submit())
        await stage.play("key-rotation", "Steps", "The notary's own key in a service", **variables)
        await stage.play("key-rotation", "Steps", "Restarting one by one", **variables)
        await stage.play("key-rotation", "Verification", **variables)
        stopping.set()
    kms.asked("disable_key", KeyId=old_id)
    async with NotaryClient(cluster.endpoint) as application:
        described = await application.describe()
    before, cluster.notary_key = cluster.notary_key, bytes.fromhex(described.notary_key)
    assert cluster.notary_key != before
    await receipt_of(world)
    assert verify_receipt(first, before)
    listed = {key.public_key for key in known_keys(cluster.folder / "notary-keys.toml", cluster.notary_key)}
    assert listed == {before.hex(), cluster.notary_key.hex()}
    await world.check()
