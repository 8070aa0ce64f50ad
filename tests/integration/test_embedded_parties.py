"""Keys in the log of a participant without a database: officers, rules 3, and fail-overs between. Real processes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey

from ledger_api.client import Party
from replica.active.signer import create_key
from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, Refused
from replica.notary.requests import Submission, state_ref
from tests.ends import guarded
from tests.integration.test_cluster import World
from tests.integration.test_embedded_archive import notary
from tests.integration.test_embedded_profile import double_spend, ledgers

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1_800)]

READY_MAX_S = 120.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="keys-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


def of(party: Party) -> Submission:
    """A fresh request."""
    return party.sign(os.urandom(32), [state_ref(os.urandom(32), 0)])


async def refusal(world: World, submission: Submission) -> str:
    answer = await world.client.submit(submission)
    assert isinstance(answer, Refused), answer
    return answer.code


async def fail_over(world: World) -> None:
    """The active dies with its log node, and comes back."""
    cluster = world.cluster
    before = await cluster.wait_for_active()
    cluster.kill(before.name)
    await cluster.wait_for_active(other_than=before.name)
    await world.notarise_one()
    await cluster.wait_until_ready(list(cluster.replicas), READY_MAX_S)


async def keep_the_officer(world: World) -> None:
    """The first officer, of the genesis, names herself once more."""
    (anna,) = (await notary(world.cluster, "party", "list"))["officers"]
    await notary(world.cluster, "party", "officers", "anna", "--reason", "she stays")
    assert (await notary(world.cluster, "party", "list"))["officers"] == [anna]
    assert await rules_in_force(world.cluster) == {3}


async def rules_in_force(cluster: LocalCluster) -> set[int]:
    await cluster.wait_until_ready(list(cluster.replicas), READY_MAX_S)
    return set((await notary(cluster, "format", "show"))["rules_in_force"].values())


@pytest.mark.parametrize("serving", ["one", "all"])
async def test_keys_are_in_the_log_without_a_database(folder: Path, serving: str) -> None:
    """Goal: an officer's word is in force from its place in the log on, whoever leads, with no database at all. Method:
    a key before, under and after its registration, across fail-overs; a retry of what it signed;
    rotate; the list, an export, the audit of log and ledgers; start everything again. With one that serves, and all."""
    officer = create_key(folder.with_name("anna.key"), "ed25519")
    people = folder.with_name("operators.toml")
    people.write_text(f'[[operators]]\nname = "anna"\npublic_key = "{officer.hex()}"\n')
    further: dict[str, Any] = {
        "api_workers": 1,
        "serving": serving,
        "operators": {"key_file": str(folder.with_name("anna.key")), "keys_file": str(people)},
    }
    settings = ClusterSettings(folder=folder, parties=1, log="raft", embedded=True, further=further)
    history = folder.with_name("history.jsonl")
    old_key, new_key = SigningKey.generate(), SigningKey.generate()
    with history.open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "keys") as client,
        ):
            world = World(cluster, client, history, stream)
            old, new = (Party("O=Registered,L=London,C=GB", cluster.ledger_id, key) for key in (old_key, new_key))
            await cluster.wait_until_ready(list(cluster.replicas))
            await keep_the_officer(world)
            assert await refusal(world, of(old)) == "PARTY_UNKNOWN"
            await notary(cluster, "party", "add", old.name, old.public_key.hex(), "--reason", "a new party")
            first = of(old)
            notarised = await client.submit(first)
            assert isinstance(notarised, Notarised)
            await fail_over(world)
            assert isinstance(await client.submit(of(old)), Notarised)
            rotated = await notary(
                cluster, "party", "rotate", old.name, old.public_key.hex(), new.public_key.hex(), "--reason", "yearly"
            )
            assert len(rotated["log_offsets"]) == 2
            assert isinstance(await client.submit(of(new)), Notarised)
            revoked = await notary(cluster, "party", "revoke", old.name, old.public_key.hex(), "--reason", "lost")
            assert await refusal(world, of(old)) == "KEY_NOT_VALID"
            await fail_over(world)
            assert await refusal(world, of(old)) == "KEY_NOT_VALID"
            again = await client.submit(first)
            assert isinstance(again, Notarised)
            assert (again.log_offset, again.duplicate) == (notarised.log_offset, True)
            await double_spend(world)
            assert await rules_in_force(cluster) == {3}
            listed = (await notary(cluster, "party", "list"))["keys"]
            ours = {one["key"]: (one["in_force"], one["offset"]) for one in listed if one["party"] == old.name}
            assert ours[old.public_key.hex()] == (False, revoked["log_offsets"][0])
            assert ours[new.public_key.hex()][0]
            await exported(cluster, folder.with_name("parties.jsonl"))
            await world.check()
            own = await ledgers(world)
            assert own[0] == own[1] == own[2]
            found = await notary(cluster, "audit")
            assert (found["clean"], found["findings"]) == (True, [])
        async with guarded(LocalCluster(ClusterSettings(folder=folder, parties=1))) as cluster:
            assert await rules_in_force(cluster) == {3}
            async with RecordingClient(cluster.endpoint, HistoryWriter(stream), "after") as client:
                world = World(cluster, client, history, stream, world.notarised)
                assert await refusal(world, of(old)) == "KEY_NOT_VALID"
                assert isinstance(await client.submit(of(new)), Notarised)
                await world.check()
    await remove_cluster(folder)


async def exported(cluster: LocalCluster, file: Path) -> None:
    """Every act is in the export, signed; and none is missing at its end."""
    argv = [sys.executable, "-m", "replica.cli", "party", "export", "--config", str(cluster.config_path)]
    with file.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(*argv, stdout=stream, stderr=asyncio.subprocess.DEVNULL)
        assert await process.wait() == 0
    assert len(file.read_bytes().splitlines()) == 6  # officers, import, add, two of rotate, revoke
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "replica.cli", "party", "verify", str(file))
    assert await process.wait() == 0
