"""Runbooks of planned work: switchover, pruning, keys and passwords. See test_runbooks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import monotonic_ns

import pytest
from nacl.signing import SigningKey

from ledger_api.client import NotaryClient, Party, Result
from replica.active.signer import create_key
from replica.local.cluster import ClusterSettings
from replica.local.participant import DATABASE, OWNER, ParticipantFiles
from replica.notary.answers import Notarised, Refused
from replica.notary.requests import state_ref
from tests.faults.load import outage_around
from tests.runbooks.conftest import all_well, staged, under_load
from tests.runbooks.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_200), pytest.mark.asyncio(loop_scope="session")]

RESTARTING = "Restarting one by one"


@pytest.mark.thorough
async def test_switchover(stage: Stage) -> None:
    """Goal: a hand-over on purpose, shown in the history; a pause and its end. Method: play the page under load."""
    async with under_load(stage, "switchover"):
        await all_well(stage)
        peer = (await stage.cluster.passives())[0]
        for section in ("Checks", "Steps", "Verification"):
            await stage.play("switchover", section, PEER=peer.name)
        assert await stage.cluster.active() is peer
    stage.assert_all_played("switchover")


async def test_operators_trail(stage: Stage) -> None:
    """Goal: the page finds an entry that was changed, and that it is back. Method: change one as the tables' superuser,
    play the checks, undo it."""

    async def change(name: str, to: str) -> None:
        statement = f"UPDATE operator_trail SET line = replace(line, '{name}', '{to}') WHERE number = 1"
        await stage.cluster.postgres.run_script(statement.encode(), DATABASE)

    await all_well(stage)
    await stage.play("switchover", "Steps", PEER=(await stage.cluster.passives())[0].name)
    await change('"phase":"begun"', '"phase":"done"')
    assert "TRAIL_BROKEN: entry 1" in await stage.play("operators-trail", "Checks")
    await change('"phase":"done"', '"phase":"begun"')
    await stage.play("operators-trail", "Verification")
    stage.assert_all_played("operators-trail")


@pytest.mark.thorough
async def test_parties(folder: Path, request: pytest.FixtureRequest) -> None:
    """Goal: a change of keys is in force at once, under load. Method: play the page; sign with each key after it."""
    log, old, new, lost = request.config.getoption("--log-kind"), *[SigningKey.generate() for _ in range(3)]
    name, officer = "O=Registered,L=London,C=GB", create_key(folder / "anna.key", "ed25519")
    (folder / "operators.toml").write_text(f'[[operators]]\nname = "anna"\npublic_key = "{officer.hex()}"\n')
    further = {"operators": {"key_file": str(folder / "anna.key"), "keys_file": str(folder / "operators.toml")}}
    async with staged(ClusterSettings(folder=folder / "parties", log=log, further=further)) as stage:
        variables = {
            "OFFICERS": "anna",
            "PARTY": name,
            "OLD_KEY": bytes(old.verify_key).hex(),
            "NEW_KEY": bytes(new.verify_key).hex(),
        }
        async with under_load(stage, "parties"):
            await all_well(stage)
            await stage.play("parties", "Checks", **variables)
            await stage.play("parties", "Steps", "Officers", **variables)
            assert (await refused(stage, Party(name, stage.cluster.ledger_id, old))).code == "PARTY_UNKNOWN"
            await stage.play("parties", "Steps", "A party's key", **variables)
            await stage.play("parties", "Verification", **variables)
        assert isinstance(await ask(stage, Party(name, stage.cluster.ledger_id, new)), Notarised)
        assert (await refused(stage, Party(name, stage.cluster.ledger_id, old))).code == "KEY_NOT_VALID"
        assert (await refused(stage, Party(name, stage.cluster.ledger_id, lost))).code == "PARTY_UNKNOWN"
    stage.assert_all_played("parties")


async def refused(stage: Stage, party: Party) -> Refused:
    """The refusal of a fresh request of this party."""
    answer = await ask(stage, party)
    assert isinstance(answer, Refused), answer
    return answer


@pytest.mark.slow
async def test_pruning(folder: Path, request: pytest.FixtureRequest) -> None:
    """Goal: old completions go while the notary serves. Method: a short period of deduplication; play under load."""
    log, further = request.config.getoption("--log-kind"), {"core": {"deduplication_max_s": 1.0}}
    settings = ClusterSettings(folder=folder / "pruning", log=log, further=further)
    async with staged(settings) as stage:
        async with under_load(stage, "before-pruning"):
            await asyncio.sleep(2.0)
        await asyncio.sleep(2.0)
        files = ParticipantFiles(stage.cluster.folder)
        owner = stage.cluster.postgres.dsn(DATABASE, OWNER, files.password(OWNER))
        async with under_load(stage, "pruning"):
            for section in ("Checks", "Steps", "Verification"):
                await stage.play("pruning", section, KEEP_DAYS="0", OWNER_CONNINFO=owner)
    stage.assert_all_played("pruning")


@pytest.mark.slow
async def test_key_rotation(stage: Stage) -> None:
    """Goal: each key and password is changed. Method: play part by part, under load."""
    variables = {"NEW_PASSWORD": "a-new-password", "REPLICAS": " ".join(stage.cluster.replicas)}
    await stage.play("key-rotation", "Checks", **variables)
    async with under_load(stage, "key-rotation-password"):
        await stage.play("key-rotation", "Steps", "The database's password", **variables)
        await stage.play("key-rotation", "Steps", RESTARTING, **variables)
        await stage.play("key-rotation", "Verification", **variables)
    before = stage.cluster.notary_key
    async with under_load(stage, "key-rotation-own") as load:
        began_ns = monotonic_ns()
        await stage.play("key-rotation", "Steps", "The notary's own key", **variables)
        await stage.play("key-rotation", "Steps", RESTARTING, **variables)
        await stage.play("key-rotation", "Verification", **variables)
    outage_s = outage_around(load.successes_ns(), began_ns).outage_s
    print(f"longest pause while the notary's key was changed: {outage_s:.2f} s")
    async with NotaryClient(stage.cluster.endpoint) as client:
        assert bytes.fromhex((await client.describe()).notary_key) != before
    stage.assert_all_played("key-rotation", elsewhere="The notary's own key in a service")


async def ask(stage: Stage, party: Party) -> Result:
    """The notary's answer to a fresh request of this party."""
    async with NotaryClient(stage.cluster.endpoint) as client:
        return await client.submit(party.sign(os.urandom(32), [state_ref(os.urandom(32), 0)]))
